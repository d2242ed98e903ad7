"""The messages between a benchmark and a contender's process: one line of JSON each.

    line = Request(RequestKind.TRAIN, num_steps=100).to_json()
    Request.from_json(line).num_steps                              # 100

The process first sends a ContenderInfo. Then it answers each Request with one value:

    kind          answer                                             answered by
    TRAIN         seconds that `num_steps` training steps took       all
    PEAK_BYTES    largest memory that the process has had, bytes     all but PyTorch
    PEAK_FLOPS    matrix-multiply peak of its devices, FLOP/s        tfmirror
    STEP_PARTS    StepParts                                          tfmirror

Only the standard library is imported here: PyTorch's environment has no TensorFlow.
"""

import dataclasses
import enum
import json
import typing


class RequestKind(enum.StrEnum):
    """What a contender's process is asked for; the module's table has the answers."""

    TRAIN = "train"
    PEAK_BYTES = "peak_bytes"
    PEAK_FLOPS = "peak_flops"
    STEP_PARTS = "step_parts"


@dataclasses.dataclass(frozen=True)
class Request:
    """One request to a contender's process."""

    kind: RequestKind
    num_steps: int = 0  # training steps to take; used by TRAIN only

    def to_json(self) -> str:
        """Returns the request as one line of JSON."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """Returns the request that `to_json` wrote.

        Raises:
          ValueError: `text` is not JSON, or its kind is unknown.
        """
        fields = json.loads(text)
        return cls(RequestKind(fields["kind"]), fields["num_steps"])


@dataclasses.dataclass(frozen=True)
class ContenderInfo:
    """What a contender's process says about itself when it is ready to train."""

    trace_seconds: float  # its first call: tracing and compiling, where it does so
    # Floating-point operations of one training step per example; None: not counted.
    flops_per_example: float | None = None
    num_weights: int | None = None  # trainable; None: not counted
    # Versions, devices and threads; empty: not reported.
    environment: dict[str, typing.Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, value: typing.Any) -> "ContenderInfo":
        """Returns the info from its parsed JSON object.

        Raises:
          TypeError: `value` is not an object with these fields.
        """
        return cls(**value)


@dataclasses.dataclass(frozen=True)
class StepParts:
    """The parts of a training step, each measured on its own, in seconds per step."""

    input_seconds: float  # taking one global batch from the input pipeline
    compute_seconds: float  # forward and backward pass on all replicas
    reduction_seconds: float  # adding the model's gradients over the replicas
    # {bytes: seconds} of adding one float32 tensor of that size over the replicas.
    reduction_seconds_of_bytes: dict[int, float]

    @classmethod
    def from_json(cls, value: typing.Any) -> "StepParts":
        """Returns the parts from their parsed JSON object, whose keys are texts.

        Raises:
          TypeError: `value` is not an object with these fields.
        """
        parts = cls(**value)
        of_bytes = {int(n): s for n, s in parts.reduction_seconds_of_bytes.items()}
        return dataclasses.replace(parts, reduction_seconds_of_bytes=of_bytes)


Answer = float | StepParts


def to_json(message: Request | ContenderInfo | Answer) -> str:
    """Returns a message or an answer as one line of JSON."""
    if isinstance(message, int | float):
        return json.dumps(message)
    return json.dumps(dataclasses.asdict(message))
