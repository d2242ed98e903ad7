"""Trains an image classifier on N mirrored replicas and writes a run directory.

python -m tfmirror.train --gpus=2
python -m tfmirror.train --gpus=2 --dataset=mnist --data_dir=FOLDER_WITH_IDX_FILES
"""

from tfmirror import command, config, recipes


def main(settings: config.TrainConfig) -> None:
    """Trains, and leaves a run directory."""
    from tfmirror.training import run

    run.train(settings)


if __name__ == "__main__":
    command.run(
        main,
        config.TrainConfig,
        __doc__,
        check=config.check,
        presets=recipes.PRESETS,
    )
