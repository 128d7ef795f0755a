"""Operations on tensors, all exact: tensor in, tensor out, and no stored value ever changes.

Each takes one :class:`hurray_arrow.BlockPagedTensor`, or several of one kv_group (values, keys, companions), which then
come out with the same new tables. What is known of sequences follows; the producer's descriptor bytes do not, because
the result is ours.
"""

from hurray_arrow.ops.compact import compact
from hurray_arrow.ops.concat import concat
from hurray_arrow.ops.fuse import fuse, unfuse
from hurray_arrow.ops.heads import merge_heads, split_heads
from hurray_arrow.ops.repage import repage
from hurray_arrow.ops.sanitize import sanitize
from hurray_arrow.ops.select import select

__all__ = ["compact", "concat", "fuse", "merge_heads", "repage", "sanitize", "select", "split_heads", "unfuse"]
