"""``hurray-arrow demo``: a real cache into a snapshot and back, and the proof that it is the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from hurray_arrow.cli.inspect import show, summary
from hurray_arrow.cli.output import console, count, progress, size
from hurray_arrow.snapshot import open_snapshot, write_snapshot
from hurray_arrow.tensor import BlockPagedTensor

DATA = "smollm2_small.npz"
SNAPSHOT = Path("hurray-arrow-demo.arrow")
METADATA = {"model": {"name": "HuggingFaceTB/SmolLM2-135M-Instruct", "rope": {"applied": True}}}
FINDINGS = 1


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Where the snapshot goes; must not exist. Without it: {SNAPSHOT} here, written anew each time.",
)
def demo(output: Path | None) -> None:
    """Write a real cache, read it back, compare.

    Proves that every byte of a KV cache comes back from a snapshot. The cache is a piece of SmolLM2-135M's: five
    layers, four sequences, three of which share a prefix.
    """
    if output is not None and output.exists():
        raise click.BadParameter(f"{output} exists", param_hint="--output")
    target = output or SNAPSHOT
    out = console()
    tensors = shipped_tensors()
    with progress("writing") as callback:
        write_snapshot(target, tensors, metadata=METADATA, overwrite=output is None, progress=callback)
    out.print(f"wrote   {count(len(tensors), 'tensor')}, {size(sum(tensor.nbytes for tensor in tensors))} of buffers")
    if not compare(target, tensors, to=out):
        sys.exit(FINDINGS)


def compare(path: Path, tensors: Sequence[BlockPagedTensor], *, to: Console) -> bool:
    """Open the snapshot, compare it with the tensors that went in, and print the outcome and what is in it.

    Parameters
    ----------
    path
        The snapshot.
    tensors
        What was written, in order.
    to
        Where to print.

    Returns
    -------
    bool
        Whether every descriptor, buffer byte and sequence fact came back.
    """
    with open_snapshot(path) as snapshot:
        snapshot.verify()
        found = list(snapshot.iter_tensors())
        equal = len(found) == len(tensors) and all(
            ours.equals(theirs) for ours, theirs in zip(tensors, found, strict=True)
        )
        buffers = sum(len(tensor.buffers) for tensor in found)
        to.print(f"opened  {size(path.stat().st_size)}, every checksum verified")
        verdict = "equal  " if equal else "DIFFERS"
        to.print(
            f"{verdict} {len(found)} descriptors, every byte of {buffers} buffers, what is known of the sequences\n"
        )
        show(summary(snapshot), str(path.resolve()), to=to)
    return equal


def shipped_tensors() -> list[BlockPagedTensor]:
    """Return the tensors of the shipped cache, key and value of each layer.

    Returns
    -------
    list[BlockPagedTensor]
        New arrays, bfloat16 [31, 16, 3, 64] each.
    """
    with np.load(data_path()) as arrays:
        cache = dict(arrays)
    ends = np.cumsum(cache["seq_lens"]).astype(np.int64)
    token_ids = np.split(cache["token_ids"], ends[:-1])
    return [
        BlockPagedTensor.from_arrays(
            cache[f"{kv_role}_pool"][layer],
            cache["block_table"],
            cache["seq_ptr"],
            seq_lens=cache["seq_lens"],
            token_ids=token_ids,
            element_type="bfloat16",
            kv_role=kv_role,
            layer_index=int(layer_index),
        )
        for layer, layer_index in enumerate(cache["layer_index"])
        for kv_role in ("key", "value")
    ]


def data_path() -> Path:
    """Return where the shipped cache lies: beside this module when installed, under examples/ in a checkout."""
    installed = Path(__file__).parent / "demo_data" / DATA
    return installed if installed.exists() else Path(__file__).parents[2] / "examples" / "data" / DATA
