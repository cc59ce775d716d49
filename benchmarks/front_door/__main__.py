"""The first five minutes: models by their names alone, and typical mistakes.

    python -m benchmarks.front_door [--groups NAME ...] [--most N] [--processes N] [--fresh]

Each name of `benchmarks.front_door.names` becomes `vramcast estimate NAME --on h200`, with all defaults. An answer counts if it
has at most seven lines of 100 characters on a terminal of 100 columns. Each mistake of tests/cli/mistakes.toml must print the
suggestion that helps. Answers are kept in build/front_door.jsonl: a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

from benchmarks.front_door.asked import ROOT, Asked, ask
from benchmarks.front_door.names import groups, shuffled
from benchmarks.tables import table
from vramcast.core.units import GIB

KEPT: Final = ROOT / "build" / "front_door.jsonl"
MISTAKES: Final = ROOT / "tests" / "cli" / "mistakes.toml"
_COLUMNS: Final = (
    "names of", "asked", "answered", "share", "within 7 x 100", "median, s", "p90, s", "median host memory, GiB", "most, GiB",
)  # fmt: skip


def words_of(target: str) -> list[str]:
    """Return the command of a name, without `vramcast`."""
    return ["estimate", target, "--on", "h200"]


def kept() -> dict[str, Asked]:
    """Return the stored answers by target."""
    if not KEPT.exists():
        return {}
    lines = [line for line in KEPT.read_text(encoding="utf-8").splitlines() if line.endswith("}")]  # a killed run may cut one
    found = [json.loads(line) for line in lines]
    return {one.pop("target"): Asked(**one) for one in found}


def answered(targets: Iterable[str], processes: int) -> None:
    """Ask for each target, and append the answers to the stored ones."""
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with KEPT.open("a", encoding="utf-8") as file, ThreadPoolExecutor(processes) as pool:
        targets = list(targets)
        for target, found in zip(targets, pool.map(lambda one: ask(words_of(one)), targets), strict=True):
            file.write(json.dumps({"target": target, **asdict(found)}) + "\n")
            file.flush()


def summary(group: str, found: Sequence[Asked]) -> list[str]:
    """Return the row of a group in the table."""
    answers = [one for one in found if one.is_answer]
    if not answers:
        return [group, str(len(found)), "0", "0 %", *["-"] * 5]
    seconds, memory = sorted(one.seconds for one in answers), [one.resident_bytes / GIB for one in answers]
    return [
        group, str(len(found)), str(len(answers)), f"{100 * len(answers) / len(found):.1f} %",
        f"{sum(not one.fault for one in answers)}", f"{statistics.median(seconds):.1f}",
        f"{seconds[9 * len(seconds) // 10]:.1f}",
        f"{statistics.median(memory):.2f}", f"{max(memory):.2f}",
    ]  # fmt: skip


def misled(mistake: Mapping[str, Any], found: Asked) -> str:
    """Return why a mistake's message does not help; "" if it does."""
    if found.code not in (2, 3) or found.out or "Traceback" in found.err:
        return f"exit code {found.code}: {found.reason}"
    missing = [text for text in mistake["says"] if text not in found.err]
    wrong = [text for text in mistake.get("never", ()) if text in found.err]
    return f"lacks {missing}, has {wrong}" if missing or wrong else ""


def report_of_mistakes() -> str:
    """Make all mistakes, and return how many messages helped."""
    mistakes = tomllib.loads(MISTAKES.read_text())["mistake"]
    found = [(mistake["words"], misled(mistake, ask(shlex.split(mistake["words"])))) for mistake in mistakes]
    wrong = [(f"`{words}`", why) for words, why in found if why]
    text = f"{len(found) - len(wrong)} of {len(found)} mistakes get the suggestion that helps."
    return f"{text}\n\n{table(('mistake', 'message'), wrong)}" if wrong else text


def report(wanted: Mapping[str, Sequence[str]], answers: Mapping[str, Asked]) -> str:
    """Return the table by group, and the names without an answer or with a long one."""
    by_group = {group: [answers[one] for one in targets if one in answers] for group, targets in wanted.items()}
    rows = [summary(group, found) for group, found in by_group.items() if found]
    rows.append(summary("all", [one for found in by_group.values() for one in found]))
    asked = {one: answers[one] for targets in wanted.values() for one in targets if one in answers}
    refused = [(f"`{name}`", one.reason) for name, one in asked.items() if not one.is_answer]
    long = [(f"`{name}`", one.fault) for name, one in asked.items() if one.is_answer and one.fault]
    # A message names the model: without the names, equal reasons have one row.
    reasons = Counter(re.sub(r"'[^']*'|\S+:\S+", "...", why) for _, why in refused).most_common()
    left = sum(map(len, wanted.values())) - len(asked)
    parts = [table(_COLUMNS, rows), f"Not asked yet: {left}."]
    parts += [table(("reason", "names"), reasons), table(("no answer", "message"), refused)] if refused else []
    parts += [table(("long answer", "length"), long)] if long else []
    return "\n\n".join(parts)


def main() -> None:
    """Run the benchmark and print the report."""
    wanted = groups()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=[*wanted, "mistakes"], default=[*wanted, "mistakes"], metavar="NAME")
    parser.add_argument("--most", type=int, default=1000, metavar="N", help="at most N new answers")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="commands at a time")
    parser.add_argument("--fresh", action="store_true", help="ask again for names without an answer")
    options = parser.parse_args()
    chosen = {group: targets for group, targets in wanted.items() if group in options.groups}
    before = {name: one for name, one in kept().items() if one.is_answer or not options.fresh}
    answered([one for _, one in shuffled(chosen) if one not in before][: options.most], options.processes)
    if chosen:
        print(report(chosen, kept()))
    if "mistakes" in options.groups:
        print(f"\n{report_of_mistakes()}")


if __name__ == "__main__":
    main()
