"""What does a cache look like?"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import hurray_arrow as ha
from hurray_arrow import report

path = Path(sys.argv[1])
with ha.open_snapshot(path) as snapshot:
    report.write_report(snapshot, path.with_suffix(".html"), overwrite=True)  # all pictures, and their numbers
    figure = report.head_norms(snapshot, kv_role="key")  # one of them, a matplotlib figure like any other
    figure.savefig(path.with_name("key_norms.png"), dpi=150)

heat_map = np.asarray(figure.axes[0].images[0].get_array())
head, layer = divmod(int(heat_map.argmax()), heat_map.shape[1])
print(f"open {path.with_suffix('.html').name} in a browser")
print(f"the longest keys: head {head} of layer {figure.axes[0].get_xticklabels()[layer].get_text()}")
