"""Who may import whom: downward only, and nothing happens on import."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# From the bottom up. A module imports only from its own room and from rooms before it,
# so no two rooms import each other.
ORDER = (
    "tfmirror",
    "tfmirror.errors",
    "tfmirror.files",
    "tfmirror.archives",
    "tfmirror.tables",
    "tfmirror.hardware",
    "tfmirror.metrics",
    "tfmirror.confusion",
    "tfmirror.process_environment",
    "tfmirror.recipes",
    "tfmirror.model_source",
    "tfmirror.settings",
    "tfmirror.train_config",
    "tfmirror.folder_settings",
    "tfmirror.config",
    "tfmirror.data",
    "tfmirror.models",
    "tfmirror.rundir",
    "tfmirror.reporting",
    "tfmirror.parallel",
    "tfmirror.diagnostics",
    "tfmirror.training",
    "tfmirror.inference",
    "tfmirror.benchmarking",
    "tfmirror.flags",
    "tfmirror.command",
    "tfmirror.train",
    "tfmirror.inspect_replicas",
    "tfmirror.verify",
    "tfmirror.report",
    "tfmirror.evaluate",
    "tfmirror.predict",
    "tfmirror.export",
    "tfmirror.benchmark",
    "experiments",
    "examples",
)
ROOMS = {name: number for number, name in enumerate(ORDER)}


def room_of(module):
    """Returns the room of a module: its own, or its package's."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (room := ROOMS.get(".".join(parts[:length]))) is not None and (
            length > 1 or len(parts) == 1 or parts[0] != "tfmirror"
        ):
            return room
    raise KeyError(f"{module} is in no room: add it to ORDER and to docs/code.md")


def imports_of(source):
    """Returns the names of all modules that `source` imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(module, source):
    """Returns what `module` imports or uses against the rules, as text."""
    found = []
    for name in sorted(imports_of(source)):
        is_ours = name.split(".")[0] in ("tfmirror", "experiments", "examples")
        if is_ours and room_of(name) > room_of(module):
            found.append(f"{module} imports {name} from a higher room")
        if name.startswith("absl.flags") and module != "tfmirror.flags":
            found.append(f"{module} imports absl.flags")
    used = {
        n.attr
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.Attribute)
        and isinstance(n.value, ast.Attribute)
        and n.value.attr == "distribute"
    }
    # The type of a strategy may be named anywhere.
    if used - {"Strategy"} and room_of(module) != ROOMS["tfmirror.parallel"]:
        found.append(f"{module} uses tf.distribute")
    return found


def modules():
    """Yields (module name, path) of all code that isn't a test."""
    for path in sorted(
        [
            *ROOT.glob("tfmirror/**/*.py"),
            *ROOT.glob("experiments/*.py"),
            *ROOT.glob("examples/*.py"),
        ]
    ):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def test_every_module_imports_downward_only():
    found = [v for name, path in modules() for v in violations(name, path.read_text())]
    assert found == []
    assert len(list(modules())) > 15  # it did look at something


def test_a_type_annotation_may_name_a_strategy():
    source = (
        "import tensorflow as tf\n"
        "def run(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy: ...\n"
        "class Kept:\n    strategy: tf.distribute.Strategy\n"
    )
    assert violations("tfmirror.training.loop", source) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tfmirror.data.idx", "from tfmirror.parallel import step"),
        ("tfmirror.models.small_cnn", "import tfmirror.training.loop"),
        ("tfmirror.config", "def f():\n    from tfmirror import flags"),
        (
            "tfmirror.training.loop",
            "import tensorflow as tf\ntf.distribute.get_strategy()",
        ),
        ("tfmirror.training.run", "from absl.flags import FLAGS"),
        ("tfmirror.parallel.step", "from tfmirror import train"),
    ],
)
def test_a_broken_rule_is_found(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize("position", range(len(ORDER) - 1))
def test_no_room_imports_the_next_one_up(position):
    low, high = ORDER[position : position + 2]
    (found,) = violations(low, f"import {high}")
    assert found == f"{low} imports {high} from a higher room"
    assert violations(high, f"import {low}") == []


def test_a_module_without_a_room_is_found():
    with pytest.raises(KeyError, match="tfmirror.new is in no room"):
        room_of("tfmirror.new")


def test_importing_everything_does_not_start_tensorflow():
    """Logical devices can still be made afterwards, which the runtime would refuse."""
    names = [name for name, _ in modules() if name.startswith("tfmirror")]
    names.remove("tfmirror.benchmarking.torch_ddp")  # for another environment
    code = (
        "import importlib, tensorflow as tf\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "cpu = tf.config.list_physical_devices('CPU')[0]\n"
        "one = tf.config.LogicalDeviceConfiguration()\n"
        "tf.config.set_logical_device_configuration(cpu, [one] * 3)\n"
        "assert len(tf.config.list_logical_devices('CPU')) == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    "module",
    "train evaluate predict export inspect_replicas verify benchmark report".split(),
)
def test_commands_answer_wrong_flags_without_importing_tensorflow(module):
    code = f"import sys, tfmirror.{module}; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_experiments_are_short():
    for path in ROOT.glob("experiments/*.py"):
        assert len(path.read_text().splitlines()) <= 90, path


def test_the_docs_list_every_module():
    tree = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    listed = tree.split("```")[1].split()
    for _, path in modules():
        if path.parent.name not in ("experiments", "examples"):
            name = path.name if path.name != "__init__.py" else f"{path.parent.name}/"
            assert name in listed, f"docs/code.md does not list {path}"
