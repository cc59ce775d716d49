"""The next step after an adoption, in one line: the change of a history that improves its artifact most."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from vramcast.adoption.gate import LEVELS
from vramcast.adoption.verdict import Candidate
from vramcast.core.text import printable
from vramcast.datasets.run import Run
from vramcast.learner.conformal import models_needed
from vramcast.learner.evaluation.scored_run import Scored

# By the beginning of a reason for which runs are left out.
_OF_REASON: Final[dict[str, str]] = {
    "status unknown": "say how each job ended (--columns status=COLUMN): only jobs that completed or filled the card count",
    "status": "add jobs that completed: peaks of the others prove nothing",
    "no job to estimate": "name each job's model: a column with a target such as torchvision:resnet50, or --join rules that "
    "map names to targets (docs/histories.md)",
    "several models": "write the registry before these names, or map them by --join rules (docs/histories.md)",
    "its inputs are unknown": "add the batch size (--columns batch_size=COLUMN), and for texts seq, for images image_size",
    "wrong job": "correct the target, batch and gpu of these rows, or their --join rule",
    "its target is code": "pass --trust-targets if you trust the code that these rows name",
    "several cards": "export one row for each card, with gpus 1 and the peak of that card",
    "no peak was measured": "add a column with the peak (--columns peak_mib=COLUMN)",
    "its peak is above": "check the unit of the peak (--columns peak_mib=, peak_gib= or peak_bytes=COLUMN)",
    "cannot be estimated": "run vramcast estimate for one of these jobs, which says why",
}
_KNOWN: Final = ("optimizer", "precision")  # the columns that change a peak most; without them, the defaults are estimated
_FAR: Final = 0.2  # arbitrary: relative error of a model's estimates that more jobs do not repair


def for_left_out(left_out: Mapping[str, int]) -> str:
    """Return the step for the most frequent reason; "" if there is none.

    Example:
        >>> for_left_out({"several cards": 2, "no peak was measured": 9})
        'add a column with the peak (--columns peak_mib=COLUMN)'
    """
    most = max(left_out, key=lambda reason: left_out[reason], default="")
    return next((step for reason, step in _OF_REASON.items() if most.startswith(reason)), "")


def next_step(judged: Candidate, left_out: Mapping[str, int], models_like: int) -> str:
    """Return the step after an evaluation; "" if none is known.

    Args:
        judged: The new artifact, and its evaluation.
        left_out: Numbers of runs left out, by reason.
        models_like: Models of the jobs' class behind the new artifact.
    """
    if sum(left_out.values()) > len(judged.examples) and (step := for_left_out(left_out)):
        return step
    if step := _of_worst_model(judged.everything, judged.runs):
        return step
    if level := next((level for level in LEVELS if models_needed(level) > models_like), None):
        more = models_needed(level) - models_like
        models = f"{more} more model{'s' if more > 1 else ''}"
        return f"add jobs of {models}: a bound at {level:g} takes {models_needed(level)}, and {models_like} are measured"
    return "" if judged.seconds else "add the jobs' durations (--columns seconds=COLUMN), which the cost of requests needs"


def _of_worst_model(scored: Sequence[Scored], runs: Sequence[Run]) -> str:
    """Return the step for the model with the worst estimates; "" if none is far off."""
    ratios: dict[str, list[float]] = {}
    for run in scored:
        if not run.is_lower_bound:
            ratios.setdefault(run.group, []).append(run.measured_bytes / run.estimated_bytes)
    medians = {model: statistics.median(own) for model, own in ratios.items()}
    worst = max(medians, key=lambda model: max(medians[model], 1 / medians[model]), default="")
    if not worst or max(medians[worst], 1 / medians[worst]) <= 1 + _FAR:
        return ""
    ids = {run.id for run in scored if run.group == worst}
    own_runs = [run for run in runs if run.id in ids]
    unknown = [name for name in _KNOWN if all(getattr(run.workload, name) is None for run in own_runs)]
    what = f"jobs of {printable(worst, 60)} take {medians[worst]:.2f} times their estimate"
    if unknown:
        return f"{what}: add their {' and '.join(unknown)} to the history"
    return f"{what}: check their target and batch, and the unit of the peak"
