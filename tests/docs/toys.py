"""A toy of each kind of thing that CONTRIBUTING.md has a place for: its files, what it adds to others, and its use.

Paths are relative to the package. A change is (what is there, what goes behind it).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Toy:
    """Something new.

    ``kind`` is its name in the table of CONTRIBUTING.md, ``use`` a program; ``files`` are added, ``changes`` are made.
    """

    kind: str
    use: str
    files: dict[str, str] = field(default_factory=dict)
    changes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


TENSOR = """
import numpy as np
import hurray_arrow as ha

page_pool = np.arange(5 * 4 * 3 * 2, dtype=np.float16).reshape(5, 4, 3, 2)
tables = {"block_tables": [[0, 3], [0]], "seq_lens": [7, 4], "kv_role": "key", "layer_index": 3}
tensor = ha.BlockPagedTensor.from_arrays(page_pool, **tables)
"""

ENGINE = Toy(
    "engine",
    files={
        "engines/toy.py": '''
"""A toy engine that keeps keys and values of a slot beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from hurray_arrow.engines.adapter import Adapter
from hurray_arrow.engines.groups import CacheGroup, ExportOptions, PerLayer
from hurray_arrow.engines.layouts import Layout
from hurray_arrow.engines.tables import of_block_tables
from hurray_arrow.tensor import BlockPagedTensor

LAYOUTS = {"BN2HD": Layout(name="BN2HD", shapes=("BN2HD",))}
ADAPTER = Adapter("toy", LAYOUTS)

import_cache = ADAPTER.import_cache
restore_into = ADAPTER.restore_into
metadata = ADAPTER.metadata


def export_cache(
    arrays: Mapping[str, Any],
    *,
    layout: PerLayer,
    block_tables: Any,
    seq_lens: Any,
    page_size: int,
    **options: Unpack[ExportOptions],
) -> list[BlockPagedTensor]:
    """Give the tensors of a toy cache."""
    tables = of_block_tables(block_tables, seq_lens, page_size=page_size)
    groups = [CacheGroup(layer_names=tuple(arrays), tables=tables)]
    return ADAPTER.export_groups(arrays, layout=layout, groups=groups, **options)
'''
    },
    use="""
import numpy as np
from hurray_arrow.engines import toy
from hurray_arrow.engines.suite import AdapterSuite


class TestToy(AdapterSuite):
    adapter = toy
    layouts = ("BN2HD",)

    def arrays(self, layout, keys, values):
        return np.stack([keys, values], axis=2)

    def tables(self, rows, seq_lens):
        return {"block_tables": rows, "seq_lens": seq_lens}


suite = TestToy()
tests = [name for name in dir(suite) if name.startswith("test_")]
assert len(tests) >= 14
for name in tests:
    getattr(suite, name)()
""",
)

KNOWN_STORE = Toy(
    "store that fsspec knows",
    use=TENSOR
    + """
import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class ToyFileSystem(MemoryFileSystem):
    protocol = "toy"
    store = {}
    pseudo_dirs = [""]


fsspec.register_implementation("toy", ToyFileSystem)
ha.write_snapshot("toy://caches/a.arrow", [tensor], profile="archive")
with ha.open_snapshot("toy://caches/a.arrow") as snapshot:
    assert snapshot.read(verify=True).equals(tensor)
    assert snapshot.read_sequences([1]).tensors[0].num_pages == 1
assert [name for name in ToyFileSystem.store if "tmp" in name] == []
""",
)

STORE = Toy(
    "store that can do more (parts at the same time, conditional puts)",
    files={
        "snapshot/objects/toy.py": '''
"""An object in a toy store, which makes one only where there is none."""

from __future__ import annotations

from hurray_arrow.snapshot.objects.generic import GenericObject
from hurray_arrow.snapshot.objects.store_object import Part


class ToyObject(GenericObject):
    """An object that counts how often it was put."""

    puts = 0

    def put(self, part: Part, *, overwrite: bool) -> None:
        """Create the object at once; see :meth:`StoreObject.put`."""
        mode = "overwrite" if overwrite else "create"
        data = bytes(part.getbuffer())
        self._tried(self._fs.pipe_file, self.place.path, data, mode, doing="put", creating=not overwrite)
        ToyObject.puts += 1
'''
    },
    changes={
        "snapshot/objects/__init__.py": [
            (
                "from hurray_arrow.snapshot.objects.store_object import StoreObject\n",
                "from hurray_arrow.snapshot.objects.toy import ToyObject\n",
            ),
            (
                '    "fsspec.implementations.http.HTTPFileSystem": HttpObject,\n',
                '    "__main__.ToyFileSystem": ToyObject,\n',
            ),
        ]
    },
    use=TENSOR
    + """
import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hurray_arrow.snapshot.objects.toy import ToyObject


class ToyFileSystem(MemoryFileSystem):
    protocol = "toy"
    store = {}
    pseudo_dirs = [""]


fsspec.register_implementation("toy", ToyFileSystem)
ha.write_snapshot("toy://caches/a.arrow", [tensor])
with pytest.raises(FileExistsError):
    ha.write_snapshot("toy://caches/a.arrow", [tensor])
assert ToyObject.puts == 1
with ha.open_snapshot("toy://caches/a.arrow") as snapshot:
    assert snapshot.read(verify=True).equals(tensor)
""",
)

ELEMENT_TYPE = Toy(
    "element type of the specification",
    changes={"elements.py": [('    (0x46, "float128", 128, None),\n', '    (0x47, "toy24", 24, None),\n')]},
    use="""
import numpy as np
import hurray_arrow as ha

bits = np.random.default_rng(7).integers(0, 256, 5 * 4 * 3 * 2 * 3, np.uint8)
page_pool = bits.view("V3").reshape(5, 4, 3, 2)
tables = {"block_tables": [[0, 3], [0]], "seq_lens": [7, 4], "kv_role": "key", "layer_index": 3}
tensor = ha.BlockPagedTensor.from_arrays(page_pool, element_type="toy24", **tables)
assert tensor.descriptor.encode()[14] == 0x47
for profile in ("share", "archive"):
    ha.write_snapshot(f"{profile}.arrow", [tensor], profile=profile)
    with ha.open_snapshot(f"{profile}.arrow") as snapshot:
        assert snapshot.read(verify=True).equals(tensor)
        assert snapshot.entries[0].encoding == ("byte_planes" if profile == "archive" else "plain")
assert tensor.gather(0).tobytes() == page_pool[[0, 3]].reshape(8, 3, 2)[:7].tobytes()
""",
)

PRIVATE_TYPE = Toy(
    "element type of your own",
    use="""
import numpy as np
import hurray_arrow as ha

private = ha.element_type("private_0xF3", private=ha.PrivateType(24, is_float=1, exponent_bits=8, mantissa_bits=15))
bits = np.random.default_rng(7).integers(0, 256, 5 * 4 * 3 * 2 * 3, np.uint8)
page_pool = bits.view("V3").reshape(5, 4, 3, 2)
tables = {"block_tables": [[0, 3], [0]], "seq_lens": [7, 4], "kv_role": "key", "layer_index": 3}
tensor = ha.BlockPagedTensor.from_arrays(page_pool, element_type=private, **tables)
ha.write_snapshot("private.arrow", [tensor], profile="archive")
with ha.open_snapshot("private.arrow") as snapshot:
    found = snapshot.read(verify=True)
assert found.equals(tensor) and found.element_type.private.exponent_bits == 8
""",
)

VIEW = Toy(
    "view",
    files={
        "views/toy.py": '''
"""A row per tensor: how many pages it has."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from hurray_arrow.views.view import View

_SCHEMA = pa.schema([("tensor_index", pa.uint32()), ("num_pages", pa.uint64())])


class ToyView(View):
    """A row per tensor."""

    NAME = "toys"

    @property
    def full_schema(self) -> pa.Schema:
        """Every column that the view can give."""
        return _SCHEMA

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Make one batch per tensor."""
        for entry in self.selection.entries:
            yield self._batch({"tensor_index": lambda: [entry.tensor_index], "num_pages": lambda: [entry.num_pages]})
'''
    },
    changes={
        "views/opening.py": [
            ("from hurray_arrow.views.tokens import TokensView\n", "from hurray_arrow.views.toy import ToyView\n"),
            ("VIEWS: dict[str, type[View]] = {kind.NAME: kind for kind in (", "ToyView, "),
        ]
    },
    use=TENSOR
    + """
from hurray_arrow.views import open_view
from hurray_arrow.views.duckdb import connect
from hurray_arrow.views.polars import scan

ha.write_snapshot("a.arrow", [tensor])
with ha.open_snapshot("a.arrow") as snapshot:
    assert open_view(snapshot, "toys", columns=["num_pages"]).reader().read_all().to_pylist() == [{"num_pages": 5}]
    assert connect(snapshot).sql("from toys").select("num_pages").fetchall() == [(5,)]
    assert scan(snapshot, "toys").collect().rows() == [(0, 5)]
""",
)

OPERATION = Toy(
    "operation on tensors",
    files={
        "ops/reverse.py": '''
"""Reverse: the same pages, numbered from the last to the first."""

from __future__ import annotations

import numpy as np

from hurray_arrow.ops.group import given_back, take_group
from hurray_arrow.ops.page_table import whole_pages
from hurray_arrow.ops.results import Tables, moved
from hurray_arrow.tensor import BlockPagedTensor


def reverse(tensors: BlockPagedTensor) -> BlockPagedTensor:
    """Number the pages the other way round."""
    group = take_group(tensors)
    first = group[0]
    last = first.num_pages - 1
    move = whole_pages(np.arange(last, -1, -1, dtype=np.int64), page_size=first.page_size)
    tables = Tables(last - first.block_table, first.seq_ptr, first.sequences, first.total_tokens)
    return given_back(tensors, [moved((tensor,), move, tables) for tensor in group])
'''
    },
    changes={
        "ops/__init__.py": [
            ("from hurray_arrow.ops.repage import repage\n", "from hurray_arrow.ops.reverse import reverse\n"),
        ]
    },
    use=TENSOR
    + """
reversed_pages = ha.ops.reverse(tensor)
assert reversed_pages.block_table.tolist() == [4, 1, 4]
assert np.array_equal(reversed_pages.page_pool, page_pool[::-1])
assert np.array_equal(reversed_pages.gather(0), tensor.gather(0))
""",
)

COMMAND = Toy(
    "command",
    files={
        "cli/toy.py": '''
"""``hurray-arrow toy``: how many tensors a snapshot has."""

from __future__ import annotations

import click

from hurray_arrow.cli.output import console, count
from hurray_arrow.snapshot import open_snapshot


@click.command()
@click.argument("url")
def toy(url: str) -> None:
    """Count the tensors at URL."""
    with open_snapshot(url) as snapshot:
        console().print(count(len(snapshot.entries), "tensor"))
'''
    },
    changes={
        "cli/app.py": [
            ("from hurray_arrow.cli.report import report\n", "from hurray_arrow.cli.toy import toy\n"),
            ("app.add_command(report)\n", "app.add_command(toy)\n"),
        ]
    },
    use=TENSOR
    + """
from click.testing import CliRunner
from hurray_arrow.cli.app import app

ha.write_snapshot("a.arrow", [tensor])
assert CliRunner().invoke(app, ["toy", "a.arrow"]).output == "1 tensor\\n"
assert CliRunner().invoke(app, ["toy", "nothing.arrow"]).exit_code == 3
""",
)

TOYS = (ENGINE, KNOWN_STORE, STORE, ELEMENT_TYPE, PRIVATE_TYPE, VIEW, OPERATION, COMMAND)
