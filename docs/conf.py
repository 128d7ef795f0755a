"""How `make docs` builds the site: Sphinx over the repository's own Markdown, so that links work in both."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

project = "hurray-arrow"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]

# The source is the whole repository; these of its documents are pages.
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/**", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build", "docs/_*"]

myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures have short names; types stand in the docstrings, with shapes and units
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_custom_sections = ["Specification"]
python_use_unqualified_type_names = True

# A reference to a name of this package has to lead somewhere; those of other libraries would need a network.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!hurray_arrow\.).*")]

html_theme = "furo"
html_title = f"hurray-arrow {release}"
html_copy_source = False
html_domain_indices = False
html_show_copyright = False
html_extra_path = ["_site"]
# The search would fetch the pages that it found, which no browser allows for files.
html_show_search_summary = False
# System fonts and no links to a host: a page asks nobody for anything.
html_theme_options = {"top_of_page_buttons": []}


def _spec_as_section(*arguments: Any) -> None:
    """Let a docstring's "Spec: …" be a section: by itself it would be one more exception of the section before it."""
    lines: list[str] = arguments[-1]
    for place, line in enumerate(lines):
        if line.startswith("Spec: "):
            lines[place : place + 1] = ["Specification", "-------------", line.removeprefix("Spec: ")]
            return


def _folders_have_readmes(app: Any, page: str, content: list[str]) -> None:
    """Let a link to a folder lead to its README, as the repository's hosts do."""
    folder = Path(app.srcdir, page).parent

    def link(match: re.Match[str]) -> str:
        target = match[1]
        return f"]({target}/README.md)" if (folder / target / "README.md").is_file() else match[0]

    content[0] = re.sub(r"\]\(([\w./-]+)\)", link, content[0])


def setup(app: Any) -> None:
    """Connect what Sphinx calls."""
    # Before napoleon, which reads sections.
    app.connect("autodoc-process-docstring", _spec_as_section, priority=400)
    app.connect("source-read", _folders_have_readmes)
