"""Write the golden files of format version 1: run once, kept for ever, read by every later version.

``PYTHONPATH=. python tests/compat/make_golden.py FOLDER`` writes the files and ``manifest.json``. The files in
``golden/`` are never written again; a case that is added later is written alone, by naming it after the folder. They
were written by format version 1 with the pyarrow and zstandard that the manifest names.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import xxhash
import zstandard

from hurray_arrow import BlockPagedTensor, Statistics, write_snapshot
from hurray_arrow.snapshot import share_rows
from tests.faults.small import METADATA as SMALL_METADATA
from tests.faults.small import small_tensors
from tests.sample import ALL_ELEMENT_TYPES, INDEX_TYPES, SCHEMES, make_tensor, sample_facts

#: What would differ from day to day.
FIXED: dict[str, Any] = {
    "id": "0f4c8d1e-7a35-4b6e-9d21-5c8e2f9a7b13",
    "created": "2025-01-02T03:04:05Z",
    "producer": {"name": "hurray-arrow", "version": "golden"},
}
MAX_BYTES = 50_000
MANIFEST = "manifest.json"


def _of_types(choose: Callable[[str, int], bool]) -> list[BlockPagedTensor]:
    chosen = [name for name, element in ALL_ELEMENT_TYPES.items() if choose(name, element.bits)]
    # 4 × 2 × 6 elements are a whole number of bytes for every width.
    return [
        make_tensor(element_type=name, layer_index=n, seed=n, page_size=4, num_heads=2, head_dim=6)
        for n, name in enumerate(chosen)
    ]


_FLOATS = ("float", "bfloat", "complex")
_INTEGERS = ("int", "uint")


def narrow_floats() -> list[BlockPagedTensor]:
    """Floating-point types of one and two bytes."""
    return _of_types(lambda name, bits: name.startswith(_FLOATS) and 8 <= bits <= 16)


def wide_floats() -> list[BlockPagedTensor]:
    """Floating-point and complex types of four bytes and more."""
    return _of_types(lambda name, bits: name.startswith(_FLOATS) and bits > 16)


def narrow_integers() -> list[BlockPagedTensor]:
    """Integers of one and two bytes."""
    return _of_types(lambda name, bits: name.startswith(_INTEGERS) and 8 <= bits <= 16)


def wide_integers() -> list[BlockPagedTensor]:
    """Integers of four and eight bytes."""
    return _of_types(lambda name, bits: name.startswith(_INTEGERS) and bits > 16)


def packed() -> list[BlockPagedTensor]:
    """All built-in types narrower than a byte."""
    return _of_types(lambda name, bits: not name.startswith("private") and bits < 8)


def private() -> list[BlockPagedTensor]:
    """Private types of each kind of width."""
    return _of_types(lambda name, _bits: name.startswith("private"))


def pool_bytes() -> list[BlockPagedTensor]:
    """Pools that cannot be cut: pages of odd bits, pages without elements."""
    return [
        *(
            make_tensor(element_type=name, layer_index=n)
            for n, name in enumerate(("int4", "int2", "bool", "float6_e3m2"))
        ),
        make_tensor(num_heads=0, layer_index=4),
        make_tensor(head_dim=0, element_type="float32", layer_index=5),
    ]


def index_types() -> list[BlockPagedTensor]:
    """Both index types in one snapshot: the table's storage is the wider one's."""
    return [make_tensor(index_type=kind, layer_index=n, seed=n) for n, kind in enumerate(INDEX_TYPES)]


def schemes() -> list[BlockPagedTensor]:
    """Every quantization scheme."""
    return [make_tensor(element_type="int8", quantization=name, layer_index=n) for n, name in enumerate(SCHEMES)]


def facts() -> list[BlockPagedTensor]:
    """Every fact about sequences, a companion, absent pages, statistics, an unknown length, names."""
    statistics = Statistics(computed_mask=0b100, value_min=-1.5, value_max=2.25, value_abs_max=2.25)
    return [
        make_tensor(kv_role="key", layer_name="model.layers.0", statistics=statistics, **sample_facts()),
        make_tensor(
            kv_role="key",
            layer_name="model.layers.0",
            component="state.x",
            element_type="float32",
            head_dim=2,
            **sample_facts(),
        ),
        make_tensor(layer_index=None, seq_lens=[13, None, None, 4], total_tokens=27),
        make_tensor(layer_index=None, kv_role="fused", seq_lens=None, total_tokens=19, layer_name="ß"),
    ]


def original_descriptors() -> list[BlockPagedTensor]:
    """Producers' descriptors that had to be changed: a table that was longer than it should be, memory of a device."""
    tensor = make_tensor(layer_index=0)
    handles = tuple(replace(handle, device_tag=1, sync_mode=1) for handle in tensor.descriptor.buffers)
    elsewhere = replace(tensor.descriptor, buffers=handles, layer_index=1)
    longer = tensor.buffers[1].tobytes() + b"\0" * 64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            BlockPagedTensor.from_buffers(
                tensor.descriptor,
                [tensor.buffers[0], longer, tensor.buffers[2]],
                strict=False,
                sequences=tensor.sequences,
            ),
            BlockPagedTensor.from_buffers(elsewhere, tensor.buffers, sequences=tensor.sequences),
        ]


def empty() -> list[BlockPagedTensor]:
    """No sequences, no pages, sequences without pages, no tokens."""
    return [
        make_tensor(block_tables=[], seq_lens=[], layer_index=0),
        make_tensor(block_tables=[[], [], []], seq_lens=[0, 0, 0], layer_index=1),
        make_tensor(block_tables=[[], []], seq_lens=[0, 0], num_pages=0, layer_index=2),
        make_tensor(block_tables=[[3], [1, 2]], seq_lens=[1, 2], page_size=1, layer_index=3),
    ]


def nothing() -> list[BlockPagedTensor]:
    """A snapshot of no tensors."""
    return []


def many_pages() -> list[BlockPagedTensor]:
    """So many pages that their checksums can be left out, in two kv_groups."""
    pages = [*range(150, 0, -1)]
    tables = [pages[:70], [], pages[60:149]]
    return [
        make_tensor(
            layer_index=layer,
            seed=layer,
            page_size=1,
            num_heads=1,
            head_dim=3,
            num_pages=151,
            seq_lens=lens,
            block_tables=tables,
        )
        for layer, lens in enumerate(([70, 0, 89], [69, 0, 88]))
    ]


def long_index() -> list[BlockPagedTensor]:
    """An index above 16 KiB, which is compressed."""
    return [make_tensor(layer_name="layer." * 3000)]


def archive_rows() -> list[BlockPagedTensor]:
    """A pool of more than 8 MiB, which an archive cuts into rows; nearly all zeros, so that the file is small."""
    pool = np.zeros((301, 64, 2, 128), np.uint16)
    pool[:, 63, 1, 127] = np.arange(301)
    return [make_tensor(page_pool=pool, page_size=64, num_pages=301, block_tables=[[300, 7], [12]], seq_lens=[99, 64])]


CASES: dict[str, tuple[Callable[[], list[BlockPagedTensor]], dict[str, Any]]] = {
    "narrow_floats": (narrow_floats, {}),
    "wide_floats": (wide_floats, {}),
    "narrow_integers": (narrow_integers, {}),
    "wide_integers": (wide_integers, {}),
    "packed": (packed, {}),
    "private": (private, {}),
    "pool_bytes": (pool_bytes, {}),
    "index_types": (index_types, {}),
    "schemes": (schemes, {}),
    "facts": (facts, {}),
    "original_descriptors": (original_descriptors, {}),
    "empty": (empty, {}),
    "nothing": (nothing, {}),
    "many_pages": (many_pages, {}),
    "long_index": (long_index, {}),
    "companions": (small_tensors, {"metadata": SMALL_METADATA}),
    "partial": (lambda: small_tensors()[:1], {"metadata": SMALL_METADATA, "partial": True}),
    "no_checksums": (small_tensors, {"checksums": False}),
    "metadata": (
        lambda: [make_tensor(layer_name="a")],
        {
            "metadata": {
                "model": {"name": "m", "revision": "9f2c", "rope": {"theta": 10000.0, "applied": True}},
                "engine": {"name": "e", "version": "1", "kv_cache_dtype": "auto"},
                "groups": [{"kind": "full", "page_size": 5, "layer_names": ["a"], "components": ["values"]}],
                "topology": {"tp_rank": 1, "tp_size": 2, "head_range": [3, 6]},
                "set": {"id": "s", "member": 1, "members": 2},
                "adapter": "lora-7",
                "tenant": "t1",
                "user": {"large": 2**60, "ß": None},
            },
            "page_align_bytes": 4096,
        },
    ),
    "archive": (small_tensors, {"metadata": SMALL_METADATA, "profile": "archive"}),
    "archive_floats": (narrow_floats, {"profile": "archive"}),
    "archive_rows": (archive_rows, {"profile": "archive"}),
    "archive_plain": (facts, {"profile": "archive", "encoding": "plain"}),
}


def write(name: str, path: Path) -> None:
    """Write one case; the same bytes every time."""
    tensors, options = CASES[name]
    options = {"page_align_bytes": 64, **options}
    metadata = {**options.pop("metadata", {}), **FIXED}
    # So that a small file shows what the index of large ones has.
    with mock.patch.object(share_rows, "LARGE_POOL_BYTES", 0):
        write_snapshot(path, tensors(), metadata=metadata, overwrite=True, mode=0o644, **options)


def main(folder: Path, names: list[str]) -> None:
    """Write the cases and add them to the manifest."""
    manifest_path = folder / MANIFEST
    manifest = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    for name in names or CASES:
        path = folder / f"{name}.arrow"
        if path.exists():
            raise SystemExit(f"{path} is golden: it is not written again")
        write(name, path)
        manifest[name] = {
            "xxh3": xxhash.xxh3_64_hexdigest(path.read_bytes()),
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
            "zstandard": zstandard.__version__,
        }
    manifest_path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
