"""Every cell of docs/faults.md: a fault, a store, and what comes out. Never other bytes, never half a snapshot."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from hurray_arrow import HurrayArrowError, SnapshotError, open_snapshot, write_snapshot
from hurray_arrow.snapshot import remote
from tests.stores.breakable import Disk, Network, Other, Web, as_nobody
from tests.stores.fault_table import PAGE, PUBLISHED, READING, REMOTE, RIGHT, WRITING, cells, page
from tests.stores.proxy import always
from tests.stores.samples import as_bytes, check_same, tensors
from tests.stores.servers import ROOT, RangeServer, azure_store, gcs_store, kill, obstore_of, proxy_to, s3_store

OLD_SEED, NEW_SEED = 0, 50
#: Faults after which the same open snapshot does not get its bytes any more.
LASTING = {"replaced", "deleted", "killed"}
#: How often a fault of random places is tried.
SEEDS = {"cut": 2, "flipped": 2}


@pytest.fixture(autouse=True)
def quick(impatient, monkeypatch):
    """Let nobody wait before another try, and a tensor come in several ranges."""
    del impatient
    monkeypatch.setattr(remote, "PIECE_BYTES", 1 << 17)


def old_tensors():
    """Keys and values of half a MiB each."""
    return tensors(layers=1, seed=OLD_SEED, num_pages=97)


@pytest.fixture(scope="module")
def old_content(tmp_path_factory):
    return as_bytes(tmp_path_factory.mktemp("old"), old_tensors())


@pytest.fixture(scope="module")
def new_content(tmp_path_factory):
    return as_bytes(tmp_path_factory.mktemp("new"), tensors(layers=1, seed=NEW_SEED, num_pages=97))


@pytest.fixture
def place_of(request, tmp_path):
    """Make a place of a kind that nothing else lies at."""

    def make(kind, seed):
        if kind == "local":
            return Disk(tmp_path, seed=seed)
        if kind == "memory":
            return Other(seed=seed)
        if kind == "http":
            return Web(*request.getfixturevalue("http_files"), seed=seed)
        return Network(request.getfixturevalue(f"{kind}_server"), seed=seed)

    return make


def name_of(error):
    """Return the name of an error that a caller may get; anything else is a fault of ours."""
    if isinstance(error, HurrayArrowError | PermissionError) or type(error) is OSError:
        return type(error).__name__
    raise error


def read_while(place, fault, expected):
    """Open it, break it, read, and say what came; the bytes are compared."""
    with open_snapshot(place.url, mapped=False, **place.how) as snapshot:
        try:
            with place.broken(fault, writing=False):
                if fault == "deleted":
                    place.remove()
                found = snapshot.read(layer_index=0, kv_role="value", verify=True)
        except OSError as error:
            ended = name_of(error)
        else:
            assert found.equals(expected[1]), "OTHER BYTES"
            ended = RIGHT
        if fault not in LASTING:
            # What failed has passed, and the snapshot is as good as before.
            check_same(snapshot, expected)
    return ended


def tried_here(rows):
    """Return the cells that need a place each: servers that are killed and lost rights have tests of their own."""
    return [cell for cell in cells(rows) if cell[0] != "killed" and cell[:2] != ("forbidden", "local")]


@pytest.mark.parametrize(("fault", "kind", "end"), [cell for cell in tried_here(READING) if cell[0] != "replaced"])
def test_reading(place_of, old_content, fault, kind, end):
    for seed in range(SEEDS.get(fault, 1)):
        place = place_of(kind, seed)
        place.put(old_content)
        if fault == "stalled":
            place.impatient()
        assert read_while(place, fault, old_tensors()) == end
        assert place.struck or fault == "deleted"


@pytest.mark.parametrize(("kind", "end"), [cell[1:] for cell in tried_here(READING) if cell[0] == "replaced"])
def test_reading_what_is_replaced(place_of, old_content, new_content, kind, end):
    place = place_of(kind, 0)
    place.put(old_content)
    with open_snapshot(place.url, mapped=False, **place.how) as snapshot:
        place.put(new_content)
        with nullcontext() if end == RIGHT else pytest.raises(OSError) as caught:
            assert snapshot.read(layer_index=0, kv_role="value").equals(old_tensors()[1])
    assert end == RIGHT or name_of(caught.value) == end


def write_while(place, fault, new):
    try:
        with place.broken(fault, writing=True):
            write_snapshot(place.url, new, overwrite=True, **place.how)
    except OSError as error:
        return name_of(error)
    return PUBLISHED


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("fault", "kind", "end"), tried_here(WRITING))
def test_writing(place_of, old_content, fault, kind, end):
    new = tensors(layers=2, seed=NEW_SEED)
    for seed in range(SEEDS.get(fault, 1)):
        place = place_of(kind, seed)
        place.put(old_content)
        if fault == "stalled":
            place.impatient()
        assert write_while(place, fault, new) == end
        assert place.struck
        if end == PUBLISHED:
            with open_snapshot(place.url, **place.how) as snapshot:
                check_same(snapshot, new)
        else:
            assert place.content() == old_content


def _without_permission(folder, *, rehearsal=False):
    """Return what reading and writing end in where nobody may."""
    path = Path(folder, "rehearsal.arrow" if rehearsal else "s.arrow")
    some = tensors(layers=1, num_pages=7)
    ends = []
    for work in (
        lambda: open_snapshot(path).close(),
        lambda: write_snapshot(path, some, overwrite=True),
        lambda: write_snapshot(Path(folder, "rehearsal-2.arrow" if rehearsal else "new.arrow"), some),
    ):
        try:
            work()
        except OSError as error:
            ends.append(f"{name_of(error) if not rehearsal else ''} {error.filename}")
        else:
            ends.append("no error")
    return "\n".join(ends)


def test_without_permission_on_a_disk():
    """As root everything is allowed, so that a process without rights tries it."""
    assert {row.ends["local"] for row in (*READING, *WRITING) if row.name == "forbidden"} == {"PermissionError"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "read-only")
        folder.mkdir()
        Path(name).chmod(0o755)
        write_snapshot(folder / "s.arrow", tensors(layers=1, num_pages=7))
        (folder / "s.arrow").chmod(0)
        for path in (folder / "s.arrow", folder):
            os.chown(path, *((0, 0) if os.geteuid() == 0 else (-1, -1)))
        folder.chmod(0o755 if os.geteuid() == 0 else 0o555)
        said = as_nobody(_without_permission, str(folder)).splitlines()
        folder.chmod(0o755)
        assert [line.partition(" ")[0] for line in said] == ["PermissionError"] * 3
        assert [Path(line.partition(" ")[2]).parent for line in said] == [folder] * 3
        left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("rehearsal"))
        assert left == ["s.arrow"]


SERVERS = {"s3": s3_store, "azure": azure_store, "gcs": gcs_store}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_is_killed(kind, old_content):
    """In the middle of an upload; then the readers that had something open learn of it too."""
    ends = {(name, store): end for rows in (READING, WRITING) for name, store, end in cells(rows, REMOTE)}
    with SERVERS[kind]() as store:
        clients = [Network(store, seed=0)] + ([Network(obstore_of(store), seed=1)] if kind == "s3" else [])
        readers = []
        for client in clients:
            client.put(old_content)
            readers.append(open_snapshot(client.url, **client.how))
        parts = []

        def strike(request):
            parts.extend([request] if request.is_part else [])
            if len(parts) == 2 and store.process.poll() is None:
                kill(store.process)

        store.proxy.fault = strike
        for client in clients:
            with pytest.raises(SnapshotError) as caught:
                write_snapshot(client.url, tensors(layers=3, seed=NEW_SEED), overwrite=True, **client.how)
            assert type(caught.value).__name__ == ends["killed", client.store.kind]
            assert caught.value.url == client.url
        assert store.process.poll() is not None
        for client, reader in zip(clients, readers, strict=True):
            with pytest.raises(SnapshotError) as caught:
                reader.read(layer_index=0, kv_role="value")
            assert type(caught.value).__name__ == ends["killed", client.store.kind]
        if kind != "azure":
            # Azurite keeps what it has in memory, and nothing over its end.
            store.proxy.reset()
            store.process.start()
            assert [client.content() for client in clients] == [old_content] * len(clients)


def test_a_web_server_that_is_killed(old_content):
    [end] = {row.ends["http"] for row in READING if row.name == "killed"}
    server = RangeServer()
    try:
        with proxy_to(server.port) as proxy:
            place = Web(server, proxy, seed=0)
            place.put(old_content)
            with open_snapshot(place.url) as snapshot:

                def strike(request):
                    del request
                    proxy.fault = always(None)
                    server.kill()

                proxy.fault = strike
                with pytest.raises(SnapshotError) as caught:
                    snapshot.read(layer_index=0, kv_role="value")
                assert type(caught.value).__name__ == end
    finally:
        server.close()


def test_the_page_shows_what_is_tried():
    assert page() == PAGE.read_text()
    tried = {"reading": tried_here(READING), "writing": tried_here(WRITING)}
    with_tests_of_their_own = {
        "reading": {("forbidden", "local"), *(("killed", store) for store in (*REMOTE, "http"))},
        "writing": {("forbidden", "local"), *(("killed", store) for store in REMOTE)},
    }
    for rows, doing in ((READING, "reading"), (WRITING, "writing")):
        assert {cell[:2] for cell in cells(rows)} == {cell[:2] for cell in tried[doing]} | with_tests_of_their_own[
            doing
        ]
    assert len(cells(READING)) + len(cells(WRITING)) > 100
    named = re.findall(r"`(tests/[^`]*)`", PAGE.read_text())
    assert len(named) > 5
    assert all((ROOT / path).exists() for path in named)
