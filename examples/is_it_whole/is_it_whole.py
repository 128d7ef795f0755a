"""Is this file whole, and if not, what is broken?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import hurray_arrow as ha

original = Path(sys.argv[1])
with ha.open_snapshot(original) as snapshot:
    snapshot.verify()
    print("the original is whole")

damaged = original.with_suffix(".damaged.arrow")
shutil.copy(original, damaged)
with damaged.open("r+b") as file:  # one bit, far enough in to lie in the first tensor's pages
    file.seek(100_000)
    byte = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([byte ^ 0b100]))

with ha.open_snapshot(damaged) as snapshot:
    try:
        snapshot.verify()
    except ha.SnapshotCorruptError as error:
        for problem in error.problems:
            print(problem.code, problem.where)
damaged.unlink()
