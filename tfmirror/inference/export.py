"""Trained models as files for others: plain Keras, and TensorFlow's SavedModel.

model = trained.build(trained.find("runs/first", print))
write_keras(model, path)
write_saved_model(model, folder)
"""

import shutil

import keras
import tensorflow as tf

from tfmirror.data import pipeline
from tfmirror.rundir import directory

SaveError = tf.errors.OpError  # what TensorFlow raises where Python has OSError


def write_keras(model, path):
    """Writes the model as a file that plain Keras opens: whole, or not at all."""
    directory.save_model(model, path)


def write_saved_model(model, folder):
    """Writes the model as a SavedModel: whole, or not at all.

    Its signature `serving_default` maps images [b, H, W, C] uint8 to classes [b] int32
    and probabilities [b, K] float32.
    """

    def serve(images):
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
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    try:
        archive.write_out(str(unfinished), verbose=False)
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
