"""Where we refuse a descriptor that the reference implementation (pyhurray 0.1.0) decodes, and why.

There is no entry the other way round: we never accept what pyhurray refuses.
"""

from __future__ import annotations

import re

#: Problem code, pattern of the field, reason. A refusal that pyhurray does not share must be one of these.
REFUSED_BY_US_ONLY: tuple[tuple[str, str, str], ...] = (
    ("version_unsupported", "version_major", "a version 0 was never published, so nobody knows what its bytes mean"),
    ("truncated", "descriptor_length", "from minor version 1 on, pyhurray does not see that the end is missing"),
    ("trailing_data", "trailing", "decode takes one descriptor and no more; decode_prefix is for streams"),
    ("rank_invalid", "rank", "block-paged is defined for rank 3 only (Description); pyhurray checks it in Tensor only"),
    ("dynamic_dimension", r"shape\[\d\]", "no sizes can be computed (wire format 1)"),
    ("byte_offset_not_zero", "byte_offset", "MUST be 0 for block-paged (byte_offset)"),
    ("page_size_invalid", "page_size", "at least 1 (wire format 1); pyhurray checks it in Tensor only"),
    ("paged_axis_invalid", "paged_axis", "MUST be 0 (Storage Invariants 6); permissive=True lets it pass"),
    ("buffer_count_too_small", "buffer_count", "MUST be at least 3 (Buffer Table); pyhurray checks it in Tensor only"),
    ("memory_class_invalid", r"buffers\[\d+\]\.memory_class", "CPU and peer never pair; private ones pair"),
    ("buffer_device_mismatch", r"buffers\[\d+\]\.\w+", "all buffers MUST share device and memory class (Alignment)"),
    ("composite_member_present", "flags", "rejected until there is a use for it (wire format 2)"),
    ("extension_type_invalid", r"extension_type\.bit_width", "at least 8 bits means whole bytes (wire format 4)"),
    ("quantization_version_unsupported", r"quantization\.scheme_version", "a version 0 was never published"),
    ("quantization_axis_invalid", r"quantization\.axis", "per channel: 1 or 2; NF4 and MXFP: an axis of the tensor"),
    ("quantization_buffer_index_invalid", r"quantization\.\w+_index", "3 ≤ index < buffer_count (wire format 3)"),
    (
        "quantization_zero_point_invalid",
        r"quantization\.zero_point_buffer_index",
        "per block without SYMMETRIC needs zero points; pyhurray asks it of per channel only",
    ),
)


def is_known(code: str, field: str | None) -> bool:
    """Tell whether a refusal is one that pyhurray does not share."""
    return any(code == each and re.fullmatch(pattern, field or "") for each, pattern, _ in REFUSED_BY_US_ONLY)
