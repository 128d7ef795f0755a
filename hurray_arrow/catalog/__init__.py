"""Catalogues: one Parquet table over many snapshots, and which of them hold a prompt."""

from hurray_arrow.catalog.builder import CatalogReport, Failure, build_catalog
from hurray_arrow.catalog.digests import read_key
from hurray_arrow.catalog.finder import CatalogMatch, find_prefix
from hurray_arrow.catalog.reader import Catalog, open_catalog

__all__ = [
    "Catalog",
    "CatalogMatch",
    "CatalogReport",
    "Failure",
    "build_catalog",
    "find_prefix",
    "open_catalog",
    "read_key",
]
