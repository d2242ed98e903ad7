"""Everything public says its types: each parameter, each return, each field."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def public_functions(tree):
    """Yields (name, node) of public functions and of methods, none of them nested."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for name, method in public_functions(node):
                yield f"{node.name}.{name}", method
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_"):
                yield node.name, node


def untyped(source):
    """Returns what has no type in `source`, as text."""
    tree, found = ast.parse(source), []
    for name, node in public_functions(tree):
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        is_static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
        if "." in name and not is_static:
            parameters = parameters[1:]  # self or cls
        parameters += [p for p in (arguments.vararg, arguments.kwarg) if p]
        found += [f"{name}: {p.arg}" for p in parameters if p.annotation is None]
        if node.returns is None:
            found.append(f"{name}: what it returns")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            # A field without a type is a class attribute, which all objects share.
            found += [
                f"{node.name}: {ast.unparse(target)}"
                for statement in node.body
                if isinstance(statement, ast.Assign)
                for target in statement.targets
            ]
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a: int, *b: int, c: int = 1, **d: int) -> None: ...", []),
        ("def f(a, *b, c=1, **d): ...", ["a", "c", "b", "d", "what it returns"]),
        ("def _f(a): ...", []),
        ("def f() -> None:\n    def inner(a): ...", []),
        ("class A:\n    def f(self, a) -> int: ...", ["a"]),
        ("class A:\n    @staticmethod\n    def f(a) -> int: ...", ["a"]),
        ("class A:\n    x = 1", []),
        ("@dataclasses.dataclass(frozen=True)\nclass A:\n    x = 1\n", ["x"]),
        ("@dataclass\nclass A:\n    x: int = 1", []),
    ],
)
def test_what_has_no_type_is_found(source, expected):
    assert [text.split(": ")[1] for text in untyped(source)] == expected


def test_everything_public_has_its_types():
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted(ROOT.glob("tfmirror/**/*.py"))
        for text in untyped(path.read_text())
    ]
    assert found == [], "\n" + "\n".join(found)
