"""Figures for programs: made from an open snapshot, kept by nobody, and whole whatever a snapshot calls things."""

from __future__ import annotations

import io
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import hurray_arrow as ha
from hurray_arrow import report
from hurray_arrow.report.names import label, shortened
from hurray_arrow.texts import printable
from tests.report.hostile import NAMES, hostile_tensors
from tests.sample import make_tensor, sample_facts

DRAWINGS = {
    "page_map": report.page_map,
    "page_map_by_sequence": lambda snapshot, **more: report.page_map(snapshot, by="sequence", **more),
    "sharing": report.sharing,
    "last_page_fill": report.last_page_fill,
    "value_ranges": report.value_ranges,
    "norms": report.norms,
    "head_magnitudes": report.head_magnitudes,
    "head_norms": report.head_norms,
    "compressed_sizes": report.compressed_sizes,
}


def opened(tensors, name="figures", **options):
    ha.write_snapshot(f"memory://report/{name}", tensors, overwrite=True, **options)
    return ha.open_snapshot(f"memory://report/{name}")


def drawn(figure):
    """Return a figure's pixels; a warning while it is drawn fails the test."""
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=50)
    return written.getvalue()


def texts_of(figure):
    figure.draw_without_rendering()
    return {each.get_text() for each in figure.findobj(mpl.text.Text)}


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_figure_is_drawn_whatever_the_names_are(name):
    with opened(hostile_tensors()) as snapshot:
        figure = DRAWINGS[name](snapshot)
        dark = DRAWINGS[name](snapshot, look=report.Look(3.7, dark=True))
    assert isinstance(figure, Figure)
    assert figure.get_size_inches()[0] <= 7.5
    assert dark.get_size_inches()[0] <= 3.7
    assert len({drawn(figure), drawn(dark)}) == 2


def test_a_name_is_no_formula():
    with opened(hostile_tensors()) as snapshot:
        figure = report.sharing(snapshot)
    drawn(figure)
    names = [each for each in figure.findobj(mpl.text.Text) if "$" in each.get_text()]
    assert names
    assert not any(each.get_parse_math() or each.get_usetex() for each in names)


@pytest.mark.parametrize(
    "tensors",
    [
        [make_tensor(num_pages=0, block_tables=[], seq_lens=[])],
        [make_tensor(block_tables=[[], []], seq_lens=[0, 0])],
        [make_tensor(seq_lens=None, total_tokens=27)],
        [make_tensor(element_type="complex64")],
        [make_tensor(element_type="int4", page_size=5)],
        [make_tensor(**sample_facts()), make_tensor(kv_role="key", layer_index=None, seed=2, **sample_facts())],
        [make_tensor(element_type="bool"), make_tensor(num_heads=1, layer_index=3, kv_role="fused")],
    ],
    ids=["no-pages", "no-tokens", "unknown-lengths", "complex", "int4", "no-layer", "several-shapes"],
)
@pytest.mark.parametrize("name", DRAWINGS)
def test_figures_of_little_are_whole(name, tensors):
    with opened(tensors) as snapshot:
        assert drawn(DRAWINGS[name](snapshot, look=report.Look(3.7)))


def test_many_layers_and_heads_share_cells():
    tensors = [make_tensor(layer_index=layer, num_heads=130, head_dim=1, seed=layer) for layer in range(140)]
    with opened(tensors) as snapshot:
        figure = report.head_magnitudes(snapshot)
    [image] = figure.axes[0].images
    rows, columns = image.get_array().shape
    assert columns == 70
    assert rows <= 64
    assert rows * columns <= 4096
    assert drawn(figure)


def test_a_figure_says_what_the_numbers_say():
    with opened([make_tensor(**sample_facts())]) as snapshot:
        assert {"in no sequence: 3 (42.9 %)", "in one sequence: 2 (28.6 %)", "shared: 2 (28.6 %)"} <= texts_of(
            report.page_map(snapshot)
        )
        assert {"0 · s-a", "2 · s-c", "3 · ß-d", "in no sequence"} >= texts_of(
            report.page_map(snapshot, by="sequence")
        ) - {"", "0"}
        [image] = report.sharing(snapshot).axes[0].images
    np.testing.assert_array_equal(image.get_array().filled(-1), [[-1, 1, 1], [1, -1, 0], [1, 0, -1]])


def test_selectors_choose_and_unknown_ones_are_refused():
    with opened(hostile_tensors()) as snapshot:
        assert len(report.norms(snapshot, kv_role="key").axes) == 1
        assert len(report.norms(snapshot).axes) == 2
        with pytest.raises(TypeError):
            report.norms(snapshot, layer=3)
        with pytest.raises(ValueError, match="by="):
            report.page_map(snapshot, by="colour")
        for draw in (report.page_map, report.sharing, report.last_page_fill):
            with pytest.raises(LookupError):
                draw(snapshot, kv_group=9)


def test_a_snapshot_without_tensors_has_no_pool():
    with opened([]) as snapshot:
        with pytest.raises(LookupError):
            report.page_map(snapshot)
        assert drawn(report.value_ranges(snapshot))


def test_what_was_recovered_is_tried_out_like_what_is_not_compressed(tmp_path):
    path = tmp_path / "cache.arrow"
    ha.write_snapshot(path, hostile_tensors())
    path.write_bytes(path.read_bytes()[:-200])
    with ha.open_snapshot(path, recover=True) as snapshot:
        assert snapshot.unverified
        assert len(report.compressed_sizes(snapshot).axes) == 2


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_line_that_does_nothing(name):
    assert printable(name).isprintable()
    assert label(name).isprintable()
    assert len(label(name)) <= 18


def test_names_are_shortened_in_the_middle():
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 10) == "abcd…ghijk"
    assert label("日本 ok") == "\ufffd\ufffd ok"


# -- what is imported -------------------------------------------------------------------------------------------------


def run(program):
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pyplot_and_its_state_are_left_alone():
    run(
        "import dataclasses, sys, matplotlib as mpl\n"
        # As a plain dict: asking the settings for their backend would import pyplot.
        "settings = lambda: {name: dict.__getitem__(mpl.rcParams, name) for name in mpl.rcParams}\n"
        "before = settings()\n"
        "import hurray_arrow as ha; from hurray_arrow import report; from tests.sample import make_tensor\n"
        "ha.write_snapshot('memory://a', [make_tensor()])\n"
        "sections = report.document.sections\n"
        "def shorter(*given):\n    for each in sections(*given):\n"
        "        yield dataclasses.replace(each, pictures=each.pictures[:1])\n        return\n"
        "report.document.sections = shorter\n"
        "with ha.open_snapshot('memory://a') as snapshot:\n"
        "    assert 'svg' in report.html(snapshot)\n    report.norms(snapshot)\n"
        "assert settings() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_its_extra_it_says_what_to_install(package):
    printed = run(
        f"import sys; sys.modules[{package!r}] = None\nimport hurray_arrow as ha\n"
        "try:\n    import hurray_arrow.report\nexcept ha.MissingDependencyError as error:\n"
        "    print(error.extra, error.package)"
    )
    assert printed.split() == ["report", package]
