"""`%load_ext vramcast` adds the magic `%%vram`, which estimates a cell's GPU memory without running it.

%%vram --on a100-40gb --steps 3 --report job.html
model = ...                       a whole training script; of other cells it sees only the imports
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from vramcast.cli.earlier_cells import EarlierCells
from vramcast.core.errors import JobError, UsageError, VramcastError

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate


def register(shell: Any) -> None:
    """Register the magic `%%vram` in an IPython shell."""
    shell.register_magic_function(vram, magic_kind="cell", magic_name="vram")


def vram(line: str, cell: str) -> Estimate | None:
    """Estimate a cell that trains, as `vramcast run -- python -c CELL` would.

    The cell runs in a process of its own on the null GPU, never in the kernel: it sees no variable of the notebook and
    changes none. Imports of earlier cells that it uses are repeated in it; magics and `!commands` are not Python and do not
    work.

    Args:
        line: Options of `vramcast run`: --on, --memory, --steps, --level, --report job.html, ...
        cell: A training script.
    Returns:
        The estimate, which the notebook shows; None if the options are wrong or ask for help, after argparse's message.
    Raises:
        IPython.core.error.UsageError: No estimate can be given; IPython shows the error as one line.
    """
    from IPython.core.error import UsageError as ShownError

    earlier = EarlierCells.read(_sources())
    try:
        estimate = _estimate(line, earlier.completed(cell))
        if "NameError" in estimate.course.ended:
            print(f"{estimate.course.ended}{_hint(earlier.missing(cell))}")
        return estimate
    except SystemExit:  # raised by argparse, after its message or its help
        return None
    except VramcastError as error:
        lost = isinstance(error, JobError) and "NameError" in str(error)
        raise ShownError(f"{error}{_hint(earlier.missing(cell)) if lost else ''}") from None


def _sources() -> list[str]:
    """Return the sources that ran in each cell of the notebook, by number."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    history = shell.history_manager if shell is not None else None
    return list(history.input_hist_parsed) if history is not None else []


def _hint(missing: dict[str, int]) -> str:
    """Return a hint that names what to move into a cell that misses a name."""
    if not missing:
        return " (a %%vram cell sees only the imports of other cells: build everything else it needs inside the cell)"
    names = ", ".join(f"{name} of cell [{number}]" for name, number in missing.items())
    return f" (a %%vram cell sees only the imports of other cells: move the code that makes {names} into it)"


def _estimate(line: str, cell: str) -> Estimate:
    from vramcast.cli import checked_job, what_if_options
    from vramcast.cli import options as shared
    from vramcast.cli.main import parser

    try:
        words = shlex.split(line)
    except ValueError as error:  # an unclosed quote
        raise UsageError(f"%%vram {line}: {error}: write options of vramcast run, for example --on a100-40gb.") from None
    options = parser(["run"]).parse_args(["run", *words, "--", "python", "-c", cell])
    if options.json:
        raise UsageError(
            "%%vram --json is not supported, because the value of the cell is an Estimate: leave it out, and call to_dict()."
        )
    questions = what_if_options.Questions(options)
    estimate = checked_job.estimate_of(shared.estimator_of(vars(options)), checked_job.job_text(options))
    _, text = shared.write_files(options, estimate, questions)
    if text:
        print(text)
    return estimate
