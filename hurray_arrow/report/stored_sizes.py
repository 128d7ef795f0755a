"""What pages take compressed, by layer and byte plane: counted in an archive, tried out on a sample elsewhere.

Spec: snapshot format, section 5, "archive".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from hurray_arrow.report.head_values import HeadValues, Values
from hurray_arrow.report.look import Look
from hurray_arrow.report.numbers import NOTHING, Table, integer, percent, sentence
from hurray_arrow.report.value_figures import HEADS, layer_axis
from hurray_arrow.snapshot.plane_sizes import PlaneSizes
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.texts import count, size

#: Rows of an archived tensor whose headers are read.
MOST_ROWS = 16
_TABLE_ROWS = 512


@dataclass(frozen=True, slots=True)
class TensorSizes:
    """What a tensor's pages take.

    Parameters
    ----------
    values
        The tensor.
    raw_bytes
        Bytes of the pages that the numbers are about, as an engine holds them.
    plane_bytes
        Compressed bytes of each byte plane of these pages; byte 0, the least significant, first.
    """

    values: HeadValues
    raw_bytes: int
    plane_bytes: tuple[int, ...]


class StoredSizes:
    """Compressed sizes of the tensors whose values are known.

    Parameters
    ----------
    snapshot
        The open snapshot.
    values
        Read with ``with_planes``, unless the snapshot is an archive.
    """

    def __init__(self, snapshot: Snapshot, values: Values) -> None:
        self.values = values
        self.is_archive = snapshot.profile == "archive"
        self.stored_bytes = sum(entry.stored_bytes for entry in snapshot.entries)
        self._rows_read = self._num_rows = 0
        self._encodings = {each.entry.encoding for each in values.tensors}
        found = [self._counted(snapshot, each) if self.is_archive else _tried(each) for each in values.tensors]
        self.tensors = [each for each in found if each is not None]

    @property
    def num_planes(self) -> int:
        """Planes of the tensor that has the most."""
        return max((len(each.plane_bytes) for each in self.tensors), default=0)

    def draw(self, look: Look) -> Figure:
        """Draw for each layer what its planes take, in percent of the pages as an engine holds them."""
        roles = [role for role in self.values.roles if any(each.values.entry.kv_role == role for each in self.tensors)]
        figure, axes = look.figure(1.75 * max(1, len(roles)) + 0.5, rows=max(1, len(roles)), sharex=True)
        for panel, role in zip(axes[:, 0], roles, strict=False):
            shares = self._shares(role)
            base = np.zeros(len(self.values.layers))
            for plane, color in enumerate(self._colors(role, look)):
                look.bars(panel, base, base + shares[plane], color=color, label=_plane_name(plane))
                base = base + shares[plane]
            look.head(panel, HEADS[role])
            panel.set_ylabel("% of raw size")
            panel.set_ylim(0, max(100.0, float(base.max(initial=0))))
            panel.grid(axis="y", color=look.palette.line, linewidth=0.6)
            panel.set_axisbelow(True)
            if self.num_planes > 1:
                style = {"labelcolor": look.palette.ink, "fontsize": look.text_points, "frameon": False}
                panel.legend(
                    loc="lower right", bbox_to_anchor=(1, 0.98), ncols=self.num_planes, borderaxespad=0, **style
                )
        layer_axis(axes[-1, 0], self.values.labels if roles else [], look)
        return figure

    @property
    def caption(self) -> str:
        """How the sizes were found."""
        raw, stored = self.raw_bytes, self.compressed_bytes
        if not self.tensors:
            return "Nothing to compress."
        share = f"{percent(stored, raw)} of the raw size"
        planes = "Byte 0 is an element's least significant." if self.num_planes > 1 else ""
        if not self.is_archive:
            tried = f"This snapshot is not compressed. {size(raw)} of its pages were compressed to try out what an "
            how = f"{tried}archive would take: {share} (zstd on byte planes, slots without tokens zeroed)."
            return sentence([how, planes])
        if self._rows_read == self._num_rows:
            how = f"Counted in all {count(self._num_rows, 'row')} with pages"
        else:
            how = f"Counted in {integer(self._rows_read)} of the {count(self._num_rows, 'row')} with pages"
        plain = "Pages that are not in byte planes have one bar." if self._encodings - {"byte_planes"} else ""
        return sentence([f"{how}: {share}.", plain, planes])

    @property
    def raw_bytes(self) -> int:
        """Bytes of all pages that the numbers are about."""
        return sum(each.raw_bytes for each in self.tensors)

    @property
    def compressed_bytes(self) -> int:
        """What they take compressed."""
        return sum(sum(each.plane_bytes) for each in self.tensors)

    def table(self) -> Table:
        """Return the same numbers."""
        labels = dict(zip(self.values.layers, self.values.labels, strict=True))
        planes = range(self.num_planes)
        rows = []
        for each in self.tensors:
            entry = each.values.entry
            held = [size(each.plane_bytes[plane]) if plane < len(each.plane_bytes) else NOTHING for plane in planes]
            layer = labels[entry.layer_index, entry.layer_name, entry.kv_group]
            share = percent(sum(each.plane_bytes), each.raw_bytes)
            rows.append((layer, entry.kv_role, size(each.raw_bytes), *held, share))
        names = ["compressed"] if self.num_planes == 1 else [_plane_name(plane) for plane in planes]
        note = "" if len(rows) <= _TABLE_ROWS else f"The first {_TABLE_ROWS} of {len(rows)} rows."
        heads = ("layer", "kv_role", "raw", *names, "of raw")
        return Table("Compressed sizes", heads, tuple(rows[:_TABLE_ROWS]), note=note, num_names=2)

    def _counted(self, snapshot: Snapshot, values: HeadValues) -> TensorSizes | None:
        found: PlaneSizes | None = snapshot.plane_sizes(values.entry, most_rows=MOST_ROWS)
        if found is None or not found.num_pages:
            return None
        self._rows_read += found.rows_read
        self._num_rows += found.num_rows
        raw_bytes = found.num_pages * values.pool_bytes // max(1, values.entry.num_pages)
        return TensorSizes(values, raw_bytes, found.stored_bytes)

    def _shares(self, role: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return percents of the raw size: float64 ``[planes, layers]``."""
        shares = np.zeros((self.num_planes, len(self.values.layers)))
        places = {layer: place for place, layer in enumerate(self.values.layers)}
        for each in self.tensors:
            entry = each.values.entry
            if entry.kv_role == role and each.raw_bytes:
                column = places[entry.layer_index, entry.layer_name, entry.kv_group]
                shares[: len(each.plane_bytes), column] = np.array(each.plane_bytes) * 100 / each.raw_bytes
        return shares

    def _colors(self, role: str, look: Look) -> list[str]:
        """Return tints of the role's colour, the strongest for byte 0."""
        ground, color = (np.array(pair) for pair in look.tints(role))
        weights = np.linspace(1, 0.35, max(self.num_planes, 1))
        return [to_hex(weight * color + (1 - weight) * ground) for weight in weights]


def _tried(values: HeadValues) -> TensorSizes | None:
    if not values.raw_bytes or not values.plane_bytes:
        return None
    return TensorSizes(values, values.raw_bytes, tuple(values.plane_bytes))


def _plane_name(plane: int) -> str:
    return f"byte {plane}"
