"""Flags of the commands: one for each setting, with the same name and default.

    settings = parse(["--gpus=2"], config.TrainConfig)
    print(help_text(config.TrainConfig, "Trains a model."))

absl's flags are defined on a set of their own at each call. So importing this module
defines none, and a process may parse more than once.
"""

import dataclasses
import textwrap
import typing
from collections.abc import Mapping, Sequence

from absl import flags

from tfmirror import errors, recipes
from tfmirror.settings import arguments_field, describe, flag_fields, setting

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = typing.TypeVar("T", bound="DataclassInstance")
Field: typing.TypeAlias = "dataclasses.Field[typing.Any]"
# {name of a preset: {name of a setting: value}}
Presets = Mapping[str, Mapping[str, typing.Any]]

HELP_FLAGS = ("--help", "-help", "-h")


class HelpRequested(Exception):
    """The arguments ask for help; the message is the text to print."""


def parse(
    argv: Sequence[str],
    settings_class: type[T],
    synopsis: str = "",
    *,
    presets: Presets | None = None,
) -> T:
    """Returns an instance of `settings_class` from command-line arguments.

    Args:
      argv: arguments without the program's name.
      settings_class: dataclass of `settings.setting` fields.
      synopsis: first paragraph of --help.
      presets: settings to start from by name, for a flag `preset`; None: no such flag.

    Raises:
      HelpRequested: the arguments ask for help.
      InputError: an unknown flag, a value of the wrong type, or an argument that is
        not a flag.
    """
    if any(argument in HELP_FLAGS for argument in argv):
        raise HelpRequested(help_text(settings_class, synopsis, presets=presets))
    values = flags.FlagValues()
    fields = _all_flags(settings_class, presets)
    for field in fields:
        if texts := describe(field).was_bool:
            _define_switch(field, texts, values)
            continue
        define = _definition(field)
        define(field.name, field.default, None, flag_values=values)
    try:
        rest = values(["", *argv])[1:]
    except flags.Error as error:
        text = errors.without_long_words(str(error))
        raise errors.InputError(f"{text}; --help lists the flags") from error
    given = {f.name: values[f.name].value for f in fields if values[f.name].present}
    if arguments := arguments_field(settings_class):
        given[arguments.name] = tuple(rest)
    elif rest:
        raise errors.InputError(f"all arguments must be flags: got {rest[0]!r}")
    if presets and (name := given.pop("preset", "")):
        errors.require_one_of(presets, "preset", name)
        given = recipes.with_preset(presets[name], given)
    return settings_class(**given)


def _all_flags(settings_class: type[T], presets: Presets | None) -> list[Field]:
    """Returns the fields of all flags, with the one that chooses a preset first."""
    return [*_preset_fields(presets), *flag_fields(settings_class)]


def _preset_fields(presets: Presets | None) -> Sequence[Field]:
    """Returns the field of the flag `preset`, which is not a setting itself."""
    if not presets:
        return ()
    field = setting(
        "",
        "settings to start from, which other flags override; another optimizer also "
        "drops its learning_rate and momentum, and per_replica_batch_size its "
        "global_batch_size; empty: the model's recipe",
        group="Model",
        choices=presets,
    )
    return dataclasses.fields(dataclasses.make_dataclass("_", [("preset", str, field)]))


def _value_type(field: Field) -> type:
    """Returns the type of a flag's value: the first one of a union."""
    return (typing.get_args(field.type) or (field.type,))[0]


def _definition(field: Field) -> typing.Callable[..., typing.Any]:
    """Returns the absl function that defines a flag of the field's type."""
    return {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }[_value_type(field)]


class _SwitchParser(flags.ArgumentParser):
    """Parses a text that may also be given as a bool."""

    def __init__(self, texts: tuple[str, str]) -> None:
        """`texts` are what false and true stand for."""
        self._texts = texts

    def parse(self, argument: str) -> str:
        """Returns the text."""
        try:
            return self._texts[bool(flags.BooleanParser().parse(argument))]
        except ValueError:
            return argument


def _define_switch(
    field: Field, texts: tuple[str, str], values: flags.FlagValues
) -> None:
    """Defines the flag of a text that --NAME and --noNAME may stand for.

    Args:
      texts: what --noNAME and --NAME mean.
    """
    parser = _SwitchParser(texts)
    flag = flags.Flag(parser, None, field.name, field.default, None, boolean=True)
    flags.DEFINE_flag(flag, flag_values=values)


def help_text(
    settings_class: type[T], synopsis: str, *, presets: Presets | None = None
) -> str:
    """Returns --help: the synopsis, then all flags in groups, with their defaults.

    Groups stand in the order in which the fields first name them.
    """
    groups: dict[str, list[str]] = {}
    for field in _all_flags(settings_class, presets):
        groups.setdefault(describe(field).group, []).append(_flag_help(field))
    lines = [synopsis.strip(), ""]
    if arguments := arguments_field(settings_class):
        lines += [f"Arguments: {arguments.metadata['arguments']}", ""]
    for group, texts in groups.items():
        lines += [f"{group}:", *texts, ""]
    return "\n".join(lines).rstrip()


def _flag_help(field: Field) -> str:
    """Returns the lines of one flag: its name and values, then what it means."""
    described, value_type = describe(field), _value_type(field)
    header = f"--{field.name}"
    if value_type is not bool:
        others = [value_type.__name__] if described.check_choice else []
        values = "|".join([*described.choices, *others]) or value_type.__name__
        header += f"=<{values}>" + (",..." if described.is_list else "")
    text = described.help
    if described.zero_means:
        text += f"; 0: {described.zero_means}"
    default = described.none_means if field.default is None else repr(field.default)
    text += f". Default: {default}."
    if described.on_resume == "override":
        text += " Allowed in resume_override."
    body = textwrap.wrap(text, width=72)
    return "\n".join([f"  {header}", *(f"      {line}" for line in body)])
