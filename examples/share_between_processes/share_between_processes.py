"""How does another process get a cache without copying a page?"""

from __future__ import annotations

import multiprocessing
import socket
import sys

import hurray_arrow as ha


def decode(sock: socket.socket) -> None:
    """Be the other process: receive the cache, read a sequence, try to change it."""
    with sock:
        snapshot = ha.share.receive(sock)  # sealed memory, mapped: nobody can change it or cut it away
    tensor = snapshot.read(layer_index=7, kv_role="key")
    print(f"received {len(snapshot.entries)} tensors, sequence 2 has {len(tensor.gather(2))} tokens")
    print(f"pages can be written: {tensor.page_pool.flags.writeable}")


def main(path: str) -> None:
    """Publish a cache page by page into shared memory, and hand it over."""
    ours, theirs = socket.socketpair()
    other = multiprocessing.get_context("spawn").Process(target=decode, args=(theirs,))
    other.start()
    theirs.close()
    with ha.open_snapshot(path) as stored, ours:
        tensors = list(stored.iter_tensors())
        with ha.share.allocate(tensors, metadata={"model": stored.metadata["model"]}) as allocation:
            for number, tensor in enumerate(tensors):
                allocation.page_pool(number)[...] = tensor.page_pool  # an engine copies from its device here
            sealed = allocation.seal()
        with sealed:
            sealed.send(ours)
    other.join()  # this process could have ended: the pages stay as long as somebody maps them


if __name__ == "__main__":
    main(sys.argv[1])
