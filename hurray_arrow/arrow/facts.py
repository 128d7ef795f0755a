"""What is known of the sequences, as the ``sequences`` column and back.

Spec: snapshot format, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hurray_arrow.arrow.schema import MAX_LIST_ITEMS, MEDIA_TYPE, SEQUENCES_TYPE
from hurray_arrow.arrow.windows import list_window, numpy_dtype, primitive_values, validity
from hurray_arrow.errors import Problem, ProblemCode, SnapshotCorruptError, UnsupportedError
from hurray_arrow.sequences import MediaSpan, Sequences

_STRUCT = SEQUENCES_TYPE.value_type


def sequences_array(sequences: Sequences, num_seqs: int) -> pa.Array:
    """Return the facts as struct array of ``num_seqs`` elements; every fact nobody knows is null.

    Raises
    ------
    UnsupportedError
        More than 2^31 - 1 token ids, positions or media spans in all, which the column's offsets cannot hold.
    """
    columns = {
        "num_tokens": _lengths(sequences, num_seqs),
        "id": _strings(sequences.ids, num_seqs),
        "token_ids": _ragged(sequences.token_ids, num_seqs, pa.uint32(), "token ids"),
        "page_positions": _ragged(sequences.page_positions, num_seqs, pa.uint64(), "page positions"),
        "adapter": _strings(sequences.adapter, num_seqs),
        "tenant": _strings(sequences.tenant, num_seqs),
        "media": _media(sequences.media, num_seqs),
    }
    fields = [_STRUCT.field(i) for i in range(_STRUCT.num_fields)]
    return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)


def sequences_from_array(array: pa.StructArray) -> Sequences:
    """Return the facts that a struct array holds; a fact that is null for every sequence comes back as ``None``.

    Token ids and positions are views that keep the Arrow buffers alive.

    Raises
    ------
    SnapshotCorruptError
        ``arrow_null``: a token id or a page position is null.
    """
    known = {field.name for field in array.type}

    def child(name: str) -> pa.Array | None:
        found = array.field(name) if name in known else None
        return None if found is None or found.null_count == len(found) else found

    lengths, ids, adapter, tenant = child("num_tokens"), child("id"), child("adapter"), child("tenant")
    token_ids, positions, media = child("token_ids"), child("page_positions"), child("media")
    seq_lens: npt.NDArray[np.uint64] | None = None
    seq_lens_known: npt.NDArray[np.bool_] | None = None
    if lengths is not None:
        seq_lens, seq_lens_known = primitive_values(lengths), validity(lengths)
    return Sequences(
        seq_lens=seq_lens,
        seq_lens_known=seq_lens_known,
        ids=None if ids is None else tuple(ids.to_pylist()),
        token_ids=None if token_ids is None else _from_ragged(token_ids, pa.uint32(), "token ids"),
        page_positions=None if positions is None else _from_ragged(positions, pa.uint64(), "page positions"),
        adapter=None if adapter is None else tuple(adapter.to_pylist()),
        tenant=None if tenant is None else tuple(tenant.to_pylist()),
        media=None if media is None else tuple(_spans(item) for item in media.to_pylist()),
    )


def _lengths(sequences: Sequences, num_seqs: int) -> pa.Array:
    if sequences.seq_lens is None:
        return pa.nulls(num_seqs, pa.uint64())
    known = sequences.seq_lens_known
    return pa.array(sequences.seq_lens, pa.uint64(), mask=None if known is None else ~known)


def _strings(values: Sequence[str | None] | None, num_seqs: int) -> pa.Array:
    return pa.nulls(num_seqs, pa.utf8()) if values is None else pa.array(values, pa.utf8())


def _ragged(
    values: Sequence[npt.NDArray[Any] | None] | None, num_seqs: int, item_type: pa.DataType, what: str
) -> pa.Array:
    list_type = pa.list_(pa.field("item", item_type))
    if values is None:
        return pa.nulls(num_seqs, list_type)
    lengths = np.array([0 if value is None else len(value) for value in values], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > MAX_LIST_ITEMS:
        raise UnsupportedError(f"{offsets[-1]} {what} in one snapshot row, at most {MAX_LIST_ITEMS} are supported")
    present = [value for value in values if value is not None and len(value)]
    flat = np.concatenate(present) if present else np.empty(0)
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        pa.array(flat.astype(numpy_dtype(item_type))),
        type=list_type,
        mask=mask,
    )


def _media(media: Sequence[Sequence[MediaSpan] | None] | None, num_seqs: int) -> pa.Array:
    if media is None:
        return pa.nulls(num_seqs, MEDIA_TYPE)
    spans = [
        None
        if of_sequence is None
        else [
            {"first_token": span.first_token, "num_tokens": span.num_tokens, "digest": span.digest}
            for span in of_sequence
        ]
        for of_sequence in media
    ]
    return pa.array(spans, MEDIA_TYPE)


def _from_ragged(array: pa.ListArray, item_type: pa.DataType, what: str) -> tuple[npt.NDArray[Any] | None, ...]:
    offsets, items = list_window(array)
    if items.null_count:
        message = f"{items.null_count} nulls among {what}, where there are none"
        raise SnapshotCorruptError(Problem(ProblemCode.ARROW_NULL, "sequences", message, "snapshot format 2"))
    values = primitive_values(items if items.type == item_type else items.cast(item_type))
    bounds = offsets.tolist()
    pieces = [values[first:last] for first, last in pairwise(bounds)]
    known = validity(array)
    if known is None:
        return tuple(pieces)
    return tuple(piece if there else None for piece, there in zip(pieces, known.tolist(), strict=True))


def _spans(spans: list[dict[str, Any]] | None) -> tuple[MediaSpan, ...] | None:
    if spans is None:
        return None
    return tuple(MediaSpan(span["first_token"], span["num_tokens"], span["digest"]) for span in spans)
