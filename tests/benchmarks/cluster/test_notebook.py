"""The notebook runs from top to bottom without jupyter, and says what is stored in it."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "choose_the_level.ipynb"


def test_the_code_cells_run_in_order_and_print_what_the_notebook_shows() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    namespace: dict[str, Any] = {}
    for cell in code:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile("".join(cell["source"]), f"cell {cell['execution_count']}", "exec"), namespace)
        (output,) = cell["outputs"]
        assert said.getvalue() == "".join(output["text"])


def test_the_notebook_is_small_and_of_a_known_format() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], NOTEBOOK.stat().st_size < 20_000) == (4, True)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
