"""What each format itself can say, where no program can try it: cited from its public description."""

from __future__ import annotations

from dataclasses import dataclass

PROPERTIES = ("paged structure", "sharing", "absent pages", "scales", "lengths")
YES, PARTLY, OWN = "yes", "partly", "own"

OURS = "../format.md"
HRRY = "https://github.com/pgillet/hurray"
SAFETENSORS = "https://github.com/huggingface/safetensors#format"
NPY = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
ARROW = "https://arrow.apache.org/docs/format/Columnar.html"
ZARR = "https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html"
LANCE = "https://lancedb.github.io/lance/format/file"
ZIPNN = "https://github.com/zipnn/zipnn"
TORCH = "https://docs.pytorch.org/docs/stable/notes/serialization.html"


@dataclass(frozen=True, slots=True)
class Claim:
    """One cell.

    Parameters
    ----------
    verdict
        ``yes``: the format says it. ``partly``. ``own``: a writer and a reader that agree can put it into
        arrays, columns or metadata, and nothing checks it.
    why
        In a few words.
    source
        The description that says so.
    """

    verdict: str
    why: str
    source: str


def _by_convention(source: str, what: str) -> dict[str, Claim]:
    return {name: Claim(OWN, what, source) for name in PROPERTIES}


_OURS = {
    "paged structure": Claim(YES, "a pool, a block table and sequences are columns with types of their own", OURS),
    "sharing": Claim(YES, "a page that several sequences name is there once, and the views count it", OURS),
    "absent pages": Claim(YES, "page_positions: where in the sequence each stored page lies", OURS),
    "scales": Claim(YES, "the descriptor's schemes with their buffers; companion tensors over the same tables", OURS),
    "lengths": Claim(YES, "num_tokens of each sequence, checked against its pages", OURS),
}
_HRRY = {
    "paged structure": Claim(YES, "layout 0x0A: pool, block table, seq_ptr", HRRY),
    "sharing": Claim(YES, "block tables may name a page more than once", HRRY),
    "absent pages": Claim(OWN, "the layout's pages of a sequence follow each other", HRRY),
    "scales": Claim(PARTLY, "per tensor, channel or block; not one per head and token", HRRY),
    "lengths": Claim(OWN, "the descriptor has no token counts", HRRY),
}

CLAIMS: dict[str, dict[str, Claim]] = {
    "share": _OURS,
    "archive": _OURS,
    "hrry": _HRRY,
    "safetensors": _by_convention(SAFETENSORS, "named tensors and a map of strings"),
    "npy": _by_convention(NPY, "one array with dtype and shape; names are the folder's"),
    "npz": _by_convention(NPY, "named arrays"),
    "feather": _by_convention(ARROW, "columns, lists and a map of strings"),
    "zarr": _by_convention(ZARR, "named arrays in groups, and JSON attributes"),
    "lance": _by_convention(LANCE, "columns, lists and a map of strings"),
    "zipnn": _by_convention(ZIPNN, "compresses bytes or tensors; here inside safetensors"),
    "torch": _by_convention(TORCH, "a pickled object around tensors"),
}
