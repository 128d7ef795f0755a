"""Where a cache comes from, as a snapshot's metadata says it: engine, groups, topology.

Spec: snapshot format section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hurray_arrow.engines.groups import CacheGroup
from hurray_arrow.engines.stored_layers import StoredGroup, stored_groups
from hurray_arrow.errors import LayoutError
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors


def cache_metadata(
    tensors: Iterable[BlockPagedTensor],
    *,
    engine: str,
    layout: str | Mapping[str, str],
    version: str | None = None,
    kv_cache_dtype: str | None = None,
    source_device: str = "cpu",
    groups: Sequence[CacheGroup] | None = None,
    topology: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Give ``engine``, ``groups`` and ``topology`` for ``write_snapshot(metadata=…)``.

    Parameters
    ----------
    tensors
        What was exported.
    engine, version
        The engine.
    layout
        The layout that was exported from, or one per layer.
    kv_cache_dtype
        The engine's name of the type **in effect**. ``None`` or ``"auto"`` gives the tensors' element types.
    source_device
        Where the cache was.
    groups
        The groups that were exported; ``None`` where every layer is of kind ``full``.
    topology
        ``tp_rank``, ``tp_size``, ``head_range``, … as in the format.

    Returns
    -------
    dict
        New; add ``model`` and whatever else the cache belongs to.

    Raises
    ------
    LayoutError
        ``groups`` are not those of the tensors.

    Spec: snapshot format section 3.
    """
    tensors = listed_tensors(tensors)
    stored = stored_groups(tensors)
    if groups is not None and len(groups) != len(stored):
        message = f"groups: {len(groups)}, the tensors have {len(stored)}"
        raise LayoutError(message, expected=len(stored), actual=len(groups))
    if kv_cache_dtype in (None, "auto"):
        kv_cache_dtype = ", ".join(sorted({t.element_type.name for t in tensors if t.component != "scales"}))
    names = [layout] if isinstance(layout, str) else sorted(set(layout.values()))
    about = {"name": engine, "source_layout": ", ".join(names), "kv_cache_dtype": kv_cache_dtype}
    if version is not None:
        about["version"] = version
    found: dict[str, Any] = {
        "engine": {**about, "source_device": source_device},
        "groups": [_group(group, None if groups is None else groups[place]) for place, group in enumerate(stored)],
    }
    if topology is not None:
        found["topology"] = dict(topology)
    return found


def _group(stored: StoredGroup, group: CacheGroup | None) -> dict[str, Any]:
    # A reader asks every listed component of every layer of the group.
    common = set.intersection(*({component for _, component in layer} for layer in stored.layers.values()))
    about: dict[str, Any] = {"kind": "full" if group is None else group.kind}
    if group is not None and group.window_tokens is not None:
        about["window_tokens"] = group.window_tokens
    named = all(tensor.layer_name is not None for layer in stored.layers.values() for tensor in layer.values())
    about["page_size"] = stored.any_tensor.page_size
    if named:
        about["layer_names"] = list(stored.layers)
    about["components"] = sorted(common)
    return about
