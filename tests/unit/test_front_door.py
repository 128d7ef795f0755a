"""What `import hurray_arrow` gives: exactly what it says, documented, and nothing that is not needed."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hurray_arrow as ha
from hurray_arrow.snapshot.entries import Selectors
from tests.sample import make_tensor, sample_facts


def test_every_public_name_is_exported_once():
    modules = {name for name, value in vars(ha).items() if inspect.ismodule(value)} - {"ops", "share"}
    public = {name for name in dir(ha) if not name.startswith("_")} - modules
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


#: What numpy, pyarrow and fsspec don't load by themselves, and every user of this package needs.
NEEDED = {
    "fsspec.implementations",
    "fsspec.implementations.local",
    "ml_dtypes",
    "numpy.typing",
    "xxhash",
    "zstandard",
}
#: Modules of this package that only some need: who uses stores, archives, streams or sets, copies, asks in SQL, ….
LATER = {"catalog", "cli", "engines", "ops", "page_views", "ray", "report", "share", "views"}
LATER_IN_SNAPSHOT = {
    "archive_rows", "archive_source", "copy_plan", "listing", "objects", "partial", "pins", "plane_sizes", "read_ahead",
    "recovery", "row_stream", "set_members", "sets", "stream", "stream_reader", "transform", "upload", "verification",
}  # fmt: skip


def loaded_by(statement):
    """Return the modules that a statement adds to those of numpy, pyarrow and fsspec."""
    program = f"import numpy, pyarrow, fsspec, sys; before = set(sys.modules); {statement}; "
    program += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(ha.__file__).parents[1]
    )
    return set(done.stdout.split())


def test_import_loads_nothing_that_only_some_need():
    """The time of an import is in benchmarks/imports.py; what it loads decides, and can be asserted."""
    loaded = loaded_by("import hurray_arrow")
    own = {name for name in loaded if name.partition(".")[0] == "hurray_arrow"}
    standard = {name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names}
    foreign = {name for name in loaded - own - standard if not any(part.startswith("_") for part in name.split("."))}
    assert {name for name in foreign if name.count(".") == 0 or name.startswith("fsspec.")} <= NEEDED
    assert standard <= {"hmac", "mmap", "secrets", "uuid"} | {name for name in standard if name.startswith("_")}
    assert len(own) > 50
    assert not {name.split(".")[1] for name in own if "." in name} & LATER
    assert not {name.split(".")[2] for name in own if name.startswith("hurray_arrow.snapshot.")} & LATER_IN_SNAPSHOT


def test_reading_loads_no_library_that_only_others_need(tmp_path):
    """pyarrow imports pandas for many a conversion, which takes longer than reading."""
    path = tmp_path / "s.arrow"
    ha.write_snapshot(path, [make_tensor(quantization="per_block", **sample_facts(4))])
    loaded = loaded_by(f"import hurray_arrow; hurray_arrow.open_snapshot({str(path)!r}).read(verify=True).gather(0)")
    assert not {name.partition(".")[0] for name in loaded} & {"pandas", "polars", "duckdb", "torch"}


def test_what_few_need_is_loaded_when_it_is_asked_for():
    assert "hurray_arrow.snapshot.transform" in loaded_by("from hurray_arrow.snapshot import copy_snapshot")
    assert "hurray_arrow.share.allocation" in loaded_by("import hurray_arrow; hurray_arrow.share.publish")
    assert "hurray_arrow.share.allocation" in loaded_by("from hurray_arrow import *")
    with pytest.raises(AttributeError, match="no attribute 'shares'"):
        ha.shares  # noqa: B018 - asking is the test
