"""The process of a contender that runs on TensorFlow; see `contenders`.

python -m tfmirror.benchmarking.contender_process '{"contender": "tfmirror", ...}'

Writes a ContenderInfo when it is ready. Then it reads one Request per line of its
input, and answers each with one line; see `messages`.
"""

import os
import resource
import sys
import time
import typing

from tfmirror import config, errors
from tfmirror.benchmarking import messages
from tfmirror.benchmarking.messages import ContenderInfo, RequestKind, StepParts
from tfmirror.benchmarking.workload import Workload

BYTES_PER_MAXRSS = 1024  # ru_maxrss is in KiB on Linux
STEPS_PER_CHECK = 100  # of the contender drift_check
REDUCED_MEBIBYTES = (1, 8, 32)  # sizes for which the reduction is timed
LEARNING_RATE = 0.05


class TrainingContender(typing.Protocol):
    """What every contender can do."""

    def train(self, num_steps: int) -> float:
        """Takes `num_steps` steps, and waits for them; returns the seconds."""

    def info(self, trace_seconds: float) -> ContenderInfo:
        """Returns what the benchmark is told when the contender is ready.

        Args:
          trace_seconds: seconds of its first call.
        """


def main(text: str) -> None:
    """Serves the requests on standard input until it ends.

    Args:
      text: the Workload as JSON.
    """
    workload = Workload.from_json(text)
    # Only answers may go to standard output; everything else goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    if workload.num_cores:  # before TensorFlow counts them
        cores = sorted(os.sched_getaffinity(0))[: workload.num_cores]
        os.sched_setaffinity(0, cores)
    try:
        contender = make_contender(workload)
        start = time.perf_counter()
        contender.train(0)
    except errors.InputError as error:
        sys.exit(str(error))
    trace_seconds = time.perf_counter() - start
    print(messages.to_json(contender.info(trace_seconds)), file=answers)
    for line in sys.stdin:
        request = messages.Request.from_json(line)
        print(messages.to_json(answer(contender, request)), file=answers)


def answer(contender: TrainingContender, request: messages.Request) -> messages.Answer:
    """Returns the answer to a request; see `messages`.

    Raises:
      ValueError: the contender has no answer to it.
    """
    if request.kind == RequestKind.TRAIN:
        return contender.train(request.num_steps)
    if request.kind == RequestKind.PEAK_BYTES:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_maxrss * BYTES_PER_MAXRSS
    if not isinstance(contender, Tfmirror):
        raise ValueError(f"{request.kind} is answered by tfmirror only")
    if request.kind == RequestKind.PEAK_FLOPS:
        return contender.peak_flops()
    return contender.step_parts()


class Tfmirror:
    """The training steps of this package."""

    def __init__(self, workload: Workload) -> None:
        """Builds everything that training needs.

        Raises:
          InputError: the devices or the data of the workload can't be had, or there
            are fewer examples than one global batch has.
        """
        from tfmirror.training import setup

        self.workload = workload
        chosen, settings = setup.choose(train_config(workload))
        self.setup = setup.prepare(settings, chosen)
        self.segment = self.setup.train_segments[0]
        if self.segment.global_batch_size != workload.global_batch_size:
            raise errors.InputError(
                "global_batch_size must be at most the "
                f"{len(self.setup.dataset.train)} training examples: got "
                f"{workload.global_batch_size}"
            )

    def info(self, trace_seconds: float) -> ContenderInfo:
        """Returns what the benchmark is told when the contender is ready."""
        from tfmirror.benchmarking import flops
        from tfmirror.rundir import environment

        return ContenderInfo(
            trace_seconds=trace_seconds,
            flops_per_example=flops.training_flops(self.setup.model),
            num_weights=sum(
                int(v.value.shape.num_elements())
                for v in self.setup.model.trainable_variables
            ),
            environment=environment.describe(self.setup.devices),
        )

    def train(self, num_steps: int) -> float:
        """Takes `num_steps` steps, and waits for them; returns the seconds."""
        from tfmirror.parallel.step_loop import zero_totals

        start = time.perf_counter()
        taken = int(self.segment.run(num_steps, zero_totals()).num_steps)
        seconds = time.perf_counter() - start
        if taken != num_steps:
            sys.exit(f"a value was not finite after {taken} of {num_steps} steps")
        return seconds

    def peak_flops(self) -> float:
        """Returns the matrix-multiply peak of the same devices, in FLOP/s."""
        from tfmirror.benchmarking import roofline

        return roofline.matrix_multiply_flops(
            self.setup.devices.names, self.workload.precision
        )

    def step_parts(self) -> StepParts:
        """Returns the seconds per step of input, compute and reduction, each alone."""
        from tfmirror.benchmarking import step_timing
        from tfmirror.parallel import runtime

        prepared, plan = self.setup, self.setup.train_plans[0]
        shapes = [v.shape for v in prepared.model.trainable_variables]
        input_steps = step_timing.make_input(prepared.strategy, self.segment.iterator)
        compute_steps = step_timing.make_compute(
            prepared.strategy,
            prepared.model,
            prepared.optimizer,
            plan=plan,
            max_concurrent=runtime.max_concurrent_microbatches(prepared.devices),
        )

        def reduction_seconds(shapes: list) -> float:
            steps = step_timing.make_reduction(prepared.strategy, shapes, plan)
            return step_timing.seconds_per_step(steps)

        sizes = [mebibytes * 2**20 for mebibytes in REDUCED_MEBIBYTES]
        return StepParts(
            input_seconds=step_timing.seconds_per_step(input_steps),
            compute_seconds=step_timing.seconds_per_step(compute_steps),
            reduction_seconds=reduction_seconds(shapes),
            reduction_seconds_of_bytes={
                num_bytes: reduction_seconds([(num_bytes // 4,)]) for num_bytes in sizes
            },
        )


class OneBatch(Tfmirror):
    """The same training steps, all on one batch, so that the input costs nothing."""

    def __init__(self, workload: Workload) -> None:
        from tfmirror.parallel import segments

        super().__init__(workload)
        self.segment = segments.on_one_batch(
            self.segment,
            self.setup.strategy,
            self.setup.dataset.train,
            self.setup.train_plans[0],
        )


class DriftCheck(Tfmirror):
    """The same training steps, comparing the replicas every STEPS_PER_CHECK steps."""

    def __init__(self, workload: Workload) -> None:
        from tfmirror.diagnostics import drift

        super().__init__(workload)
        self.find_drifts = drift.make_check(self.setup.strategy, self.setup.variables)
        self.steps_taken = 0
        self.find_drifts()  # traces it

    def train(self, num_steps: int) -> float:
        """Takes `num_steps` steps with their checks; returns the seconds."""
        start = time.perf_counter()
        while num_steps:
            until_check = STEPS_PER_CHECK - self.steps_taken % STEPS_PER_CHECK
            taken = min(until_check, num_steps)
            super().train(taken)
            self.steps_taken += taken
            num_steps -= taken
            if taken == until_check and self.find_drifts():
                sys.exit("the replicas differ")
        return time.perf_counter() - start


OWN_CONTENDERS: dict[str, type[Tfmirror]] = {
    "tfmirror": Tfmirror,
    "one_batch": OneBatch,
    "drift_check": DriftCheck,
}


def make_contender(workload: Workload) -> TrainingContender:
    """Returns the contender of a workload, ready to trace its steps.

    Raises:
      InputError: the workload can't be run here.
    """
    if workload.contender == "keras_fit":
        from tfmirror.benchmarking import keras_fit  # starts TensorFlow

        return keras_fit.KerasFit(workload)
    return OWN_CONTENDERS[workload.contender](workload)


def train_config(workload: Workload) -> config.TrainConfig:
    """Returns the settings of a training run that takes the workload's steps."""
    return config.TrainConfig(
        model=workload.model,
        dataset=workload.dataset,
        data_dir=workload.data_dir,
        gpus=workload.num_replicas,
        global_batch_size=workload.global_batch_size,
        microbatches=workload.microbatches,
        precision=workload.precision,
        intra_op_threads=workload.intra_op_threads,
        inter_op_threads=workload.inter_op_threads,
        device_type=workload.device_type,
        learning_rate=LEARNING_RATE,
    )


if __name__ == "__main__":
    main(sys.argv[1])
