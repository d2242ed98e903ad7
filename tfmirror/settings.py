"""A setting: one dataclass field that holds everything there is to say about it.

    @dataclasses.dataclass(frozen=True)
    class EvaluateConfig:
        gpus: int = setting_of(TrainConfig, "gpus")
        top_k: int = setting(1, "classes to count", group="Output", minimum=1)

    check_fields(EvaluateConfig(top_k=0))      # InputError: top_k must be at least 1

`tfmirror.flags` makes a flag from each of them.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

from tfmirror import errors

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Weights and learning rates are float32, and counters int32: beyond these a value would
# become infinite, 0 or negative on its way.
LARGEST_INT = 2**31 - 1
LARGEST_FLOAT = 3.4028234663852886e38
SMALLEST_FLOAT = 1.1754943508222875e-38  # above 0, with all its digits

OnResume = typing.Literal["same", "override", "free"]
# (choices, value): raises InputError if the value is not allowed
CheckChoice = Callable[[Sequence[str], str], None]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is known of a setting besides its name, type and default."""

    help: str
    group: str
    choices: tuple[str, ...] = ()
    check_choice: CheckChoice | None = None
    is_list: bool = False
    minimum: float | None = None
    maximum: float | None = None
    zero_means: str = ""
    none_means: str = ""
    on_resume: OnResume = "same"
    was_bool: tuple[str, str] | None = None


def setting(
    default: typing.Any,
    help: str,
    *,
    group: str,
    choices: Iterable[str] = (),
    check_choice: CheckChoice | None = None,
    is_list: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    zero_means: str = "",
    none_means: str = "",
    on_resume: OnResume = "same",
    was_bool: tuple[str, str] | None = None,
) -> typing.Any:
    """Returns a dataclass field with all that --help, the checks and a resume need.

    Args:
      default: value of the field unless it is given.
      help: text for --help: meaning, unit, and what an empty text means.
      group: heading in --help that the flag stands under.
      choices: the values allowed; none: not restricted.
      check_choice: says what is allowed besides `choices`; None: nothing is.
      is_list: whether the value is a comma-separated text.
      minimum: smallest number allowed; None: not restricted here.
      maximum: largest number allowed; None: the largest int32 or float32.
      zero_means: what 0 means, for --help and errors; sets `minimum` to 0.
      none_means: what a default of None means, for --help.
      on_resume: "same": a resumed run must have the same value. "override": it may
        have another one if resume_override names the setting. "free": it may always
        have another one, since the value does not affect what is computed.
      was_bool: for a setting that was a bool in earlier versions, the texts that False
        and True stand for: in their records, and for --NAME and --noNAME.
    """
    if zero_means and minimum is None:
        minimum = 0
    described = Setting(
        help,
        group,
        tuple(choices),
        check_choice=check_choice,
        is_list=is_list,
        minimum=minimum,
        maximum=maximum,
        zero_means=zero_means,
        none_means=none_means,
        on_resume=on_resume,
        was_bool=was_bool,
    )
    return dataclasses.field(default=default, metadata={"setting": described})


def setting_of(
    settings_class: "type[DataclassInstance]",
    name: str,
    default: typing.Any = dataclasses.MISSING,
    **changes: typing.Any,
) -> typing.Any:
    """Returns a field like the one called `name` in another settings class.

    Args:
      settings_class: the class that has the field.
      default: value of the new field unless it is given; MISSING: the same.
      changes: arguments of `setting` that differ, such as none_means.
    """
    (source,) = (f for f in dataclasses.fields(settings_class) if f.name == name)
    described = dataclasses.replace(describe(source), on_resume="same", **changes)
    if default is dataclasses.MISSING:
        default = source.default
    return dataclasses.field(default=default, metadata={"setting": described})


def positional_arguments(usage: str) -> typing.Any:
    """Returns a field, a tuple of texts, for the arguments that are not flags.

    Args:
      usage: how --help writes them, such as "RUN_DIR...".
    """
    return dataclasses.field(default=(), metadata={"arguments": usage})


def describe(field: "dataclasses.Field[typing.Any]") -> Setting:
    """Returns the Setting of a field made by `setting` or `setting_of`."""
    return field.metadata["setting"]


def flag_fields(
    settings_class: "type[DataclassInstance] | DataclassInstance",
) -> "list[dataclasses.Field[typing.Any]]":
    """Returns the fields that are flags: all but the `positional_arguments`."""
    return [f for f in dataclasses.fields(settings_class) if "setting" in f.metadata]


def arguments_field(
    settings_class: "type[DataclassInstance]",
) -> "dataclasses.Field[typing.Any] | None":
    """Returns the field made by `positional_arguments`; None: the class has none."""
    fields = dataclasses.fields(settings_class)
    return next((f for f in fields if "arguments" in f.metadata), None)


def names_with(
    settings_class: "type[DataclassInstance]", on_resume: OnResume
) -> tuple[str, ...]:
    """Returns the names of the settings that have this `on_resume`."""
    fields = flag_fields(settings_class)
    return tuple(f.name for f in fields if describe(f).on_resume == on_resume)


def of_recorded(
    settings_class: "type[DataclassInstance]",
    recorded: Mapping[str, typing.Any],
) -> dict[str, typing.Any]:
    """Returns recorded settings with the values that earlier versions wrote as now.

    Args:
      recorded: {name: value}, of a config.json or a checkpoint.
    """
    current = dict(recorded)
    for field in flag_fields(settings_class):
        texts, value = describe(field).was_bool, recorded.get(field.name)
        if texts and isinstance(value, bool):
            current[field.name] = texts[value]
    return current


def check_fields(settings: "DataclassInstance") -> None:
    """Checks every field of `settings` against its own type, choices and limits.

    A None is not checked: it means that the setting was not given.

    Raises:
      InputError: a value is not allowed; the first one in the order of the fields.
    """
    for field in flag_fields(settings):
        value, described = getattr(settings, field.name), describe(field)
        if value is None:
            continue
        types = _types(field)
        expected = " or ".join(TYPE_NAMES.get(t, t.__name__) for t in types)
        is_met = type(value) in types or (type(value) is int and float in types)
        if described.choices and not is_met:
            errors.require_one_of(described.choices, field.name, value)
        errors.require(is_met, field.name, value, expected)
        if described.choices or described.check_choice:
            values = errors.split_names(value) if described.is_list else (value,)
            for one in values:
                _check_choice(field.name, one, described)
        if types[0] in (int, float):
            _check_number(field.name, value, described, is_float=types[0] is float)


def _check_choice(name: str, value: str, described: Setting) -> None:
    """Raises InputError unless `value` is one of the setting's choices."""
    if described.check_choice:
        described.check_choice(described.choices, value)
    else:
        errors.require_one_of(described.choices, name, value)


TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "a bool"}


def _types(field: "dataclasses.Field[typing.Any]") -> tuple[type, ...]:
    """Returns the types that a field's value may have, without None."""
    parts = typing.get_args(field.type) or (field.type,)
    types = (typing.get_origin(part) or part for part in parts)
    return tuple(t for t in types if t is not type(None))


def _check_number(
    name: str, value: float, described: Setting, *, is_float: bool
) -> None:
    """Raises InputError unless `value` is finite and within the setting's limits."""
    largest = described.maximum or (LARGEST_FLOAT if is_float else LARGEST_INT)
    smallest = -largest if described.minimum is None else described.minimum
    expected = [] if described.minimum is None else [f"at least {smallest:g}"]
    if largest < value < float("inf"):
        expected = [f"at most {largest:.8g}" if is_float else f"at most {largest:.0f}"]
    text = " of ".join([f"a {'finite' if is_float else 'whole'} number", *expected])
    if not is_float and expected:
        text = expected[0]
    if described.zero_means:
        text += f" (0: {described.zero_means})"
    errors.require(smallest <= value <= largest, name, value, text)
    is_zero_or_normal = not value or abs(value) >= SMALLEST_FLOAT
    errors.require(
        is_zero_or_normal, name, value, f"0 or a number of at least {SMALLEST_FLOAT:g}"
    )
