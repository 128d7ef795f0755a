"""What a snapshot or a stream is expected to be: its metadata, and what tensors and sequences say of themselves.

Metadata has an adapter and a tenant only where they are one for all, so that nothing but the sequences tells whose each
of them is.

Spec: snapshot format, section 3 (``expect``) and section 2 (``sequences``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hurray_arrow.errors import SnapshotMismatchError
from hurray_arrow.identity import (
    SEQUENCE_FACTS,
    TENSOR_FACTS,
    agreed_facts,
    check_expected,
    stated_by_sequences,
    tensor_facts,
)
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.tensor import BlockPagedTensor


def check_snapshot(snapshot: Snapshot, expect: Mapping[str, Any] | None) -> None:
    """Refuse a snapshot that is not what is expected; what the metadata tells is asked before anything is read.

    Raises
    ------
    SnapshotMismatchError
        A value differs, or is expected and absent.
    SnapshotCorruptError, UnsupportedError
        An adapter or a tenant is expected, and the tables of a kv_group cannot be read.
    """
    check_metadata(snapshot.metadata, expect)
    check_facts(snapshot, expect)


def check_facts(snapshot: Snapshot, expect: Mapping[str, Any] | None) -> None:
    """Refuse a snapshot whose tensors or sequences are not what is expected; other expectations are not looked at.

    Raises
    ------
    SnapshotMismatchError
        A value differs, or is expected and absent.
    SnapshotCorruptError, UnsupportedError
        An adapter or a tenant is expected, and the tables of a kv_group cannot be read.
    """
    if asked := _some(expect, TENSOR_FACTS):
        check_expected({}, asked, facts=agreed_facts(_of_entries(snapshot)))
    if asked := _some(expect, SEQUENCE_FACTS):
        kv_groups = dict.fromkeys(entry.kv_group for entry in snapshot.entries)
        tables = [snapshot.group_tables(kv_group) for kv_group in kv_groups]
        # As many as there are: what the index says is a number that anybody can write.
        groups = [(each.sequences, each.seq_ptr.size - 1) for each in tables]
        owners = {name: stated_by_sequences(name, groups, metadata=snapshot.metadata) for name in asked}
        lost = snapshot.profile is None
        for name, of_all in owners.items():
            # Where recovery found no metadata nobody knows whose a sequence is that names nobody.
            if lost and (None in of_all or not of_all):
                raise SnapshotMismatchError(field=name, expected=asked[name], found=None)
        check_expected(snapshot.metadata, asked, facts=agreed_facts(owners))


def check_metadata(metadata: Mapping[str, Any], expect: Mapping[str, Any] | None) -> None:
    """Refuse metadata that is not what is expected; what tensors and sequences tell is not asked here.

    Raises
    ------
    SnapshotMismatchError
        A value differs, or is expected and absent.
    """
    asked = {name: value for name, value in (expect or {}).items() if name not in (*TENSOR_FACTS, *SEQUENCE_FACTS)}
    check_expected(metadata, asked)


def check_tensor(tensor: BlockPagedTensor, metadata: Mapping[str, Any], expect: Mapping[str, Any] | None) -> None:
    """Refuse a tensor of a stream that is not what is expected.

    Raises
    ------
    SnapshotMismatchError
        A value differs, or is expected and absent.
    """
    names = (*TENSOR_FACTS, *SEQUENCE_FACTS) if tensor.component == "values" else SEQUENCE_FACTS
    if asked := _some(expect, names):
        check_expected(metadata, asked, facts=tensor_facts([tensor], metadata))


def _some(expect: Mapping[str, Any] | None, names: Iterable[str]) -> dict[str, Any]:
    return {name: expect[name] for name in names if name in expect} if expect else {}


def _of_entries(snapshot: Snapshot) -> dict[str, list[Any]]:
    entries = [entry for entry in snapshot.entries if entry.component == "values"]
    return {
        "element_type": [entry.element_type for entry in entries],
        "page_shape": [entry.page_shape for entry in entries],
        "page_size": [entry.page_shape[0] for entry in entries],
        "num_heads": [entry.page_shape[1] for entry in entries],
        "head_dim": [entry.page_shape[2] for entry in entries],
    }
