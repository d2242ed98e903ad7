"""The settings of image folders: when they have an effect, and what their texts mean.

check("digits", settings)                           # InputError: image_size has no ...
parse_size("28x32")                                 # (28, 32)
"""

import re
import typing

from tfmirror import errors
from tfmirror.train_config import TrainConfig

FOLDER = "folder"  # the dataset that is any folder of images
NAMES = ("image_size", "channels", "eval_fraction", "data_in_memory")
DEFAULT_CHANNELS = 3


def check(dataset: str | None, settings: typing.Any) -> None:
    """Raises InputError if a setting of `NAMES` is wrong or has no effect.

    Args:
      dataset: name of the dataset; None: not known yet, so any setting may have one.
      settings: what has some or all of the settings as attributes; None: not given.
    """
    given = {name: getattr(settings, name, None) for name in NAMES}
    parse_size(given["image_size"] or "")
    channels, fraction = given["channels"] or 0, given["eval_fraction"] or 0
    errors.require(channels in (0, 1, 3), "channels", channels, "1 or 3 (0: 3)")
    errors.require(0 <= fraction < 1, "eval_fraction", fraction, "in [0, 1)")
    for name, value in given.items():
        if dataset not in (None, FOLDER) and value:
            if value != getattr(TrainConfig, name):
                raise errors.InputError(
                    f"{name} has an effect with dataset={FOLDER} alone: got "
                    f"{errors.shown(value)} with dataset={dataset}; remove it"
                )


def parse_size(given: str | tuple[int, ...]) -> tuple[int, ...]:
    """Returns (H, W) of a text such as "28x32"; () for an empty one.

    Raises:
      InputError: it is something else.
    """
    if isinstance(given, tuple):
        return given
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", given, re.ASCII)
    expected = "height x width in pixels, at most 9999, such as 64x64, or empty"
    errors.require(found or not given, "image_size", given, expected)
    return (int(found[1]), int(found[2])) if found else ()


def resolve_channels(dataset: str, channels: int) -> int:
    """Returns the channels of a folder's images; 0 for other datasets."""
    return channels or (DEFAULT_CHANNELS if dataset == FOLDER else 0)
