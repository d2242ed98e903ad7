"""Measures how fast it trains, against others and against what the machine can do.

python -m tfmirror.benchmark --gpus=1,2 --peer=keras_fit
python -m tfmirror.benchmark --model=resnet18 --precision=float32,bfloat16 --gpus=2 \\
    --peer=keras_fit,torch_ddp --torch_python=TORCH_ENVIRONMENT/bin/python
python -m tfmirror.benchmark --gpus=1,2,4 --per_replica_batch_size=64 --predict=8,16

Every contender is a process of its own; they take turns. The last line is JSON.
"""

import dataclasses
import json

from tfmirror import command, command_config, errors, hardware


def main(settings):
    """Measures, and prints tables and a line of JSON."""
    from tfmirror.benchmarking import rounds, tables

    check_machine(settings)
    works = make_works(settings)
    grows = ideal_grows(settings)
    say = command.print_line
    say(tables.comparison_line(settings, grows))
    found, missing = rounds.measure(
        works,
        repetitions=settings.repetitions,
        seconds=settings.seconds,
        torch_python=settings.torch_python,
        say=say,
    )
    ratios = rounds.ratios(found, grows)
    predicted = predict(settings, found, share_cores=not grows)
    for text in (
        tables.speed_table(found),
        tables.parts_table(found),
        tables.ratio_table(ratios),
        tables.prediction_table(predicted),
        *(f"not measured: {line}" for line in missing),
    ):
        if text:
            say(f"\n{text}")
    report = {
        "settings": dataclasses.asdict(settings),
        "measured": [tables.plain(m) for m in found],
        "ratios": [dataclasses.asdict(r) for r in ratios],
        "predicted": predicted,
        "not_measured": missing,
    }
    say(json.dumps(report))
    if settings.plot_file:
        draw(settings, found, grows)


def check_machine(settings):
    """Raises InputError, before minutes are spent, for what this machine can't do."""
    most = max(map(int, errors.split_names(settings.gpus)))
    if settings.cores == "one_each" and most > hardware.num_cores():
        raise errors.InputError(
            f"cores=one_each needs a core for each replica: got {most} replicas on "
            f"{hardware.num_cores()} cores"
        )
    if "torch_ddp" in errors.split_names(settings.peer) and uses_gpus(settings):
        raise errors.InputError(
            "peer torch_ddp runs on CPUs alone, and would be compared with GPUs: drop "
            "it, or give --device_type=cpu"
        )
    if settings.plot_file:
        errors.check_new_file("plot_file", settings.plot_file)
    if settings.predict and most == 1:
        raise errors.InputError(
            "predict needs a measure of several replicas: got gpus="
            f"{settings.gpus}; add --gpus=2"
        )


def make_works(settings):
    """Returns the Works of every combination, ours first and then the peers'."""
    from tfmirror.benchmarking.workload import Workload

    works = []
    for model in errors.split_names(settings.model):
        for n in map(int, errors.split_names(settings.gpus)):
            for batch in batch_sizes(settings, n):
                for precision in errors.split_names(settings.precision):
                    work = Workload(
                        contender="tfmirror",
                        model=model,
                        dataset=settings.dataset,
                        data_dir=settings.data_dir,
                        num_replicas=n,
                        global_batch_size=batch,
                        precision=precision,
                        microbatches=settings.microbatches,
                        intra_op_threads=settings.intra_op_threads,
                        inter_op_threads=settings.inter_op_threads,
                        device_type=settings.device_type,
                        num_cores=n if settings.cores == "one_each" else 0,
                    )
                    peers = errors.split_names(settings.peer)
                    works += [work, *(work.by(peer) for peer in peers)]
    return works


def batch_sizes(settings, num_replicas):
    """Returns the global batch sizes to measure on so many replicas."""
    if settings.per_replica_batch_size:
        sizes = errors.split_names(settings.per_replica_batch_size)
        return [int(size) * num_replicas for size in sizes]
    return [int(size) for size in errors.split_names(settings.global_batch_size)]


def uses_gpus(settings):
    """Returns whether our contenders run on GPUs."""
    return settings.device_type != "cpu" and hardware.has_nvidia_driver()


def ideal_grows(settings):
    """Returns whether N replicas have N times the hardware of one."""
    return settings.cores == "one_each" or uses_gpus(settings)


def predict(settings, found, share_cores):
    """Returns predictions as plain values, and how far they are off where measured.

    For each model and precision, from the fewest replicas above one; speeds of more
    replicas, for as many examples on each, are held out and compared.
    """
    ours = [m for m in found if m.work.contender == "tfmirror"]
    groups = {}
    for m in sorted(ours, key=lambda m: m.work.num_replicas):
        if m.work.num_replicas > 1:
            groups.setdefault((m.work.model, m.work.precision), []).append(m)
    predictions = []
    if settings.predict:
        for base, *others in groups.values():
            predictions += predict_from(settings, base, others, share_cores)
    return predictions


def predict_from(settings, base, others, share_cores):
    """Returns the predictions that one Measured of several replicas gives."""
    from tfmirror.benchmarking import scaling

    model = scaling.fit(
        base,
        share_cores=share_cores,
        between=scaling.link_of(settings.link_gigabits, settings.link_microseconds),
        replicas_per_host=settings.replicas_per_host,
    )
    held_out = {
        m.work.num_replicas: m.median
        for m in others
        if m.work == base.work.on(m.work.num_replicas)
    }
    asked = map(int, errors.split_names(settings.predict))
    return [
        {
            "fitted_on": base.work.name,
            "num_replicas": n,
            "images_per_second": (speed := model.images_per_second(n)),
            "efficiency": speed / model.ideal_images_per_second(n),
            "measured": held_out.get(n),
        }
        for n in sorted({*asked, *held_out})
    ]


def draw(settings, found, grows):
    """Draws speed and efficiency against the number of replicas into a file."""
    from tfmirror.reporting import plots

    series = {}
    for m in found:
        examples = f"batch {m.work.global_batch_size}"
        if settings.per_replica_batch_size:
            share = m.work.global_batch_size // m.work.num_replicas
            examples = f"{share} a replica"
        kind = f"{m.work.contender}, {m.work.model}"
        label = f"{kind}, {m.work.precision}, {examples}"
        series.setdefault(label, {})[m.work.num_replicas] = m.median
    drawn = plots.draw_scaling(series, grows)
    try:
        plots.save(drawn, errors.expand_path("plot_file", settings.plot_file))
    except OSError as error:
        raise errors.InputError(
            f"plot_file can't be written: {error.strerror}"
        ) from error


if __name__ == "__main__":
    command.run(
        main,
        command_config.BenchmarkConfig,
        __doc__,
        check=command_config.check_benchmark,
        needs_tensorflow=False,
    )
