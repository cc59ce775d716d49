"""`%load_ext vramcast` gives a notebook `%%vram`: how much GPU memory the cell takes, without running it in the notebook.

%%vram --device a100-40gb --steps 3 --report job.html
import torch
model = ...                       a whole training script: a cell sees nothing of the others
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from vramcast.core.errors import JobError, UsageError, VramcastError

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate


def register(shell: Any) -> None:
    """Give an IPython shell the magic `%%vram`."""
    shell.register_magic_function(vram, magic_kind="cell", magic_name="vram")


def vram(line: str, cell: str) -> Estimate | None:
    """Estimate a cell which trains, as `vramcast run -- python -c CELL` would.

    The cell runs in a process of its own on the null GPU, never in the kernel: no variable of the notebook reaches it, and it
    changes none. It imports what it needs; magics and `!commands` are no Python, and are not understood.

    Args:
        line: Options of `vramcast run`: --device, --memory, --steps, --level, --report job.html, ...
        cell: A training script.
    Returns:
        The estimate, which the notebook shows; None where the options are wrong or ask for help, which argparse has said.
    Raises:
        IPython.core.error.UsageError: No estimate can be given; IPython shows it as one line.
    """
    from IPython.core.error import UsageError as ShownError

    try:
        return _estimate(line, cell)
    except SystemExit:  # argparse's, after its message or its help
        return None
    except VramcastError as error:
        lost = isinstance(error, JobError) and "NameError" in str(error)
        hint = " (a %%vram cell sees nothing of other cells: import and build in it what it needs)" if lost else ""
        raise ShownError(f"{error}{hint}") from None


def _estimate(line: str, cell: str) -> Estimate:
    from vramcast.cli import checked_job, what_if_options
    from vramcast.cli import options as shared
    from vramcast.cli.main import parser

    try:
        words = shlex.split(line)
    except ValueError as error:  # a quote without its end
        raise UsageError(f"%%vram {line}: {error}: write options of vramcast run, for example --device a100-40gb.") from None
    options = parser(["run"]).parse_args(["run", *words, "--", "python", "-c", cell])
    if options.json:
        raise UsageError("%%vram --json: a cell's value is an Estimate: leave it out, and ask it with to_dict().")
    questions = what_if_options.Questions(options)
    estimate = checked_job.estimate_of(shared.estimator_of(vars(options)), checked_job.job_text(options))
    _, text = shared.write_files(options, estimate, questions)
    if text:
        print(text)
    return estimate
