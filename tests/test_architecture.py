"""The layers of ``docs/architecture.md``: imports go down only, and no two modules import each other.

Imports inside functions count; imports for type checkers alone do not. ``from fedqssl import __version__`` does not
count either: it reads a constant, while everything else in ``fedqssl/__init__.py`` stands above all packages.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

LAYERS = (
    ("fedqssl", "__main__"),
    ("cli", "api"),
    ("deploy",),
    ("reporting",),
    ("studies",),
    ("serve",),
    ("maker",),
    ("runs",),
    ("cost",),
    ("engines",),
    ("federated",),
    ("device",),
    ("evaluation",),
    ("ssl",),
    ("models", "data"),
    ("lowbit",),
    ("quant",),
    ("config", "plotting"),
    ("accelerators", "files", "header", "imported", "library", "listen", "units", "watch_parent"),
)
"""Top to bottom. A package may import from the lines below its own, and from itself."""


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package(module: str) -> str:
    """The room: the name after ``fedqssl``, or ``fedqssl`` itself."""
    return module.split(".")[1] if "." in module else module


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All import statements, except those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from statements(ast.Module([other], []))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from statements(node)


def named(module: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that the statements of ``module`` name."""
    home = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            continue
        assert isinstance(node, ast.ImportFrom)
        above = home.split(".")[: len(home.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if inner != "fedqssl.__version__":
                yield inner if inner in known else base


@cache
def graph() -> dict[str, frozenset[str]]:
    """Each module with the modules of ours that it imports."""
    known = modules()
    return {m: frozenset(n for n in named(m, path, known) if n in known and n != m) for m, path in known.items()}


def cycles(edges: dict[str, frozenset[str]]) -> set[frozenset[str]]:
    """Groups of modules that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(edges[start])
        while ahead:
            here = ahead.pop()
            if here not in seen:
                seen.add(here)
                ahead.extend(edges[here])
        return seen

    reach = {m: reached(m) for m in edges}
    return {frozenset(n for n in reach[m] if m in reach[n]) for m in edges if m in reach[m]}


def test_every_package_has_one_place():
    listed = [name for line in LAYERS for name in line]
    assert len(listed) == len(set(listed))
    assert {package(m) for m in modules()} <= set(listed)


def test_imports_only_go_down():
    height = {name: i for i, line in enumerate(LAYERS) for name in line}
    upward = {
        (here, there)
        for here, targets in graph().items()
        for there in targets
        if package(here) != package(there) and height[package(there)] <= height[package(here)]
    }
    assert not upward, "these import upward or sideways"


def test_no_cycle():
    assert not cycles(graph()), "these import each other"


def test_the_page_has_the_same_list():
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = re.search(r"^```layers\n(.*?)^```", page, re.S | re.M)
    assert block is not None
    lines = [re.split(r"\s{2,}", line)[0] for line in block[1].splitlines()]
    assert [tuple(line.split()) for line in lines] == list(LAYERS[1:])


def test_a_cycle_and_a_lazy_import_are_found():
    edges = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert cycles(edges) == {frozenset("abc")}
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import x\nelse:\n    import y\ndef f():\n    import z\n"
    assert [ast.unparse(node) for node in statements(ast.parse(text))][1:] == ["import y", "import z"]
