"""Sphinx's settings for this folder: `make docs` builds the site into build/docs, without network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "extensions"))
if (ROOT / "vramcast" / "tracer").is_dir():  # a checkout; beside an sdist, whose links are gone, vramcast is installed
    sys.path.insert(0, str(ROOT))

from vramcast import __version__  # noqa: E402  # only now is it found

project = "vramcast"
author = "the authors of vramcast"
release = version = __version__
extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_argparse_cli", "sphinx_copybutton", "json_schema",
    "notebook_pages",
]  # fmt: skip
nb_execution_mode = "off"  # `make notebooks` executes them
nitpicky = False  # most types in signatures are private to a module, and have no page

html_theme = "furo"
html_title = f"vramcast {release}"
html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_static_path = ["static"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_search_scorer = str(ROOT / "docs" / "static" / "search_order.js")
html_theme_options = {"navigation_with_keys": True}

myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3  # links go to headings as deep as this
smartquotes = False  # `--json` keeps both of its hyphens
pygments_style, pygments_dark_style = "default", "monokai"  # of at least 4.5:1 on their backgrounds
copybutton_prompt_text = "$ "  # commands are copied, without their output

autodoc_mock_imports = ["dask", "distributed", "ray"]  # extras, which the site can be built without
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
maximum_signature_line_length = 88  # then each argument has a line of its own
napoleon_numpy_docstring = False


def _mark_code(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Let one backtick in a docstring mean code, as in Markdown, also where a letter follows it."""
    lines[:] = [
        re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w?))", lambda found: f"``{found[1]}``" + "\\ " * bool(found[2]), line)
        for line in lines
    ]


def setup(app: Sphinx) -> None:
    """Read docstrings as they are written."""
    app.connect("autodoc-process-docstring", _mark_code, priority=400)  # before napoleon
