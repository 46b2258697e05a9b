"""The documentation as a site: ``make docs`` writes ``build/docs/index.html``."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version

from sphinx.application import Sphinx

project = "pliant"
author = "the pliant developers"
release = installed_version("pliant")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = "pliant"

_LINK_OUT = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?:src|tests|tools|benchmarks|examples|[A-Z]+)[^)]*\)"
)


def setup(app: Sphinx) -> None:
    """Read links out of ``docs/`` as text: they lead to files of the checkout, not to pages."""

    def without_links_out(_app: Sphinx, _page: str, source: list[str]) -> None:
        source[0] = _LINK_OUT.sub(r"\1", source[0])

    app.connect("source-read", without_links_out)
