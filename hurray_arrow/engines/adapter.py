"""What all engines' adapters do alike: export a cache, import one anew, restore a sequence into a running pool.

Spec: snapshot format sections 2 and 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from hurray_arrow.engines.capture import capture_cache
from hurray_arrow.engines.groups import (
    CacheFacts,
    CacheGroup,
    LayerTypes,
    PerLayer,
    check_by_layer,
    layer_formats,
    split_groups,
)
from hurray_arrow.engines.layouts import Layout
from hurray_arrow.engines.origin import cache_metadata
from hurray_arrow.engines.restoration import Restored, new_cache, write_sequence
from hurray_arrow.engines.restore_plan import (
    EnginePaging,
    PerGroup,
    blocks_by_group,
    check_belongs,
    group_kind,
    group_moves,
    sequence_numbers,
    wanted_positions,
)
from hurray_arrow.engines.stored_layers import stored_groups
from hurray_arrow.errors import LayoutError
from hurray_arrow.identity import check_expected, tensor_facts
from hurray_arrow.tensor import BlockPagedTensor
from hurray_arrow.tensors import listed_tensors


@dataclass(frozen=True, slots=True)
class Adapter:
    """An engine's layouts, and the work that follows from them.

    Parameters
    ----------
    engine
        The engine's name.
    layouts
        Its layouts by name.
    refused
        Layouts that are known and not handled, and why.
    """

    engine: str
    layouts: Mapping[str, Layout]
    refused: Mapping[str, str] = field(default_factory=dict)

    def export_groups(
        self,
        arrays: Mapping[str, Any],
        *,
        layout: PerLayer,
        groups: Sequence[CacheGroup],
        element_type: PerLayer = None,
        num_heads: PerLayer = None,
        head_dim: PerLayer = None,
        head_dim_v: PerLayer = None,
        scales: PerLayer = None,
        pages: str = "referenced",
        copy: bool | None = None,
        layer_indices: Mapping[str, int] | None = None,
        **facts: Unpack[CacheFacts],
    ) -> list[BlockPagedTensor]:
        """Give the tensors of an engine's cache.

        Parameters
        ----------
        arrays
            Each layer's array, or pair of arrays, by the layer's name: numpy, torch on the CPU, DLPack or the buffer
            protocol, with any strides. Nobody may write to them meanwhile.
        layout
            Name of the memory layout; it is never inferred.
        groups
            The layers' tables; every layer in exactly one.
        element_type
            Type of the values; needed where the array holds integers, which may be the bits of anything.
        num_heads, head_dim, head_dim_v
            Sizes of the axes H and D (or the parts of C). Those that are given are checked, and ``head_dim`` has to be
            given where keys and values are packed in C.
        scales
            ``(k_scale, v_scale)`` of 8-bit values, one number for a latent: the engine keeps them outside the cache.
        pages
            ``"referenced"`` or ``"all"``; see :func:`hurray_arrow.engines.capture.capture_cache`.
        copy
            For ``"all"``: ``None`` shares memory where it can, ``False`` refuses to copy, ``True`` always copies.
        layer_indices
            Number of each layer in the model; ``None`` numbers the layers in order, and refuses where a name such as
            ``model.layers.12.attn`` says otherwise (layers sorted by name, a pipeline's later rank).
        **facts
            ``ids``, ``token_ids``, ``adapter``, ``tenant``, ``media`` of the sequences.

        Returns
        -------
        list of BlockPagedTensor
            In the order of the layers, ``kv_group`` the place in ``groups``. New memory, except for ``pages="all"``.
            ``layout``, types, sizes and scales may also be given by layer name.

        Raises
        ------
        LayoutError
            An array or a table is not what was said; ``.expected`` and ``.actual``.
        CopyRequiredError
            ``copy=False`` and pages are not dense.
        InvariantError
            Facts that do not fit the sequences.

        Spec: block-paged layout, Buffer Table; snapshot format section 2.
        """
        check_by_layer(arrays, name="arrays")
        groups = split_groups(arrays, groups)
        formats = layer_formats(
            arrays,
            layouts=self.layouts,
            refused=self.refused,
            layout=layout,
            page_sizes={name: group.page_size for group in groups for name in group.layer_names},
            element_type=element_type,
            num_heads=num_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            scales=scales,
        )
        return capture_cache(
            arrays, formats=formats, groups=groups, pages=pages, copy=copy, layer_indices=layer_indices, facts=facts
        )

    def metadata(
        self,
        tensors: Iterable[BlockPagedTensor],
        *,
        layout: str | Mapping[str, str],
        version: str | None = None,
        kv_cache_dtype: str | None = None,
        source_device: str = "cpu",
        groups: Sequence[CacheGroup] | None = None,
        topology: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Give ``engine``, ``groups`` and ``topology`` for a snapshot of exported tensors.

        Parameters and result are those of :func:`hurray_arrow.engines.origin.cache_metadata`.

        Spec: snapshot format section 3.
        """
        return cache_metadata(
            tensors,
            engine=self.engine,
            layout=layout,
            version=version,
            kv_cache_dtype=kv_cache_dtype,
            source_device=source_device,
            groups=groups,
            topology=topology,
        )

    def import_cache(
        self,
        tensors: Iterable[BlockPagedTensor],
        *,
        layout: PerLayer,
        expect: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None = None,
        **types: Unpack[LayerTypes],
    ) -> dict[str, Any]:
        """Build an engine's arrays from tensors, in new memory.

        Parameters
        ----------
        tensors
            All tensors of the layers that are wanted.
        layout
            Name of the memory layout, or one per layer.
        expect
            What the cache has to belong to, by dotted name in ``metadata`` or among the tensors' own facts; ``None``
            only where that does not matter.
        metadata
            The snapshot's metadata.
        **types
            ``element_type``, ``num_heads``, ``head_dim``, ``head_dim_v``, ``scales``, each for all layers or by layer.
            What is given is compared with the tensors. ``head_dim`` is needed for a latent in two arrays.

        Returns
        -------
        dict
            By layer a new array in the engine's shape and memory order, or a tuple of two. Pages keep their numbers,
            so the tensors' tables fit.

        Raises
        ------
        SnapshotMismatchError
            Not what is expected.
        LayoutError, UnsupportedError
            Tensors that the layout has no place for, or a companion that it needs is missing.

        Spec: snapshot format sections 2 and 3.
        """
        tensors = listed_tensors(tensors)
        check_expected(metadata or {}, expect, facts=tensor_facts(tensors, metadata))
        groups = stored_groups(tensors)
        formats = layer_formats(
            [name for group in groups for name in group.layers],
            layouts=self.layouts,
            refused=self.refused,
            layout=layout,
            page_sizes={name: group.any_tensor.page_size for group in groups for name in group.layers},
            **types,
        )
        return new_cache(groups, formats=formats)

    def restore_into(
        self,
        destination: Mapping[str, Any],
        tensors: Iterable[BlockPagedTensor],
        *,
        layout: PerLayer,
        sequence: int | str,
        block_ids: Any,
        page_size: PerGroup,
        expect: Mapping[str, Any] | None,
        tokens: int | range | None = None,
        block_size: PerGroup = None,
        block_stride: PerGroup = None,
        null_block: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        **types: Unpack[LayerTypes],
    ) -> Restored:
        """Write one stored sequence into pages of an engine's existing pool.

        Everything is verified first. Only slots of the wanted positions are written: other pages, gaps between them,
        and slots behind the last position stay as they are.

        Parameters
        ----------
        destination
            Each layer's writable array, or pair of arrays, by name, strides as they are. Exactly the stored layers.
        tensors
            All tensors of these layers. That their pages are intact is the snapshot's to check.
        layout
            Name of the pool's memory layout, or one per layer.
        sequence
            Number or id of the sequence.
        block_ids
            The engine's block for each ``block_size`` positions that are wanted, in order; ``None`` (or
            ``null_block``) where it has none: of positions that are not stored, and of those that a window has passed,
            which are the first ones. A mapping by kv_group where there are several.
        page_size
            Slots of a page of the arrays, whatever the stored page size is; may be a mapping by kv_group.
        expect
            What the cache has to belong to, by dotted name in ``metadata`` or among the tensors' own facts; ``None``
            only where that does not matter.
        tokens
            Positions that are wanted: the first ``n``, or a range that begins with a block; ``None`` for all stored.
        block_size
            Tokens of an entry of ``block_ids`` where that is not ``page_size``, a multiple of it.
        block_stride
            Pages of the arrays from one block to the next; ``block_size / page_size`` unless said.
        null_block
            The block id that means none, such as vLLM's 0.
        metadata
            The snapshot's metadata. Without it a group is taken for one of full attention where no page is absent.
        **types
            ``element_type`` of the pool's values: needed where the arrays hold integers, and compared with the stored
            one. ``num_heads``, ``head_dim``, ``head_dim_v``: what is given is compared with the stored sizes; the
            arrays always are. ``scales``, the engine's own of 8-bit values: they have to be the stored ones to the bit.

        Returns
        -------
        Restored
            What was written.

        Raises
        ------
        SnapshotMismatchError
            Not what is expected. The pool is untouched.
        LayoutError
            The pool is untouched, except after an error while writing: then ``.actual`` names the pages by layer.
        UnsupportedError, UnknownSequenceLengthError
            Values or lengths that cannot be restored. The pool is untouched.

        Spec: block-paged layout, Element Lookup; snapshot format sections 2 and 3.
        """
        check_by_layer(destination, name="destination")
        groups = stored_groups(listed_tensors(tensors))
        numbers = sequence_numbers(groups, sequence)
        check_belongs(groups, numbers, expect, metadata)
        stored = [name for group in groups for name in group.layers]
        if sorted(stored) != sorted(destination):
            message = f"destination has layers {sorted(destination)}, stored are {sorted(stored)}"
            raise LayoutError(message, expected=sorted(destination), actual=sorted(stored))
        paging = {
            group.kv_group: EnginePaging.of(group.kv_group, page_size, block_size, block_stride, null_block)
            for group in groups
        }
        formats = layer_formats(
            stored,
            layouts=self.layouts,
            refused=self.refused,
            layout=layout,
            page_sizes={name: paging[group.kv_group].page_size for group in groups for name in group.layers},
            **types,
        )
        wanted = wanted_positions(groups, numbers, tokens)
        blocks = blocks_by_group(groups, block_ids)
        moves = {
            group.kv_group: group_moves(
                group,
                numbers[group.kv_group],
                block_ids=blocks[group.kv_group],
                wanted=wanted,
                paging=paging[group.kv_group],
                kind=group_kind(metadata, group.kv_group),
            )
            for group in groups
        }
        return write_sequence(destination, groups, formats=formats, moves=moves, num_tokens=len(wanted))
