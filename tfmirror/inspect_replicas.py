"""Shows what each replica computes, holds and receives for one small global batch.

python -m tfmirror.inspect_replicas --gpus=2
python -m tfmirror.inspect_replicas --gpus=2 --model=resnet18
python -m tfmirror.inspect_replicas --gpus=4 --layer=conv2 --channel=3 --json
"""

import dataclasses
import json
import typing
from collections.abc import Iterator, Sequence

import numpy as np

from tfmirror import command, config, errors, folder_settings, model_source, recipes
from tfmirror.settings import check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

if typing.TYPE_CHECKING:
    from tfmirror.diagnostics import inspection
    from tfmirror.parallel import devices

# What is shown, by name, as plain values for JSON.
Report = dict[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class InspectConfig:
    """All settings of one look into every replica."""

    model: str = setting_of(
        TrainConfig,
        "model",
        help="model to look into; FILE.py:FUNCTION or package.module:FUNCTION is one "
        "of your own",
    )
    dataset: str | None = setting_of(
        TrainConfig,
        "dataset",
        None,
        none_means=" or ".join(
            f"{dataset} for {model}"
            for model, dataset in recipes.INSPECTED_DATASETS.items()
        ),
    )
    data_dir: str = setting_of(TrainConfig, "data_dir")
    image_size: str | tuple[int, ...] = setting_of(TrainConfig, "image_size")
    channels: int = setting_of(TrainConfig, "channels")
    eval_fraction: float = setting_of(TrainConfig, "eval_fraction")
    gpus: int = setting_of(TrainConfig, "gpus")
    device_type: str = setting_of(TrainConfig, "device_type")
    num_examples: int = setting(
        2, "examples on each replica", group="Output", minimum=1
    )
    layer: str = setting(
        "",
        "layer or variable to show, such as conv2 or conv2/bias; empty: the kernel of "
        "the first convolution, or of the first layer without one",
        group="Output",
    )
    channel: int = setting(
        0, "output channel of the layer to show, from 0", group="Output", minimum=0
    )
    seed: int = setting_of(
        TrainConfig, "seed", help="seed of the initial weights", group="Model"
    )
    json: bool = setting(False, "print one JSON object instead of text", group="Output")


def check(settings: InspectConfig) -> None:
    """Raises InputError at the first setting that is wrong for any model."""
    check_fields(settings)
    config.check_seed(settings.seed)
    folder_settings.check(settings.dataset or "digits", settings)


def main(settings: InspectConfig) -> None:
    """Prints what the replicas do with one global batch; trains nothing."""
    view, devices = inspect(settings)
    variable = choose_variable(view, settings.layer, settings.channel)
    report = describe(view, variable, settings.channel)
    if settings.json:
        print(json.dumps({"stand_in_devices": devices.are_stand_ins} | report))
    else:
        print(f"devices: {devices.describe()}")
        print(format_text(report))


def inspect(
    settings: InspectConfig,
) -> "tuple[inspection.ReplicaView, devices.Devices]":
    """Returns the view of the first training examples, and the devices.

    Raises:
      InputError: devices or data can't be had, or there are too few examples.
    """
    import keras

    from tfmirror import models
    from tfmirror.data import datasets, image_folder
    from tfmirror.diagnostics import inspection
    from tfmirror.models import own_model
    from tfmirror.parallel import devices, runtime

    chosen = devices.set_up(settings.gpus, settings.device_type)
    if chosen.are_stand_ins:
        runtime.keep_freed_memory()
    num_examples = settings.num_examples * chosen.num_replicas
    usual = recipes.INSPECTED_DATASETS.get(settings.model, "digits")
    name = settings.dataset or usual
    options = image_folder.Options(
        image_size=folder_settings.parse_size(settings.image_size),
        channels=folder_settings.resolve_channels(name, settings.channels),
        eval_fraction=settings.eval_fraction,
    )
    dataset = datasets.load(name, settings.data_dir, options=options)
    if num_examples > len(dataset.train):
        raise errors.InputError(
            f"num_examples must be at most {len(dataset.train)} training examples "
            f"divided by {chosen.num_replicas} replicas: got {settings.num_examples}"
        )
    strategy = devices.make_strategy(chosen)
    keras.utils.set_random_seed(settings.seed)
    shape = dataset.train.image_shape
    with strategy.scope():
        model = models.build(settings.model, shape, dataset.num_classes)
        if model_source.is_own(settings.model):
            own_model.check_outputs(model)
    images, labels = dataset.train.read(np.arange(num_examples))
    return inspection.inspect(strategy, model, images, labels), chosen


def choose_variable(
    view: "inspection.ReplicaView", layer: str, channel: int
) -> "inspection.VariableView":
    """Returns the view of the variable to show.

    Args:
      view: what the replicas hold.
      layer: path or end of the path of a variable, or of a layer for its kernel;
        empty: see `_usual_variable`.
      channel: output channel that will be shown.

    Raises:
      InputError: the model has no such layer, or the variable no such channel.
    """
    if layer:
        is_variable = any(f"/{v.path}".endswith(f"/{layer}") for v in view.variables)
        variable = view.variable(layer if is_variable else f"{layer}/kernel")
    else:
        variable = _usual_variable(view.variables)
    num_channels = variable.weights.shape[-1]
    expected = f"in [0, {num_channels}) for {variable.path}"
    errors.require(channel < num_channels, "channel", channel, expected)
    return variable


def _usual_variable(
    variables: "Sequence[inspection.VariableView]",
) -> "inspection.VariableView":
    """Returns the kernel of the first convolution; of the first layer without one."""
    for num_axes in (4, 2, 0):  # [height, width, channels in, channels out], [in, out]
        for variable in variables:
            if variable.weights[0].ndim >= num_axes:
                return variable
    raise ValueError("there are no variables")


def describe(
    view: "inspection.ReplicaView", variable: "inspection.VariableView", channel: int
) -> Report:
    """Returns what is shown, as plain values for JSON.

    Arrays of the variable are those of one output channel, and lead with the replicas.

    Args:
      view: what the replicas hold.
      variable: the variable to show, one of the view.
      channel: the output channel of it to show.
    """

    def of_channel(array: np.ndarray) -> list[typing.Any]:
        return array[..., channel].tolist()

    return {
        "devices": list(view.devices),
        "per_replica_batch_sizes": list(view.per_replica_batch_sizes),
        "labels": [labels.tolist() for labels in view.labels],
        "logits": [logits.tolist() for logits in view.logits],
        "mean_loss": view.mean_loss,
        "variable": variable.path,
        "channel": channel,
        "weights": of_channel(variable.weights),
        "local_gradients": of_channel(variable.local_gradients),
        "aggregated_gradients": of_channel(variable.aggregated_gradients),
        "single_device_gradient": of_channel(variable.single_device_gradient),
        "has_batch_statistics": view.has_batch_statistics,
        "largest_differences": {
            "weights_between_replicas": max(v.weight_drift for v in view.variables),
            "aggregated_gradients_between_replicas": max(
                v.aggregated_drift for v in view.variables
            ),
            "aggregated_gradient_to_single_device": max(
                v.difference_to_single_device for v in view.variables
            ),
        },
    }


def format_text(report: Report) -> str:
    """Returns the report of `describe` as text: a block per value and replica."""
    num_examples = sum(report["per_replica_batch_sizes"])
    blocks = [
        f"global batch: {num_examples} examples, mean loss {report['mean_loss']:.6f}",
        *_logits_blocks(report),
        *_variable_blocks(report),
        _differences_block(report["largest_differences"]),
        "A replica's local gradient is its share of the gradient of the mean loss\n"
        "over the global batch: the local gradients add up to the aggregated one.",
    ]
    if report["has_batch_statistics"]:
        blocks.append(
            "Batch norm takes its statistics from each replica's own examples. So the\n"
            "gradient of the whole batch on one device differs, and is no reference."
        )
    return "\n\n".join(blocks)


def _names(report: Report) -> list[str]:
    """Returns the short names of the devices, such as CPU:0."""
    return [name.rsplit("device:", 1)[-1] for name in report["devices"]]


def _logits_blocks(report: Report) -> Iterator[str]:
    """Yields a block with the logits of each replica's examples."""
    for name, labels, logits in zip(
        _names(report), report["labels"], report["logits"], strict=True
    ):
        title = f"logits of {len(labels)} examples on {name}, labels {labels}"
        yield _block(title, logits)


def _variable_blocks(report: Report) -> Iterator[str]:
    """Yields blocks with weights and gradients of one channel on each replica."""
    shown = f"{report['variable']}, channel {report['channel']}"
    for key, title in (
        ("weights", "weights"),
        ("local_gradients", "local gradient"),
        ("aggregated_gradients", "aggregated gradient"),
    ):
        for name, values in zip(_names(report), report[key], strict=True):
            yield _block(f"{title} of {shown}, on {name}", values)
    title = f"gradient of {shown}, whole batch on one device"
    yield _block(title, report["single_device_gradient"])


def _differences_block(differences: dict[str, float]) -> str:
    """Returns the block of the largest differences."""
    lines = ["largest difference, over all variables:"]
    for name, difference in differences.items():
        lines.append(f"  {name.replace('_', ' '):38} {_exact(difference)}")
    return "\n".join(lines)


def _block(title: str, values: typing.Any) -> str:
    """Returns a title line and an array below it, without axes of length one."""
    array = np.asarray(values)
    squeezed = array if array.ndim <= 2 else array.squeeze()
    style: dict[str, typing.Any] = {
        "precision": 8,
        "suppress_small": True,
        "floatmode": "fixed",
    }
    if np.abs(array).max() < 1e-3:  # most fixed digits would be zeros
        style = {"formatter": {"float": "{: .4e}".format}}
    text = np.array2string(squeezed, **style)
    return f"== {title} ==\n{text}"


def _exact(difference: float) -> str:
    """Returns a difference for people; 0 is marked as the same bits."""
    return "0 (the same bits)" if difference == 0 else f"{difference:.2g}"


if __name__ == "__main__":
    command.run(main, InspectConfig, __doc__, check=check)
