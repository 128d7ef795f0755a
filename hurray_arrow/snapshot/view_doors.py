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
        """Return a row per tensor: its descriptor, sizes, sharing and fill; no page is read.

        Examples
        --------
        >>> snapshot.tensors(columns=["kv_role", "num_pages", "shared_pages"]).read_all().to_pylist()
        [{'kv_role': 'key', 'num_pages': 5, 'shared_pages': 1}, {'kv_role': 'value', 'num_pages': 5, 'shared_pages': 1}]
        """
        return self._view("tensors", **options)

    def sequences(self: Any, **options: Any) -> pa.RecordBatchReader:
        """Return a row per kv_group and sequence: tokens, pages, how many are shared; no page is read.

        Who shares them says the column ``shared_with``, which has to be named in ``columns=``: it lists pairs of
        sequences.

        Examples
        --------
        >>> snapshot.sequences(columns=["sequence_id", "num_tokens"], sequence=["a", "b"]).read_all().to_pylist()
        [{'sequence_id': 'a', 'num_tokens': 7}, {'sequence_id': 'b', 'num_tokens': 11}]
        """
        return self._view("sequences", **options)

    def pages(self: Any, *, values: Literal["raw", "float32"] | None = None, **options: Any) -> pa.RecordBatchReader:
        """Return a row per tensor and physical page: references, fill, and values where asked for.

        Examples
        --------
        >>> pages = snapshot.pages(columns=["page_id", "references"], kv_role="key").read_all()
        >>> pages["references"].to_pylist()
        [1, 1, 1, 0, 2]
        """
        return self._view("pages", values=values, **options)

    def tokens(
        self: Any, *, per_head: bool = False, values: Literal["float32", "stats"] | None = None, **options: Any
    ) -> pa.RecordBatchReader:
        """Return a row per tensor, sequence and token (× head): its place, and values or statistics where asked for.

        Examples
        --------
        >>> tokens = snapshot.tokens(values="stats", kv_role="key", sequence="a").read_all()
        >>> tokens["position"].to_pylist(), round(tokens["norm"][0].as_py(), 2)
        ([0, 1, 2, 3, 4, 5, 6], 241.31)
        """
        return self._view("tokens", per_head=per_head, values=values, **options)

    def _view(self: Any, name: str, **options: Any) -> pa.RecordBatchReader:
        from hurray_arrow.views import open_view

        return open_view(self, name, **options).reader()
