"""The notebooks as pages of the site: copies next to the documents, with links that lead there; nothing is executed."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config


def copy(app: Sphinx, config: Config) -> None:
    """Write the copies, which git does not keep."""
    source, target = Path(app.srcdir).parent / "notebooks", Path(app.srcdir) / "notebooks"
    target.mkdir(exist_ok=True)
    for stale in target.glob("*.ipynb"):
        stale.unlink()
    for notebook in sorted(source.glob("*.ipynb")):
        text = notebook.read_text(encoding="utf-8").replace("](../docs/", "](../")
        (target / notebook.name).write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Copy them before the documents are listed."""
    app.connect("config-inited", copy)
    return {"parallel_read_safe": True}
