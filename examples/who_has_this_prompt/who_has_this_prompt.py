"""Which of many snapshots hold this prompt?"""

from __future__ import annotations

import secrets
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np

import hurray_arrow as ha
from hurray_arrow import ops
from hurray_arrow.catalog import build_catalog, find_prefix

source = Path(__file__).parents[1] / "data" / "smollm2_small.npz"
cache = np.load(source)
prompts = np.split(cache["token_ids"], np.cumsum(cache["seq_lens"])[:-1].astype(int))
with ha.open_snapshot(sys.argv[1]) as snapshot:
    stored = snapshot.read(layer_index=7, kv_role="key")
keys = ha.BlockPagedTensor.from_arrays(
    stored.page_pool,
    stored.block_table,
    stored.seq_ptr,
    seq_lens=cache["seq_lens"],
    token_ids=prompts,
    kv_role="key",
    layer_index=7,
)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for sequence, language in enumerate(["en", "en", "en", "de"]):
        one = ops.select(keys, sequence)
        ha.write_snapshot(folder / f"{sequence}.arrow", [one], metadata={"model": {"name": f"toy-{language}"}})

    key = secrets.token_bytes(32)  # keep it: who has it and the catalogue can ask, nobody can read a prompt
    catalogue = folder / "catalog.parquet"
    report = build_catalog(folder, destination=catalogue, key=key)
    print(f"{report.num_files} snapshots, {report.num_read} read")

    prompt = prompts[0][:300]  # its beginning is a prefix that three of the four have in common
    for match in find_prefix(catalogue, prompt, key=key, expect={"model.name": "toy-en"}):
        print(f"{match.num_tokens} tokens in {Path(match.url).name}")

    (folder / "2.arrow").unlink()
    report = build_catalog(folder, destination=catalogue, key=key)
    print(f"{report.num_files} snapshots, {report.num_read} read, {report.num_dropped} dropped")

    query = "select model_name, count(*), sum(num_tokens) from read_parquet(?) group by model_name order by model_name"
    for row in duckdb.execute(query, [str(catalogue)]).fetchall():
        print(*row)
