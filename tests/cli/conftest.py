"""A small snapshot with everything that the commands show, and a way to run them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from click.testing import CliRunner

import hurray_arrow as ha
from hurray_arrow import ops
from hurray_arrow.cli.app import app
from hurray_arrow.snapshot import member_name

#: Sequences 0 and 1 share pages 5 and 2, sequence 3 has page 2 too; pages 1, 4 and 6 are in no sequence.
BLOCK_TABLES = [[5, 2, 0], [5, 2], [], [2, 3]]
SEQ_LENS = [8, 6, 0, 4]
SECRETS = ["tenant-7c1", "adapter-9d2", "user-3e5"]
#: click before 8.2 puts what goes to stderr into stdout, unless it is told not to.
RUNNER = CliRunner(**{"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {})


def small_tensor(layer_index, kv_role, **more):
    pool = np.random.default_rng(layer_index).normal(size=(7, 3, 2, 5)).astype(np.float32)
    return ha.BlockPagedTensor.from_arrays(
        pool, block_tables=BLOCK_TABLES, seq_lens=SEQ_LENS, kv_role=kv_role, layer_index=layer_index, **more
    )


@pytest.fixture
def path(tmp_path):
    tensors = [small_tensor(layer, role) for layer in (11, 13) for role in ("key", "value")]
    metadata = {"model": {"name": "toy", "revision": "r17"}, "tenant": SECRETS[0], "adapter": SECRETS[1]}
    target = tmp_path / "small.arrow"
    ha.write_snapshot(target, tensors, metadata={**metadata, "user": {"note": SECRETS[2]}})
    return target


@pytest.fixture
def members(tmp_path):
    """A set of two members, one head each, three tensors each."""
    tensors = [small_tensor(11, "key"), small_tensor(11, "value"), small_tensor(13, "key")]
    paths = []
    for member, part in enumerate(zip(*(ops.split_heads(tensor, 2) for tensor in tensors), strict=True)):
        paths.append(tmp_path / member_name("cache", member, 2))
        metadata = {
            "set": {"id": "s-17", "member": member, "members": 2},
            "topology": {"tp_rank": member, "head_range": [member, member + 1]},
        }
        ha.write_snapshot(paths[-1], part, metadata=metadata)
    return paths


@pytest.fixture
def run():
    def run(*arguments):
        return RUNNER.invoke(app, [str(argument) for argument in arguments])

    return run
