"""The exceptions of hurray_arrow, and the records that say what is broken.

::

    HurrayArrowError
    ├ InvalidDescriptorError (ValueError)     .problems
    │ ├ WireFormatError                       .offset_bytes .field
    │ ├ InvariantError
    │ ├ QuantizationError
    │ └ ExtensionMetadataError
    ├ UnsupportedError (NotImplementedError)  valid, but not for this version
    ├ CopyRequiredError (ValueError)          zero copy asked for, impossible, and why
    ├ SnapshotMismatchError (ValueError)      .field .expected .found
    ├ UnknownSequenceLengthError (ValueError) tokens asked of a sequence whose length nobody recorded
    ├ SnapshotError (OSError)                 .url
    │ ├ SnapshotIncompleteError
    │ ├ SnapshotCorruptError                  .problems
    │ └ SnapshotChangedError
    ├ LayoutError (ValueError)                .expected .actual
    ├ CatalogError (ValueError)               .problems .url
    └ MissingDependencyError (ImportError)    .extra

``FileNotFoundError``, ``FileExistsError`` and ``PermissionError`` stay the builtins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt


@unique
class ProblemCode(StrEnum):
    """The closed set of problem codes. Tests and the command line use codes, never prose."""

    # descriptor bytes
    BAD_MAGIC = "bad_magic"
    BUFFER_ALIGNMENT_INVALID = "buffer_alignment_invalid"
    BUFFER_COUNT_TOO_SMALL = "buffer_count_too_small"
    BUFFER_DEVICE_MISMATCH = "buffer_device_mismatch"
    BYTE_OFFSET_NOT_ZERO = "byte_offset_not_zero"
    COMPOSITE_MEMBER_PRESENT = "composite_member_present"
    DESCRIPTOR_LENGTH_INVALID = "descriptor_length_invalid"
    DEVICE_TAG_INVALID = "device_tag_invalid"
    DYNAMIC_DIMENSION = "dynamic_dimension"
    ELEMENT_TYPE_INVALID = "element_type_invalid"
    EXTENSION_FLAG_MISMATCH = "extension_flag_mismatch"
    EXTENSION_TYPE_INVALID = "extension_type_invalid"
    FIELD_OUT_OF_RANGE = "field_out_of_range"
    FLAGS_RESERVED = "flags_reserved"
    INDEX_TYPE_INVALID = "index_type_invalid"
    KV_ROLE_INVALID = "kv_role_invalid"
    LAYOUT_TAG_INVALID = "layout_tag_invalid"
    MEMORY_CLASS_INVALID = "memory_class_invalid"
    PAGED_AXIS_INVALID = "paged_axis_invalid"
    PAGE_SIZE_INVALID = "page_size_invalid"
    RANK_INVALID = "rank_invalid"
    RESERVED_NOT_ZERO = "reserved_not_zero"
    SHARD_PRESENT = "shard_present"
    STATISTICS_INVALID = "statistics_invalid"
    SYNC_MODE_INVALID = "sync_mode_invalid"
    TRAILING_DATA = "trailing_data"
    TRUNCATED = "truncated"
    VERSION_UNSUPPORTED = "version_unsupported"
    # quantization
    QUANTIZATION_AXIS_INVALID = "quantization_axis_invalid"
    QUANTIZATION_BLOCK_SIZE_INVALID = "quantization_block_size_invalid"
    QUANTIZATION_BUFFER_INDEX_INVALID = "quantization_buffer_index_invalid"
    QUANTIZATION_BUFFER_SIZE = "quantization_buffer_size"
    QUANTIZATION_FLAGS_RESERVED = "quantization_flags_reserved"
    QUANTIZATION_LENGTH_INVALID = "quantization_length_invalid"
    QUANTIZATION_MISMATCH = "quantization_mismatch"
    QUANTIZATION_SCALE_INVALID = "quantization_scale_invalid"
    QUANTIZATION_SCALE_TYPE_INVALID = "quantization_scale_type_invalid"
    QUANTIZATION_SCHEME_INVALID = "quantization_scheme_invalid"
    QUANTIZATION_STORAGE_INVALID = "quantization_storage_invalid"
    QUANTIZATION_VERSION_UNSUPPORTED = "quantization_version_unsupported"
    QUANTIZATION_ZERO_POINT_INVALID = "quantization_zero_point_invalid"
    # buffers and storage invariants
    BLOCK_TABLE_SIZE = "block_table_size"
    BUFFER_DTYPE = "buffer_dtype"
    BUFFER_LAYOUT = "buffer_layout"
    BUFFER_MISSING = "buffer_missing"
    PAGE_ID_OUT_OF_RANGE = "page_id_out_of_range"
    PAGE_POOL_SIZE = "page_pool_size"
    PAGE_POOL_PADDING = "page_pool_padding"
    SEQ_PTR_DECREASING = "seq_ptr_decreasing"
    SEQ_PTR_END = "seq_ptr_end"
    SEQ_PTR_SIZE = "seq_ptr_size"
    SEQ_PTR_START = "seq_ptr_start"
    TOTAL_TOKENS_EXCEED_PAGES = "total_tokens_exceed_pages"
    # what is known of the sequences
    MEDIA_SPAN_INVALID = "media_span_invalid"
    PAGE_POSITIONS_INVALID = "page_positions_invalid"
    SEQUENCE_FACTS_SIZE = "sequence_facts_size"
    SEQ_LEN_EXCEEDS_PAGES = "seq_len_exceeds_pages"
    SEQ_LENS_SUM = "seq_lens_sum"
    TOKEN_IDS_SIZE = "token_ids_size"
    # tensors that operations take together
    HEAD_RANGE_INVALID = "head_range_invalid"
    REPLICA_MISMATCH = "replica_mismatch"
    TENSOR_MISMATCH = "tensor_mismatch"
    # Arrow and snapshots
    ARROW_INVALID = "arrow_invalid"
    ARROW_NULL = "arrow_null"
    ARROW_SCHEMA = "arrow_schema"
    COLUMN_MISMATCH = "column_mismatch"
    COMPANION_MISSING = "companion_missing"
    EXTENSION_METADATA_INVALID = "extension_metadata_invalid"
    FOOTER_INVALID = "footer_invalid"
    GROUP_TABLE_MISSING = "group_table_missing"
    INDEX_INVALID = "index_invalid"
    INDEX_CHECKSUM = "index_checksum"
    KV_GROUP_MISMATCH = "kv_group_mismatch"
    METADATA_INVALID = "metadata_invalid"
    PAGE_CHECKSUM = "page_checksum"
    ROW_CHECKSUM = "row_checksum"
    ROW_MISSING = "row_missing"
    ROW_PLACE = "row_place"
    SCHEMA_CHECKSUM = "schema_checksum"
    SET_MEMBER_DUPLICATE = "set_member_duplicate"
    TENSOR_KEY_DUPLICATE = "tensor_key_duplicate"
    UNVERIFIED = "unverified"
    # catalogues of snapshots
    CATALOG_INVALID = "catalog_invalid"
    CATALOG_KEY_MISMATCH = "catalog_key_mismatch"
    CATALOG_MISMATCH = "catalog_mismatch"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: its code, its place, what was found and expected, and where the rule is written.

    Parameters
    ----------
    code
        A member of the closed set :class:`ProblemCode`.
    where
        The place, such as ``block_table[17]`` or ``descriptor.page_size``.
    message
        Value, bound and expectation in words.
    spec
        The section that states the rule, such as ``Storage Invariants 3``.
    offset_bytes
        Offset from the start of the descriptor or file, where one is known.
    field
        The field's name, where the problem lies in one field.
    """

    code: ProblemCode
    where: str
    message: str
    spec: str = ""
    offset_bytes: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        at = "" if self.offset_bytes is None else f" at byte {self.offset_bytes}"
        rule = f" ({self.spec})" if self.spec else ""
        return f"{self.where}{at}: {self.message}{rule}"


#: How many problems of one kind are listed before they are only counted.
SHOWN_OF_A_KIND = 100


def listed_problems(
    places: npt.NDArray[np.intp], code: ProblemCode, spec: str, *, say: Callable[[int], tuple[str, str]]
) -> list[Problem]:
    """Turn the places of broken entries into problems: the first :data:`SHOWN_OF_A_KIND`, and one that counts them.

    Parameters
    ----------
    places, code, spec
        int ``[broken]``, and the rule.
    say
        Gives (where, message) of one place; ``where`` ends in brackets.
    """
    problems = [Problem(code, *say(place), spec) for place in places[:SHOWN_OF_A_KIND].tolist()]
    if places.size > SHOWN_OF_A_KIND:
        where = problems[0].where.partition("[")[0]
        message = f"{places.size} entries are broken in this way, the first {SHOWN_OF_A_KIND} are listed"
        problems.append(Problem(code, where, message, spec))
    return problems


#: How many problems an exception's text shows; ``.problems`` has them all.
SHOWN_PROBLEMS = 10


def _problem_text(problems: Sequence[Problem]) -> str:
    lines = [str(problem) for problem in problems[:SHOWN_PROBLEMS]]
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"… and {len(problems) - SHOWN_PROBLEMS} more problems in .problems")
    return "\n".join(lines)


class HurrayArrowError(Exception):
    """The base of every exception that hurray_arrow defines."""


class InvalidDescriptorError(HurrayArrowError, ValueError):
    """A tensor, or the bytes that describe it, break the specification.

    Parameters
    ----------
    problems
        One :class:`Problem` or several; kept as the tuple ``.problems``.
    """

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(_problem_text(self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__

    @property
    def codes(self) -> list[str]:
        """The codes of ``.problems``, in order."""
        return [str(problem.code) for problem in self.problems]


class WireFormatError(InvalidDescriptorError):
    """Descriptor bytes that the specification tells a reader to reject."""

    @property
    def offset_bytes(self) -> int | None:
        """Offset of the first problem from the start of the descriptor, in bytes."""
        return self.problems[0].offset_bytes

    @property
    def field(self) -> str | None:
        """Name of the field of the first problem."""
        return self.problems[0].field


class InvariantError(InvalidDescriptorError):
    """Buffers or sequence facts that break the layout's storage invariants."""


class QuantizationError(InvalidDescriptorError):
    """A quantization scheme or its parameters that the block-paged layout does not allow."""


class ExtensionMetadataError(InvalidDescriptorError):
    """Metadata of an Arrow extension type that cannot be used."""


class UnsupportedError(HurrayArrowError, NotImplementedError):
    """Valid input that this version does not handle."""


class CopyRequiredError(HurrayArrowError, ValueError):
    """Zero copy was asked for and cannot be had; the message says why and which call copies."""


class SnapshotMismatchError(HurrayArrowError, ValueError):
    """A snapshot is not what the caller expects.

    Parameters
    ----------
    field
        Dotted name of the field, such as ``model.revision``.
    expected, found
        Both values; ``found`` is ``None`` where the snapshot does not say.
    """

    def __init__(self, *, field: str, expected: object, found: object) -> None:
        self.field = field
        self.expected = expected
        self.found = found
        has = "the snapshot does not say" if found is None else f"the snapshot has {found!r}"
        super().__init__(f"{field}: expected {expected!r}, {has}")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), field=self.field, expected=self.expected, found=self.found), (), self.__dict__


class UnknownSequenceLengthError(HurrayArrowError, ValueError):
    """Tokens were asked of a sequence whose length nobody recorded."""


class SnapshotError(HurrayArrowError, OSError):
    """A snapshot file or object cannot be read or written.

    Parameters
    ----------
    message
        What went wrong.
    url
        The snapshot's path or URL; kept as ``.url``.
    """

    def __init__(self, message: str, *, url: str = "") -> None:
        self.url = url
        self.message = message
        super().__init__(f"{url}: {message}" if url else message)


class SnapshotIncompleteError(SnapshotError):
    """The writer did not finish, or another tool rewrote the file: there is no end batch."""


class SnapshotCorruptError(SnapshotError):
    """A checksum does not match, or the structure is broken.

    Parameters
    ----------
    problems
        Everything that is wrong; kept as the tuple ``.problems``.
    url
        The snapshot's path or URL.
    """

    def __init__(self, problems: Problem | Iterable[Problem], *, url: str = "") -> None:
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(_problem_text(self.problems), url=url)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), url=self.url), (self.problems,), self.__dict__

    @property
    def codes(self) -> list[str]:
        """The codes of ``.problems``, in order."""
        return [str(problem.code) for problem in self.problems]


class SnapshotChangedError(SnapshotError):
    """The snapshot was overwritten while it was read."""


class LayoutError(HurrayArrowError, ValueError):
    """An engine's cache is not what the caller said.

    Parameters
    ----------
    message
        Which axis or table, and why.
    expected, actual
        Both values; kept as attributes.
    """

    def __init__(self, message: str, *, expected: object = None, actual: object = None) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(message)


class CatalogError(HurrayArrowError, ValueError):
    """A catalogue is damaged, or not the one that the caller means.

    Parameters
    ----------
    problem
        What is wrong; kept in the tuple ``.problems``.
    url
        The catalogue's path or URL.
    """

    def __init__(self, problem: Problem, *, url: str = "") -> None:
        self.problems: tuple[Problem, ...] = (problem,)
        self.url = url
        super().__init__(f"{url}: {problem}" if url else str(problem))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), url=self.url), self.problems, self.__dict__

    @property
    def codes(self) -> list[str]:
        """The codes of ``.problems``."""
        return [str(problem.code) for problem in self.problems]


class MissingDependencyError(HurrayArrowError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package
        The package that could not be imported.
    extra
        The extra of hurray_arrow that installs it; kept as ``.extra``.
    """

    def __init__(self, package: str, *, extra: str) -> None:
        self.extra = extra
        self.package = package
        super().__init__(f"{package} is not installed: pip install 'hurray-arrow[{extra}]'")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), extra=self.extra), (self.package,), self.__dict__
