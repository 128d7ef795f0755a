"""What `import hurray_arrow` gives: exactly what it says, documented, and nothing that is not needed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hurray_arrow as ha
from hurray_arrow.snapshot.entries import Selectors


def test_every_public_name_is_exported_once():
    modules = {name for name, value in vars(ha).items() if inspect.ismodule(value)} - {"share"}
    public = {name for name in vars(ha) if not name.startswith("_")} - modules
    assert sorted(ha.__all__) == sorted(public)


@pytest.mark.parametrize("name", [name for name in ha.__all__ if callable(getattr(ha, name))])
def test_every_public_name_is_documented(name):
    found = getattr(ha, name)
    own = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    assert own


def test_every_exception_is_at_the_front_door():
    from hurray_arrow import errors

    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert defined <= set(ha.__all__)


def test_the_names_that_others_build_on():
    parameters = {
        ha.write_snapshot: ["path", "tensors", "metadata", "overwrite", "progress"],
        ha.open_snapshot: ["path", "expect", "recover", "trusted"],
        ha.BlockPagedTensor.from_arrays: [
            "page_pool", "block_table", "seq_ptr", "block_tables", "element_type", "kv_role", "layer_index",
        ],
        ha.Snapshot.read: ["verify", "selectors"],
    }  # fmt: skip
    for function, names in parameters.items():
        assert set(names) <= set(inspect.signature(function).parameters)
    assert set(Selectors.__annotations__) == {"layer_index", "layer_name", "kv_role", "kv_group", "component"}


def test_import_loads_nothing_that_only_some_need():
    heavy = {
        "pandas",
        "polars",
        "duckdb",
        "torch",
        "ray",
        "hurray",
        "click",
        "rich",
        "pyarrow.parquet",
        "pyarrow.dataset",
    }
    program = f"import hurray_arrow, sys; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ha.__file__).parents[1]
    )
    assert done.stdout.split() == []
