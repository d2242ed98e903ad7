"""The process of PyTorch's DistributedDataParallel over gloo; see `contenders`.

TORCH_PYTHON tfmirror/benchmarking/torch_ddp.py '{"contender": "torch_ddp", ...}'

Runs in an environment that has PyTorch and NumPy, and of tfmirror needs only what reads
data. The same models, data, batches and optimizer; channels last; processor only.
"""

import datetime
import json
import os
import socket
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from tfmirror.data import datasets

LONGEST_WAIT = datetime.timedelta(days=1)  # of a process, for its turn
STAGES = (64, 128, 256, 512)


class Residual(nn.Module):
    """A residual block of the chapter's ResNet-18."""

    def __init__(self, channels, out_channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, 1)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Conv2d(channels, out_channels, 1, stride)

    def forward(self, x):
        """Returns relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def build_resnet18(channels, num_classes):
    """Returns the chapter's ResNet-18."""
    layers, width = (
        [nn.Conv2d(channels, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU()],
        64,
    )
    for stage, out in enumerate(STAGES):
        for block in range(2):
            layers.append(Residual(width, out, 2 if block == 0 and stage > 0 else 1))
            width = out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes)]
    return nn.Sequential(*layers, *head)


def build_cnn(channels, num_classes):
    """Returns the first chapter's network."""
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


class Steps:
    """Training steps of one of the processes."""

    def __init__(self, work, rank):
        dataset = datasets.load(work["dataset"], work["data_dir"])
        examples = dataset.train
        self.images = torch.from_numpy(examples.images).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(examples.labels).long()
        self.batch_size, self.num_replicas = (
            work["global_batch_size"],
            work["num_replicas"],
        )
        self.rank, self.is_bfloat16 = rank, work["precision"] == "bfloat16"
        model = BUILDERS[work["model"]](self.images.shape[1], dataset.num_classes)
        model(self.images[:2].float())  # the lazy layer takes its size
        model = model.to(memory_format=torch.channels_last)
        self.model = model
        if self.num_replicas > 1:
            self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.epoch = self.position = 0
        self.order = torch.randperm(len(self.labels))

    def run(self, num_steps):
        """Takes so many steps."""
        for _ in range(num_steps):
            self.run_one()

    def run_one(self):
        """Takes one step on this process's share of the next global batch."""
        if self.position + self.batch_size > len(self.labels):
            self.epoch, self.position = self.epoch + 1, 0
            generator = torch.Generator().manual_seed(self.epoch)
            self.order = torch.randperm(len(self.labels), generator=generator)
        batch = self.order[self.position : self.position + self.batch_size]
        chosen = torch.tensor_split(batch, self.num_replicas)[self.rank]
        self.position += self.batch_size
        images = self.images[chosen].float().div_(255)
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_bfloat16):
            logits = self.model(images)
            loss = F.cross_entropy(logits.float(), self.labels[chosen])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


def serve(rank, work, port, answers):
    """Answers questions: the first process reads them, and all take the steps."""
    is_first, num_replicas = rank == 0, work["num_replicas"]
    own_cores = max(1, len(os.sched_getaffinity(0)) // num_replicas)
    torch.set_num_threads(work["intra_op_threads"] or own_cores)
    if num_replicas > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group(
            "gloo", rank=rank, world_size=num_replicas, timeout=LONGEST_WAIT
        )
    start = time.perf_counter()
    steps = Steps(work, rank)
    steps.run(1)
    if is_first:
        output = os.fdopen(answers, "w", encoding="utf-8", buffering=1)
        ready = {"trace_seconds": time.perf_counter() - start}
        print(json.dumps(ready | {"version": torch.__version__}), file=output)
        questions = os.fdopen(0, encoding="utf-8", closefd=False)
    while True:
        asked = torch.zeros(1, dtype=torch.int64)
        if is_first:
            line = questions.readline()
            asked[0] = int(line) if line else -1
        begin = time.perf_counter()
        if num_replicas > 1:
            torch.distributed.broadcast(asked, 0)
        if asked.item() < 0:
            return
        steps.run(asked.item())
        if is_first:
            print(json.dumps(time.perf_counter() - begin), file=output)


def main(text):
    """Takes the steps of the work that is JSON in `text`."""
    work = json.loads(text)
    answers = os.dup(1)
    os.set_inheritable(answers, True)
    os.dup2(2, 1)
    if work["num_cores"]:
        cores = sorted(os.sched_getaffinity(0))[: work["num_cores"]]
        os.sched_setaffinity(0, cores)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    others = [
        context.Process(target=serve, args=(rank, work, port, answers), daemon=True)
        for rank in range(1, work["num_replicas"])
    ]
    for other in others:
        other.start()
    serve(0, work, port, answers)


if __name__ == "__main__":
    main(sys.argv[1])
