"""A batch as one rectangle, ``[batch, heads, columns, head_dim]``: which columns are tokens, and filling them again.

Spec: snapshot format section 2, absent pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hurray_arrow.engines.arrays import Int64Array, Words, as_array, as_integers
from hurray_arrow.engines.groups import CacheFacts
from hurray_arrow.engines.token_rows import TokenRows
from hurray_arrow.errors import LayoutError
from hurray_arrow.tensor import BlockPagedTensor


def token_columns(attention_mask: Any, seq_lens: Any, *, batch: int, columns: int) -> list[Int64Array]:
    """Give for each sequence the columns that are tokens and no padding.

    Parameters
    ----------
    attention_mask
        ``[batch, columns]`` of 0 and 1, or ``None``.
    seq_lens
        ``[batch]`` tokens of a batch that is padded on the right, or ``None``; with neither nothing is padding.
    batch, columns
        Sizes of the rectangle.

    Returns
    -------
    list of numpy.ndarray
        int64 ``[tokens]`` each, ascending.

    Raises
    ------
    LayoutError
        Another shape, other values than 0 and 1, lengths outside the rectangle.
    """
    if attention_mask is not None and seq_lens is not None:
        raise TypeError("pass either attention_mask or seq_lens")
    if seq_lens is not None:
        lengths = as_integers(seq_lens, name="seq_lens")
        if lengths.size != batch or ((lengths < 0) | (lengths > columns)).any():
            message = f"seq_lens {lengths.tolist()}, expected {batch} numbers of 0 … {columns}"
            raise LayoutError(message, expected=(batch, columns), actual=lengths.tolist())
        return [np.arange(length) for length in lengths.tolist()]
    if attention_mask is None:
        return [np.arange(columns) for _ in range(batch)]
    mask = as_array(attention_mask, name="attention_mask")
    if mask.shape != (batch, columns):
        message = f"attention_mask: shape {mask.shape}, expected one entry per column of the cache {(batch, columns)}"
        raise LayoutError(message, expected=(batch, columns), actual=mask.shape)
    if not ((mask == 0) | (mask == 1)).all():
        raise LayoutError("attention_mask: expected 0 and 1", expected=(0, 1), actual=np.unique(mask)[:5].tolist())
    return [np.flatnonzero(row) for row in mask]


def column_rows(array: Words, columns: Sequence[Int64Array]) -> TokenRows:
    """Give the tokens of a sequence out of a rectangle.

    Parameters
    ----------
    array
        ``[batch, heads, columns, head_dim]``, strided.
    columns
        As of :func:`token_columns`.

    Returns
    -------
    callable
        From a sequence to ``[tokens, heads, head_dim]``: a view where its columns follow each other.
    """

    def rows(s: int) -> Words:
        cols, tokens = columns[s], array[s].transpose(1, 0, 2)
        follow_each_other = cols.size and cols[-1] - cols[0] == cols.size - 1
        taken: Words = tokens[cols[0] : cols[-1] + 1] if follow_each_other else tokens[cols]
        return taken

    return rows


def cut_token_ids(facts: CacheFacts, tokens: Sequence[Int64Array], *, columns: int) -> CacheFacts:
    """Cut a rectangle of token ids to what is no padding; other facts, and lists of token ids, stay as they are.

    Parameters
    ----------
    facts
        As the caller gives them.
    tokens
        As of :func:`token_columns`.
    columns
        Of the cache; the rectangle has as many or more.

    Raises
    ------
    LayoutError
        A rectangle of another batch, or of fewer columns.
    """
    given = facts.get("token_ids")
    if given is None or len(getattr(given, "shape", ())) != 2:
        return facts
    rectangle = as_array(given, name="token_ids")
    if rectangle.shape[0] != len(tokens) or rectangle.shape[1] < columns:
        expected = (len(tokens), columns)
        message = f"token_ids: shape {rectangle.shape}, expected {expected} or more columns"
        raise LayoutError(message, expected=expected, actual=rectangle.shape)
    return {**facts, "token_ids": [row[cols] for row, cols in zip(rectangle, tokens, strict=True)]}


def batch_lengths(tensors: Iterable[BlockPagedTensor], batch: Sequence[int], tokens: int | None) -> list[int]:
    """Give where stored sequences end, which has to be the same in every group.

    Parameters
    ----------
    tensors
        Of every group.
    batch
        The sequence of each row.
    tokens
        Take only so many of each; ``None`` for all.

    Returns
    -------
    list of int
        The position behind the last token of each row.

    Raises
    ------
    LayoutError
        Groups that disagree, or fewer tokens stored than are to be taken.
    UnknownSequenceLengthError
        Nobody recorded a length.
    """
    lengths: list[int] = []
    for tensor in {id(tensor.sequences): tensor for tensor in tensors}.values():
        positions = [tensor.positions(s) for s in batch]
        stored = [int(each[-1]) + 1 if each.size else 0 for each in positions]
        lengths = lengths or stored
        if stored != lengths:
            message = f"sequences end at {lengths} in one kv_group and at {stored} in another"
            raise LayoutError(message, expected=lengths, actual=stored)
    if tokens is not None and not 0 < tokens <= min(lengths):
        message = f"tokens {tokens}, expected 1 … {min(lengths)}, which every sequence has"
        raise LayoutError(message, expected=min(lengths), actual=tokens)
    return lengths if tokens is None else [tokens] * len(lengths)


def fill_columns(
    words: Words, tensor: BlockPagedTensor, batch: Sequence[int], *, lengths: Sequence[int], needed: int
) -> None:
    """Write the last tokens of sequences into a rectangle, aligned on the right.

    Parameters
    ----------
    words
        ``[rows, heads, columns, head_dim]`` of words of the tensor's width, zeroed, writable. Its last column is the
        last token of every row.
    tensor
        The stored tensor.
    batch
        The sequence of each row.
    lengths
        The position behind the last token of each row.
    needed
        How many of the last positions have to be stored; more are written where there are any.

    Raises
    ------
    LayoutError
        One of them is absent.
    """
    columns = words.shape[2]
    for row, (s, length) in enumerate(zip(batch, lengths, strict=True)):
        positions = tensor.positions(s).astype(np.int64)
        stop = int(np.searchsorted(positions, length))
        # The run of stored positions that ends with the last token.
        breaks = np.flatnonzero(np.diff(positions[:stop]) != 1)
        start = int(breaks[-1]) + 1 if breaks.size else 0
        first = int(positions[start]) if stop > start and positions[stop - 1] == length - 1 else length
        wanted = max(0, length - needed)
        if first > wanted:
            message = f"{tensor!r}, sequence {s}: positions {wanted} … {first - 1} are looked at and not stored"
            raise LayoutError(message, expected=wanted, actual=first)
        start += max(0, length - columns - first)
        if first < length:
            stored = tensor.gather(s)[start:stop].view(words.dtype)
            words[row, :, columns - (stop - start) :] = stored.transpose(1, 0, 2)
