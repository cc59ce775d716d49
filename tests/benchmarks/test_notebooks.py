"""Tests of the notebooks: each runs from top to bottom, shows its stored outputs, and names only numbers that it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed: pip install '.[notebook]'")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install '.[notebook]'")

from benchmarks.site import notebooks

ROOT = Path(__file__).parents[2]
MOST_BYTES = 300_000  # arbitrary: for a notebook, to keep the repository small
# A number with its unit, as people and vramcast write it.
QUANTITY = re.compile(r"(\d+(?:[,.]\d+)*)\s?(MiB|GiB|%)")


def quantities(text: str) -> set[str]:
    """Return the sizes and shares in a text."""
    return {f"{number} {unit}" for number, unit in QUANTITY.findall(text)}


def text_between(notebook: notebooks.NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.fixture(params=notebooks.notebooks(), ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    """Return the path of each notebook."""
    return Path(request.param)


@pytest.mark.integration
def test_shows_stored_outputs_when_run(path: Path, needs_null_gpu: None) -> None:
    stored = notebooks.read(path)
    if notebooks.made_with(stored) != notebooks.torch_release():
        pytest.skip(f"its numbers are from torch {notebooks.made_with(stored)}, this is {notebooks.torch_release()}")
    fresh = notebooks.execute(notebooks.read(path))
    assert notebooks.text_of(fresh) == notebooks.text_of(stored)
    code = "".join(cell.source for cell in fresh.cells if cell.cell_type == "code")
    named = quantities(text_between(fresh))
    assert named - quantities(notebooks.text_of(fresh) + code) == set(), "the text names numbers that no output shows"


def test_stores_notebooks_as_executed(path: Path) -> None:
    stored = notebooks.read(path)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run `make notebooks`"
    assert path.stat().st_size <= MOST_BYTES
    assert not {output.output_type for output in notebooks.outputs(stored)} & {"error"}
    assert f'"torch=={notebooks.made_with(stored)}"' in (ROOT / "pyproject.toml").read_text()


def test_ends_with_links_to_pages(path: Path) -> None:
    last = notebooks.read(path).cells[-1]
    assert last.cell_type == "markdown"
    links = re.findall(r"\]\(([^)#]+)", last.source)
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_reads_quantities_with_units() -> None:
    assert quantities("2.47 GiB of 1,024MiB, 5%, 0.99 and 3.") == {"2.47 GiB", "1,024 MiB", "5 %"}
