"""docs/format.md is complete: readers made from the page alone get from every kind of file what this package gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

import hurray_arrow as ha
from tests.compat.make_golden import CASES
from tests.sample import INDEX_TYPES, SCHEMES, make_tensor, sample_facts

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "compat" / "golden"
#: What the two may import; hurray_arrow is not to be had where they run.
ALLOWED = {"base64", "itertools", "json", "pathlib", "struct", "sys", "numpy", "pyarrow", "xxhash", "zstandard"}
RUN = """
import runpy, sys
sys.modules["hurray_arrow"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def read_by_the_page(*paths: Path, reader: str = "page_reader.py") -> list:
    command = [sys.executable, "-W", "error", "-c", RUN, str(HERE / reader), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def facts_of(sequences: ha.Sequences, num_seqs: int) -> list[dict]:
    """Return the facts as the page's column has them."""

    def of(name: str, seq: int):
        fact = getattr(sequences, name)
        return None if fact is None or fact[seq] is None else fact[seq]

    def listed(name: str, seq: int):
        found = of(name, seq)
        return None if found is None else found.tolist()

    known = sequences.seq_lens_known
    return [
        {
            "num_tokens": None
            if sequences.seq_lens is None or (known is not None and not known[s])
            else int(sequences.seq_lens[s]),
            "id": of("ids", s),
            "token_ids": listed("token_ids", s),
            "page_positions": listed("page_positions", s),
            "adapter": of("adapter", s),
            "tenant": of("tenant", s),
            "media": None
            if of("media", s) is None
            else [
                {"first_token": m.first_token, "num_tokens": m.num_tokens, "digest": m.digest} for m in of("media", s)
            ],
        }
        for s in range(num_seqs)
    ]


def token_hashes(tensor: ha.BlockPagedTensor) -> list[str]:
    cut = tensor.descriptor.page_elems > 0
    if tensor.element_type.is_packed or not cut:
        return []
    hashes = []
    for seq in range(tensor.num_seqs):
        try:
            hashes.append(xxhash.xxh3_64_hexdigest(tensor.gather(seq).tobytes()))
        except ha.UnknownSequenceLengthError:
            continue
    return hashes


def as_the_page_says(tensor: ha.BlockPagedTensor, kv_group: int) -> dict:
    digest = xxhash.xxh3_64_hexdigest
    return {
        "key": [kv_group, tensor.layer_index, tensor.layer_name, tensor.kv_role, tensor.component],
        "descriptors": [tensor.descriptor.encode().hex(), (tensor.original_descriptor or b"").hex()],
        "pool": digest(tensor.buffers[0]),
        "tables": [tensor.seq_ptr.tolist(), tensor.block_table.tolist(), facts_of(tensor.sequences, tensor.num_seqs)],
        "parameters": [digest(buffer) for buffer in tensor.quantization_buffers],
        "tokens": token_hashes(tensor),
    }


def as_this_package_reads(path: Path) -> list[dict]:
    with ha.open_snapshot(path) as snapshot:
        tensors = [snapshot.checked_tensor(entry)[0] for entry in snapshot.entries]
        return [
            as_the_page_says(tensor, entry.kv_group) for tensor, entry in zip(tensors, snapshot.entries, strict=True)
        ]


def damaged(path: Path, folder: Path, name: str, place: int) -> Path:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    made = folder / f"{name}.arrow"
    made.write_bytes(content)
    return made


def test_the_readers_are_small_and_independent():
    source = (HERE / "page_reader.py").read_text()
    assert len(source.splitlines()) <= 150
    for reader in (source, (HERE / "page_stream_reader.py").read_text()):
        imported = {
            line.split()[1].partition(".")[0] for line in reader.splitlines() if line.startswith(("import ", "from "))
        }
        assert imported - {"page_reader"} <= ALLOWED


def test_files_of_every_kind_are_read_the_same():
    paths = [GOLDEN / f"{name}.arrow" for name in CASES]
    for path, found in zip(paths, read_by_the_page(*paths), strict=True):
        assert found == as_this_package_reads(path), path.stem


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_damage_is_found_wherever_a_hash_is(profile, tmp_path):
    path = tmp_path / "a.arrow"
    ha.write_snapshot(path, [make_tensor(num_pages=7, layer_index=n) for n in range(2)], profile=profile)
    with ha.open_snapshot(path) as snapshot:
        _, second = snapshot._rows._places[0][0], snapshot._rows._places[1][0]
    content = path.read_bytes()
    places = {
        "row": second.offset + 100,
        "index": content.index(b"num_tensors"),
        "schema": content.rindex(b"page_checksums"),
    }
    refusals = {"index": "hash of the index", "schema": "hash of the schema", "row": "row_xxh3"}
    if profile == "share":
        places |= {"pages": second.pages_offset + 5, "tail": second.pages_offset + second.pages_bytes + 1}
        refusals |= {"pages": "page checksums", "tail": "head_xxh3 or tail_xxh3", "row": "head_xxh3 or tail_xxh3"}
    broken = [damaged(path, tmp_path, name, place) for name, place in places.items()]
    assert read_by_the_page(*broken) == [refusals[name] for name in places]


def test_an_unfinished_file_is_incomplete(tmp_path):
    path = tmp_path / "a.arrow"
    ha.write_snapshot(tmp_path / "whole.arrow", [make_tensor()])
    whole = pa.ipc.open_file(tmp_path / "whole.arrow")
    with pa.ipc.new_file(path, whole.schema) as writer:
        writer.write_batch(whole.get_batch(0))
    assert read_by_the_page(path) == ["incomplete"]


def test_streams_are_read_the_same(tmp_path):
    tensors = [
        make_tensor(layer_index=0, kv_role="key", **sample_facts()),
        make_tensor(layer_index=0, element_type="int4", head_dim=12, **sample_facts()),
        *(make_tensor(layer_index=n + 1, index_type=index_type) for n, index_type in enumerate(INDEX_TYPES)),
        *(make_tensor(layer_index=9, layer_name=name, element_type="int8", quantization=name) for name in SCHEMES),
    ]
    path = tmp_path / "a.stream"
    with path.open("wb") as sink:
        ha.write_stream(sink, tensors)
    with path.open("rb") as source, ha.read_stream(source) as stream:
        expected = [as_the_page_says(tensor, tensor.kv_group) for tensor in stream]
    content = path.read_bytes()
    whole = pa.ipc.open_stream(content)
    with pa.ipc.new_stream(tmp_path / "cut", whole.schema) as writer:
        writer.write_batch(whole.read_next_batch())
    (tmp_path / "flipped").write_bytes(content.replace(b"s-a", b"s-b"))
    files = [path, tmp_path / "cut", tmp_path / "flipped"]
    assert read_by_the_page(*files, reader="page_stream_reader.py") == [expected, "incomplete", "small_xxh3"]
