"""The process of PyTorch's DistributedDataParallel over gloo; see `contenders`.

TORCH_PYTHON tfmirror/benchmarking/torch_ddp.py '{"contender": "torch_ddp", ...}'

Trains the same models with the same data, batch sizes and optimizer, on CPUs only and
with channels last. It runs in an environment with PyTorch and NumPy but without
TensorFlow, so of this package it imports only modules that need neither.
"""

import datetime
import json
import os
import socket
import sys
import time
import typing

import torch
from torch import nn
from torch.nn import functional as F

from tfmirror.benchmarking import messages
from tfmirror.benchmarking.workload import Workload
from tfmirror.data import datasets

LEARNING_RATE = 0.05
LONGEST_WAIT = datetime.timedelta(days=1)  # of a process for its next request
STAGES = (64, 128, 256, 512)  # channels of ResNet-18
END = -1  # broadcast in place of a number of steps: there are no more requests


class Residual(nn.Module):
    """A residual block of the chapter's ResNet-18."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, 1)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Conv2d(channels, out_channels, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def build_resnet18(channels: int, num_classes: int) -> nn.Module:
    """Returns the chapter's ResNet-18: [b, C, H, W] to logits [b, K]."""
    width = STAGES[0]
    layers = [nn.Conv2d(channels, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    for stage, out in enumerate(STAGES):
        for block in range(2):
            layers.append(Residual(width, out, 2 if block == 0 and stage > 0 else 1))
            width = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)]
    return nn.Sequential(*layers, *head)


def build_cnn(channels: int, num_classes: int) -> nn.Module:
    """Returns the first chapter's network: [b, C, H, W] to logits [b, K]."""
    return nn.Sequential(
        nn.Conv2d(channels, 20, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )


BUILDERS = {"cnn": build_cnn, "resnet18": build_resnet18}


class Trainer:
    """The training of one of the processes, each of which is a replica."""

    def __init__(self, workload: Workload, rank: int) -> None:
        """Loads the data and builds the model.

        Args:
          workload: what is trained.
          rank: number of this process, from 0.
        """
        dataset = datasets.load(workload.dataset, workload.data_dir)
        examples = dataset.train
        self.images = torch.from_numpy(examples.images).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(examples.labels).long()
        self.global_batch_size = workload.global_batch_size
        self.num_replicas, self.rank = workload.num_replicas, rank
        self.is_bfloat16 = workload.precision == "bfloat16"
        model = BUILDERS[workload.model](self.images.shape[1], dataset.num_classes)
        model(self.images[:2].float())  # gives the lazy layer its size
        model = model.to(memory_format=torch.channels_last)
        self.model = model
        if self.num_replicas > 1:
            self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        self.epoch = self.position = 0
        self.order = torch.randperm(len(self.labels))

    def train(self, num_steps: int) -> None:
        """Takes `num_steps` steps."""
        for _ in range(num_steps):
            self.train_step()

    def train_step(self) -> None:
        """Takes one step on this process's part of the next global batch."""
        if self.position + self.global_batch_size > len(self.labels):
            self.epoch, self.position = self.epoch + 1, 0
            generator = torch.Generator().manual_seed(self.epoch)
            self.order = torch.randperm(len(self.labels), generator=generator)
        batch = self.order[self.position : self.position + self.global_batch_size]
        chosen = torch.tensor_split(batch, self.num_replicas)[self.rank]
        self.position += self.global_batch_size
        images = self.images[chosen].float().div_(255)
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_bfloat16):
            logits = self.model(images)
            loss = F.cross_entropy(logits.float(), self.labels[chosen])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


def start_process(workload: Workload, rank: int, port: int) -> None:
    """Sets the threads of this process, and connects it with the others."""
    num_replicas = workload.num_replicas
    own_cores = max(1, len(os.sched_getaffinity(0)) // num_replicas)
    torch.set_num_threads(workload.intra_op_threads or own_cores)
    if num_replicas > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group(
            "gloo", rank=rank, world_size=num_replicas, timeout=LONGEST_WAIT
        )


def lead(workload: Workload, port: int, answers: typing.TextIO) -> None:
    """Serves the requests on standard input, as the process with rank 0.

    Args:
      workload: what is trained.
      port: where the processes meet.
      answers: gets one line for each request.
    """
    start_process(workload, 0, port)
    start = time.perf_counter()
    trainer = Trainer(workload, 0)
    trainer.train(1)
    info = messages.ContenderInfo(
        trace_seconds=time.perf_counter() - start,
        environment={"torch": torch.__version__},
    )
    print(messages.to_json(info), file=answers)
    for line in sys.stdin:
        num_steps = messages.Request.from_json(line).num_steps
        begin = time.perf_counter()
        share_num_steps(workload, num_steps)
        trainer.train(num_steps)
        print(json.dumps(time.perf_counter() - begin), file=answers)
    share_num_steps(workload, END)


def follow(workload: Workload, rank: int, port: int) -> None:
    """Takes the steps that the process with rank 0 asks for, until it ends."""
    start_process(workload, rank, port)
    trainer = Trainer(workload, rank)
    trainer.train(1)
    while (num_steps := share_num_steps(workload)) != END:
        trainer.train(num_steps)


def share_num_steps(workload: Workload, num_steps: int = 0) -> int:
    """Sends the number of steps from rank 0 to all others; returns it on each."""
    value = torch.tensor([num_steps], dtype=torch.int64)
    if workload.num_replicas > 1:
        torch.distributed.broadcast(value, 0)
    return int(value.item())


def main(text: str) -> None:
    """Serves the requests on standard input until it ends.

    Args:
      text: the Workload as JSON.
    """
    workload = Workload.from_json(text)
    # Only answers may go to standard output; everything else goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    if workload.num_cores:
        cores = sorted(os.sched_getaffinity(0))[: workload.num_cores]
        os.sched_setaffinity(0, cores)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    others = [
        context.Process(target=follow, args=(workload, rank, port), daemon=True)
        for rank in range(1, workload.num_replicas)
    ]
    for other in others:
        other.start()
    lead(workload, port, answers)


if __name__ == "__main__":
    main(sys.argv[1])
