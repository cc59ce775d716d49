"""What cli_filter.lua runs at each submission: prints what Slurm shall be told, a word a line.

    python -m vramcast.schedulers.slurm submit sbatch '{"gres": "gres:gpu:1", "argv": ["job.sh"]}'

    set comment vramcast=4f...:6144:14913
    set gres shard:6
    say vramcast: 4.71 GiB, at most 5.60 GiB at 0.99: 6 of 14 shards instead of the whole card.

The first word is `set OPTION VALUE`, `say TEXT` or `refuse TEXT`. It ends by itself shortly after the time in the settings.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from vramcast.core.errors import NoAnswer, VramcastError
from vramcast.core.plain import from_plain, json_value
from vramcast.schedulers.answer import Answer
from vramcast.schedulers.slurm.batch_script import BatchScript
from vramcast.schedulers.slurm.client import Client
from vramcast.schedulers.slurm.decision import Decision, decide, unanswered
from vramcast.schedulers.slurm.options import Asked, read_options
from vramcast.schedulers.slurm.question import questions, script_of
from vramcast.schedulers.slurm.site_settings import Settings, read_settings

_IN_A_JOB: Final = "SLURM_JOB_ID"
_REST_S: Final = 0.5  # arbitrary: after the settings' time, to end by itself


def main(kind: str, text: str, settings_path: str) -> None:
    """Print what Slurm shall be told of one submission; what goes wrong is a line for the user.

    Args:
        kind: `sbatch`, `srun`, ...
        text: The options, as JSON.
        settings_path: Of the site's settings.
    """
    try:
        settings = read_settings(settings_path)
    except VramcastError as error:
        _tell(Decision(f"vramcast: {error}"))
        return
    _end_after(settings.timeout_s + _REST_S, lambda: _tell(unanswered("the time is over", settings)))
    try:
        options = from_plain(dict, json_value(text, "What cli_filter gives"), "What cli_filter gives")
        decision = decision_on(kind, options, Path.cwd(), os.environ, settings)
    except NoAnswer as missing:
        decision = unanswered(str(missing), settings)
    except (VramcastError, ValueError) as error:
        decision = Decision(f"vramcast: {error}; the job is submitted as it is.")
    signal.setitimer(signal.ITIMER_REAL, 0)
    _tell(decision)


def decision_on(
    kind: str, options: Mapping[str, Any], folder: Path, environment: Mapping[str, str], settings: Settings
) -> Decision:
    """Return what becomes of a submission.

    Raises:
        NoAnswer: nothing is known of it.
        UsageError: the settings are wrong.
    """
    if kind not in ("sbatch", "srun") or (kind == "srun" and _IN_A_JOB in environment):
        return Decision()
    asked = read_options(options)
    script = script_of(kind, options, folder, environment)
    if script is None or script.is_off or not _is_ours(script, asked, settings):
        return Decision()
    place = Path(os.path.normpath(folder / str(options.get("chdir") or "")))
    answers = _answers(questions(script, asked, place), settings)
    return decide(asked, answers, settings, steps_ask_for_cards=script.steps_ask_for_cards)


def _is_ours(script: BatchScript, asked: Asked, settings: Settings) -> bool:
    """Whether anything is asked about a job: it uses cards, on partitions that are known."""
    known = not asked.partitions or all(name in settings.partitions for name in asked.partitions)
    return known and (asked.is_of_gpus or script.named is not None)


def _answers(asked: list[dict[str, Any]], settings: Settings) -> dict[str, Answer | str]:
    """Return the answer for each partition: of several commands the one which takes most."""
    cards = set(settings.partitions.values())
    jobs = {f"{k} {card}": {"level": settings.level, **job, "device": card} for k, job in enumerate(asked) for card in cards}
    found = Client.of(settings).check_each(jobs, settings.timeout_s)
    by_card = {card: _largest([found[f"{k} {card}"] for k in range(len(asked))]) for card in cards}
    return {name: by_card[card] for name, card in settings.partitions.items()}


def _largest(answers: list[Answer | NoAnswer]) -> Answer | str:
    """Return the answer of several which decides: one which does not fit, else why one is missing, else the largest request."""
    known = [one for one in answers if isinstance(one, Answer)]
    tight = [one for one in known if not one.may_run]
    if tight:
        return tight[0]
    missing = [str(one) for one in answers if isinstance(one, NoAnswer)]
    return missing[0] if missing else max(known, key=lambda one: one.request_bytes)


def _tell(decision: Decision) -> None:
    lines = [f"set {name} {value}" for name, value in decision.changes.items()]
    if decision.line:
        lines.append(f"{'refuse' if decision.is_refused else 'say'} {' '.join(decision.line.split())}")
    print("\n".join(lines), flush=True)


def _end_after(seconds: float, last: Callable[[], None]) -> None:
    """End this process after so many seconds, whatever it does by then; threads which wait for an answer do not hold it."""

    def end(_: int, __: FrameType | None) -> None:
        last()
        os._exit(0)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
