"""Flags of the commands: one for each field of a settings class, with its default.

An experiment's own fields bring their help along, as metadata={"help": ...}. A field
with metadata={"arguments": ...} takes the arguments that are no flags.

    settings = parse(["--gpus=2"], config.TrainConfig)

absl's flags are defined on a set of their own at each call, so importing this module
defines none, and a test may parse as often as it likes.
"""

import dataclasses
import textwrap
import typing

from absl import flags

from tfmirror import command_config, config, errors, recipes

# Group -> flag -> what it means, its unit, and what 0 or empty means.
HELP = {
    "Model": {
        "preset": "settings to start from, which flags beside it replace: "
        + ", ".join(recipes.PRESETS)
        + "; empty: the model's recipe",
        "model": "the model to train: " + ", ".join(sorted(recipes.RECIPES)),
        "init": "how kernels are drawn: normal (deviation 0.01), he or glorot",
    },
    "Data": {
        "dataset": "digits (embedded), synthetic, random, or the name of a dataset in "
        "--data_dir, in Debian's /usr/share/datasets or in tensorflow-datasets, such "
        "as mnist, fashion_mnist or cifar10",
        "data_dir": "folder with the four IDX files of the dataset, or with data that "
        "tensorflow-datasets has prepared or is to prepare; empty: not given",
        "limit_train_examples": "use only the first so many training examples; 0: all",
        "limit_eval_examples": "use only the first so many evaluation examples; 0: all",
    },
    "Devices": {
        "gpus": "number of replicas, one a GPU; 0: all GPUs there are. Without any "
        f"GPU, logical CPU devices stand in, {config.NUM_STAND_INS} of them for 0 "
        f"({command_config.MOST_REPLICAS_TO_VERIFY} to verify)",
        "device_type": "auto: GPUs, or logical CPU devices where there are none; gpu: "
        "refuse to do without; cpu: logical CPU devices",
        "intra_op_threads": "threads of one operation on CPUs; 0: one a core, or one "
        "if there is a microbatch for each core",
        "inter_op_threads": "operations on CPUs at a time; 0: one a core",
        "all_reduce": "how the strategy adds gradients: nccl, hierarchical (within "
        "groups of GPUs first), one_device; auto: nccl on GPUs, else one_device",
        "pack_mb": "megabytes of gradients to join into a message; 0: as the strategy "
        "does",
    },
    "Batches": {
        "global_batch_size": "examples a step over all replicas (not with "
        "--per_replica_batch_size)",
        "per_replica_batch_size": "examples a step on each replica",
        "microbatches": "cut the global batch into so many microbatches and add them "
        "in one fixed tree: the same bits for any number of replicas up to it; with "
        "more than one a replica, gradients accumulate; 0: one a replica, added by the "
        "strategy",
        "microbatches_per_replica": "how many of them each replica gets, such as 5,3; "
        "empty: as even as can be",
    },
    "Training": {
        "epochs": "passes over the training examples",
        "optimizer": ", ".join(config.OPTIMIZERS),
        "learning_rate": "step size, on the gradient of the mean loss of the global "
        f"batch; {recipes.ADAM_LEARNING_RATE} for adam and adamw unless given",
        "lr_scaling": "the learning rate is for one batch of the recipe; with a global "
        "batch k times as large take: none, the same rate; linear, k times it; sqrt, "
        "sqrt(k) times. None for a --learning_rate of your own unless asked for",
        "momentum": "of sgd, in [0, 1); 0: none",
        "weight_decay": "what every step takes off each weight, times the learning "
        "rate; 0: none",
        "clip_norm": "largest global norm of the aggregated gradient; 0: not clipped",
        "schedule": "learning rate over the run: constant; cosine, down to 0; "
        "one_cycle, up for 30 % of the steps and down again",
        "warmup_epochs": "epochs, fractions too, of linear rise from 0; 0: none",
        "ema_decay": "keep a moving average of the weights with this decay, in [0, 1), "
        "evaluate with it and save it; 0: none",
        "precision": "of the model's arithmetic: float32, bfloat16, or float16 with a "
        "dynamic loss scale; weights are float32",
        "batch_norm": "microbatch: statistics over each microbatch, as on one device; "
        "sync: over the global batch",
        "augment": "train on random crops of the padded images, and on their mirror "
        "images where the dataset allows it ("
        + ", ".join(sorted(recipes.DATASETS_TO_FLIP))
        + ")",
        "seed": "decides initial weights, the order of examples and dropout",
        "deterministic": "use only operations that give the same bits each time, at "
        "some cost in speed",
        "steps_per_loop": "training steps between two looks at the progress; 0: as "
        "many as take about half a second",
        "check_drift_every": "compare the replicas' variables to the bit after so many "
        "steps; 0: never",
        "on_drift": "if they differ: stop (exit code 3), or resync from the first "
        "replica and go on",
    },
    "What to show": {
        "num_examples": "examples on each replica",
        "layer": "layer or variable to show, such as conv2 or conv2/bias; empty: the "
        "first convolution's kernel",
        "channel": "output channel of it to show, from 0",
        "json": "print one JSON object instead of text",
    },
    "Output": {
        "format": "csv: file, position in it, class and its probability; json: the "
        "probability of every class too",
        "output_file": "file to write; empty: print",
        "keras_file": "file to write, which plain Keras opens; empty: none",
        "saved_model": "folder to write, which TensorFlow Serving loads; empty: none",
        "html_file": "page to write; the picture in it is written beside it as PNG",
        "json_file": "write the table as JSON to this file too; empty: don't",
        "checkpoint_every": "write a checkpoint after so many epochs or steps, such as "
        "1epoch or 200steps; empty: never",
        "keep": "keep the last so many checkpoints, and the best; 0: all",
        "resume": "never; auto: go on with the run in --workdir, or start it; or the "
        "path of a checkpoint or run directory to go on from in a new one",
        "resume_override": "settings that may differ from those of the run that is "
        "resumed, with commas between: " + ", ".join(config.OVERRIDABLE),
        "step_timeout": "seconds that a training step may take before the run is given "
        "up, exit code 1, with what is known of every replica; 0: any",
        "workdir": "run directory, new or empty; empty: a new one under runs/",
    },
}


@dataclasses.dataclass
class _Preset:
    """The flag of a settings class with PRESETS: other defaults, no setting itself."""

    preset: str = ""


class HelpRequested(Exception):
    """--help was given; the message is what to print."""


def parse(argv, settings_class, synopsis=""):
    """Returns an instance of `settings_class` from command-line arguments.

    Args:
      argv: arguments without the program's name.
      synopsis: first paragraph of --help.

    Raises:
      HelpRequested: the arguments ask for help.
      InputError: unknown flag, value of another type, or an argument that is no flag.
    """
    if any(argument in ("--help", "-help", "-h") for argument in argv):
        raise HelpRequested(help_text(settings_class, synopsis))
    values = flags.FlagValues()
    fields = flag_fields(settings_class)
    for field in fields:
        define = _definition(field)
        define(field.name, field.default, None, flag_values=values)
    try:
        rest = values(["", *argv])[1:]
    except flags.Error as error:
        raise errors.InputError(f"{error}; --help lists the flags") from error
    given = {f.name: values[f.name].value for f in fields if values[f.name].present}
    arguments = _arguments_field(settings_class)
    if arguments:
        given[arguments.name] = tuple(rest)
    elif rest:
        raise errors.InputError(f"arguments must be flags: got {rest[0]!r}")
    if preset := given.pop("preset", ""):
        errors.require_one_of(settings_class.PRESETS, "preset", preset)
        given = settings_class.PRESETS[preset] | given
    return settings_class(**given)


def flag_fields(settings_class):
    """Returns the fields that are flags; those of a preset come with them."""
    fields = [f for f in dataclasses.fields(settings_class) if not _is_arguments(f)]
    if hasattr(settings_class, "PRESETS"):
        fields = [*dataclasses.fields(_Preset), *fields]
    return fields


def _is_arguments(field):
    """Returns whether a field takes the arguments that are no flags."""
    return "arguments" in field.metadata


def _arguments_field(settings_class):
    """Returns the field that takes the arguments that are no flags; None: none does."""
    return next(filter(_is_arguments, dataclasses.fields(settings_class)), None)


def _value_type(field):
    """Returns the type of a field's value: int for `int` and for `int | None`."""
    return (typing.get_args(field.type) or (field.type,))[0]


def _definition(field):
    """Returns the absl function that defines a flag of the field's type."""
    return {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }[_value_type(field)]


def help_text(settings_class, synopsis):
    """Returns --help: the synopsis, then the flags in groups with their defaults."""
    fields = {field.name: field for field in flag_fields(settings_class)}
    lines = [synopsis.strip(), ""]
    if arguments := _arguments_field(settings_class):
        lines += [f"Arguments: {arguments.metadata['arguments']}", ""]
    unset = getattr(settings_class, "NONE_MEANS", "from the model's recipe")
    own_help = {
        n: f.metadata["help"] for n, f in fields.items() if "help" in f.metadata
    }
    group_of_own = getattr(settings_class, "OWN_GROUP", "Experiment")
    common = {
        group: {n: text for n, text in texts.items() if n not in own_help}
        for group, texts in HELP.items()
    }
    for group, texts in [(group_of_own, own_help), *common.items()]:
        own = [name for name in texts if name in fields]
        if own:
            lines += [
                f"{group}:",
                *(_flag_help(fields[n], texts[n], unset) for n in own),
                "",
            ]
    return "\n".join(lines).rstrip()


def _flag_help(field, text, unset):
    """Returns the lines of one flag; `unset` says what a default of None means."""
    value_type = _value_type(field)
    name = (
        f"--{field.name}"
        if value_type is bool
        else f"--{field.name}=<{value_type.__name__}>"
    )
    default = unset if field.default is None else repr(field.default)
    body = textwrap.wrap(f"{text}. Default: {default}.", width=72)
    return "\n".join([f"  {name}", *(f"      {line}" for line in body)])
