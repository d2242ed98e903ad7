"""A workload: training steps of one model on given devices, taken by one contender.

    ours = Workload(contender="tfmirror", model="cnn", dataset="synthetic", data_dir="",
                    num_replicas=2, global_batch_size=128, precision="float32")
    ours.for_contender("keras_fit")          # the same steps with `model.fit`
    ours.with_replicas(4)                    # the same per-replica batch on 4 replicas

It holds plain values only, which a contender's process gets as JSON; see `contenders`.
"""

import dataclasses
import json

from tfmirror import metrics

# What tfmirror is compared with, by name.
PEERS = {
    "keras_fit": "model.fit of Keras",
    "torch_ddp": "PyTorch DDP on CPUs",
    "one_batch": "the same tfmirror steps, all on one batch",
    "drift_check": "the same tfmirror steps, comparing replicas every 100 steps",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """Training steps to take, and who takes them."""

    contender: str  # "tfmirror", or one of PEERS
    model: str
    dataset: str
    data_dir: str
    num_replicas: int
    global_batch_size: int  # examples per step over all replicas
    precision: str  # data type of the computations
    microbatches: int = 0  # per global batch, for tfmirror; 0: one for each replica
    intra_op_threads: int = 0  # of one operation; 0: the contender's default
    inter_op_threads: int = 0  # operations at a time; 0: one a core. PyTorch: not used
    device_type: str = "auto"
    num_cores: int = 0  # that its process may use; 0: all

    @property
    def name(self) -> str:
        """One line that describes the workload, for people."""
        replicas = metrics.replicas_text(self.num_replicas)
        text = (
            f"{self.contender}, {self.model}, {replicas}, batch "
            f"{self.global_batch_size}, {self.precision}"
        )
        if self.microbatches and self.contender == "tfmirror":
            text += f", {self.microbatches} microbatches"
        if self.intra_op_threads or self.inter_op_threads:
            text += f", threads {self.intra_op_threads} and {self.inter_op_threads}"
        return text

    def for_contender(self, contender: str) -> "Workload":
        """Returns the same workload for another contender."""
        return dataclasses.replace(self, contender=contender)

    def with_replicas(self, num_replicas: int) -> "Workload":
        """Returns the workload with the same per-replica batch on `num_replicas`.

        The global batch and the cores, if they are limited, grow with the replicas.
        """
        factor = num_replicas / self.num_replicas
        return dataclasses.replace(
            self,
            num_replicas=num_replicas,
            global_batch_size=round(self.global_batch_size * factor),
            num_cores=round(self.num_cores * factor),
        )

    def to_json(self) -> str:
        """Returns the workload as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Workload":
        """Returns the workload that `to_json` wrote."""
        return cls(**json.loads(text))
