"""What the views say, against plain loops over the arrays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hurray_arrow as ha
from hurray_arrow.views import VIEWS, open_view, read_snapshots, sequences
from hurray_arrow.views.selection import Selection
from hurray_arrow.views.sequences import SequencesView
from tests.sample import (
    ALL_ELEMENT_TYPES,
    BLOCK_TABLES,
    SHARED,
    UNREFERENCED,
    codes_of,
    expected_codes,
    make_tensor,
    sample_facts,
    seq_lens_of,
)

NUMBERS = [name for name, kind in ALL_ELEMENT_TYPES.items() if kind.dtype is not None and kind.dtype.kind != "c"]
DESCRIPTOR_FIELDS = {
    "version_major", "version_minor", "element_type", "element_bits", "private_type", "total_tokens", "num_heads",
    "head_dim", "page_size", "num_pages", "paged_axis", "num_seqs", "kv_role", "layer_index", "index_type", "buffers",
    "quantization", "quantization_fields", "statistics", "trailing", "total_logical_pages",
}  # fmt: skip

SAME_NAMES = (
    "version_major", "version_minor", "total_tokens", "num_heads", "head_dim", "page_size", "num_pages", "paged_axis",
    "num_seqs", "layer_index", "total_logical_pages", "pool_bytes",
)  # fmt: skip


def written(folder, *tensors, profile="share", **more):
    path = folder / "views.arrow"
    ha.write_snapshot(path, tensors, overwrite=True, profile=profile, **more)
    return ha.open_snapshot(path)


def rows(reader):
    table = reader.read_all()
    table.validate(full=True)
    return table.to_pylist()


def column(reader):
    """The only fixed-shape column of a view as numpy: [rows, …]."""
    table = reader.read_all()
    table.validate(full=True)
    return table["values"].combine_chunks().to_numpy_ndarray()


def test_each_view_is_a_record_batch_reader(tmp_path):
    with written(tmp_path, make_tensor()) as snapshot:
        for name in VIEWS:
            reader = getattr(snapshot, name)()
            assert isinstance(reader, pa.RecordBatchReader)
            assert reader.schema.names == reader.read_all().schema.names


def test_tensors_have_every_descriptor_field(tmp_path):
    private = ALL_ELEMENT_TYPES["private_0xF2"]
    known = ha.Statistics.known(nnz=7, has_nan=1, has_inf=0)
    tensors = [
        make_tensor(layer_index=3, kv_role="key", layer_name="m.3", statistics=known),
        make_tensor(layer_index=5, element_type=private, index_type="uint64"),
        make_tensor(layer_index=None, element_type="int8", quantization="per_channel_heads", component="scales"),
    ]
    metadata = {"groups": [{"kind": "sliding_window", "window_tokens": 23, "page_size": 5}, {"kind": "full"}]}
    with written(tmp_path, *tensors, metadata=metadata) as snapshot:
        found = rows(snapshot.tensors())
        assert set(found[0]) >= DESCRIPTOR_FIELDS
        for number, (row, tensor) in enumerate(zip(found, tensors, strict=True)):
            descriptor = tensor.descriptor
            assert row["tensor_index"] == number
            for name in SAME_NAMES:
                assert row[name] == getattr(descriptor, name), name
            assert row["element_bits"] == descriptor.element_type.bits
            assert row["kv_role"] == tensor.kv_role
            assert [each["byte_size"] for each in row["buffers"]] == [each.byte_size for each in descriptor.buffers]
            assert row["buffer_bytes"] == tensor.nbytes
            assert (row["referenced_pages"], row["unreferenced_pages"], row["shared_pages"]) == (4, 3, 2)
            assert row["sharing_ratio"] == 6 / 4
            assert row["fill_ratio"] == tensor.total_tokens / (6 * tensor.page_size)
        assert [row["quantization"] for row in found] == [None, None, "per_channel"]
        assert found[2]["quantization_fields"]["zero_point_buffer_index"] == 4
        assert found[0]["statistics"]["nnz"] == 7
        assert found[0]["statistics"]["value_min"] is None
        assert found[1]["private_type"]["exponent_bias"] == 0xF2
        assert [row["index_type"] for row in found] == ["uint32", "uint64", "uint32"]
        assert [row["group_kind"] for row in found] == ["sliding_window"] * 3
        assert found[0]["window_tokens"] == 23


def test_sequences_say_with_whom_they_share(tmp_path):
    facts = sample_facts()
    with written(tmp_path, make_tensor(**facts), make_tensor(layer_index=3, seed=5, **facts)) as snapshot:
        found = rows(snapshot.sequences(columns=SequencesView(Selection.of(snapshot)).full_schema.names))
    assert [row["page_ids"] for row in found] == [list(pages) for pages in BLOCK_TABLES]
    assert [row["num_tokens"] for row in found] == seq_lens_of(5)
    assert [row["sequence_id"] for row in found] == facts["ids"]
    assert [row["tenant"] for row in found] == facts["tenant"]
    assert [row["adapter"] for row in found] == facts["adapter"]
    assert [row["shared_pages"] for row in found] == [2, 0, 1, 1]
    assert [row["shared_with"] for row in found] == [
        [{"sequence": 2, "num_pages": 1}, {"sequence": 3, "num_pages": 1}],
        [],
        [{"sequence": 0, "num_pages": 1}],
        [{"sequence": 0, "num_pages": 1}],
    ]
    assert [row["page_positions"] for row in found] == [[0, 15, 26], [], [0, 5], [10]]
    assert found[2]["token_ids"] is None
    assert found[3]["token_ids"] == [0, 1, 2, 3]
    assert found[2]["media"][1] == {"first_token": 3, "num_tokens": 1, "digest": "sha256:bb"}


def test_pairs_of_sequences_are_made_only_where_they_are_named(tmp_path, monkeypatch):
    path = tmp_path / "s.arrow"
    ha.write_snapshot(path, [make_tensor(**sample_facts())])
    pairs = []
    monkeypatch.setattr(sequences, "_pairs", pairs.append)
    with ha.open_snapshot(path) as snapshot:
        asked = SequencesView(Selection.of(snapshot)).full_schema.names
        usual = snapshot.sequences().read_all()
        assert usual.column_names == [name for name in asked if name != "shared_with"]
        assert read_snapshots([path], "sequences").read_all().column_names == ["url", *usual.column_names]
    assert pairs == []


def test_a_condition_may_be_about_what_is_not_asked_for(tmp_path):
    path = tmp_path / "s.arrow"
    ha.write_snapshot(path, [make_tensor(**sample_facts())])
    condition = pc.list_value_length(pc.field("shared_with")) == 2
    found = read_snapshots([path], "sequences", columns=["sequence"], filter=condition).read_all()
    assert found.to_pydict() == {"sequence": [0]}
    named = read_snapshots([path], "sequences", columns=["shared_with", "sequence"], filter=condition).read_all()
    assert len(named["shared_with"][0]) == 2


def test_pages_in_common_are_counted_whatever_sets_share_them(tmp_path):
    rng = np.random.default_rng(11)
    tables = [sorted(rng.choice(17, size, replace=False).tolist()) for size in (5, 0, 13, 7, 2, 11, 3)] + [[3, 3, 4]]
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((17, 2, 1, 1), np.float32), block_tables=tables, total_tokens=0, kv_role="key"
    )
    with written(tmp_path, tensor) as snapshot:
        found = rows(snapshot.sequences(columns=["shared_with"]))
    for place, row in enumerate(found):
        common = {other: len(set(tables[place]) & set(pages)) for other, pages in enumerate(tables) if other != place}
        assert row["shared_with"] == [{"sequence": s, "num_pages": n} for s, n in common.items() if n]


def test_many_sequences_behind_one_prefix_come_in_many_batches(tmp_path):
    count = 1201
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((count + 1, 1, 1, 1), np.uint16),
        block_tables=[[0, 1 + s] for s in range(count)],
        seq_lens=[2] * count,
        element_type="bfloat16",
        kv_role="key",
        layer_index=0,
    )
    with written(tmp_path, tensor) as snapshot:
        batches = list(snapshot.sequences(columns=["sequence", "shared_with"]))
        assert len(list(snapshot.sequences(columns=["sequence", "num_pages"]))) == 1
    assert len(batches) == 2
    shared = [batch.column("shared_with") for batch in batches]
    assert sum(len(column.flatten()) for column in shared) == count * (count - 1)
    assert shared[1][-1].as_py() == [{"sequence": s, "num_pages": 1} for s in range(count - 1)]


def test_pages_count_references_and_fill(tmp_path):
    with written(tmp_path, make_tensor(block_tables=[[5, 2, 5], [], [5, 0], [2]])) as snapshot:
        found = rows(snapshot.pages())
    lens, tables = seq_lens_of(5), [[5, 2, 5], [], [5, 0], [2]]
    for page, row in enumerate(found):
        named = [(s, i) for s, table in enumerate(tables) for i, each in enumerate(table) if each == page]
        assert row["page_id"] == page
        assert row["references"] == len(named)
        assert row["sequences"] == len({s for s, _ in named})
        assert row["first_sequence"] == (named[0][0] if named else None)
        assert row["fill_tokens"] == max((min(5, max(0, lens[s] - 5 * i)) for s, i in named), default=0)
    assert {row["page_id"] for row in found if not row["references"]} >= set(UNREFERENCED)


def test_fill_is_null_where_nobody_recorded_lengths(tmp_path):
    with written(tmp_path, make_tensor(seq_lens=[13, None, None, 4], total_tokens=27)) as snapshot:
        fill = {row["page_id"]: row["fill_tokens"] for row in rows(snapshot.pages())}
        assert fill == {0: None, 1: 0, 2: 5, 3: 0, 4: 0, 5: 5, 6: 3}
        assert [row["num_tokens"] for row in rows(snapshot.sequences())] == [13, None, None, 4]
        assert len(rows(snapshot.tokens(sequence=[0, 3]))) == 17
        view = open_view(snapshot, "tokens")
        with pytest.raises(ha.UnknownSequenceLengthError):
            list(view.batches())


@pytest.mark.parametrize("per_head", [False, True])
def test_tokens_are_where_the_specification_says(tmp_path, per_head):
    facts = sample_facts()
    tensor = make_tensor(**facts)
    with written(tmp_path, tensor) as snapshot:
        found = rows(snapshot.tokens(per_head=per_head))
    expected = []
    for s in range(4):
        positions = tensor.positions(s).tolist()
        ids = facts["token_ids"][s]
        for t, position in enumerate(positions):
            listed = ids is not None and position < len(ids)
            row = {
                "tensor_index": 0, "layer_index": 17, "layer_name": None, "kv_role": "value", "component": "values",
                "kv_group": 0, "sequence": s, "sequence_id": facts["ids"][s], "token": t, "position": position,
                "token_id": int(ids[position]) if listed else None, "page_id": BLOCK_TABLES[s][t // 5], "slot": t % 5,
            }  # fmt: skip
            expected += [row | {"head": head} for head in range(3)] if per_head else [row]
    assert found == expected


@pytest.mark.parametrize("element_type", ALL_ELEMENT_TYPES)
def test_raw_pages_are_the_stored_bits(tmp_path, element_type):
    tensor = make_tensor(element_type=element_type)
    with written(tmp_path, tensor) as snapshot:
        found = column(snapshot.pages(values="raw"))
    assert found.shape[:4] == (7, 5, 3, 11)
    bits = tensor.element_type.bits
    width = 7 * 5 * 3 * 11
    whole = int.from_bytes(tensor.buffers[0].tobytes(), "little")
    assert codes_of(found, bits) == [whole >> flat * bits & ((1 << bits) - 1) for flat in range(width)]
    assert found.dtype.kind in "iuf"
    assert found.dtype.name != "float16"


@pytest.mark.parametrize("element_type", NUMBERS)
def test_float32_pages_and_tokens_are_the_numbers(tmp_path, element_type):
    tensor = make_tensor(element_type=element_type)
    with written(tmp_path, tensor) as snapshot, np.errstate(all="ignore"):
        pages = column(snapshot.pages(values="float32"))
        np.testing.assert_array_equal(pages, tensor.values_of_pages().astype(np.float32))
        tokens = column(snapshot.tokens(values="float32"))
        np.testing.assert_array_equal(tokens, tensor.gather([0, 1, 2, 3]).astype(np.float32))
        assert pages.dtype == tokens.dtype == np.float32


@pytest.mark.parametrize("quantization", ["per_tensor", "per_channel_heads", "per_channel_dims",
                                          "per_block", "per_block_zero_points", "per_block_one_buffer"])  # fmt: skip
@pytest.mark.parametrize("profile", ["share", "archive"])
def test_quantized_values_are_dequantized(tmp_path, quantization, profile):
    tensor = make_tensor(element_type="int8", quantization=quantization)
    with written(tmp_path, tensor, profile=profile) as snapshot:
        np.testing.assert_array_equal(column(snapshot.pages(values="float32")), tensor.dequantize_pages())
        tokens = column(snapshot.tokens(values="float32", per_head=True))
        np.testing.assert_array_equal(tokens, tensor.dequantize([0, 1, 2, 3]).reshape(-1, 11))


@pytest.mark.parametrize("per_head", [False, True])
def test_statistics_are_numpys(tmp_path, per_head):
    tensor = make_tensor(element_type="int16", quantization="per_channel_heads")
    numbers = tensor.dequantize([0, 1, 2, 3])
    numbers = numbers.reshape(-1, 11) if per_head else numbers.reshape(len(numbers), -1)
    with written(tmp_path, tensor) as snapshot:
        found = snapshot.tokens(values="stats", per_head=per_head).read_all()
    for name, expected in (("norm", np.linalg.norm(numbers, axis=-1)), ("min", numbers.min(-1)),
                           ("max", numbers.max(-1)), ("mean", numbers.mean(-1))):  # fmt: skip
        np.testing.assert_allclose(found[name].to_numpy(), expected, rtol=2e-5, atol=1e-3)


def test_codes_of_a_token_come_back_through_its_page(tmp_path):
    tensor = make_tensor(element_type="uint16")
    with written(tmp_path, tensor) as snapshot:
        pages = column(snapshot.pages(values="raw"))
        places = snapshot.tokens(columns=["page_id", "slot"], sequence=0).read_all()
    gathered = pages[places["page_id"].to_numpy(), places["slot"].to_numpy()]
    assert codes_of(gathered, 16) == expected_codes(tensor, 0, 13)


def test_filters_leave_what_they_name(tmp_path):
    facts = sample_facts()
    tensors = [
        make_tensor(layer_index=3, kv_role="key", **facts),
        make_tensor(layer_index=3, seed=5, **facts),
        make_tensor(layer_index=3, kv_role="key", element_type="float32", head_dim=1, component="scales", **facts),
        make_tensor(layer_index=7, element_type="int8"),
    ]
    with written(tmp_path, *tensors) as snapshot:

        def indexes(**filters):
            return sorted({row["tensor_index"] for row in rows(snapshot.tokens(**filters))})

        assert indexes() == [0, 1, 2, 3]
        assert indexes(layer_index=3, kv_role="key") == [0, 2]
        assert indexes(component=["scales"]) == [2]
        assert indexes(kv_group=1) == [3]
        assert indexes(sequence="s-a") == [0, 1, 2]
        pages = rows(snapshot.pages(sequence="s-a", component="values", layer_index=3, columns=["page_id"]))
        assert [row["page_id"] for row in pages] == [2, 5, 6] * 2
        assert [row["sequence"] for row in rows(snapshot.sequences(sequence=[3, "s-c"], kv_group=0))] == [2, 3]
        assert column(snapshot.tokens(values="float32", sequence=[3], kv_role="key", component="values")).shape == (
            4, 3, 11,
        )  # fmt: skip
        assert indexes(layer_index=3, kv_role=ha.KvRole.VALUE) == [1]
        for sequence in (None, 0, "nobody"):
            # Nothing is selected, so that nothing is asked of sequences; as read_sequences.
            assert rows(snapshot.tokens(layer_index=99, sequence=sequence)) == []
            assert snapshot.read_sequences(sequence, layer_index=99).tensors == ()
        for wrong, error in (("nobody", KeyError), (4, IndexError), (-1, IndexError)):
            with pytest.raises(error) as caught:
                snapshot.tokens(sequence=wrong)
            assert all(said in str(caught.value) for said in (str(wrong), "kv_group 0 has 4", "kv_group 1 has "))


@pytest.mark.parametrize("door", ["tensors", "sequences", "pages", "tokens", "iter_tensors", "read_sequences", "read"])
def test_a_role_that_is_none_and_an_option_that_is_none_are_refused_at_every_door(tmp_path, door):
    with written(tmp_path, make_tensor()) as snapshot:
        call = partial(snapshot.read_sequences, None) if door == "read_sequences" else getattr(snapshot, door)
        with pytest.raises(ValueError, match="expected key, value or fused"):
            list(call(kv_role="keys") or ())
        with pytest.raises(TypeError, match=r"\['layer'\]: expected some of \['layer_index'"):
            list(call(layer=3) or ())


def test_columns_come_in_the_order_asked_for(tmp_path):
    with written(tmp_path, make_tensor()) as snapshot:
        reader = snapshot.tokens(columns=["slot", "sequence"])
        assert reader.schema.names == ["slot", "sequence"]
        for wrong in (["nothing"], [], ["slot", "slot"]):
            with pytest.raises(ValueError, match="columns"):
                snapshot.tokens(columns=wrong)


def test_what_one_column_cannot_hold_is_refused(tmp_path):
    tensors = [
        make_tensor(layer_index=1),
        make_tensor(layer_index=2, element_type="float16"),
        make_tensor(layer_index=3, head_dim=7),
        make_tensor(layer_index=4, element_type="complex64"),
        make_tensor(layer_index=5, element_type="int8", quantization="nf4"),
        make_tensor(layer_index=6, element_type="int8", head_dim=0),
        make_tensor(layer_index=8, element_type="uint8", component="page.state"),
    ]
    with written(tmp_path, *tensors) as snapshot:
        for refused in (
            lambda: snapshot.pages(values="float32", layer_index=[1, 3]),
            lambda: snapshot.pages(values="raw", layer_index=[1, 2]),
            lambda: snapshot.pages(values="float16", layer_index=2),
            lambda: snapshot.tokens(values="fixed_size_binary", layer_index=1),
            lambda: snapshot.pages(values="float32", layer_index=4),
            lambda: snapshot.tokens(values="stats", layer_index=4),
            lambda: snapshot.pages(values="raw", layer_index=6),
            lambda: snapshot.tokens(values="stats", layer_index=6),
            lambda: snapshot.tokens(values="stats", layer_index=8),
            lambda: list(open_view(snapshot, "pages", values="float32", layer_index=5).batches()),
        ):
            with pytest.raises(ha.UnsupportedError):
                refused()
        with pytest.raises(ValueError, match="values"):
            snapshot.pages(values="double")
        assert column(snapshot.pages(values="raw", layer_index=2)).dtype == np.uint16
        assert len(rows(snapshot.tokens(values="stats", layer_index=[1, 3]))) == 2 * 27


def test_a_row_of_more_values_than_tools_can_count_is_refused():
    from hurray_arrow.views.values import tensor_type

    tensor_type("pages", np.dtype(np.float32), [(2**31 - 1, 1)])
    with pytest.raises(ha.UnsupportedError):
        tensor_type("pages", np.dtype(np.uint8), [(2**16, 2**15, 2)])


def test_nothing_is_a_table_too(tmp_path):
    empty = make_tensor(num_pages=0, block_tables=[], seq_lens=[])
    with written(tmp_path, empty) as snapshot:
        assert len(rows(snapshot.tensors())) == 1
        assert rows(snapshot.tensors())[0]["fill_ratio"] is None
        for name in ("sequences", "pages", "tokens"):
            assert rows(getattr(snapshot, name)()) == []
        assert rows(snapshot.pages(values="float32")) == []
        assert rows(snapshot.tokens(values="stats", per_head=True)) == []
    lonely = make_tensor(block_tables=[[], []], seq_lens=[0, 0])
    with written(tmp_path, lonely) as snapshot:
        assert rows(snapshot.tokens(values="float32")) == []
        assert [row["num_pages"] for row in rows(snapshot.sequences())] == [0, 0]
        assert len(rows(snapshot.pages(values="raw"))) == 7


def test_one_sequence_of_unknown_length_has_all_tokens(tmp_path):
    tensor = make_tensor(block_tables=[[5, 2, 6]], seq_lens=None, total_tokens=12)
    with written(tmp_path, tensor) as snapshot:
        assert [row["slot"] for row in rows(snapshot.tokens())] == [0, 1, 2, 3, 4] * 2 + [0, 1]


def test_shared_pages_are_those_of_the_tensor(tmp_path):
    with written(tmp_path, make_tensor()) as snapshot:
        shared = [row["page_id"] for row in rows(snapshot.pages()) if row["sequences"] > 1]
    assert shared == list(SHARED)


def test_pages_without_bytes_are_counted_however_many_a_file_claims(tmp_path):
    path = tmp_path / "s.arrow"
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((2**45, 3, 0, 5), np.float32), block_tables=[[2**31, 7], [7]], seq_lens=[4, 2], kv_role="key"
    )
    ha.write_snapshot(path, [tensor])
    with ha.open_snapshot(path) as snapshot:
        [row] = snapshot.tensors().read_all().to_pylist()
        assert (row["referenced_pages"], row["unreferenced_pages"]) == (2, 2**45 - 2)
        assert (row["shared_pages"], row["sharing_ratio"]) == (1, 1.5)
        assert snapshot.tokens().read_all()["page_id"].to_pylist() == [2**31] * 3 + [7] * 3
        columns = ["sequence", "num_tokens", "page_ids"]
        assert snapshot.sequences(columns=columns).read_all()["page_ids"].to_pylist() == [[2**31, 7], [7]]
        for view in (snapshot.sequences, snapshot.pages):
            with pytest.raises(ha.UnsupportedError):
                view().read_all()


def test_a_view_may_be_read_again(tmp_path):
    tensor = make_tensor(element_type="int8")
    with written(tmp_path, tensor) as snapshot:
        view = open_view(snapshot, "tokens", values="float32")
        first, second = pa.table(view), pa.table(view)
        assert first.num_rows == 27
        assert first.equals(second)


def test_a_path_in_place_of_a_snapshot_is_refused_with_the_call_that_opens_it():
    with pytest.raises(TypeError, match=r"open_snapshot\('cache.arrow'\)"):
        open_view("cache.arrow", "tokens")
