"""Block-paged tensors in Arrow: extension types, columns, conversion. Importing it registers the types with pyarrow."""

from hurray_arrow.arrow.capsules import from_arrow
from hurray_arrow.arrow.convert import from_record_batch, tensors_from_batches, to_record_batch
from hurray_arrow.arrow.page_class import PageClass
from hurray_arrow.arrow.schema import SchemaPlan
from hurray_arrow.arrow.types import (
    BlockTableArray,
    BlockTableType,
    PagePoolArray,
    PagePoolScalar,
    PagePoolType,
    register,
    unregister,
)

register()

__all__ = [
    "BlockTableArray",
    "BlockTableType",
    "PageClass",
    "PagePoolArray",
    "PagePoolScalar",
    "PagePoolType",
    "SchemaPlan",
    "from_arrow",
    "from_record_batch",
    "register",
    "tensors_from_batches",
    "to_record_batch",
    "unregister",
]
