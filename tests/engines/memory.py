"""Engines' memory, laid out by hand: every layout from dense pages, without the package's own views."""

from __future__ import annotations

import numpy as np

#: What lies in gaps, padding and other layers; no test data has it.
GAP = 0xFFFE


def _layered(dense, axis):
    """Put ``dense`` into layer 1 of 3 along a new axis; the others are gaps."""
    shape = (*dense.shape[:axis], 3, *dense.shape[axis:])
    memory = np.full(shape, GAP, dense.dtype)
    place = (slice(None),) * axis + (1,)
    memory[place] = dense
    return memory[place]


def unified(layout, keys, values):
    """vLLM's [B, H, N, C] in every memory order."""
    c = np.concatenate([keys, values], axis=-1)  # B N H C
    match layout.partition("-")[0]:
        case "BHNC" | "LBHNC":
            return np.ascontiguousarray(c.transpose(0, 2, 1, 3))
        case "BNHC" | "LBNHC":
            return c.copy().transpose(0, 2, 1, 3)
        case "LHBNC":
            return np.ascontiguousarray(c.transpose(2, 0, 1, 3)).transpose(1, 0, 2, 3)
        case "BLHNC":
            return _layered(c.transpose(0, 2, 1, 3), 1)
        case "BLNHC":
            return _layered(c, 1).transpose(0, 2, 1, 3)
        case "BHLNC":
            return _layered(c.transpose(0, 2, 1, 3), 2)
    raise ValueError(layout)


def vllm(layout, keys, values):
    """Any vLLM layout of keys and values."""
    pages, slots, heads, dim = keys.shape
    k, v = (np.ascontiguousarray(each.transpose(0, 2, 1, 3)) for each in (keys, values))
    match layout:
        case "2BNHD":
            return np.stack([keys, values])
        case "2BHND":
            return np.stack([k, v]).transpose(0, 1, 3, 2, 4)
        case "B2NHD":
            return np.stack([keys, values], axis=1)
        case "B2HND":
            return np.stack([k, v], axis=1).transpose(0, 1, 3, 2, 4)
        case "BHNC-cpu" | "LBHNC-cpu" | "BHNC-cpu_rows":
            memory = np.empty((pages, heads, slots * 2 * dim), keys.dtype)
            for page in range(pages):
                for head in range(heads):
                    by_row, by_column = keys[page, :, head], keys[page, :, head].T
                    first = by_row if layout.endswith("rows") else by_column
                    memory[page, head] = np.concatenate([first.reshape(-1), values[page, :, head].reshape(-1)])
            return memory.reshape(pages, heads, slots, 2 * dim)
    return unified(layout, keys, values)


def flashinfer(layout, keys, values):
    """Any FlashInfer layout of keys and values."""
    k, v = (np.ascontiguousarray(each.transpose(0, 2, 1, 3)) for each in (keys, values))
    match layout:
        case "B2NHD":
            return np.stack([keys, values], axis=1)
        case "B2HND":
            return np.stack([k, v], axis=1)
        case "BNHD":
            return keys.copy(), values.copy()
        case "BHND":
            return k, v
    raise ValueError(layout)


def sglang(layout, keys, values):
    """Any SGLang layout of keys and values."""
    slots = (keys.shape[0] * keys.shape[1], *keys.shape[2:])
    match layout:
        case "BNHD":
            return keys.reshape(slots).copy(), values.reshape(slots).copy()
        case "2BNHD":
            return np.stack([keys.reshape(slots), values.reshape(slots)])
        case "BHND":
            return flashinfer(layout, keys, values)
    raise ValueError(layout)


def rectangle(rows, *, pad, columns=7):
    """A rectangular int32 table whose rows end in padding."""
    table = np.full((len(rows) + 2, columns), pad, np.int32)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table


def slots_of(row, tokens, page_size):
    """The token slots of a sequence."""
    return [row[t // page_size] * page_size + t % page_size for t in range(tokens)]
