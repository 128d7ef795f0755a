"""Tidy views of a snapshot: tensors, sequences, pages and tokens as tables for the tools that people already use."""

from hurray_arrow.views.many import read_snapshots
from hurray_arrow.views.opening import VIEWS, open_view
from hurray_arrow.views.parquet import export
from hurray_arrow.views.plan import Skipped
from hurray_arrow.views.view import View

__all__ = ["VIEWS", "Skipped", "View", "export", "open_view", "read_snapshots"]
