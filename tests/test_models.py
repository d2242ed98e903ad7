"""The models are what the chapters build."""

import pytest

from tfmirror import config, models


def test_the_cnn_has_the_chapters_parameters():
    model = models.build("cnn", (28, 28, 1), 10)
    assert [tuple(v.shape) for v in model.trainable_variables] == [
        (3, 3, 1, 20), (20,), (5, 5, 20, 50), (50,), (800, 128), (128,),
        (128, 10), (10,),
    ]  # fmt: skip
    # 9*20+20 + 25*20*50+50 + 800*128+128 + 128*10+10
    assert model.count_params() == 200 + 25_050 + 102_528 + 1_290 == 129_068
    assert model.output_shape == (None, 10)


def test_the_cnn_takes_other_images_and_refuses_too_small_ones():
    assert models.build("cnn", (32, 32, 3), 7).output_shape == (None, 7)
    assert models.build("cnn", (14, 14, 1), 2).output_shape == (None, 2)
    with pytest.raises(config.InputError, match="at least 14 pixels .* got 13x20"):
        models.build("cnn", (13, 20, 1), 10)
