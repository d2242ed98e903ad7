"""The settings of a training run: each one's default, meaning and limits.

    settings = TrainConfig(gpus=2, dataset="mnist", data_dir="~/mnist")

`tfmirror.config` checks and resolves them; `tfmirror.flags` makes a flag of each.
"""

import dataclasses

from tfmirror import model_source
from tfmirror.recipes import (
    ADAM_LEARNING_RATE,
    AUGMENTATIONS,
    DATASETS_TO_FLIP,
    INITS,
    LR_SCALINGS,
    NUM_STAND_INS,
    OPTIMIZERS,
    RECIPES,
    SCHEDULES,
)
from tfmirror.settings import setting

# What a default of None means.
FROM_RECIPE = "from the model's recipe"


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number of epochs or of training steps; 0: never."""

    number: int
    unit: str  # "epoch" or "step"

    def __str__(self) -> str:
        """Returns the text of a flag: "1epoch", "200steps", or "" for never."""
        if not self.number:
            return ""
        return f"{self.number}{self.unit}{'s' if self.number > 1 else ''}"


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All settings of one training run, as they are given.

    None means that the model's recipe decides. A list or an interval is a text, as in
    its flag, or the value that `config.resolve` makes of the text.
    `TrainConfig(**recipes.PRESETS["accurate"], gpus=2)` starts from a preset.
    """

    model: str = setting(
        "cnn",
        "model to train, or a function of your own that returns one: FILE.py:FUNCTION "
        "or package.module:FUNCTION, called with (input_shape, num_classes)",
        group="Model",
        choices=sorted(RECIPES),
        check_choice=model_source.check,
    )
    dataset: str = setting(
        "digits",
        "digits (embedded), synthetic, random, folder (your own images in data_dir), "
        "or the name of a dataset in data_dir, in Debian's /usr/share/datasets or in "
        "tensorflow-datasets, such as mnist, fashion_mnist or cifar10",
        group="Data",
    )
    data_dir: str = setting(
        "",
        "folder that holds the four IDX files of the dataset, or the prepared data of "
        "tensorflow-datasets; tensorflow-datasets also downloads to it; empty: search "
        "the standard folders. With dataset=folder it holds a sub-folder of images for "
        "each class, or folders train and val (or test) with these",
        group="Data",
        on_resume="free",
    )
    image_size: str | tuple[int, ...] = setting(
        "",
        "height and width that the images of a folder are resized to, such as 64x64; "
        "empty: they all have one size",
        group="Data",
    )
    channels: int = setting(
        0,
        "channels that the images of a folder are converted to. 1: grey; 3: RGB",
        group="Data",
        maximum=3,
        zero_means="3 for a folder",
    )
    eval_fraction: float = setting(
        0.0,
        "share of a folder's images that are kept for evaluation, in [0, 1), if the "
        "folder has no folders train and val. A hash of an image's path chooses it, so "
        "images that are added move no other",
        group="Data",
        zero_means="the folder has its own folders train and val or test",
    )
    data_in_memory: str = setting(
        "auto",
        "whether the images of a folder are held in memory, or read from their files "
        "in each epoch; the results are the same. auto: in memory if they take at most "
        "half of what is available",
        group="Data",
        choices=("auto", "yes", "no"),
        on_resume="free",
    )
    limit_train_examples: int = setting(
        0,
        "number of training examples to use, from the first one on",
        group="Data",
        zero_means="all",
    )
    limit_eval_examples: int = setting(
        0,
        "number of evaluation examples to use, from the first one on",
        group="Data",
        zero_means="all",
    )
    gpus: int = setting(
        0,
        "number of replicas, one per GPU; on a machine without a GPU, one per logical "
        "CPU device",
        group="Devices",
        maximum=256,
        zero_means=f"all GPUs, or {NUM_STAND_INS} logical CPU devices without a GPU",
        on_resume="override",
    )
    device_type: str = setting(
        "auto",
        "auto: GPUs, or logical CPU devices if the machine has none; gpu: GPUs, or an "
        "error if there are none; cpu: logical CPU devices",
        group="Devices",
        choices=("auto", "cpu", "gpu"),
        on_resume="free",
    )
    intra_op_threads: int = setting(
        0,
        "CPU threads of one operation",
        group="Devices",
        maximum=1024,
        zero_means="one per core, or just one if there is a microbatch for each core",
        on_resume="override",
    )
    inter_op_threads: int = setting(
        0,
        "CPU operations that run at the same time",
        group="Devices",
        maximum=1024,
        zero_means="one per core",
        on_resume="override",
    )
    all_reduce: str = setting(
        "auto",
        "how gradients are added across replicas if microbatches is 0: nccl, "
        "hierarchical (within groups of GPUs first) or one_device; auto: nccl on "
        "GPUs, one_device on CPUs",
        group="Devices",
        choices=("auto", "nccl", "hierarchical", "one_device"),
        on_resume="override",
    )
    pack_mb: float = setting(
        0.0,
        "size of an all-reduce message, in megabytes of gradients",
        group="Devices",
        zero_means="as the strategy chooses",
        on_resume="override",
    )
    microbatches: int = setting(
        0,
        "number of microbatches in a global batch. Their gradients are added in one "
        "fixed tree, so the results are bit-for-bit the same on any number of "
        "replicas up to this one. If a replica has more than one, it accumulates "
        "their gradients",
        group="Batches",
        maximum=2**16,
        zero_means="one per replica, added by the strategy's all-reduce",
    )
    microbatches_per_replica: str | tuple[int, ...] = setting(
        "",
        "number of microbatches of each replica, comma-separated, such as 5,3; empty: "
        "as evenly as possible",
        group="Batches",
        on_resume="free",
    )
    global_batch_size: int | None = setting(
        None,
        "examples per step over all replicas; can't be combined with "
        "per_replica_batch_size",
        group="Batches",
        minimum=1,
        none_means=FROM_RECIPE,
    )
    per_replica_batch_size: int | None = setting(
        None,
        "examples per step on each replica",
        group="Batches",
        minimum=1,
        none_means=FROM_RECIPE,
        on_resume="free",
    )
    epochs: int | None = setting(
        None,
        "passes over the training examples",
        group="Training",
        minimum=1,
        none_means=FROM_RECIPE,
        on_resume="override",
    )
    optimizer: str = setting("sgd", "optimizer", group="Training", choices=OPTIMIZERS)
    learning_rate: float | None = setting(
        None,
        "step size, before lr_scaling and at the peak of the schedule; gradients are "
        "of the mean loss over the global batch",
        group="Training",
        none_means=f"{FROM_RECIPE} for sgd, {ADAM_LEARNING_RATE} for adam and adamw",
        on_resume="override",
    )
    lr_scaling: str | None = setting(
        None,
        "how the learning rate follows the global batch size. For k times the batch "
        "of the recipe it is multiplied by: 1 (none), k (linear) or sqrt(k) (sqrt)",
        group="Training",
        choices=LR_SCALINGS,
        none_means=f"{FROM_RECIPE}, or none if learning_rate is given",
        on_resume="override",
    )
    momentum: float = setting(
        0.0,
        "momentum of sgd, in [0, 1)",
        group="Training",
        zero_means="no momentum",
    )
    weight_decay: float = setting(
        0.0,
        "decoupled weight decay: every step subtracts learning rate x weight_decay x "
        "weight from each weight",
        group="Training",
        zero_means="no weight decay",
        on_resume="override",
    )
    clip_norm: float = setting(
        0.0,
        "largest global norm of the aggregated gradient; a larger gradient is scaled "
        "down to it",
        group="Training",
        zero_means="no clipping",
        on_resume="override",
    )
    schedule: str = setting(
        "constant",
        "learning rate over the run. constant; cosine: falls to 0; one_cycle: rises "
        "for the first 30% of the steps, then falls",
        group="Training",
        choices=SCHEDULES,
        on_resume="override",
    )
    warmup_epochs: float = setting(
        0.0,
        "epochs in which the learning rate rises linearly from 0; fractions are "
        "allowed",
        group="Training",
        zero_means="no warm-up",
        on_resume="override",
    )
    ema_decay: float = setting(
        0.0,
        "decay of an exponential moving average of the weights, in [0, 1); in the "
        "first steps, t, at most (1 + t) / (10 + t). The averaged weights are "
        "evaluated and saved, with batch norm's statistics estimated for them",
        group="Training",
        zero_means="no averaging",
    )
    label_smoothing: float = setting(
        0.0,
        "probability that is spread evenly over all classes in the training targets, "
        "in [0, 1). train_loss is then the loss of these targets; eval_loss is always "
        "the plain cross-entropy",
        group="Training",
        zero_means="no label smoothing",
        on_resume="override",
    )
    precision: str = setting(
        "float32",
        "data type that the model computes in; float16 uses a dynamic loss scale. "
        "Weights are always float32",
        group="Training",
        choices=("float32", "bfloat16", "float16"),
    )
    batch_norm: str = setting(
        "microbatch",
        "examples that batch norm takes its statistics over. microbatch: each "
        "microbatch; sync: the whole global batch",
        group="Training",
        choices=("microbatch", "sync"),
    )
    init: str | None = setting(
        None,
        "initializer of the kernels; normal has standard deviation 0.01",
        group="Model",
        choices=INITS,
        none_means=FROM_RECIPE,
    )
    initial_weights: str = setting(
        "",
        "weights that the run starts with, matched by the names of layers and "
        "variables: a .keras or .weights.h5 file, a run directory or a checkpoint; "
        "empty: new ones. A resumed run has its own and does not read them",
        group="Fine-tuning",
    )
    new_head: bool = setting(
        False,
        "do not take the weights of the last layer with weights, which gives the "
        "logits, from initial_weights: it is made anew, also if they would fit",
        group="Fine-tuning",
    )
    freeze: str = setting(
        "",
        "layers whose weights are not trained: comma-separated shell patterns of their "
        "names, as in conv* or backbone/block1_*; a layer that holds others freezes "
        "them too, and a frozen batch norm uses its moving statistics; empty: none",
        group="Fine-tuning",
    )
    augment: str = setting(
        "none",
        "how training images change at random. crop: shifted by up to an eighth of "
        "their side; resized_crop: a part of 8% to 100% of the area, of a width to "
        "height of 3/4 to 4/3, enlarged to the whole. Both also mirror them if the "
        f"dataset is one of {', '.join(sorted(DATASETS_TO_FLIP))}; no other data are "
        "mirrored. --augment alone means crop",
        group="Training",
        choices=AUGMENTATIONS,
        was_bool=("none", "crop"),
        on_resume="override",
    )
    seed: int = setting(
        0,
        "seed of the initial weights, the order of examples, augmentation and dropout",
        group="Training",
    )
    deterministic: bool = setting(
        False,
        "use only operations that give the same bits each time, which may be slower",
        group="Training",
    )
    steps_per_loop: int = setting(
        0,
        "training steps per call of the compiled training loop; progress is shown "
        "between two calls, and a signal ends a call after its current step",
        group="Training",
        zero_means="as many as take about half a second",
        on_resume="free",
    )
    check_drift_every: int = setting(
        0,
        "training steps between two bit-for-bit comparisons of the replicas' variables",
        group="Training",
        zero_means="never",
        on_resume="free",
    )
    on_drift: str = setting(
        "stop",
        "what to do if the replicas' variables differ. stop: exit with code 3; "
        "resync: copy the first replica's variables to the others and continue",
        group="Training",
        choices=("stop", "resync"),
        on_resume="free",
    )
    checkpoint_every: str | Interval = setting(
        "1epoch",
        "interval between two checkpoints, such as 1epoch or 200steps; empty: never",
        group="Output",
        on_resume="free",
    )
    keep: int = setting(
        3,
        "number of most recent checkpoints to keep; the best one is always kept",
        group="Output",
        zero_means="all",
        on_resume="free",
    )
    resume: str = setting(
        "never",
        "never: start a new run; auto: resume the run in workdir, or start it if "
        "there is none; or the path of a checkpoint or run directory to resume from "
        "in a new workdir",
        group="Output",
        on_resume="free",
    )
    resume_override: str | tuple[str, ...] = setting(
        "",
        "names of settings that may differ from those of the resumed run, "
        "comma-separated; help marks the settings that are allowed here",
        group="Output",
        on_resume="free",
    )
    step_timeout: float = setting(
        0.0,
        "seconds that one training or evaluation step may take, however many a call "
        "takes; after that the run prints what each replica has done and exits with "
        "code 1",
        group="Output",
        maximum=1e6,
        zero_means="no limit",
        on_resume="free",
    )
    workdir: str = setting(
        "",
        "run directory, new or empty; empty: a new folder under runs/",
        group="Output",
        on_resume="free",
    )
