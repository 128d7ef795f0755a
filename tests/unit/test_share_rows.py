"""Share rows are written by a thread while the next one is encoded: failures, and an early end."""

from __future__ import annotations

import errno
import threading
from unittest import mock

import pytest
from fsspec.callbacks import Callback

from hurray_arrow import SchemaPlan, SnapshotError, SnapshotWriter, open_snapshot, write_snapshot
from hurray_arrow.snapshot import row_sink
from tests.sample import make_tensor

PAGE_BYTES = make_tensor().buffers[0].nbytes // make_tensor().num_pages


class Recorded:
    """An output that keeps what it is given; ``on_pages`` is called before it takes a piece of pages."""

    path = "recorded"

    def __init__(self, on_pages):
        self.position = 0
        self.taken = []
        self.discarded = 0
        self._on_pages = on_pages

    def write(self, data):
        if isinstance(data, memoryview):
            self._on_pages()
        self.taken.append(bytes(data))
        self.position += len(data)
        return len(data)

    def publish(self):
        pytest.fail("published")

    def discard(self):
        self.discarded += 1


@pytest.fixture(autouse=True)
def _pieces_of_a_page():
    with mock.patch.object(row_sink, "PIECE_BYTES", PAGE_BYTES):
        yield


def some(count):
    return [make_tensor(layer_index=layer) for layer in range(count)]


def write_all(writer, tensors):
    with writer:
        for tensor in tensors:
            writer.borrow(tensor)


def test_nothing_goes_behind_a_row_that_failed():
    def no_room():
        raise OSError(errno.ENOSPC, "no room")

    output, tensors = Recorded(no_room), some(3)
    writer = SnapshotWriter(output, plan=SchemaPlan.of(tensors))
    with pytest.raises(OSError, match="no room"):
        write_all(writer, tensors)
    assert output.discarded >= 1
    assert b"".join(output.taken).count(b"hurray_arrow.pad") == 1
    with pytest.raises(SnapshotError, match="closed"):
        writer.borrow(tensors[0])


def test_a_failed_write_is_told_by_write_itself():
    def no_room():
        raise OSError(errno.ENOSPC, "no room")

    tensors = some(2)
    writer = SnapshotWriter(Recorded(no_room), plan=SchemaPlan.of(tensors))
    with pytest.raises(OSError, match="no room"):
        writer.write(tensors[0])
    with pytest.raises(SnapshotError, match="an earlier write failed"):
        writer.write(tensors[1])
    with pytest.raises(SnapshotError, match="an earlier write failed"):
        writer.close()


def test_discarding_stops_after_the_piece_at_hand():
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert go_on.wait(10)

    output, tensors = Recorded(wait), some(2)
    writer = SnapshotWriter(output, plan=SchemaPlan.of(tensors))
    writer.borrow(tensors[0])
    assert begun.wait(10)
    discarding = threading.Thread(target=writer.discard)
    discarding.start()
    while not writer._rows._is_closed:
        discarding.join(0.001)
    assert not output.discarded
    go_on.set()
    discarding.join(10)
    assert not discarding.is_alive()
    assert output.discarded == 1
    assert output.taken[-1] == tensors[0].buffers[0].tobytes()[:PAGE_BYTES]


@pytest.mark.parametrize("error", [ValueError("enough"), KeyboardInterrupt("enough")])
def test_what_progress_raises_ends_the_writing(tmp_path, error):
    class Enough(Callback):
        def relative_update(self, inc=1):  # noqa: ARG002 - the callback's signature
            raise error

    path = tmp_path / "s.arrow"
    with pytest.raises(type(error), match="enough"):
        write_snapshot(path, some(3), progress=Enough())
    assert not list(tmp_path.iterdir())


def test_rows_keep_their_order_and_their_places(tmp_path):
    path, tensors = tmp_path / "s.arrow", some(9)
    write_snapshot(path, tensors)
    with open_snapshot(path) as snapshot:
        assert [entry.layer_index for entry in snapshot.entries] == list(range(9))
        assert all(snapshot.read(layer_index=layer).equals(tensor) for layer, tensor in enumerate(tensors))
        snapshot.verify()
