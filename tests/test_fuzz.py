"""Whatever is in a file or on a command line: a right answer, or an InputError."""

import dataclasses
import gzip
import struct

import hypothesis
import numpy as np
import pytest
from helpers import idx_bytes
from hypothesis import strategies as st

from tfmirror import config, errors, flags, recipes
from tfmirror.data import idx

NUM_INPUTS = [300, pytest.param(10_000, marks=pytest.mark.slow)]

# Headers that are nearly right, with values that are nearly as many.
HEADERS = st.builds(
    lambda zeros, code, sizes, announced: (
        zeros + bytes([code, announced % 256]) + struct.pack(f">{len(sizes)}I", *sizes)
    ),
    st.sampled_from([b"\0\0", b"\0\1", b"\x1f\x8b"]),
    st.sampled_from([*idx.TYPE_NAMES, 0, 255]),
    st.lists(st.sampled_from([0, 1, 2, 3, 28, 2**31, 2**32 - 1]), max_size=5),
    st.integers(0, 5),
)
WHOLE = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@st.composite
def changed(draw, content):
    """Draws `content` with some bytes in it replaced, put in or left out."""
    begin = draw(st.integers(0, len(content)))
    end = draw(st.integers(begin, min(begin + 8, len(content))))
    return content[:begin] + draw(st.binary(max_size=8)) + content[end:]


UNPACKED = st.one_of(
    st.binary(max_size=64),
    st.builds(bytes.__add__, HEADERS, st.binary(max_size=64)),
    changed(WHOLE),
)
FILES = st.one_of(
    st.tuples(st.just("a"), UNPACKED),
    st.tuples(st.just("a.gz"), UNPACKED),
    st.tuples(st.just("a.gz"), st.builds(gzip.compress, UNPACKED)),
    st.tuples(st.just("a.gz"), changed(gzip.compress(WHOLE, mtime=0))),
)


def fuzz(test, num_inputs, **strategies):
    """Calls `test` with so many inputs that are drawn from `strategies`."""
    count = []

    @hypothesis.settings(max_examples=num_inputs, deadline=None, database=None)
    @hypothesis.seed(0)
    @hypothesis.given(**strategies)
    def run(**drawn):
        count.append(1)
        test(**drawn)

    run()
    assert len(count) >= num_inputs


@pytest.mark.parametrize("num_inputs", NUM_INPUTS)
def test_the_idx_reader_gives_what_is_in_the_file_or_refuses_it(num_inputs, tmp_path):
    answers = {"read": 0, "refused": 0}

    def test(file, num_dimensions):
        name, content = file
        (tmp_path / name).write_bytes(content)
        try:
            array = idx.read_idx(tmp_path / name, num_dimensions)
        except errors.InputError as error:
            assert "\n" not in str(error)
            answers["refused"] += 1
            return
        answers["read"] += 1
        unpacked = gzip.decompress(content) if name.endswith(".gz") else content
        assert unpacked == idx_bytes(array) and array.ndim == num_dimensions

    fuzz(test, num_inputs, file=FILES, num_dimensions=st.sampled_from([1, 3]))
    assert min(answers.values()) > 0


NAMES = ["preset", *(f.name for f in dataclasses.fields(config.TrainConfig))]
VALUES = st.one_of(
    st.text(max_size=12),
    st.integers(-2, 600).map(str),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from("digits cnn resnet18 sgd adam cosine linear sync auto 5,3".split()),
    st.sampled_from("accurate 1epoch 3steps float16 true false none".split()),
)
ARGUMENTS = st.one_of(
    st.builds(lambda name, value: f"--{name}={value}", st.sampled_from(NAMES), VALUES),
    st.builds(lambda name: f"--{name}", st.sampled_from(NAMES)),
    st.builds(lambda name: f"--no{name}", st.sampled_from(NAMES)),
    st.sampled_from(["--", "-", "", "--=", "--help", "--undefok=gpus", "--flagfile="]),
    st.text(max_size=12),
)


@pytest.mark.training
@pytest.mark.parametrize("num_inputs", NUM_INPUTS)
def test_the_flag_parser_gives_settings_or_says_what_is_wrong(num_inputs):
    answers = {"parsed": 0, "refused": 0}

    def test(argv, num_replicas):
        try:
            settings = flags.parse(argv, config.TrainConfig, presets=recipes.PRESETS)
            config.check(settings)
            resolved = config.resolve(settings, num_replicas)
        except flags.HelpRequested:
            return
        except errors.InputError:
            answers["refused"] += 1
            return
        answers["parsed"] += 1
        assert None not in resolved.to_json().values()
        assert resolved.global_batch_size >= num_replicas
        assert config.resolve(resolved, num_replicas) == resolved
        given = config.TrainConfig(**resolved.to_json())  # as from config.json
        assert config.resolve(given, num_replicas) == resolved
        assert resolved.peak_learning_rate > 0

    argv = st.lists(ARGUMENTS, max_size=4)
    fuzz(test, num_inputs, argv=argv, num_replicas=st.integers(1, 16))
    assert min(answers.values()) > 0
