"""Axes by name: sizes one by one, order by strides, overlaps and gaps found."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from hurray_arrow.elements import ELEMENT_TYPES
from hurray_arrow.engines import flashinfer, sglang, tensorrt_llm, vllm
from hurray_arrow.engines.layouts import Content, Layout, PageDims, layout_of, new_arrays, page_parts
from hurray_arrow.errors import LayoutError

BF16, U8 = ELEMENT_TYPES["bfloat16"], ELEMENT_TYPES["uint8"]
B, N, H, D = 11, 5, 3, 7


def parts(layout, *arrays, element=BF16, **dims):
    return page_parts(arrays, layout, PageDims(**{"page_size": N, **dims}), element_type=element, name="l")


def refused(layout, *arrays, **options):
    with pytest.raises(LayoutError) as caught:
        parts(layout, *arrays, **options)
    assert "l" in str(caught.value)
    return caught.value.expected, caught.value.actual


@pytest.mark.parametrize("engine", [vllm, flashinfer, sglang, tensorrt_llm])
def test_names_are_unique_and_spell_the_axes_that_are_shown(engine):
    for name, layout in engine.LAYOUTS.items():
        assert layout.name == name
        for shape in layout.shapes:
            shown = sorted(shape.replace("S", "BN").replace("1", ""))
            assert shown == sorted(layout.memory), name
    assert not set(engine.LAYOUTS) & set(engine.ADAPTER.refused)


@pytest.mark.parametrize("engine", [vllm, flashinfer, sglang, tensorrt_llm])
def test_new_arrays_are_in_the_named_order_and_dense(engine):
    for layout in engine.LAYOUTS.values():
        heads = 1 if "H" not in layout.memory else H
        widths = [14, 14][: layout.arrays]
        for array in new_arrays(layout, num_pages=B, page_size=N, num_heads=heads, widths=widths, dtype=np.dtype("u2")):
            assert not array.any()
            axes = layout.shapes[0].replace("1", "")
            squeezed = array.reshape([n for n, axis in zip(array.shape, layout.shapes[0], strict=True) if axis != "1"])
            assert np.shares_memory(array, squeezed)
            order = "".join(sorted(axes, key=lambda axis: -squeezed.strides[axes.index(axis)]))
            assert order.replace("S", "BN") == layout.memory
            assert squeezed.transpose([axes.index(axis) for axis in order]).flags.c_contiguous


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(LayoutError) as caught:
        layout_of(vllm.LAYOUTS, "NHD")
    assert caught.value.expected == list(vllm.LAYOUTS)
    assert caught.value.actual == "NHD"


@pytest.mark.parametrize(
    ("shape", "wrong"),
    [
        ((2, B, N + 1, H, D), (N, N + 1)),
        ((2, B, N, H + 1, D), (H, H + 1)),
        ((2, B, N, H, D + 1), (D, D + 1)),
        ((3, B, N, H, D), (2, 3)),
        ((2, B, N, H), ([5], 4)),
    ],
)
def test_every_axis_is_checked(shape, wrong):
    words = np.zeros(shape, np.uint16)
    assert refused(vllm.LAYOUTS["2BNHD"], words, num_heads=H, head_dim=D) == wrong


@pytest.mark.parametrize(("heads", "slots"), [(1, 5), (3, 1), (1, 1)])
def test_axes_of_size_1_tie(heads, slots):
    words = np.zeros((B, heads, slots, 14), np.uint16)
    for name in ("BHNC", "BNHC", "LHBNC") if heads == 1 else ("BHNC", "BNHC"):
        assert len(parts(vllm.LAYOUTS[name], words, page_size=slots, head_dim=7)) == 2


def test_overlaps_and_broadcasts_are_refused():
    words = np.zeros(5000, np.uint16)
    layout = vllm.LAYOUTS["BHNC"]
    dense = (2 * H * N * 14, 2 * N * 14, 28, 2)
    assert refused(layout, as_strided(words, (B, H, N, 14), (dense[0] - 2, *dense[1:])), head_dim=7) == (420, 418)
    assert refused(layout, np.broadcast_to(np.zeros((1, H, N, 14), np.uint16), (B, H, N, 14)), head_dim=7)[1] == "HNCB"
    assert refused(layout, np.zeros((B, H, N, 14), np.uint16)[::-1], head_dim=7)[1] == "HNCB"
    assert len(parts(layout, as_strided(words, (B, H, N, 14), (dense[0] + 6, *dense[1:])), head_dim=7)) == 2


def test_gaps_in_rows_of_bytes_are_refused():
    words = np.zeros((B, H, N, 48), np.uint8)[..., ::2]
    layout = vllm.LAYOUTS["BHNC-token_scales"]
    assert refused(layout, words, element=ELEMENT_TYPES["int8"], head_dim=8) == (1, 2)
    cpu = np.zeros((B, H, N, 28), np.uint16)[..., :14]
    assert refused(vllm.LAYOUTS["BHNC-cpu"], cpu, head_dim=7) == (28, 56)


def test_a_latent_of_8_bits_says_its_width():
    words = np.zeros((B, N, 13), np.uint8)
    assert refused(vllm.LAYOUTS["BNC"], words, element=ELEMENT_TYPES["float8_e4m3"]) == ("head_dim=", None)
    assert parts(vllm.LAYOUTS["BNC"], words, element=ELEMENT_TYPES["float8_e4m3"], head_dim=13)[0].pages.shape == (
        B,
        N,
        1,
        13,
    )


@pytest.mark.parametrize("page_size", [0, -1])
def test_a_page_has_slots(page_size):
    assert refused(vllm.LAYOUTS["BNC"], np.zeros((B, N, 13), np.uint16), page_size=page_size) == (1, page_size)


def test_token_slots_are_whole_pages():
    words = np.zeros((B * N + 1, H, D), np.uint16)
    assert refused(sglang.LAYOUTS["BNHD"], words, words) == (N, B * N + 1)
    assert refused(sglang.LAYOUTS["BNHD"], words[:-1]) == (2, 1)
    assert refused(sglang.LAYOUTS["BNHD"], words[:-1], words[: -1 - N]) == (B, B - 1)


def test_a_pair_may_have_values_of_another_width():
    keys, values = np.zeros((B, N, H, D), np.uint16), np.zeros((B, N, H, D + 2), np.uint16)
    found = parts(flashinfer.LAYOUTS["BNHD"], keys, values, head_dim=D, head_dim_v=D + 2)
    assert [part.pages.shape[-1] for part in found] == [D, D + 2]
    assert refused(flashinfer.LAYOUTS["BNHD"], keys, values, head_dim=D) == (D, D + 2)


def test_a_latent_in_two_arrays_is_one_tensor():
    ckv, kpe = np.zeros((B, N, 8), np.uint16), np.zeros((B, N, 3), np.uint16)
    found = parts(flashinfer.LAYOUTS["BNC"], ckv, kpe)
    assert [(part.kv_role, part.first_word, part.num_words) for part in found] == [("fused", 0, 11), ("fused", 8, 11)]


def test_of_two_shapes_that_fit_the_ones_decide():
    layout = tensorrt_llm.LAYOUTS["BNC"]
    assert parts(layout, np.zeros((B, 1, N, 1, 13), np.uint16))[0].pages.shape == (B, N, 1, 13)
    assert parts(layout, np.zeros((B, 1, 1, N, 13), np.uint16))[0].pages.shape == (B, N, 1, 13)
    assert refused(layout, np.zeros((B, 2, N, 1, 13), np.uint16)) == (1, 2)


def test_parts_are_views_of_the_engines_memory():
    for layout in vllm.LAYOUTS.values():
        record = layout.content in (Content.RECORD, Content.PAGE, Content.TOKEN_SCALES)
        element = (U8 if layout.is_opaque else ELEMENT_TYPES["int8"]) if record else BF16
        width = layout.record_bytes or (22 if layout.content is Content.TOKEN_SCALES else 14)
        heads = H if "H" in layout.memory else 1
        (array,) = new_arrays(
            layout,
            num_pages=B,
            page_size=N,
            num_heads=heads,
            widths=[D if "D" in layout.memory else width],
            dtype=np.dtype(f"u{element.bits // 8}"),
        )
        dim = None if layout.is_opaque else 14 if layout.content is Content.LATENT else D
        for part in parts(layout, array, element=element, head_dim=dim):
            assert np.shares_memory(part.pages, array), layout.name
            assert part.pages.shape[:3] == (B, N, heads)
            assert part.pages.flags.writeable


def test_layouts_are_data():
    layout = Layout(name="BHNC", shapes=("BHNC",), content=Content.PACKED)
    assert layout == vllm.LAYOUTS["BHNC"]
    assert layout.memory == "BHNC"
    assert vllm.LAYOUTS["BLHNC-token_scales"].memory == "BHNC"
