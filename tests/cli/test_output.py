from __future__ import annotations

import pytest
from rich.progress import Progress

from hurray_arrow.cli.output import BarCallback, count, printable, size


def test_a_bar_follows_the_callback():
    bar = Progress(disable=True)
    callback = BarCallback(bar, "verifying")
    callback.set_size(1013)
    callback.relative_update(17)
    callback.relative_update(31)
    [task] = bar.tasks
    assert (task.description, task.total, task.completed) == ("verifying", 1013, 48)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_969_680, "2.0 MB"),
        (4_296_097_866, "4.3 GB"),
        (7 * 10**15, "7000.0 TB"),
    ],
)
def test_sizes_are_in_powers_of_1000(num_bytes, text):
    assert size(num_bytes) == text


def test_counts_agree_with_their_nouns():
    assert [count(number, "page") for number in (0, 1, 1023)] == ["0 pages", "1 page", "1,023 pages"]


def test_control_and_direction_characters_are_escaped():
    assert printable("a\x1b[2J\u202eb\x00\nç×") == "a\\x1b[2J\\u202eb\\x00\nç×"
