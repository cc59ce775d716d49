"""The hook that cli_filter.lua runs at each submission: prints instructions for Slurm, one per line.

    python -I -P -m vramcast.cluster.slurm submit sbatch '{"gres": "gres:gpu:1", "argv": ["job.sh"]}'

    set comment vramcast=4f...:6144:14913
    set gres shard:6
    say vramcast: 4.71 GiB, at most 5.60 GiB at 0.99: 6 of 14 shards instead of the whole card.

An instruction is `set OPTION VALUE`, `say TEXT` or `refuse TEXT`. The hook exits shortly after the time limit in the
settings.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from vramcast.cluster.answer import Answer, Unanswerable
from vramcast.cluster.slurm.client import ServiceClient
from vramcast.cluster.slurm.decision import Decision, decide, unanswered
from vramcast.cluster.slurm.options import RequestedResources, read_options
from vramcast.cluster.slurm.question import question, submission_of
from vramcast.cluster.slurm.script_marks import Marks, read_marks
from vramcast.cluster.slurm.site_settings import SiteSettings, read_settings
from vramcast.core.errors import NoAnswer, VramcastError
from vramcast.core.plain import from_plain, json_value

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_IN_A_JOB: Final = "SLURM_JOB_ID"
_REST_S: Final = 0.5  # arbitrary: after the settings' time limit, to exit by itself


def main(kind: str, text: str, settings_path: str) -> None:
    """Print the instructions for one submission; an error becomes a message for the user.

    Args:
        kind: `sbatch`, `srun`, ...
        text: The options, as JSON.
        settings_path: Path of the site's settings.
    """
    try:
        settings = read_settings(settings_path)
    except VramcastError as error:
        _tell(Decision(f"vramcast: {error}"))
        return
    _end_after(settings.timeout_s + _REST_S, lambda: _tell(unanswered(NoAnswer("the time limit has passed"), settings)))
    try:
        options = from_plain(dict, json_value(text, "The options from cli_filter"), "The options from cli_filter")
        decision = decision_on(kind, options, Path.cwd(), os.environ, settings)
    except NoAnswer as missing:
        decision = unanswered(missing, settings)
    except (VramcastError, ValueError) as error:
        decision = Decision(f"vramcast: {error}; the job is submitted unchanged.")
    signal.setitimer(signal.ITIMER_REAL, 0)
    _tell(decision)


def decision_on(
    kind: str, options: Mapping[str, Any], folder: Path, environment: Mapping[str, str], settings: SiteSettings
) -> Decision:
    """Return the decision on a submission.

    Raises:
        NoAnswer: There is no estimate.
        UsageError: The settings are wrong.
    """
    if kind not in ("sbatch", "srun") or (kind == "srun" and _IN_A_JOB in environment):
        return Decision()
    asked = read_options(options)
    submission = submission_of(kind, options, folder)
    if submission is None:
        return Decision()
    marks = read_marks(submission.text)
    if marks.is_off or not _is_ours(marks, asked, settings):
        return Decision()
    if marks.unknown:
        return unanswered(
            Unanswerable(f"'{marks.unknown[:60]}' in its #VRAMCAST line is not understood: write option=value (docs/slurm.md)"),
            settings,
        )
    path, body, left_out = question(submission, marks, asked, environment, str(options.get("export") or ""))
    answers = _answers(path, body, settings)
    keeps_cards = marks.steps_ask_for_cards or bool(options.get("tres-per-task"))
    decision = decide(asked, answers, settings, steps_ask_for_cards=keeps_cards)
    if left_out and decision.line:
        names = ", ".join(left_out[:3])
        return Decision(f"{decision.line.rstrip('.')}; uncertain: {names} was not sent. The job is submitted unchanged.")
    return decision


def _is_ours(marks: Marks, asked: RequestedResources, settings: SiteSettings) -> bool:
    """Return whether the service is asked about a job: it uses cards, on known partitions."""
    known = not asked.partitions or all(name in settings.partitions for name in asked.partitions)
    return known and (asked.is_of_gpus or marks.named is not None)


def _answers(path: str, body: Mapping[str, Any], settings: SiteSettings) -> dict[str, Answer | NoAnswer]:
    """Return the answer for each partition."""
    jobs = {card: {"level": settings.level, **body, "device": card} for card in settings.partitions.values()}
    found = ServiceClient.of(settings).check_each(path, jobs, settings.timeout_s)
    return {name: found[card] for name, card in settings.partitions.items()}


def _tell(decision: Decision) -> None:
    # A line is an instruction: a comment of the user must stay on one line.
    lines = [f"set {name} {_CONTROL.sub(' ', value)}" for name, value in decision.changes.items()]
    if decision.line:
        lines.append(f"{'refuse' if decision.is_refused else 'say'} {' '.join(decision.line.split())}")
    print("\n".join(lines), flush=True)


def _end_after(seconds: float, last: Callable[[], None]) -> None:
    """Exit this process after this many seconds whatever it does then; threads that wait for an answer do not delay it."""

    def end(_: int, __: FrameType | None) -> None:
        last()
        os._exit(0)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
