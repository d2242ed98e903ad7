"""Exports trained models as plain Keras files and as TensorFlow SavedModels.

model = loading.build(loading.find("runs/first", print))
write_keras(model, path)
write_saved_model(model, folder)
"""

import pathlib

import keras
import tensorflow as tf

from tfmirror import files
from tfmirror.data import pipeline
from tfmirror.models import keras_defaults
from tfmirror.rundir import directory

SaveError = tf.errors.OpError  # TensorFlow raises it where Python raises an OSError


def write_keras(model: keras.Model, path: pathlib.Path) -> None:
    """Writes the model as a file that Keras opens without tfmirror.

    The file is complete and on the disk, or not written at all.

    Raises:
      OSError: it can't be written.
    """
    directory.save_model(model, path)


@keras_defaults.scope()
def write_saved_model(model: keras.Model, folder: pathlib.Path) -> None:
    """Writes the model as a SavedModel.

    Its signature `serving_default` maps images [b, H, W, C] uint8 to classes [b] int32
    and probabilities [b, K] float32. The folder is complete and on the disk, or not
    written at all.

    Args:
      folder: does not exist yet.

    Raises:
      OSError, SaveError: it can't be written.
    """

    def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = model(pipeline.to_unit_range(images), training=False)
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))
        return {
            "classes": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
            "probabilities": probabilities,
        }

    archive = keras.export.ExportArchive()
    archive.track(model)
    shape = (None, *model.input_shape[1:])
    archive.add_endpoint(
        "serving_default", serve, [tf.TensorSpec(shape, tf.uint8, "images")]
    )
    with files.replaced(folder) as unfinished:
        archive.write_out(str(unfinished), verbose=False)
