"""The house's rules that a program can check: which floor may import what, and what modules may be called."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hurray_arrow"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Lowest floor first; a module imports from lower floors and from its own.
FLOORS = [
    ["_later", "errors"],
    ["spec"],
    ["_json", "_wire", "components", "doors", "mappings", "memory", "packing", "private_types", "texts"],
    ["elements", "schemes", "sequences"],
    ["conversions", "sections"],
    ["quantization"],
    ["codec"],
    ["descriptor"],
    ["intake", "paging", "prefixes", "sequence_rules"],
    ["buffers", "invariants", "tensor_fields"],
    ["sharing"],
    ["reading"],
    ["tensor"],
    ["identity", "page_views", "tensors"],
    ["ops"],
    ["engines"],
    ["arrow"],
    ["snapshot"],
    ["share"],
    ["catalog", "views"],
    ["ray", "report"],
    ["cli"],
    ["__main__"],
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
#: The floor on which a foreign package starts.
STARTS_AT = {
    "numpy": "errors",
    "ml_dtypes": "errors",
    "pyarrow": "arrow",
    "fsspec": "snapshot",
    "xxhash": "ops",
    "zstandard": "arrow",
}
#: Optional packages, and the only place that may import each.
SERVED_BY = {
    "click": {"cli"},
    "rich": {"cli"},
    "torch": {"engines", "page_views"},
    "transformers": {"engines"},
    "hurray": {"engines"},
    "duckdb": {"views"},
    "polars": {"views"},
    "pandas": {"views"},
    "datafusion": {"views"},
    "ray": {"ray"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "markupsafe": {"report"},
    "azure": {"snapshot"},
    "obstore": {"snapshot"},
}
#: module: functions that import upward when they are called.
DOORS: dict[str, set[str]] = {
    "doors": {
        "__arrow_c_array__",
        "__arrow_c_schema__",
        "__dlpack__",
        "__hurray__",
        "as_torch",
        "from_hurray",
        "to_torch",
    },
    "snapshot.view_doors": {"_view"},
}


def place(path: Path) -> tuple[str, str]:
    """Return the module's dotted name below the package, and the floor name that it belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts), parts[0]


def imports(tree: ast.Module):
    """Yield (imported module, name of the enclosing function or "") for every import outside TYPE_CHECKING."""
    todo: list[tuple[ast.AST, str]] = [(tree, "")]
    while todo:
        node, function = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        elif isinstance(node, ast.Import):
            yield from ((alias.name, function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            inside = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "hurray_arrow"
                else [node.module]
            )
            yield from ((name, function) for name in inside)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        todo.extend((child, function) for child in ast.iter_child_nodes(node))


def broken_rules(path: Path, source: str) -> list[str]:
    """Return every import of a module that climbs, or that stands on the wrong floor."""
    module, own = place(path)
    assert own in FLOOR or own == "__init__", f"{module}: say in FLOORS where it stands"
    broken = []
    for imported, function in imports(ast.parse(source)):
        top, _, rest = imported.partition(".")
        name = rest.partition(".")[0]
        if top == "hurray_arrow":
            ok = own == "__init__" or function in DOORS.get(module, ()) or FLOOR[name] < FLOOR[own] or name == own
        elif top in SERVED_BY:
            ok = own in SERVED_BY[top]
        elif top in STARTS_AT:
            ok = own != "__init__" and FLOOR[own] >= FLOOR[STARTS_AT[top]]
        else:
            ok = top in sys.stdlib_module_names
        if not ok:
            broken.append(f"{module}{f'.{function}' if function else ''} imports {imported}")
    return broken


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_down(path):
    assert broken_rules(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("spec.py", "import pyarrow as pa"),
        ("tensor.py", "def read():\n    import fsspec.spec"),
        ("descriptor.py", "from hurray_arrow import tensor"),
        ("arrow/types.py", "from hurray_arrow.snapshot.writer import SnapshotWriter"),
        ("arrow/types.py", "from fsspec import AbstractFileSystem"),
        ("snapshot/writer.py", "import rich"),
        ("errors.py", "from hurray_arrow.spec import MAGIC"),
        ("elements.py", "import pandas"),
        ("__init__.py", "import numpy"),
    ],
)
def test_an_import_that_climbs_is_found(path, source):
    assert len(broken_rules(PACKAGE / path, source)) == 1


def test_modules_are_nouns_of_readable_length():
    assert len(MODULES) > 10
    names = {part for path in MODULES for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc", "base", "core"}
    too_long = {place(path)[0]: n for path in MODULES if (n := len(path.read_text().splitlines())) > 400}
    assert too_long == {}


def test_functions_are_of_readable_length():
    too_long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                code = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (code[-1].end_lineno or 0) - code[0].lineno + 1 if code else 0
                if lines > 40:
                    too_long.append(f"{place(path)[0]}.{node.name}: {lines}")
    assert too_long == []
