"""The answer of an adoption, and its question before a deployment."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vramcast.cli.streams import say

if TYPE_CHECKING:
    from vramcast.adoption.shipped_artifact import ArtifactComparison


def answer(facts: Mapping[str, Any]) -> str:
    """Return the answer: what was read, both artifacts on the jobs held out, which one is kept, and what to do next."""
    if facts["nothing_new"]:
        return f"nothing new since {facts['time']}: {facts['runs']:,} runs"
    lines = [
        f"{facts['runs']:,} runs, {facts['new_runs']:,} of them new; {facts['examples']:,} can be evaluated, "
        f"{facts['learned_from']:,} were learned from"
    ]
    places = facts.get("rejected_places", {})
    lines += [f"rejected {count:,}: {why} ({places.get(why, '')})" for why, count in facts["rejected_by_reason"].items()]
    lines += [f"left out {count:,}: {reason}" for reason, count in facts["left_out"].items()]
    held = ", ".join(f"{100 * share:.1f} % at {level}" for level, share in facts["gate"]["coverage"].items())
    lines.append(f"coverage on models held out: {held or 'no run'}")
    lines += _comparison(facts["shipped"])
    requests = facts["requests"]
    for policy, cost in requests["policies"].items() if requests["runs"] else ():
        hours = cost["requested_gib_hours"] + cost["again_gib_hours"]
        lines.append(f"requesting {policy}: {hours:,.0f} GiB-hours, {cost['deaths']:,} deaths")
    lines += [f"corrected: {gap}" for gap in facts.get("gaps", ())]
    lines += [f"not deployed: {reason}" for reason in facts["reasons"]]
    lines.append(_kept(facts))
    return "\n".join([*lines, *([f"next: {facts['next']}"] if facts["next"] else [])])


def _kept(facts: Mapping[str, Any]) -> str:
    """Return which artifact is in use now."""
    if facts["promoted"]:
        return f"artifact {facts['artifact']} is deployed in {facts['out']}"
    if facts["dry_run"]:
        return "dry run: nothing was deployed"
    old = (
        "the shipped artifact stays in use" if facts["gate"].get("present") else f"the present artifact stays in {facts['out']}"
    )
    is_choice = set(facts["reasons"]) <= set(facts["worse"])
    return f"{old}; --keep new deploys the new one" if is_choice else old


def _comparison(shipped: Mapping[str, Any]) -> list[str]:
    """Return the lines about both artifacts."""
    if shipped["better"] is None:
        return ["not compared with the shipped artifact, which covers none of these jobs"]
    lines = [f"against the shipped artifact, on {shipped['runs']:,} runs of {shipped['models']:,} models held out:"]
    for one in shipped["levels"]:
        held, held_shipped = _percent(one["coverage"]), _percent(one["coverage_shipped"])
        above, above_shipped = _percent(one["width"]), _percent(one["width_shipped"])
        lines.append(
            f"  at {one['level']:<4g} {held} are below the bound (shipped {held_shipped}), "
            f"which is {above} above the peak (shipped {above_shipped})"
        )
    wider = [one for one in shipped["levels"] if one["because"]]
    if wider:
        by = ", ".join(f"{100 * one['change']:.0f} % at {one['level']:g}" for one in wider)
        lines.append(f"the bound becomes wider: by {by}")
        lines += [f"  because {reason}" for reason in _each_once(reason for one in wider for reason in one["because"])]
    return lines


def _each_once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def wants_new(shipped: ArtifactComparison, worse: Sequence[str]) -> bool:
    """Return whether a person wants the new artifact; Enter takes the one that is better on the jobs held out."""
    for line in [*_comparison(shipped.to_dict()), *(f"the new artifact is worse: {reason}" for reason in worse)]:
        say(line)
    choices = "y/N" if worse else "Y/n"
    while True:
        say(f"deploy the new artifact? [{choices}] ", end="")
        line = sys.stdin.readline()
        said = line.strip().lower()
        if not said:
            return not worse
        if said in ("y", "yes", "n", "no"):
            return said.startswith("y")
        say(f"'{said}' is neither y nor n")
