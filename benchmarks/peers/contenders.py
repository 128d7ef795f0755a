"""Who takes part: which worker, which environment, and what its files are."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the table.

    Parameters
    ----------
    name
        Its name in tables and on the command line.
    worker
        A module of :mod:`benchmarks.peers.workers`.
    argument
        What that program is told, where it knows more than one kind of file.
    environment
        A file of ``requirements/``; empty for the environment that this program runs in.
    files
        What it writes, in a few words for the reader of the table.
    """

    name: str
    worker: str
    argument: str
    environment: str
    files: str

    @property
    def is_ours(self) -> bool:
        """Whether it is this package."""
        return self.worker == "snapshot"

    def in_this_environment(self) -> Contender:
        """Return it without an environment of its own."""
        return replace(self, environment="")


CONTENDERS = (
    Contender("share", "snapshot", "share", "", "hurray-arrow, profile share: one mapped file"),
    Contender("archive", "snapshot", "archive", "", "hurray-arrow, profile archive: byte planes, zstd"),
    Contender("hrry", "hrry", "", "hrry", "pyhurray: one .hrry container"),
    Contender("safetensors", "safetensors", "", "safetensors", "one file, safe_open"),
    Contender("npy", "numpy", "npy", "numpy", "a folder of .npy, mapped"),
    Contender("npz", "numpy", "npz", "numpy", "one .npz, savez"),
    Contender("feather", "feather", "", "feather", "pyarrow Feather, uncompressed and mapped"),
    Contender("zarr", "zarr", "", "zarr", "Zarr 3, chunks of 128 pages, Blosc shuffle + zstd, crc32c, sharded"),
    Contender("lance", "lance", "", "lance", "Lance, a row per page"),
    Contender("zipnn", "zipnn", "", "zipnn", "ZipNN in safetensors, tensor by tensor"),
    Contender("torch", "torch", "", "torch", "torch.save, loaded with mmap"),
)
BY_NAME = {contender.name: contender for contender in CONTENDERS}
