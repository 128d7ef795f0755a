"""The doors of a snapshot to its tidy views: each imports its other side when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pyarrow as pa


class ViewDoors:
    """What :class:`Snapshot` offers to people with questions: four tables, read while they are consumed.

    Every view takes ``columns=``, which columns and in which order, and the filters ``layer_index=``, ``layer_name=``,
    ``kv_role=``, ``kv_group=``, ``component=`` (as of :meth:`Snapshot.read`) and ``sequence=`` (places or ids). Only
    what columns and filters need is read. See :func:`hurray_arrow.views.open_view` for all of it.
    """

    __slots__ = ()

    def tensors(self: Any, **options: Any) -> pa.RecordBatchReader:
        """Return a row per tensor: its descriptor, sizes, sharing and fill; no page is read."""
        return self._view("tensors", **options)

    def sequences(self: Any, **options: Any) -> pa.RecordBatchReader:
        """Return a row per kv_group and sequence: tokens, pages, how many are shared; no page is read.

        Who shares them says the column ``shared_with``, which has to be named in ``columns=``: it lists pairs of
        sequences.
        """
        return self._view("sequences", **options)

    def pages(self: Any, *, values: Literal["raw", "float32"] | None = None, **options: Any) -> pa.RecordBatchReader:
        """Return a row per tensor and physical page: references, fill, and values where asked for."""
        return self._view("pages", values=values, **options)

    def tokens(
        self: Any, *, per_head: bool = False, values: Literal["float32", "stats"] | None = None, **options: Any
    ) -> pa.RecordBatchReader:
        """Return a row per tensor, sequence and token (× head): its place, and values or statistics where asked for."""
        return self._view("tokens", per_head=per_head, values=values, **options)

    def _view(self: Any, name: str, **options: Any) -> pa.RecordBatchReader:
        from hurray_arrow.views import open_view

        return open_view(self, name, **options).reader()
