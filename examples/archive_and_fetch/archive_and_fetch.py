"""How do I archive a cache in a store, and fetch one sequence of it?"""

from __future__ import annotations

import sys

import numpy as np

import hurray_arrow as ha

URL = "memory://caches/small.arrow"  # s3://bucket/… with `pip install 'hurray-arrow[s3]'`, gs://…, abfs://…

with ha.open_snapshot(sys.argv[1]) as snapshot:
    whole = snapshot.read(layer_index=14, kv_role="key")
    ha.copy_snapshot(snapshot, URL, profile="archive", sanitize=True)
    page_bytes = sum(tensor.buffers[0].nbytes for tensor in snapshot.iter_tensors())

with ha.open_snapshot(URL) as archive:
    stored = sum(entry.stored_bytes for entry in archive.entries)
    print("less than two thirds of the pages' size:", stored < page_bytes * 2 / 3)
    part = archive.read_sequences(3, layer_index=14)
    keys = part.tensors[0].gather(0)
    print(f"sequence 3 of layer 14: {len(keys)} tokens in {part.tensors[0].num_pages} of {whole.num_pages} pages")
    print("as before:", np.array_equal(keys, whole.gather(3)))
