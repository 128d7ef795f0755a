"""Pictures of a snapshot: matplotlib figures, and a report that is one HTML file (extra ``report``)."""

from hurray_arrow.errors import MissingDependencyError

try:
    from hurray_arrow.report.document import html, write_report
    from hurray_arrow.report.figures import (
        compressed_sizes,
        head_magnitudes,
        head_norms,
        last_page_fill,
        norms,
        page_map,
        sharing,
        value_ranges,
    )
    from hurray_arrow.report.look import Look
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in ("jinja2", "markupsafe", "matplotlib"):
        raise
    raise MissingDependencyError(package, extra="report") from error

__all__ = [
    "Look",
    "compressed_sizes",
    "head_magnitudes",
    "head_norms",
    "html",
    "last_page_fill",
    "norms",
    "page_map",
    "sharing",
    "value_ranges",
    "write_report",
]
