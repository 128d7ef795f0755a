"""Reading ahead: in order, never more than allowed, errors in their turn."""

import threading
import time

import pytest

import hurray_arrow as ha
from hurray_arrow.snapshot import read_ahead as module
from hurray_arrow.snapshot.read_ahead import MOST_TENSORS, read_ahead
from tests.sample import make_tensor


class Entry:
    def __init__(self, number, stored_bytes, num_pages=0, element_type="bfloat16"):
        self.number, self.stored_bytes = number, stored_bytes
        self.num_pages, self.page_shape, self.element_type = num_pages, (5, 3, 7), element_type


class Counter:
    def __init__(self):
        self.lock, self.now, self.most, self.begun = threading.Lock(), 0, 0, 0

    def read(self, entry):
        with self.lock:
            self.now += 1
            self.begun += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self.lock:
            self.now -= 1
        if entry.number == 11:
            raise OSError("eleven")
        return entry.number


def test_in_order_and_several_at_the_same_time():
    counter = Counter()
    entries = [Entry(number, 7) for number in range(10)]
    assert list(read_ahead(entries, counter.read)) == list(range(10))
    assert 1 < counter.most <= MOST_TENSORS


def test_bytes_bound_what_is_under_way(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    counter = Counter()
    assert list(read_ahead([Entry(number, 60) for number in range(5)], counter.read)) == list(range(5))
    assert counter.most == 1
    assert list(read_ahead([Entry(0, 10**12), Entry(1, 1)], counter.read)) == [0, 1]


def test_what_compresses_well_is_as_large_as_any_in_memory(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 3 * 5 * 3 * 7 * 2 * 10)
    counter = Counter()
    assert list(read_ahead([Entry(number, 7, num_pages=10) for number in range(9)], counter.read)) == list(range(9))
    assert counter.most <= 3
    assert list(read_ahead([Entry(0, 7, 10, "private_0xF0")], counter.read)) == [0]


def test_an_error_comes_in_its_turn():
    found = []
    with pytest.raises(OSError, match="eleven"):
        found.extend(_keep(found, read_ahead([Entry(number, 7) for number in range(9, 14)], Counter().read)))
    assert found == [9, 10]


def _keep(found, items):
    for item in items:
        found.append(item)
        yield from ()


def test_leaving_off_begins_nothing_more():
    counter = Counter()
    reading = read_ahead([Entry(number, 7) for number in range(100)], counter.read)
    next(reading)
    reading.close()
    assert counter.begun <= 2 * MOST_TENSORS


def test_a_snapshot_that_is_not_mapped_is_read_ahead(tmp_path):
    made = [make_tensor(layer_index=layer, seed=layer + 3) for layer in range(17)]
    ha.write_snapshot(tmp_path / "s.arrow", made)
    with ha.open_snapshot(tmp_path / "s.arrow", mapped=False) as snapshot:
        found = list(snapshot.iter_tensors(layer_index=range(2, 17), verify=True))
    assert [one.equals(other) for one, other in zip(found, made[2:], strict=True)] == [True] * 15
