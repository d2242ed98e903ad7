"""A model's function is found where its name says, and recorded with a digest."""

import functools
import hashlib
import linecache
import pathlib
import sys

import own_models
import pytest

from tfmirror import errors, model_source

FILE = pathlib.Path(own_models.__file__)


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """Returns a function that writes nets.py, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text):
        (tmp_path / "nets.py").write_text(text)
        return tmp_path / "nets.py"

    return write


def test_a_file_and_a_module_and_python_give_the_same_function_and_digest(monkeypatch):
    of_file = model_source.load(f"{FILE}:small")
    of_module = model_source.load("own_models:small")
    given = model_source.of_function(own_models.small)
    assert of_module.function is given.function is own_models.small
    assert {s.sha256 for s in (of_file, of_module, given)} == {digest_of(FILE)}
    assert [s.name for s in (of_file, of_module, given)] == [
        f"{FILE}:small", "own_models:small", "own_models:small",
    ]  # fmt: skip
    model = of_file.build([28, 28, 1], 10)
    assert model.output_shape == (None, 10)


def test_a_file_is_run_once_and_again_when_it_has_changed(nets):
    nets(
        "calls = []\ndef build(shape, k):\n    calls.append(k)\n    return len(calls)\n"
    )
    assert [model_source.load("nets.py:build").build((1,), 2) for _ in "ab"] == [1, 2]
    nets("def build(shape, k):\n    return 'new'\n")
    assert model_source.load("./nets.py:build").build((1,), 2) == "new"


def test_a_file_imports_its_neighbours_also_when_it_is_called(nets, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "neighbour_of_nets.py").write_text("NUMBER = 3\n")
    text = (
        "def build(shape, k):\n    import neighbour_of_nets as n\n    return n.NUMBER\n"
    )
    (folder / "nets.py").write_text(text)
    assert model_source.load("folder/nets.py:build").build((1,), 2) == 3


def test_every_function_has_a_name_that_could_stand_in_a_flag():
    def within(shape, k): ...

    for function in (within, lambda shape, k: 1, functools.partial(within)):
        name = model_source.of_function(function).name
        model_source.check((), name)
        assert name.split(":")[1] in ("within", "function")


def test_a_function_of_a_notebook_has_the_digest_of_its_text(monkeypatch):
    text, name = "def build(shape, k): return 1\n", "<ipython-input-1>"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, [text], name))
    built = {}
    exec(compile(text, name, "exec"), built)
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert model_source.of_function(built["build"]).sha256 == expected


def test_a_function_whose_text_is_not_known_has_no_digest():
    built = {}
    exec("def build(shape, k): return 1", built)
    assert model_source.of_function(built["build"]).sha256 == ""

    class Callable:
        def __call__(self, shape, k):
            return 2

    assert model_source.of_function(Callable()).build((1,), 2) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("typo", "must be one of cnn, or FILE.py:FUNCTION or package.module:FUNCTION"),
        (":build", "must be one of cnn"),
        ("nets.py:", "must be FILE.py:FUNCTION"),
        ("nets.py:a b", "must be FILE.py:FUNCTION"),
        ("nets.py:os.system", "must be FILE.py:FUNCTION"),
        ("a..b:build", "must be FILE.py:FUNCTION"),
        (
            "missing.py:build",
            "model must be of an existing file: got 'missing.py:build'",
        ),
        ("~no_such_user/nets.py:build", "unknown user"),
        ("folder/nets:build", "model must be of an existing file"),
    ],
)
def test_wrong_names_are_refused_before_anything_runs(nets, name, says):
    with pytest.raises(errors.InputError, match=says):
        model_source.check(("cnn",), name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:", "model nets.py:build can't be loaded: SyntaxError in line 1: "),
        ("\n\n1 / 0", "can't be loaded: ZeroDivisionError in line 3: division by zero"),
        (
            "import missing_module",
            "ModuleNotFoundError in line 1: No module named 'mis",
        ),
        ("raise SystemExit(3)", "can't be loaded: SystemExit in line 1: 3"),
        ("def other(): pass", "a function of nets.py: got 'build'; it has other"),
        ("build = 3", "a function of nets.py: got 'build'; it has none"),
    ],
)
def test_a_file_that_can_not_be_used_is_named_with_the_line(nets, text, says):
    nets(text)
    model_source.check(("cnn",), "nets.py:build")
    before = set(sys.modules)
    with pytest.raises(errors.InputError, match=says):
        model_source.load("nets.py:build")
    is_run = "function of" in says
    new = [name for name in set(sys.modules) - before if "nets" in name]
    assert len(new) == is_run


def test_a_module_that_does_not_exist_is_named():
    with pytest.raises(
        errors.InputError, match="no_such_module:build can't be loaded: M"
    ):
        model_source.load("no_such_module:build")


def test_an_input_error_of_the_function_is_its_own(nets):
    nets(
        "from tfmirror import errors\n"
        "def build(s, k):\n    raise errors.InputError('so')\n"
    )
    with pytest.raises(errors.InputError, match="^so$"):
        model_source.load("nets.py:build").build((1,), 2)


@pytest.mark.parametrize(
    ("name", "function"), [("cnn", ""), ("a/nets.py:small", "small"), ("a.b:c", "c")]
)
def test_the_name_of_the_function(name, function):
    assert model_source.function_name(name) == function
    assert model_source.is_own(name) == bool(function)
