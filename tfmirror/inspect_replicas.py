"""Shows what each replica computes, holds and receives for one small global batch.

python -m tfmirror.inspect_replicas --gpus=2
python -m tfmirror.inspect_replicas --gpus=2 --model=resnet18
python -m tfmirror.inspect_replicas --gpus=4 --layer=conv2 --channel=3 --json
"""

import json

import numpy as np

from tfmirror import command, command_config, errors, recipes


def main(settings):
    """Prints the view of one global batch of the training set, and trains nothing."""
    view, devices = inspect(settings)
    variable = choose_variable(view, settings.layer, settings.channel)
    report = describe(view, variable, settings.channel)
    if settings.json:
        print(json.dumps({"stand_in_devices": devices.are_stand_ins} | report))
    else:
        print(f"devices: {devices.describe()}")
        print(format_text(report))


def inspect(settings):
    """Returns (inspection.ReplicaView, devices) of the first training examples."""
    import keras

    from tfmirror import models
    from tfmirror.data import datasets
    from tfmirror.diagnostics import inspection
    from tfmirror.parallel import devices

    chosen = devices.choose(settings.gpus, settings.device_type)
    num_examples = settings.num_examples * chosen.num_replicas
    name = settings.dataset or recipes.INSPECTED_DATASETS[settings.model]
    dataset = datasets.load(name, settings.data_dir)
    if num_examples > len(dataset.train):
        raise errors.InputError(
            f"num_examples must leave enough for {chosen.num_replicas} replicas: got "
            f"{settings.num_examples} for {len(dataset.train)} training examples"
        )
    strategy = devices.make_strategy(chosen)
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = models.build(
            settings.model, dataset.train.images.shape[1:], dataset.num_classes
        )
    images, labels = (
        dataset.train.images[:num_examples],
        dataset.train.labels[:num_examples],
    )
    return inspection.inspect(strategy, model, images, labels), chosen


def choose_variable(view, layer, channel):
    """Returns the VariableView of `layer`; empty: of the first convolution's kernel.

    Raises:
      InputError: no such layer, or no such channel in it.
    """
    if layer:
        paths = [v.path for v in view.variables]
        ending = (
            layer
            if any(("/" + p).endswith("/" + layer) for p in paths)
            else f"{layer}/kernel"
        )
        variable = view.variable(ending)
    else:
        variable = next(v for v in view.variables if v.weights.ndim == 5)  # N and HWIO
    num_channels = variable.weights.shape[-1]
    errors.require(
        channel < num_channels,
        "channel",
        channel,
        f"in [0, {num_channels}) for {variable.path}",
    )
    return variable


def describe(view, variable, channel):
    """Returns what is shown, as plain values for JSON.

    Arrays of the variable are those of one output channel, and lead with the replicas.
    """

    def of_channel(array):
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


def format_text(report):
    """Returns `report` of `describe` as text, one block for each thing and replica."""
    what = f"{report['variable']}, channel {report['channel']}"
    names = [name.rsplit("device:", 1)[-1] for name in report["devices"]]
    num_examples = sum(report["per_replica_batch_sizes"])
    blocks = [
        f"global batch: {num_examples} examples, mean loss {report['mean_loss']:.6f}"
    ]
    for name, labels, logits in zip(
        names, report["labels"], report["logits"], strict=True
    ):
        blocks.append(
            _block(
                f"logits of {len(labels)} examples on {name}, labels {labels}", logits
            )
        )
    for key, title in (
        ("weights", f"weights of {what}"),
        ("local_gradients", f"local gradient of {what}"),
        ("aggregated_gradients", f"aggregated gradient of {what}"),
    ):
        blocks += [
            _block(f"{title}, on {name}", values)
            for name, values in zip(names, report[key], strict=True)
        ]
    blocks.append(
        _block(
            f"gradient of {what}, whole batch on one device",
            report["single_device_gradient"],
        )
    )
    lines = ["largest difference, over all variables:"]
    for name, difference in report["largest_differences"].items():
        lines.append(f"  {name.replace('_', ' '):38} {_exact(difference)}")
    blocks.append("\n".join(lines))
    blocks.append(
        "A local gradient is the replica's share of that of the mean loss over the\n"
        "global batch: the local gradients add up to the aggregated one."
    )
    if report["has_batch_statistics"]:
        blocks.append(
            "Batch norm takes its statistics from each replica's own examples. So the\n"
            "whole batch on one device has another gradient, and is no reference here."
        )
    return "\n\n".join(blocks)


def _block(title, values):
    """Returns a title line and an array under it, without axes of length one."""
    array = np.asarray(values)
    squeezed = array if array.ndim <= 2 else array.squeeze()
    is_tiny = np.abs(array).max() < 1e-3  # most digits would be zeros
    style = {"precision": 8, "suppress_small": True, "floatmode": "fixed"}
    if is_tiny:
        style = {"formatter": {"float": "{: .4e}".format}}
    text = np.array2string(squeezed, **style)
    return f"== {title} ==\n{text}"


def _exact(difference):
    """Returns a difference for people; says so if there is none at all."""
    return "0 (the same bits)" if difference == 0 else f"{difference:.2g}"


if __name__ == "__main__":
    command.run(
        main, command_config.InspectConfig, __doc__, check=command_config.check_inspect
    )
