"""Screens: rules that leave a measured run out of the judged rows, each with its reason. No rule looks at an estimate.

A rule reads what the source says of the run. The notes of a source say why its figures scatter: those causes are the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.measured.measured_run import MeasuredRun
from vramcast.datasets.histories.reader import near_capacity

# measured: Ultralytics' assigner grows with the boxes of an image; up to this mean, the logs of one job agree to 1 %
_MOST_BOXES: Final = 5.0
_OUTSIDE: Final = ("device peak", "process peak", "reserved at print", "reserved peak")


@dataclass(frozen=True, slots=True)
class Screen:
    """A rule: `why` is the reason that a row keeps, `applies` says whether it does.

    `is_repeatable` says whether a harness can repeat such a run all the same.
    """

    why: str
    applies: Callable[[MeasuredRun], bool]
    is_repeatable: bool = True


def _arg(run: MeasuredRun, name: str) -> str:
    return str(run.options.get("args", {}).get(name, ""))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_crowded(run: MeasuredRun) -> bool:
    return (_number(run.options.get("boxes_per_image")) or 0.0) > _MOST_BOXES


def _has_few_images(run: MeasuredRun) -> bool:
    images = _number(run.options.get("n_images"))
    return images is not None and run.batch is not None and images < run.batch


def _is_later_run(run: MeasuredRun) -> bool:
    index = str(run.options.get("run_index", "")).partition("/")[0]
    # A notebook's process survives its training. Ultralytics numbers folders, and keeps the labels that it has read.
    was_run_before = _says(run, "in the notebook's process") and _says(run, r"label cache kept|run folder \d")
    said = _says(run, "not the first run|training run ([2-9]|1\\d) of one process")
    return (index.isdigit() and int(index) > 1) or said or was_run_before


def _is_of_several_sizes(run: MeasuredRun) -> bool:
    return _arg(run, "rect") == "True" or _arg(run, "multi_scale") not in ("", "False", "0.0")


def _says(run: MeasuredRun, pattern: str) -> bool:
    said = "; ".join(str(run.options.get(name, "")) for name in ("flags", "completeness"))
    return re.search(pattern, f"{said}; {run.reason}") is not None


def _is_full(run: MeasuredRun) -> bool:
    return run.figure in _OUTSIDE and near_capacity(run.value_bytes, run.card_bytes)


SCREENS: Final = (
    Screen("the kind of the figure is not known", lambda run: not run.figure),
    Screen("the model is not known", lambda run: not run.model and not run.job),
    Screen(f"crowded images: more than {_MOST_BOXES:g} boxes", _is_crowded),
    Screen("fewer images than the batch", _has_few_images),
    Screen("a later run of its process, which may hold memory of the earlier ones", _is_later_run),
    Screen("a resumed run, or a log that starts later", lambda run: _says(run, "resumed run|log starts at epoch"), False),
    Screen("images of several sizes", _is_of_several_sizes),
    Screen("the batch was found by the run itself", lambda run: _says(run, "autobatch")),
    Screen("the log shows a model that its command does not name", lambda run: _says(run, "contradicts the version")),
    Screen("a loss of the repository's own", lambda run: _says(run, "own loss"), False),
    Screen("one batch is split over several cards", lambda run: _says(run, "several GPUs listed"), False),
    Screen("not a card of NVIDIA", lambda run: _says(run, "not an NVIDIA card"), False),
    Screen("a nearly full card, which the allocator fills before it gives memory back", _is_full),
)  # fmt: skip


def not_repeatable(run: MeasuredRun) -> list[str]:
    """Return the reasons of the rules that also rule out a repeat."""
    return [screen.why for screen in SCREENS if not screen.is_repeatable and screen.applies(run)]


def screened(run: MeasuredRun) -> MeasuredRun:
    """Return a run with quality "screened" and the reason if a rule leaves it out, else the run."""
    reasons = [screen.why for screen in SCREENS if screen.applies(run)]
    return replace(run, quality="screened", reason="; ".join(reasons)) if reasons else run
