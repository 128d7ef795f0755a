"""Open a view by its name.

Spec: house rules, "Selectors".
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

from hurray_arrow.snapshot.entries import SELECTORS, IntSelector, RoleSelector, StrSelector
from hurray_arrow.snapshot.reader import Snapshot
from hurray_arrow.views.pages import PagesView
from hurray_arrow.views.selection import Selection, SequenceSelector
from hurray_arrow.views.sequences import SequencesView
from hurray_arrow.views.tensors import TensorsView
from hurray_arrow.views.tokens import TokensView
from hurray_arrow.views.view import View

#: The views by name.
VIEWS: dict[str, type[View]] = {kind.NAME: kind for kind in (TensorsView, SequencesView, PagesView, TokensView)}


def open_view(
    snapshot: Snapshot,
    view: str,
    *,
    columns: Iterable[str] | None = None,
    layer_index: IntSelector = None,
    layer_name: StrSelector = None,
    kv_role: RoleSelector = None,
    kv_group: IntSelector = None,
    component: StrSelector = None,
    sequence: SequenceSelector = None,
    **options: Any,
) -> View:
    """Open a view of a snapshot; nothing but the index is read (and the tables, for a filter on sequences).

    Parameters
    ----------
    snapshot
        An open snapshot; it stays open while the view is read.
    view
        ``"tensors"``, ``"sequences"``, ``"pages"`` or ``"tokens"``.
    columns
        Which columns, in which order; ``None`` for all but ``shared_with`` of ``sequences``, which may be larger than
        all else. What only other columns need is neither read nor worked out.
    layer_index, layer_name, kv_role, kv_group, component
        One value or several; what is not given admits all. Where they admit no tensor the view has no rows:
        :class:`~hurray_arrow.snapshot.entries.Selectors`.
    sequence
        Places from 0 or ids, one or several. ``tensors`` has no sequences and takes it as no filter.
    **options
        ``values`` of ``pages``; ``values`` and ``per_head`` of ``tokens``.

    Returns
    -------
    View
        May be read any number of times: ``reader()`` gives a ``pyarrow.RecordBatchReader``, and every library that
        knows Arrow's stream protocol reads the view itself. Batches take some MiB, whatever the snapshot's size is.

    Raises
    ------
    ValueError
        No such view, column or kind of values.
    TypeError
        No such option, or a path in place of an open snapshot.
    KeyError, IndexError
        None of the tensors has a sequence of this id, or at this place.
    UnsupportedError
        What tools mishandle, or one column cannot hold; see the views.

    Examples
    --------
    >>> from hurray_arrow.views import open_view
    >>> view = open_view(snapshot, "sequences", columns=["sequence_id", "num_tokens"])
    >>> view.reader().read_all()["num_tokens"].to_pylist()
    [7, 11, 0]
    """
    if view not in VIEWS:
        raise ValueError(f"view {view!r}, expected one of {list(VIEWS)}")
    selection = Selection.of(
        snapshot,
        sequence=sequence,
        layer_index=layer_index,
        layer_name=layer_name,
        kv_role=kv_role,
        kv_group=kv_group,
        component=component,
    )
    return make_view(view, selection, columns=columns, **options)


def open_for_queries(snapshot: Snapshot, view: str, **options: Any) -> View:
    """Open a view for a tool that names the columns of each query: without ``columns=`` it offers those on demand too.

    Parameters and errors as of :func:`open_view`.
    """
    opened = open_view(snapshot, view, **options)
    return opened if options.get("columns") is not None else opened.with_all_columns()


def make_view(view: str, selection: Selection, **options: Any) -> View:
    """Make a view by its name.

    Raises
    ------
    TypeError
        The view has no such option.
    """
    kind = VIEWS[view]
    taken = [name for name in signature(kind).parameters if name != "selection"]
    if foreign := sorted(set(options) - set(taken)):
        raise TypeError(f"{view}: no option {foreign}: expected some of {[*SELECTORS, 'sequence', *taken]}")
    return kind(selection, **options)
