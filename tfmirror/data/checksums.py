"""Recognises MNIST and Fashion-MNIST by their content, whatever they are called.

    check("fashion_mnist", {("train", "images"): (path, images), ...})  # InputError

Their files have the same names and shapes, and an uncompressed IDX file contains no
checksum. A part of a file is recognised as well, in any order.
"""

import hashlib
import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tfmirror import errors

# SHA-256 of the values, without the header -> dataset, split, kind. Computed from the
# files at https://ossci-datasets.s3.amazonaws.com/mnist and
# http://fashion-mnist.s3-website.eu-central-1.amazonaws.com.
KNOWN = {
    "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757": (
        "mnist", "train", "images"),
    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13": (
        "mnist", "train", "labels"),
    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161": (
        "mnist", "eval", "images"),
    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5": (
        "mnist", "eval", "labels"),
    "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012": (
        "fashion_mnist", "train", "images"),
    "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7": (
        "fashion_mnist", "train", "labels"),
    "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a": (
        "fashion_mnist", "eval", "images"),
    "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9": (
        "fashion_mnist", "eval", "labels"),
}  # fmt: skip
NUM_EXAMPLES = {"train": 60_000, "eval": 10_000}
NAMES = {name for name, _, _ in KNOWN.values()}

# BLAKE2b, 8 bytes, of single images: the first, the last and 14 between them, none of
# which occurs twice in the four files.
IMAGES = {
    ("mnist", "train"):
        "bf5851cc6f9764ee 948631283a321e49 0e55a2bb19eed4a6 b2433ec5e25116b4 "
        "dcece625172f48eb a9f1818e8483dce8 667a5285c2acf98c 6e0cbb2c7b0d01d2 "
        "397a7ad3da178eea 8bf7a9c07016d61c 2d6e1de77d2c98bd f6c1977a14959782 "
        "b8da7ab654c10236 15471926807a2494 94289f4069ea20a4 8b3e48f81a45e44a",
    ("mnist", "eval"):
        "47c9e1ee75b4bd99 477daa18de812ed2 3d438f26df4a1268 1e293ffe38ffda7e "
        "a8c1a57552015dd4 cf905bb0a4b25ede 189a9adc915f1707 e986f06afa8f6e31 "
        "2757b35eddcb1144 4e7a3fe1a99cb86b 7a703acfedc05d0f 3c23535bdbb645b2 "
        "5d643c380699f9d1 e50a55b3ec493efb 77f483e6db0d6c5e ace959feb9144a59",
    ("fashion_mnist", "train"):
        "0da2d786e0127ea2 73dc98406310deef 8a3c8561392f18f6 636628939f77ce36 "
        "b8a4ad705ff7009e 585198f2d04eb0cb fbd2385e68e8345a 8f5c3265ac956040 "
        "df756e4ab53e7318 c5cfcd1421f56c0c 864de543696c1422 92d2b47e81bb1cde "
        "9fe0f02f5d4ac6aa 405386166117700e e41165d72dfc31bf a8e5afbb5500d741",
    ("fashion_mnist", "eval"):
        "e379b7511e026f21 b19c0f086aef83f9 290486c122ef10c0 a25ce0f14d369877 "
        "e338faed457ce6b4 8c2125fe57cdf36b d5efbb2782f5d02d 0bd3b8e68b5e97c2 "
        "d018618a84dd344d b85da7efd2517121 01bb5877cb45be5e 1e2e3bfa54eca929 "
        "d46994587c76e80c cf861c4b94a16182 9c559b0f8ff82255 ebf0a74e0e12a6d1",
}  # fmt: skip
OF_IMAGE = {
    bytes.fromhex(digest): (name, split, "images")
    for (name, split), digests in IMAGES.items()
    for digest in digests.split()
}
NUM_PIXELS = 28 * 28

# SHA-256 of the first labels of a file.
NUM_FIRST_LABELS = 64
OF_FIRST_LABELS = {
    "6b97cd99a2401aa9634c6d3f0a6977944e56bd800bf933144fa625bc6e528953": (
        "mnist", "train", "labels"),
    "9e0e6fbe6a571a65a24c749d0289c7005a8b4dbc77827e756eae5d532b205913": (
        "mnist", "eval", "labels"),
    "7ee6f7e733e7da0f81425151b3b7da35c63b1f63a12c95b780755eb4721e73df": (
        "fashion_mnist", "train", "labels"),
    "b191f45ac11924ba8ecf69a2d88fe56384dff25121cfa1aabb9f423a8c136902": (
        "fashion_mnist", "eval", "labels"),
}  # fmt: skip

# Names that promise published data, spelled as in tensorflow-datasets. Data that are
# recognised as something else are not accepted under them.
PUBLISHED = (
    "mnist", "fashion_mnist", "kmnist", "qmnist", "k49", "cifar10", "cifar100",
    "svhn_cropped", "emnist", "emnist/balanced", "emnist/byclass", "emnist/bymerge",
    "emnist/digits", "emnist/letters", "emnist/mnist",
)  # fmt: skip


class Known(NamedTuple):
    """What an array was recognised as."""

    name: str  # of the dataset
    split: str  # "train" or "eval"
    kind: str  # "images" or "labels"
    is_whole: bool  # all examples, in their order, without a change

    def __str__(self) -> str:
        """Returns a phrase for people: "the training images of mnist"."""
        part = "" if self.is_whole else "a part of "
        return f"{part}the {describe(self.name, self.split, self.kind)}"


# {(split, kind): (path of the file, its values)}: images [E, H, W], labels [E], uint8
Arrays = Mapping[tuple[str, str], tuple[pathlib.Path, np.ndarray]]


def check_spelling(name: str) -> None:
    """Raises InputError if `name` is that of published data, spelled in another way."""
    plain = {re.sub(r"[/_]", "", known): known for known in PUBLISHED}
    spelled = plain.get(re.sub(r"[/_.-]", "", name.lower()), name)
    if spelled != name:
        raise errors.InputError(f"dataset must be spelled {spelled}: got {name!r}")


def recognise(array: np.ndarray) -> Known | None:
    """Returns what an array is known as; None: it is not known.

    Args:
      array: [E, ...] uint8; labels have one dimension, images more.
    """
    content = np.ascontiguousarray(array)
    if found := KNOWN.get(hashlib.sha256(content.data).hexdigest()):
        return Known(*found, is_whole=True)
    if array.ndim == 1:
        first = content[:NUM_FIRST_LABELS].tobytes()
        found = OF_FIRST_LABELS.get(hashlib.sha256(first).hexdigest())
    elif array[0].size == NUM_PIXELS:
        digests = (hashlib.blake2b(image.data, digest_size=8) for image in content)
        found = next(filter(None, (OF_IMAGE.get(d.digest()) for d in digests)), None)
    return Known(*found, is_whole=False) if found else None


def check(name: str, arrays: Arrays) -> str:
    """Returns what the data are known as, as text for people: "" or "which are ...".

    Args:
      name: of the dataset that the arrays should belong to; one that is not in
        `PUBLISHED` may have any data.

    Raises:
      InputError: `name` is in `PUBLISHED`, and arrays are known to be other data. Or it
        is in `NAMES`, and an array has as many examples as the original, but other
        values.
    """
    found = {key: recognise(array) for key, (_, array) in arrays.items()}
    if name in PUBLISHED:
        _check_names(name, arrays, found)
    if name in NAMES:
        _check_is_undamaged(name, arrays, found)
    if name in NAMES and not any(found.values()):
        return f"which are not the published {name}"
    return _known_as(name, found)


def check_images(
    name: str,
    folder: pathlib.Path,
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> str:
    """Returns the same as `check`, for images and labels in any order.

    Args:
      name: of the dataset that the images should belong to.
      folder: where they are, for the error.
      splits: for "train" and "eval", images [E, H, W, C] uint8 and labels [E].

    Raises:
      InputError: `name` is in `PUBLISHED`, and images are known to be other data.
    """
    arrays = {
        (split, "images"): (folder, images) for split, (images, _) in splits.items()
    }
    found = {key: recognise(images) for key, (_, images) in arrays.items()}
    if name in PUBLISHED:
        _check_names(name, arrays, found)
        return ""
    return _known_as(name, found)


def _known_as(name: str, found: Mapping[tuple[str, str], Known | None]) -> str:
    """Returns what arrays were found to be, as text for people; "" for `name`."""
    if all(k and key == k[1:3] for key, k in found.items()):
        known = [k for k in found.values() if k]
        is_whole = all(k.is_whole for k in known)
        names = {k.name for k in known}
        if is_whole and names == {name}:
            return ""
        part = "" if is_whole else "a part of "
        return f"which are {part}{' and '.join(sorted(names))}"
    listed = "; ".join(
        f"{describe('', *key)} are {k}" for key, k in found.items() if k is not None
    )
    return f"whose {listed}" if listed else ""


def _check_names(
    name: str, arrays: Arrays, found: Mapping[tuple[str, str], Known | None]
) -> None:
    """Raises InputError if an array was found to be no part of `name`."""
    names = {known.name for known in found.values() if known}
    for key, known in found.items():
        path = arrays[key][0]
        if not known or (name, *key) == known[:3]:
            continue
        if known.name == name:
            advice = (
                "training and test files are exchanged, or one is there twice: give "
                "each file the name of what it holds"
            )
        elif len(names) == 1:
            advice = f"use --dataset={known.name}, or the files of {name}"
        else:
            advice = f"replace this file with that of {name}"
        raise errors.InputError(
            f"{path}: expected the {describe(name, *key)}, got {known}; {advice}"
        )


def _check_is_undamaged(
    name: str, arrays: Arrays, found: Mapping[tuple[str, str], Known | None]
) -> None:
    """Raises InputError if an array has the length of `name`'s, but other values."""
    for key, (path, array) in arrays.items():
        known = found[key]
        is_whole = known is not None and known.is_whole
        if len(array) == NUM_EXAMPLES[key[0]] and not is_whole:
            raise errors.InputError(
                f"{path}: has as many examples as the {describe(name, *key)}, "
                "but other values, so it is damaged or changed; replace it with a good "
                "copy, or give changed data another --dataset name"
            )


def describe(name: str, split: str, kind: str) -> str:
    """Returns a phrase for people: "training images of mnist".

    Args:
      name: of the dataset; empty: it is left out.
      split: "train" or "eval".
      kind: "images" or "labels".
    """
    split_name = {"train": "training", "eval": "test"}[split]
    return f"{split_name} {kind}" + (f" of {name}" if name else "")
