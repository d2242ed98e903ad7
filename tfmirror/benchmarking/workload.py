"""What is measured: one kind of training steps, taken by one contender.

Plain values that are handed to a process of its own as JSON; see `contenders`.
"""

import dataclasses

from tfmirror import metrics


@dataclasses.dataclass(frozen=True)
class Workload:
    """Training steps to take."""

    contender: str  # "tfmirror", or one of command_config.PEERS
    model: str
    dataset: str
    data_dir: str
    num_replicas: int
    global_batch_size: int
    precision: str
    microbatches: int = 0  # of tfmirror
    intra_op_threads: int = 0  # 0: as the contender chooses
    inter_op_threads: int = 0  # 0: one a core; PyTorch has none
    device_type: str = "auto"
    num_cores: int = 0  # that its process may use; 0: all

    @property
    def name(self):
        """What it is, for people."""
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

    def by(self, contender):
        """Returns the same work for another contender."""
        return dataclasses.replace(self, contender=contender)

    def on(self, num_replicas):
        """Returns the same work for each of so many replicas: a batch that grows."""
        times = num_replicas / self.num_replicas
        return dataclasses.replace(
            self,
            num_replicas=num_replicas,
            global_batch_size=round(self.global_batch_size * times),
            num_cores=round(self.num_cores * times),
        )
