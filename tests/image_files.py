"""Writes folders of generated images, some of them odd and some damaged.

python tests/image_files.py FOLDER [NUM_IMAGES NUM_CLASSES SMALLEST LARGEST]
"""

import pathlib
import sys

import numpy as np
import PIL.ExifTags
import PIL.Image


def make_picture(rng, height, width):
    """Returns [height, width, 3] uint8: a smooth coloured picture."""
    coarse = rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return np.asarray(PIL.Image.fromarray(coarse).resize((width, height)))


def write_folder(folder, num_images=24, num_classes=2, sides=(20, 40), seed=0):
    """Writes JPEG files in colour: folder/c00/0000.jpg and so on; returns their paths.

    Sides are uniform in `sides`, both included.
    """
    rng, paths = np.random.default_rng(seed), []
    for number in range(num_images):
        place = folder / f"c{number % num_classes:02}"
        place.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(sides[0], sides[1] + 1, 2).tolist()
        path = place / f"{number:04}.jpg"
        PIL.Image.fromarray(make_picture(rng, height, width)).save(path, quality=90)
        paths.append(path)
    return paths


def oriented(orientation):
    """Returns EXIF data with an orientation."""
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = orientation
    return exif


def write_odd(folder, rng, side=30):
    """Writes images that are whole and unlike others; returns {kind: path}.

    They are as high as `side`, and half as wide again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    colour = make_picture(rng, side, side * 3 // 2)
    grey = colour[..., 0]
    image = PIL.Image.fromarray
    ramp = np.linspace(0, 255, grey.size).reshape(grey.shape).astype(np.uint8)
    palette = image(colour).quantize(16)
    frames = [image(colour), image(255 - colour)]
    paths = {}

    def save(kind, what, ending, **options):
        paths[kind] = folder / f"odd {kind}{ending}"
        what.save(paths[kind], **options)

    save("lying", image(colour), ".JPG", exif=oriented(6), quality=95)
    save("cmyk", image(colour).convert("CMYK"), ".jpeg")
    save("palette", palette, ".png")
    save("transparent palette", palette, ".PNG", transparency=3)
    save("alpha", image(np.dstack([colour, ramp])), ".png")
    save("grey with alpha", image(np.dstack([grey, ramp])), ".png")
    save("16 bits", image(grey.astype(np.uint16) * 257 + 13), ".png")
    save("two colours", image(grey > 128), ".png")
    save("frames", frames[0], ".gif", save_all=True, append_images=frames[1:])
    save("bitmap", image(colour), ".bmp")
    return paths


def write_damaged(folder, whole):
    """Writes six files that are no whole images; returns their paths.

    Args:
      whole: the path of a JPEG file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = whole.read_bytes()
    contents = {
        "cut.jpg": content[: len(content) // 2],
        "empty.png": b"",
        "text.jpg": b"<html>404</html>",
        "zeros.png": bytes(1000),
        "cut.gif": b"GIF89a\x01",
        "head.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x09",
    }
    for name, damaged in contents.items():
        (folder / name).write_bytes(damaged)
    return [folder / name for name in contents]


def main(folder, num_images=3000, num_classes=40, smallest=200, largest=1000):
    """Writes folder/train and folder/val; returns the paths of the damaged files."""
    folder = pathlib.Path(folder)
    sides = int(smallest), int(largest)
    train = write_folder(folder / "train", int(num_images), int(num_classes), sides)
    write_folder(folder / "val", 2 * int(num_classes), int(num_classes), sides, seed=1)
    write_odd(folder / "train/c00", np.random.default_rng(2), sides[0])
    return write_damaged(folder / "train/c01", train[0])


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n")
