"""``schemas/`` says what the code writes and refuses: JSON Schemas of the metadata documents, the Arrow schema as text.

After a deliberate change: ``PYTHONPATH=. python tests/unit/test_schemas.py > schemas/snapshot-arrow-schema.txt``.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
import xxhash

from hurray_arrow import HurrayArrowError, PageClass, PagePoolType, SchemaPlan, write_snapshot
from hurray_arrow.arrow.metadata import metadata_problems, new_metadata
from hurray_arrow.arrow.page_class import page_pool_metadata, parse_metadata, parse_page_pool_metadata
from hurray_arrow.arrow.types import BLOCK_TABLE_STORAGES, BlockTableType
from hurray_arrow.catalog.document import Document
from hurray_arrow.snapshot.index import Index
from tests.faults.small import METADATA, small_tensors
from tests.sample import ALL_ELEMENT_TYPES

SCHEMAS = Path(__file__).parents[2] / "schemas"
NAMES = ("block_table", "catalog", "index", "page_pool", "snapshot")

#: The plans of the text: one page class that is cut and one of packed bytes; the archive's planes beside them.
PLANS = {
    "share": SchemaPlan((PageClass("bfloat16", 16, (16, 2, 64)), PageClass("int4", 4, (16, 2, 64)))),
    "archive": SchemaPlan(
        (PageClass("bfloat16", 16, (16, 2, 64), "byte_planes"), PageClass("int4", 4, (16, 2, 64))),
        table_storage="large_list<uint64>",
        encoding="byte_planes",
    ),
}


def printed() -> str:
    """Return the Arrow schemas of PLANS as text, one field a line."""
    lines = [
        "The columns of a snapshot, format version 1. Indented: children. In brackets: the fixed length of a list.",
        "page_pool, page_pool_1, … depend on the tensors; here bfloat16 and int4 pages of [16, 2, 64].",
    ]
    for name, plan in PLANS.items():
        lines += ["", f"profile {name}, tables in {plan.table_storage}", ""]
        for field in plan.arrow_schema():
            lines += field_lines(field, "  ")
    return "\n".join(lines) + "\n"


def field_lines(field: pa.Field, indent: str) -> list[str]:
    kind, extension = field.type, ""
    if isinstance(kind, pa.ExtensionType):
        extension = f"  = {kind.extension_name} {kind.__arrow_ext_serialize__().decode()}"
        kind = kind.storage_type
    name = str(kind) if not kind.num_fields else str(kind).partition("<")[0]
    if pa.types.is_fixed_size_list(kind):
        name = f"fixed_size_list[{kind.list_size}]"
    line = f"{indent}{field.name}: {name}{'' if field.nullable else ' not null'}{extension}"
    children = (field_lines(kind.field(n), f"{indent}  ") for n in range(kind.num_fields))
    return [line, *(child for lines in children for child in lines)]


@pytest.fixture(scope="module")
def validators():
    made = {}
    for path in SCHEMAS.glob("*.schema.json"):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        made[path.name.partition(".")[0]] = jsonschema.Draft202012Validator(schema)
    assert sorted(made) == sorted(NAMES)
    return made


def test_the_arrow_schema_as_text():
    assert (SCHEMAS / "snapshot-arrow-schema.txt").read_text() == printed()


@pytest.mark.parametrize("profile", ["share", "archive"])
def test_what_a_writer_writes_is_what_the_schemas_say(validators, tmp_path, profile):
    path = tmp_path / "s.arrow"
    write_snapshot(path, small_tensors(), metadata=METADATA, profile=profile)
    reader = pa.ipc.open_file(path)
    validators["snapshot"].validate(json.loads(reader.schema.metadata[b"hurray_arrow.snapshot"]))
    pairs = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)[1]
    index = json.loads(pairs[b"hurray_arrow.index"])
    validators["index"].validate(index)
    assert len(index["rows"]) >= len(small_tensors())
    # And nothing that the schemas do not describe.
    row_keys = set(validators["index"].schema["$defs"]["row"]["properties"])
    assert set(index) == set(validators["index"].schema["properties"])
    assert {key for row in index["rows"] for key in row} <= row_keys
    kinds = [field.type.value_type for field in reader.schema if hasattr(field.type, "value_type")]
    written = [kind for kind in kinds if isinstance(kind, PagePoolType | BlockTableType)]
    assert len(written) == 3
    for kind in written:
        document = json.loads(kind.__arrow_ext_serialize__())
        validator = validators[kind.extension_name.removeprefix("hurray.")]
        validator.validate(document)
        assert set(document) == set(validator.schema["properties"])


@pytest.mark.parametrize("name", ALL_ELEMENT_TYPES)
def test_metadata_of_every_element_type(validators, name):
    page_class = PageClass(name, ALL_ELEMENT_TYPES[name].bits, (4, 2, 12))
    document = page_pool_metadata(page_class)
    validators["page_pool"].validate(json.loads(document))
    assert parse_page_pool_metadata(document, page_class.storage_type()) == page_class


def test_metadata_of_every_table(validators):
    for storage in BLOCK_TABLE_STORAGES.values():
        validators["block_table"].validate(json.loads(BlockTableType(storage).__arrow_ext_serialize__()))


# -- good and bad documents: code and JSON Schema agree --------------------------------------------------------------

GOOD = {
    "block_table": {"version": 1},
    "catalog": {
        "version": 1,
        "url": "s3://bucket/caches",
        "rows": "tensors",
        "num_files": 7,
        "created": "2026-01-02T03:04:05Z",
        "producer": {"name": "x", "version": "1"},
        "prefixes": {
            "step_tokens": 16,
            "key_check": "0123456789abcdef0123456789abcdef",
            "runs": [
                {"kind": "ends", "num_rows": 5, "offset_bytes": 64, "num_bytes": 720, "xxh3": "0123456789abcdef"},
                {"kind": "steps", "num_rows": 3, "offset_bytes": 832, "num_bytes": 656, "xxh3": "f123456789abcdef"},
            ],
        },
    },
    "page_pool": {"version": 1, "element_type": "int8", "page_shape": [2, 3, 5], "encoding": "plain"},
    "snapshot": {**new_metadata({}, profile="share", page_align_bytes=64, partial=False)},
    "index": {
        "version": 1,
        "kind": "file",
        "num_rows": 1,
        "num_tensors": 1,
        "schema_xxh3": "0123456789abcdef",
        "rows": [
            {
                "tensor_index": 0,
                "layer_index": None,
                "layer_name": None,
                "kv_role": "key",
                "component": "values",
                "kv_group": 0,
                "page_offset": 0,
                "num_pages": 3,
                "num_seqs": 2,
                "element_type": "int8",
                "page_shape": [2, 3, 5],
                "encoding": "plain",
                "index_type": "uint32",
                "offset": 800,
                "metadata_bytes": 80,
                "body_bytes": 240,
                "pages_offset": 904,
                "pages_bytes": 90,
                "checksums_offset": 880,
                "head_xxh3": "0123456789abcdef",
                "tail_xxh3": "0123456789abcdef",
            }
        ],
    },
}
DROPPED = object()
#: document, path of what changes, values that leave it good, values that make it bad.
CHANGES = [
    ("block_table", "version", [], [DROPPED, None, 0, -1, "1", True, [1]]),
    ("block_table", "colour", ["red", {"deep": [1]}], []),
    ("catalog", "version", [], [DROPPED, None, 2, "1", True]),
    ("catalog", "url", ["x"], [DROPPED, None, 7]),
    ("catalog", "rows", ["snapshots"], [DROPPED, None, "pages", 1]),
    ("catalog", "num_files", [0, "7"], [DROPPED, None, -1, 1.5, True, "x"]),
    ("catalog", "created", [""], [DROPPED, None, 7]),
    (
        "catalog",
        "producer",
        [{"name": "x", "version": "2", "more": 1}],
        [DROPPED, None, "x", {}, {"name": "x"}, {"name": 1, "version": "1"}],
    ),
    ("catalog", "prefixes", [DROPPED], [None, {}, [], "x"]),
    ("catalog", "prefixes.step_tokens", [1, "16", "01"], [DROPPED, None, 0, -1, "0", "000", True, 1.5]),
    ("catalog", "prefixes.key_check", ["f" * 32], [DROPPED, None, "F" * 32, "f" * 31, "f" * 33, 7]),
    ("catalog", "prefixes.runs", [[]], [DROPPED, None, {}, [1], [[]], [{}]]),
    ("catalog", "prefixes.runs.0.kind", ["steps"], [DROPPED, None, "step", 1]),
    ("catalog", "prefixes.runs.0.num_rows", [0, "5"], [DROPPED, None, -1, 1.5, True]),
    ("catalog", "prefixes.runs.0.offset_bytes", [64, "64"], [DROPPED, None, -64, "x"]),
    ("catalog", "prefixes.runs.0.num_bytes", ["720"], [DROPPED, None, -1, []]),
    ("catalog", "prefixes.runs.0.xxh3", ["f" * 16], [DROPPED, None, "F" * 16, "f" * 15, 7]),
    ("catalog", "prefixes.runs.1.colour", ["red"], []),
    ("catalog", "colour", [None, {"deep": 1}], []),
    ("page_pool", "version", [], [DROPPED, None, 0, "1", False]),
    ("page_pool", "element_type", [], [DROPPED, None, 7, ["int8"]]),
    ("page_pool", "encoding", [], [DROPPED, None, 7]),
    ("page_pool", "page_shape", [["2", 3, 5]], [DROPPED, None, 30, [], [2, 15], [2, 3, 5, 1], [2, 3, -5], [2, 3, "x"]]),
    ("page_pool", "page_shape.1", ["3"], [None, 1.5, True, "-3", "٣", [3]]),
    ("page_pool", "colour", [None, 7], []),
    ("snapshot", "id", ["x"], [DROPPED, None, 7]),
    ("snapshot", "profile", ["archive"], [DROPPED, "keep", "SHARE", None, 1]),
    ("snapshot", "page_align_bytes", [4096, 2097152], [DROPPED, 0, 32, 96, 4194304, "64", None, True]),
    (
        "snapshot",
        "producer",
        [{"name": "x", "version": "1", "more": 1}],
        [DROPPED, "x", {}, {"name": "x"}, {"name": 1, "version": "1"}],
    ),
    ("snapshot", "created", ["2025-01-02T03:04:05Z"], [DROPPED, 7, None]),
    ("snapshot", "requires", [[]], [DROPPED, "base", [7], {}, None]),
    ("snapshot", "model", [{}, {"name": "m", "rope": {}}], ["m", [], None]),
    ("snapshot", "engine", [{}], ["e", 1]),
    (
        "snapshot",
        "groups",
        [[], [{"kind": "full"}], [{"kind": "state", "more": 1}]],
        [{}, [1], [{}], [{"kind": "x"}], None],
    ),
    (
        "snapshot",
        "groups",
        [[{"kind": "cross", "layer_names": ["a"], "components": [], "window_tokens": 0, "page_size": 16}]],
        [
            [{"kind": "full", "layer_names": "a"}],
            [{"kind": "full", "components": [1]}],
            [{"kind": "full", "window_tokens": -1}],
            [{"kind": "full", "window_tokens": 2**53}],
            [{"kind": "full", "page_size": "16"}],
            [{"kind": "full", "page_size": True}],
        ],
    ),
    ("snapshot", "topology", [{"tp_rank": 1}], [7, []]),
    ("snapshot", "set", [{"id": "s"}], ["s"]),
    ("snapshot", "adapter", ["a"], [7, None, ["a"]]),
    ("snapshot", "tenant", ["t"], [7, None]),
    ("snapshot", "partial", [True, False], [1, "true", None]),
    ("snapshot", "user", [None, 7, "x", [1], {}], []),
    ("snapshot", "colour", [None, {"deep": 1}], []),
    ("index", "version", [], [DROPPED, None, 2, "1", True]),
    ("index", "kind", [], [DROPPED, None, "heap", 1]),
    ("index", "num_rows", ["1"], [DROPPED, None, -1, 1.5, True, "x"]),
    ("index", "num_tensors", ["1"], [DROPPED, None, -1, []]),
    ("index", "schema_xxh3", ["f" * 16], [DROPPED, None, "F" * 16, "f" * 15, "f" * 17, 7]),
    ("index", "rows", [], [DROPPED, None, {}, [1], [None], [[]]]),
    ("index", "rows.0.tensor_index", [7, "7"], [DROPPED, None, -1, 1.5, True, "x"]),
    ("index", "rows.0.layer_index", [3, "3"], [DROPPED, "x", -1, 1.5]),
    ("index", "rows.0.layer_name", ["l"], [DROPPED, 7, ["l"]]),
    ("index", "rows.0.kv_role", ["fused"], [DROPPED, None, 0, "", "keys", ["key"], {}]),
    ("index", "rows.0.component", ["state.x"], [DROPPED, None, 0]),
    ("index", "rows.0.kv_group", [1], [DROPPED, None, "x"]),
    ("index", "rows.0.page_offset", [1], [DROPPED, None]),
    ("index", "rows.0.num_pages", [0], [DROPPED, None, -1]),
    ("index", "rows.0.num_seqs", [0], [DROPPED, None, -1]),
    ("index", "rows.0.element_type", ["x"], [DROPPED, None, 7]),
    (
        "index",
        "rows.0.page_shape",
        [[1, 0, 0], ["10", 0, "0"]],
        [DROPPED, None, [1, 2], [1, 2, 3, 4], [1, 2, -3], [0, 2, 3], ["00", 2, 3], "123", {}],
    ),
    ("index", "rows.0.encoding", ["x"], [DROPPED, None, 7]),
    ("index", "rows.0.index_type", ["uint64"], [DROPPED, None, 7]),
    ("index", "rows.0.offset", ["800"], [DROPPED, None, -8]),
    ("index", "rows.0.metadata_bytes", ["80"], [DROPPED, None, -8]),
    ("index", "rows.0.body_bytes", [248], [DROPPED, None, -8]),
    ("index", "rows.0.pages_offset", [DROPPED, 880], [None, -8, 1.5]),
    ("index", "rows.0.pages_bytes", [DROPPED, 88], [None, -8, "x"]),
    ("index", "rows.0.checksums_offset", [DROPPED, 888], [None, -8]),
    ("index", "rows.0.head_xxh3", [DROPPED, "f" * 16], [None, "F" * 16, ""]),
    ("index", "rows.0.bare_head_xxh3", ["f" * 16], [None, "F" * 16, 7]),
    ("index", "rows.0.tail_xxh3", [DROPPED, "f" * 16], [None, 7]),
    ("index", "rows.0.row_xxh3", ["f" * 16], [None, "f"]),
    ("index", "rows.0.colour", ["red"], []),
]


def changed(name, path, value):
    document = json.loads(json.dumps(GOOD[name]))
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    holder = document
    for step in steps:
        holder = holder[step]
    if value is DROPPED:
        del holder[last]
    else:
        holder[last] = value
    return document


def code_takes(name, document):
    text = json.dumps(document).encode()
    try:
        match name:
            case "block_table":
                parse_metadata(text)
            case "catalog":
                pairs = {
                    b"hurray_arrow.catalog": text,
                    b"hurray_arrow.catalog_xxh3": xxhash.xxh3_64_hexdigest(text).encode(),
                }
                Document.from_metadata(pairs, url="u")
            case "page_pool":
                parse_page_pool_metadata(text, pa.list_(pa.field("item", pa.int8(), nullable=False), 30))
            case "snapshot":
                return metadata_problems(document) == []
            case "index":
                pairs = {
                    b"hurray_arrow.index": text,
                    b"hurray_arrow.index_xxh3": xxhash.xxh3_64_hexdigest(text).encode(),
                }
                Index.from_custom_metadata(pairs, url="u", file_bytes=0)
    except HurrayArrowError:
        return False
    return True


def test_code_and_json_schemas_agree(validators):
    counts = {True: 0, False: 0}
    for name, path, good, bad in CHANGES:
        for value, expected in [*((value, True) for value in good), *((value, False) for value in bad)]:
            document = changed(name, path, value)
            said = (code_takes(name, document), validators[name].is_valid(document))
            assert said == (expected, expected), f"{name}.{path} = {'nothing' if value is DROPPED else value!r}"
            counts[expected] += 1
    assert counts[True] > 60
    assert counts[False] > 150
    for name in NAMES:
        assert code_takes(name, GOOD[name])
        assert validators[name].is_valid(GOOD[name])
        assert not code_takes(name, [GOOD[name]])
        assert not validators[name].is_valid([GOOD[name]])


def test_every_described_key_is_in_the_table(validators):
    tried = {(name, path.rpartition(".")[2]) for name, path, _, _ in CHANGES}
    for name in NAMES:
        assert {(name, key) for key in validators[name].schema["properties"]} <= tried
    prefixes = validators["catalog"].schema["properties"]["prefixes"]["properties"]
    run = validators["catalog"].schema["$defs"]["run"]["properties"]
    assert {("catalog", key) for key in (*prefixes, *run)} <= tried
    rows = validators["index"].schema["$defs"]["row"]["properties"]
    assert {("index", key) for key in rows} - tried == {("index", "small_xxh3")}, "streams have tests of their own"


if __name__ == "__main__":
    print(printed(), end="")  # noqa: T201 - to be redirected into the file
