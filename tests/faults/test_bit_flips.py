"""Every single-bit flip of a small snapshot ends in a typed error, in verify() naming it, or changes nothing."""

from __future__ import annotations

import mmap
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hurray_arrow import HurrayArrowError, Snapshot, open_snapshot
from hurray_arrow.arrow.ipc_layout import TAIL_BYTES, footer_bytes_of
from hurray_arrow.snapshot.entries import exact_selectors
from hurray_arrow.snapshot.index import IndexRow
from tests.faults.children import limit_memory, run_cases
from tests.faults.outcome import SAME, Original, SilentDamageError, code_of, is_same, outcome_of
from tests.faults.small import NUM_TENSORS, write_small

#: Every flip of this many goes the whole way: open, read all, verify. The others look where they can matter.
WHOLE_WAY = 397


def regions_of(path: Path) -> dict[str, range]:
    """Return the file's parts by name."""
    with open_snapshot(path) as snapshot:
        rows: list[IndexRow] = [place for places in snapshot._rows._places.values() for place in places]
    size = path.stat().st_size
    footer = size - TAIL_BYTES - footer_bytes_of(path.read_bytes()[-TAIL_BYTES:])
    regions = {"schema message": range(rows[0].offset)}
    for number, row in enumerate(rows):
        pages_end = row.pages_offset + row.pages_bytes
        regions[f"row {number} head"] = range(row.offset, row.pages_offset)
        regions[f"row {number} pages"] = range(row.pages_offset, pages_end)
        regions[f"row {number} tail"] = range(pages_end, row.block.end)
    regions["end batch"] = range(rows[-1].block.end, footer)
    regions["footer"] = range(footer, size - TAIL_BYTES)
    regions["magic"] = range(size - TAIL_BYTES, size)
    return {name: region for name, region in regions.items() if len(region)}


def flip_and_look(content: bytes, share: Sequence[tuple[str, int]], started: Callable[[int], None]) -> Counter:
    """Flip each bit of a share of (region, bit) in an own copy of the file, and count the outcomes."""
    counts: Counter = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "flipped.arrow")
        path.write_bytes(content)
        original = Original.of(path)
        intact = open_snapshot(path)
        assert outcome_of(path, original) == outcome_of(path, original, mapped=False) == SAME
        limit_memory(len(content))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as flipped:
            for number, (region, bit) in enumerate(share):
                started(number)
                flipped[bit // 8] ^= 1 << bit % 8
                if bit % WHOLE_WAY == 0:
                    outcome = outcome_of(path, original, mapped=bool(bit % 2))
                elif region.startswith("row"):
                    # Opening reads no row (test below), so it need not be repeated for a flip in one.
                    outcome = outcome_of_row(intact, int(region.split()[1]), original)
                else:
                    outcome = outcome_of_opening(path, original)
                counts[region, outcome] += 1
                flipped[bit // 8] ^= 1 << bit % 8
    return counts


def outcome_of_row(intact: Snapshot, tensor_index: int, original: Original) -> str:
    """Read and verify the tensor whose row was damaged, through a snapshot that has read nothing yet."""
    snapshot = Snapshot(intact.url, intact.metadata, intact._rows)
    selectors = exact_selectors(snapshot.entries[tensor_index])
    try:
        tensor = snapshot.read(**selectors)
    except HurrayArrowError as error:
        return f"read: {code_of(error)}"
    try:
        snapshot.read(**selectors, verify=True)
    except HurrayArrowError as error:
        return f"verify: {code_of(error)}"
    if not is_same(tensor, original.tensors[tensor_index]):
        raise SilentDamageError(f"tensor {tensor_index} differs")
    return SAME


def outcome_of_opening(path: Path, original: Original) -> str:
    """Open; the rows are intact, so what is listed and read is the same when places, hashes and schema are."""
    try:
        with open_snapshot(path) as snapshot:
            if not original.lists_the_same(snapshot):
                raise SilentDamageError("the snapshot lists something else")
    except HurrayArrowError as error:
        return f"open: {code_of(error)}"
    return SAME


def test_opening_reads_no_row(tmp_path):
    path = tmp_path / "s.arrow"
    write_small(path)
    original = Original.of(path)
    content = bytearray(path.read_bytes())
    for name, region in regions_of(path).items():
        if name.startswith("row"):
            content[region.start : region.stop] = b"\xa5" * len(region)
    path.write_bytes(content)
    assert outcome_of_opening(path, original) == SAME
    assert outcome_of(path, original) == "read: row_checksum"


def test_file_readers_never_read_the_schema_message(tmp_path):
    path = tmp_path / "s.arrow"
    write_small(path)
    original = Original.of(path)
    content = bytearray(path.read_bytes())
    region = regions_of(path)["schema message"]
    content[8 : region.stop] = b"\xa5" * (len(region) - 8)
    path.write_bytes(content)
    assert outcome_of(path, original) == SAME


@pytest.mark.long
def test_every_single_bit_flip(tmp_path):
    path = tmp_path / "s.arrow"
    write_small(path)
    content = path.read_bytes()
    regions = regions_of(path)
    cases = [(name, bit) for name, region in regions.items() for bit in range(8 * region.start, 8 * region.stop)]
    assert len(cases) == 8 * len(content) > 100_000
    counts = sum(run_cases(flip_and_look, content, cases, timeout_seconds=1500), Counter())
    print_counts(counts)
    assert counts.total() == len(cases)
    by_region = {name: {o: n for (r, o), n in counts.items() if r == name} for name in regions}
    for number in range(NUM_TENSORS):
        # Every bit outside of pages is found by reading, every bit of a page by verifying; no other outcome.
        assert set(by_region[f"row {number} head"]) == {"read: row_checksum"}
        assert set(by_region.get(f"row {number} tail", {"read: row_checksum"})) == {"read: row_checksum"}
        assert set(by_region[f"row {number} pages"]) <= {"verify: page_checksum", "read: page_pool_padding"}
    # Uncovered on purpose: the schema message at the start, the end batch's header, the magic; and what Arrow does not
    # look at in the footer (padding, the file's own list of what it has not).
    assert set(by_region["schema message"]) == {SAME}
    assert SAME not in by_region["magic"]
    uncovered = {
        name: outcomes[SAME] / sum(outcomes.values()) for name, outcomes in by_region.items() if SAME in outcomes
    }
    assert set(uncovered) == {"schema message", "end batch", "footer"}
    assert uncovered["end batch"] < 0.5
    assert uncovered["footer"] < 0.15


def print_counts(counts: Counter) -> None:
    """Show the outcomes; pytest keeps them for whoever asks with -s or after a failure."""
    for (region, outcome), count in sorted(counts.items()):
        print(f"{region:16} {outcome:28} {count}")  # noqa: T201 - what the test is about
