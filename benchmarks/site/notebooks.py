"""Execution of the notebooks by Jupyter's own kernel, with their outputs written into them.

    python -m benchmarks.site.notebooks [NOTEBOOK...]      # `make notebooks`; default: all in notebooks/

Needs pip install '.[notebook]'. A notebook's metadata record the torch that made its outputs.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vramcast.core.errors import CannotEstimate
from vramcast.core.files import atomic_write

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "notebooks"
CACHE: Final = ROOT / "build" / "notebooks-cache"  # not the developer's cache, which may hold a cuDNN that others do not have
TIMEOUT_S: Final = 300  # arbitrary: for a cell; ten times the duration of a whole notebook on two idle cores
_ORDER: Final = {"stdout": 0, "stderr": 1}  # of a cell's outputs; its value comes last
# What differs from run to run: a line every 10 s, of which a slow machine writes more, and torch's warnings with their time.
_PASSING: Final = re.compile(r"^(vramcast: .* \.\.\. \d+ s|\[W\d{4} [\d:.]+ .*)\n+", re.MULTILINE)
_MADE_WITH: Final = "vramcast"  # metadata key of the versions that made the outputs


def notebooks() -> list[Path]:
    """Return the notebooks in reading order."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Return a notebook after checking it against its format."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(notebook: NotebookNode) -> NotebookNode:
    """Run all cells of a notebook in place, in an empty folder, with this checkout's vramcast; return the notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell raises.
        CannotEstimate: An output names a folder of this machine.
    """
    from nbclient import NotebookClient

    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": programs}
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3", record_timing=False, coalesce_streams=True)
        client.execute(cwd=folder, env=environment)
        for cell in notebook.cells:  # the order of stdout and stderr is random
            cell.get("outputs", []).sort(key=lambda output: _ORDER.get(output.get("name", ""), len(_ORDER)))
        for output in outputs(notebook):
            if output.get("name") == "stderr":
                output["text"] = _PASSING.sub("", output["text"])
        shown = "".join(map(str, outputs(notebook)))
        for name in (folder, str(ROOT), sys.prefix):
            at = shown.find(name)
            if at >= 0:
                raise CannotEstimate(
                    f"An output names a folder of this machine, {shown[at : at + 200]!r}: let the cell print less."
                )
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        _MADE_WITH: {"torch": torch_release()},
    }
    return notebook


def outputs(notebook: NotebookNode) -> list[dict[str, Any]]:
    """Return the outputs of all cells, in order."""
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(notebook: NotebookNode) -> str:
    """Return the outputs of all cells as text: printed lines and values."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs(notebook))


def made_with(notebook: NotebookNode) -> str:
    """Return the release of torch that made a notebook's outputs."""
    return str(notebook.metadata[_MADE_WITH]["torch"])


def torch_release() -> str:
    """Return the release of the installed torch without its build: 2.11.0."""
    return version("torch").partition("+")[0]


def save(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook atomically."""
    import nbformat

    with atomic_write(path) as file:
        file.write((nbformat.writes(notebook) + "\n").encode())


if __name__ == "__main__":
    os.environ["VRAMCAST_CACHE"] = str(CACHE)
    for path in [Path(name) for name in sys.argv[1:]] or notebooks():
        started = time.perf_counter()
        save(execute(read(path)), path)
        print(f"{path.name}: {time.perf_counter() - started:.1f} s, {path.stat().st_size:,} bytes")
