"""Which pages do sequences share, and what does that save?"""

from __future__ import annotations

import sys

import numpy as np

import hurray_arrow as ha

with ha.open_snapshot(sys.argv[1]) as snapshot:
    tensor = next(iter(snapshot.iter_tensors(kv_group=0)))  # one is enough: a group has its tables in common
    references = tensor.page_references()  # how many table entries name each page
    print(f"{tensor.num_pages} pages, {len(tensor.unreferenced_pages())} of them in no sequence")
    print(f"{len(tensor.shared_pages())} pages are shared, by up to {tensor.sequences_per_page().max()} sequences")
    saved = int(references.sum()) - int(np.count_nonzero(references))
    print(f"without sharing the sequences would need {saved} pages more")
