"""Evaluates a trained model: the accuracy that its run had, on any number of devices.

python -m tfmirror.evaluate runs/first
python -m tfmirror.evaluate runs/first/checkpoints/best.npz --gpus=4

Data and settings are those of the run unless flags say otherwise.
"""

import json

from tfmirror import command, command_config


def main(settings):
    """Prints the accuracy and the loss over the evaluation examples."""
    from tfmirror.data import datasets
    from tfmirror.inference import evaluation, loading
    from tfmirror.parallel import devices

    say = command.print_to_stderr if settings.json else command.print_line
    chosen = devices.choose(settings.gpus, settings.device_type)
    # First of all: with the model TensorFlow starts, and keeps its threads.
    evaluation.choose_threads(loading.read_settings(settings.model_path), chosen)
    found = loading.find(settings.model_path, say)
    settings = command_config.resolve_evaluate(settings, found.settings)
    dataset = datasets.load(
        settings.dataset,
        settings.data_dir,
        limit_eval_examples=settings.limit_eval_examples,
    )
    say(f"model: {found.settings['model']} of {found.source}")
    say(f"data: {dataset.name}, {len(dataset.eval):,} evaluation examples")
    say(f"source: {dataset.source}")
    say(f"devices: {chosen.describe()}")
    reached = evaluation.evaluate(found, dataset, chosen, settings.global_batch_size)
    report = describe(reached)
    say(
        f"eval loss {report['eval_loss']:.4f} acc {report['eval_accuracy']:.4f}  "
        f"{report['num_correct']:,} of {report['num_eval_examples']:,} correct  "
        f"{report['eval_seconds']:.1f} s"
    )
    if settings.json:
        print(json.dumps(report))


def describe(reached):
    """Returns what a state.PassProgress says, as plain values for JSON."""
    totals = reached.totals
    return {
        "eval_loss": totals.mean_loss,
        "eval_accuracy": totals.accuracy,
        "num_correct": totals.num_correct,
        "num_eval_examples": totals.num_examples,
        "eval_seconds": reached.seconds,
    }


if __name__ == "__main__":
    command.run(
        main,
        command_config.EvaluateConfig,
        __doc__,
        check=command_config.check_evaluate,
    )
