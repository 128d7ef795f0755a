from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.errors import InvariantError, SnapshotCorruptError, SnapshotError
from hurray_arrow.ops.group import take_group
from hurray_arrow.snapshot import SnapshotWriter, open_snapshot, write_snapshot
from hurray_arrow.snapshot import groups as groups_module
from hurray_arrow.snapshot.groups import Groups, missing_components, missing_members, same_tables
from hurray_arrow.snapshot.index import IndexRow
from tests.sample import make_tensor, sample_facts

OTHER_TABLES = {"block_tables": [[5, 2, 6], [], [5, 1], [2]]}


def placed(*tensors):
    groups = Groups()
    places = []
    for tensor in tensors:
        place = groups.place(tensor)
        groups.keep(place[0], tensor)
        places.append(place)
    return places


def test_a_tensor_is_compared_with_groups_of_its_tables_only(monkeypatch):
    compared = []
    monkeypatch.setattr(groups_module, "same_tables", lambda one, other: compared.append(1) or same_tables(one, other))
    tensors = [make_tensor(seed=5, block_tables=[[page], [], [0], [2]], seq_lens=[1, 0, 1, 1]) for page in range(7)]
    assert placed(*tensors, *tensors) == [(n, True) for n in range(7)] + [(n, False) for n in range(7)]
    assert len(compared) == 7


# -- which group a tensor belongs to ----------------------------------------------------------------------------------


def test_tensors_are_grouped_by_equal_tables_and_sequences():
    facts = sample_facts()
    tensors = [
        make_tensor(),
        make_tensor(seed=5, element_type="int8"),
        make_tensor(**OTHER_TABLES),
        make_tensor(index_type="uint64"),
        make_tensor(**facts),
        make_tensor(**OTHER_TABLES, seed=7),
        make_tensor(**{**facts, "tenant": ["t1", "t2", None, "t3"]}),
        make_tensor(seed=11, **facts),
    ]
    expected = [(0, True), (0, False), (1, True), (0, False), (2, True), (1, False), (3, True), (2, False)]
    assert placed(*tensors) == expected


@pytest.mark.parametrize("fact", ["ids", "token_ids", "page_positions", "adapter", "tenant", "media"])
def test_each_fact_makes_a_group_of_its_own(fact):
    known = sample_facts()
    one = make_tensor(**known)
    other = make_tensor(**{name: value for name, value in known.items() if name != fact})
    assert same_tables(one, make_tensor(seed=5, **known))
    assert not same_tables(one, other)
    assert not same_tables(other, one)


def test_named_groups_keep_their_names_and_new_ones_come_after():
    tensors = [make_tensor(kv_group=5), make_tensor(seed=5), make_tensor(**OTHER_TABLES), make_tensor(kv_group=2)]
    assert placed(*tensors) == [(5, True), (5, False), (6, True), (2, True)]


def test_other_tokens_are_another_group_where_nobody_recorded_lengths():
    few, many = ({"seq_lens": None, "total_tokens": total} for total in (19, 21))
    assert placed(make_tensor(**few), make_tensor(**many), make_tensor(seed=5, **many)) == [
        (0, True),
        (1, True),
        (1, False),
    ]
    groups = Groups()
    groups.keep(3, make_tensor(**few))
    with pytest.raises(InvariantError) as caught:
        groups.place(make_tensor(kv_group=3, **many))
    assert caught.value.codes == ["kv_group_mismatch"]


def test_pages_of_another_size_are_another_group_where_one_page_holds_each_sequence():
    # The full and the windowed layers of a model, early in a prompt: one table fits both.
    short = {"block_tables": [[3], [0]], "seq_lens": [2, 1]}
    wide, narrow = (make_tensor(page_size=page_size, **short) for page_size in (16, 4))
    assert placed(wide, narrow, wide, narrow) == [(0, True), (1, True), (0, False), (1, False)]
    with pytest.raises(InvariantError) as caught:
        take_group([wide, narrow])
    assert caught.value.codes == ["kv_group_mismatch"]


def test_an_empty_batch_has_no_facts_to_differ_in():
    empty = {"block_tables": [], "seq_lens": []}
    assert placed(make_tensor(**empty), make_tensor(**empty, ids=[])) == [(0, True), (0, False)]


def test_a_named_group_with_other_tables_is_refused():
    groups = Groups()
    groups.keep(3, make_tensor())
    assert groups.place(make_tensor(kv_group=3, seed=5)) == (3, False)
    for other in (OTHER_TABLES, {"seq_lens": [12, 0, 10, 4]}, {"ids": ["a", "b", "c", "d"]}):
        with pytest.raises(InvariantError) as caught:
            groups.place(make_tensor(kv_group=3, **other))
        assert caught.value.codes == ["kv_group_mismatch"]


def test_asking_for_a_place_keeps_nothing():
    groups = Groups()
    assert groups.place(make_tensor()) == (0, True)
    assert groups.place(make_tensor()) == (0, True)


def test_tables_that_an_engine_changes_after_writing_are_other_tables(tmp_path):
    """An engine may use one array for all layers: the writer borrows it only until write() returns."""
    table, lens = np.array([5, 2, 6, 5, 0, 2], np.uint32), np.array([13, 0, 10, 4], np.uint64)
    seq_ptr = np.array([0, 3, 3, 5, 6], np.uint32)

    def layer(number):
        return make_tensor(block_table=table, seq_ptr=seq_ptr, seq_lens=lens, layer_index=number, seed=number)

    path = tmp_path / "s.arrow"
    with SnapshotWriter(path, plan=SchemaPlan.of([layer(0)])) as writer:
        writer.write(layer(0))
        table[4] = 1
        writer.write(layer(1))
        lens[0], lens[3] = 14, 3
        writer.write(layer(2))
    with open_snapshot(path) as snapshot:
        found = list(snapshot.iter_tensors())
    assert [tensor.block_table.tolist() for tensor in found] == [
        [5, 2, 6, 5, 0, 2],
        [5, 2, 6, 5, 1, 2],
        [5, 2, 6, 5, 1, 2],
    ]
    assert [tensor.token_count(3) for tensor in found] == [4, 4, 3]
    assert [tensor.kv_group for tensor in found] == [0, 1, 2]


def test_the_writer_keeps_no_pages():
    class Watched(np.ndarray):
        pass

    pool = Watched((7, 5, 3, 11), np.float32)
    pool[:] = 0.5
    gone = weakref.ref(pool)
    groups = Groups()
    groups.keep(0, make_tensor(element_type="float32", page_pool=pool))
    del pool
    gc.collect()
    assert gone() is None
    assert groups.place(make_tensor()) == (0, False)


# -- what a group has to hold -----------------------------------------------------------------------------------------


def row(number, *, layer_name, component="values", kv_group=0):
    sizes = {"page_offset": 0, "num_pages": 7, "num_seqs": 4, "offset": 8, "metadata_bytes": 8, "body_bytes": 8}
    names = {"kv_role": "key", "element_type": "int8", "encoding": "plain", "index_type": "uint32"}
    return IndexRow(
        tensor_index=number,
        layer_index=number,
        layer_name=layer_name,
        component=component,
        kv_group=kv_group,
        page_shape=(5, 3, 11),
        **sizes,
        **names,
    )


def test_listed_layers_and_companions_are_missed():
    metadata = {
        "groups": [
            {"kind": "full", "layer_names": ["a", "b"], "components": ["values", "scales"]},
            {"kind": "full", "layer_names": ["c"]},
        ]
    }
    rows = [row(0, layer_name="a"), row(0, layer_name="a", component="scales"), row(1, layer_name="c", kv_group=1)]
    problems = missing_members(metadata, rows)
    assert [(problem.code, problem.where) for problem in problems] == [("companion_missing", "groups[0]")]
    assert "'b'" in problems[0].message
    problems = missing_members(metadata, [row(0, layer_name="a"), row(1, layer_name="b", component="scales")])
    assert [problem.where for problem in problems] == ["groups[0]", "groups[0]", "groups[1]"]
    assert missing_members({}, rows) == []
    assert missing_members(metadata, []) != []


def test_missing_components_in_the_order_listed():
    group = {"components": ["values", "scales", "indexer"]}
    assert missing_components(group, ["indexer"]) == ["values", "scales"]
    assert missing_components(group, ["indexer", "values", "scales", "more"]) == []
    assert missing_components({}, []) == []


GROUPS = {"groups": [{"kind": "full", "components": ["values", "scales"]}]}


def test_a_snapshot_that_misses_a_companion_needs_partial_and_says_so(tmp_path):
    values = make_tensor(layer_index=3)
    scales = make_tensor(element_type="float32", head_dim=1, component="scales", layer_index=3)
    write_snapshot(tmp_path / "whole.arrow", [values, scales], metadata=GROUPS)
    with open_snapshot(tmp_path / "whole.arrow") as snapshot:
        assert snapshot.read(component="values").equals(values)
        assert snapshot.metadata.get("partial") is None
    with pytest.raises(SnapshotError):
        write_snapshot(tmp_path / "part.arrow", [values], metadata=GROUPS)
    assert not (tmp_path / "part.arrow").exists()
    write_snapshot(tmp_path / "part.arrow", [values], metadata=GROUPS, partial=True)
    with open_snapshot(tmp_path / "part.arrow") as snapshot:
        assert snapshot.metadata["partial"] is True
        with pytest.raises(SnapshotCorruptError) as caught:
            snapshot.read(component="values")
        assert caught.value.codes == ["companion_missing"]
