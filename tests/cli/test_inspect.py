from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import numpy as np

import hurray_arrow as ha
from hurray_arrow.sharing import sequences_per_named_page

ENTRY_KEYS = {
    "tensor_index", "layer_index", "layer_name", "kv_role", "component", "kv_group", "num_pages", "page_shape",
    "num_seqs", "element_type", "index_type", "encoding", "num_rows", "stored_bytes",
}  # fmt: skip


def test_json_has_its_keys_and_the_facts(run, path):
    result = run("inspect", path, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) == {
        "url", "profile", "num_tensors", "stored_bytes", "entries", "groups", "metadata", "withheld",
    }  # fmt: skip
    assert found["url"] == str(path)
    assert (found["profile"], found["num_tensors"]) == ("share", 4)
    assert found["groups"] == [
        {
            "kv_group": 0,
            "num_tensors": 4,
            "page_size": 3,
            "num_pages": 7,
            "unreferenced_pages": 3,
            "shared_pages": [{"num_pages": 1, "num_seqs": 3}, {"num_pages": 1, "num_seqs": 2}],
            "num_seqs": 4,
            "total_tokens": 18,
            "total_logical_pages": 7,
        }
    ]
    assert found["metadata"]["model"] == {"name": "toy", "revision": "r17"}
    assert [set(entry) for entry in found["entries"]] == [ENTRY_KEYS] * 4
    assert [(entry["layer_index"], entry["kv_role"]) for entry in found["entries"]] == [
        (11, "key"), (11, "value"), (13, "key"), (13, "value"),
    ]  # fmt: skip
    assert found["entries"][3]["page_shape"] == [3, 2, 5]
    assert found["entries"][3]["element_type"] == "float32"


def test_text_shows_groups_and_every_tensor(run, path):
    lines = run("inspect", path).stdout.splitlines()
    assert "group 0: 4 tensors, 4 sequences, 18 tokens" in lines
    assert "  7 pages of 3 tokens, 3 unreferenced; 1 page shared by 3 sequences; 1 page shared by 2 sequences" in lines
    assert "  model.revision: r17" in lines
    assert sum("float32" in line for line in lines) == 4


def test_tenants_adapters_and_user_are_never_shown(run, path):
    for arguments in (["inspect", path], ["inspect", path, "--json"], ["validate", path], ["validate", path, "--json"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert "-7c1" not in result.output
        assert "-9d2" not in result.output
        assert "-3e5" not in result.output
    assert json.loads(run("inspect", path, "--json").stdout)["withheld"] == ["tenant", "adapter", "user"]


def test_names_cannot_speak_to_the_terminal(run, tmp_path):
    pool = np.zeros((2, 3, 1, 5), np.float16)
    tensor = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[1]], seq_lens=[2], kv_role="key", layer_name="[bold]\x1b[2J\x07layer"
    )
    path = tmp_path / "hostile.arrow"
    ha.write_snapshot(path, [tensor], metadata={"model": {"name": "[red]\x1b[31m\u202eevil"}})
    for arguments in (["inspect", path], ["inspect", path, "--json"]):
        output = run(*arguments).output
        assert "\x1b" not in output
        assert "\x07" not in output
        assert "\u202e" not in output
    assert r"model.name: [red]\x1b[31m\u202eevil" in run("inspect", path).output


def test_several_groups_each_have_a_line(run, tmp_path):
    pool = np.zeros((5, 2, 3, 1), np.int8)
    first = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[4, 1]], seq_lens=[3], kv_role="key", layer_index=2, kv_group=0
    )
    second = ha.BlockPagedTensor.from_arrays(
        pool, block_tables=[[3], [3], []], seq_lens=[1, 2, 0], kv_role="key", layer_index=5, kv_group=1
    )
    path = tmp_path / "groups.arrow"
    ha.write_snapshot(path, [first, second])
    lines = run("inspect", path).stdout.splitlines()
    assert "group 0: 1 tensor, 1 sequence, 3 tokens" in lines
    assert "  5 pages of 2 tokens, 3 unreferenced; no page is shared" in lines
    assert "group 1: 1 tensor, 3 sequences, 3 tokens" in lines
    assert "  5 pages of 2 tokens, 4 unreferenced; 1 page shared by 2 sequences" in lines


def test_sharing_is_the_tensors_own(path):
    with ha.open_snapshot(path) as snapshot:
        tensor = snapshot.read(layer_index=13, kv_role="value")
    named = sequences_per_named_page(tensor.block_table, tensor.seq_ptr)
    assert named.tolist() == tensor.sequences_per_page()[[0, 2, 3, 5]].tolist()


def test_more_pages_than_memory_holds_are_counted(run, tmp_path):
    """Pages of no bytes cost a hostile file nothing."""
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((2**45, 3, 0, 5), np.float32), block_tables=[[2**31, 7], [7]], seq_lens=[4, 2], kv_role="key"
    )
    path = tmp_path / "many.arrow"
    ha.write_snapshot(path, [tensor])
    [group] = json.loads(run("inspect", path, "--json").stdout)["groups"]
    assert (group["num_pages"], group["unreferenced_pages"]) == (2**45, 2**45 - 2)
    assert group["shared_pages"] == [{"num_pages": 1, "num_seqs": 2}]


def test_an_empty_batch_has_a_group(run, tmp_path):
    tensor = ha.BlockPagedTensor.from_arrays(np.zeros((2, 3, 1, 5), np.int8), block_tables=[], kv_role="fused")
    path = tmp_path / "none.arrow"
    ha.write_snapshot(path, [tensor])
    lines = run("inspect", path).stdout.splitlines()
    assert "group 0: 1 tensor, 0 sequences, 0 tokens" in lines
    assert "  2 pages of 3 tokens, 2 unreferenced; no page is shared" in lines


def test_a_set_is_shown_as_one(run, members):
    pattern = members[0].parent / "cache.m*.arrow"
    lines = run("inspect", pattern).stdout.splitlines()
    assert [line for line in lines if line.startswith("member 1: 3 tensors")]
    assert [line for line in lines if line.endswith(f"heads [1, 2), {members[1]}")]
    found = json.loads(run("inspect", pattern, "--json").stdout)
    assert found["num_tensors"] == 3
    assert [entry["page_shape"] for entry in found["entries"]] == [[3, 2, 5]] * 3
    assert found["set"]["id"] == "s-17"
    assert [set(member) for member in found["set"]["members"]] == [
        {"url", "num_tensors", "stored_bytes", "topology"}
    ] * 2
    assert found["stored_bytes"] == sum(member["stored_bytes"] for member in found["set"]["members"])
    members[0].unlink()
    assert run("inspect", pattern).exit_code == 3
    assert run("inspect", members[0].parent / "other*").exit_code == 3


def test_a_file_with_a_star_in_its_name_is_no_set(run, path):
    star = path.rename(path.with_name("small*.arrow"))
    assert "set" not in json.loads(run("inspect", star, "--json").stdout)


def test_lengths_that_nobody_recorded(run, tmp_path):
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((3, 5, 2, 7), np.int8), block_tables=[[2, 0], [1]], seq_lens=[7, None], total_tokens=9, kv_role="key"
    )
    path = tmp_path / "unknown.arrow"
    ha.write_snapshot(path, [tensor])
    assert "group 0: 1 tensor, 2 sequences, lengths not recorded" in run("inspect", path).stdout
    [group] = json.loads(run("inspect", path, "--json").stdout)["groups"]
    assert group["total_tokens"] is None


def test_a_single_sequence_is_as_long_as_its_tensor_says(run, tmp_path):
    tensor = ha.BlockPagedTensor.from_arrays(
        np.zeros((3, 5, 2, 7), np.int8), block_tables=[[2, 0]], token_ids=[range(8)], total_tokens=8, kv_role="key"
    )
    path = tmp_path / "one.arrow"
    ha.write_snapshot(path, [tensor])
    assert "group 0: 1 tensor, 1 sequence, 8 tokens" in run("inspect", path).stdout


def test_a_narrow_terminal_cuts_nothing(path):
    """A real terminal of 60 columns, made with a pseudo-terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    program = "from hurray_arrow.cli import main; main()"
    command = [sys.executable, "-c", program, "inspect", str(path)]
    with subprocess.Popen(command, stdout=follower, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(follower)
        text = b""
        while chunk := read_terminal(leader):
            text += chunk
    os.close(leader)
    assert process.returncode == 0
    assert text.count(b"float32") == 4
    assert "…" not in text.decode()


def read_terminal(leader):
    """Return the next bytes of a pseudo-terminal; Linux says EIO where others say end of file."""
    try:
        return os.read(leader, 4096)
    except OSError:
        return b""
