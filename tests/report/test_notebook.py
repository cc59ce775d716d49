"""`%%vram` in IPython's own shell: the cell is estimated, and never runs in the notebook's namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

interactiveshell = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed: pip install ipython")

from vramcast.estimates.result import Estimate  # noqa: E402
from vramcast.tracer.nullgpu.client import NullGpuTracer  # noqa: E402

CELL = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a shell without a history file, with the extension loaded."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    # A subclass, so that its singleton is not the shell of the process that runs the tests.
    made = type("Shell", (interactiveshell.InteractiveShell,), {}).instance()
    made.history_manager.enabled = False
    done = made.run_cell("%load_ext vramcast")
    assert done.success
    yield made
    made.history_manager.end_session()
    type(made).clear_instance()


def said(shell: Any, capsys: pytest.CaptureFixture[str], line: str, cell: str) -> tuple[Any, str]:
    """Run a cell; return its result, stderr and stdout."""
    done = shell.run_cell(f"%%vram {line}\n{cell}")
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err + shown.out
    return done, shown.err + shown.out


@pytest.mark.usefixtures("tracer")
def test_cell_returns_estimate_without_side_effects(
    shell: Any, tracer: Callable[[], NullGpuTracer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("model = 'mine'")
    done, _ = said(shell, capsys, f"--device rtx3090 --memory 8GiB --report '{tmp_path}/a job.html'", CELL)
    estimate = done.result
    assert isinstance(estimate, Estimate)
    assert estimate.card_bytes == 8 << 30
    assert estimate.allocated > 3 * 4 * 1024 * 1024  # parameters, gradients and more
    assert shell.user_ns["model"] == "mine"
    assert "optimizer" not in shell.user_ns
    assert estimate.title == "Python code on NVIDIA GeForce RTX 3090"
    assert "vramcast.estimate_command(" in (tmp_path / "a job.html").read_text()
    shown, _ = shell.display_formatter.format(estimate)
    assert shown["text/html"].lstrip().startswith('<div class="vramcast">')
    assert shown["text/plain"] == str(estimate)


@pytest.mark.usefixtures("tracer")
def test_cell_does_not_see_other_cells(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("import torch\nwidth = 8\nclass Net: pass", store_history=True)
    done, text = said(shell, capsys, "", "import torch\ntorch.zeros(width, device='cuda')\nNet()")
    assert not done.success
    assert "NameError: name 'width' is not defined (<string>:3" in text
    assert "sees only the imports of other cells: move the code that makes Net of cell [1], width of cell [1] into it)" in text


@pytest.mark.usefixtures("tracer")
def test_missing_name_is_reported_with_estimate(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("width = 8", store_history=True)
    done, text = said(shell, capsys, "", "import torch\nkept = torch.zeros(1 << 20, device='cuda')\nwidth")
    assert done.result.allocated == 4 << 20
    assert "NameError: name 'width' is not defined" in text
    assert "move the code that makes width of cell [1] into it" in text


@pytest.mark.usefixtures("tracer")
def test_cell_has_imports_of_earlier_cells(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("import torch, json\nfrom torch import nn as layers", store_history=True)
    done, text = said(shell, capsys, "", "kept = layers.Linear(1024, 1024, device=torch.device('cuda'))")
    assert "NameError" not in text
    assert done.result.allocated >= 4 << 20


@pytest.mark.integration
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--devise t4", "unrecognized arguments: --devise"),
        ("--device nope", "Card 'nope' is not known"),
        ("--report job.pdf", "use .html"),
        ("'--device", "No closing quotation"),
        ("--json", "to_dict()"),
        ("--help", "usage: vramcast run"),
    ],
)
def test_reports_wrong_options(shell: Any, capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    done, text = said(shell, capsys, line, "x = 1")
    assert words in text
    assert done.result is None
