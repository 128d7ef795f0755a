"""How do I ask a snapshot questions in SQL, without hurray-arrow?"""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa

table = pa.ipc.open_file(sys.argv[1]).read_all()  # DuckDB reads no Arrow file by itself, but this object it does
small = table.drop_columns(["page_pool"])

print("tensors by kv_role")
for row in duckdb.execute("select kv_role, count(*) from small group by kv_role order by kv_role").fetchall():
    print(*row)

sharing = """
    select sequences, count(*) from (
        select page_id, count(*) as sequences
        from (select unnest(block_table, recursive := true) as page_id from small where tensor_index = 0)
        group by page_id
    )
    group by sequences order by sequences
"""
print("pages by the number of sequences that use them")
for row in duckdb.execute(sharing).fetchall():
    print(*row)
