"""CARD.md of an artifact: its training data, its performance on unseen models, and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from vramcast.core.units import MIB
from vramcast.learner import gains
from vramcast.learner.gains import Gains
from vramcast.learner.model import LearnedModel, family_name
from vramcast.learner.residual_tree import in_words
from vramcast.learner.training import DECIDED

_LEVELS: Final = tuple(map(str, DECIDED))


def card_text(learned: LearnedModel, name: str, facts: Mapping[str, Any]) -> str:
    """Return the card as Markdown.

    Args:
        learned: The artifact.
        name: Title of the card.
        facts: Further lines for "Made from": sources, licenses, versions.
    """
    card = learned.card
    lines = [
        f"# {name}",
        "",
        "A learned correction of vramcast: quantiles of measured / simulated memory, for the reserved and the process peak,",
        "and the context by stack.",
        "",
        "## Made from",
        "",
        f"- {card['runs']} runs of {card['groups']} models; {card['censored']} peaks are lower bounds (out of memory)",
        *(f"- {key}: {value}" for key, value in facts.items()),
        f"- seed {card['seed']}, {card['folds']} folds by model, parameters {card['parameters'] or 'default'}",
        "",
        "## Performance on unseen models",
        "",
        "| peak | group | runs | simulated, median | p90 | corrected, median | p90 |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for peak, by in card["by"].items():
        for what, groups in by.items():
            for group, errors in groups.items():
                cells = [errors[key] for key in ("simulated_median", "simulated_p90", "corrected_median", "corrected_p90")]
                shown = " | ".join(f"{100 * value:.2f} %" for value in cells)
                lines.append(f"| {peak} | {what} {group or '(none)'} | {errors['runs']:.0f} | {shown} |")
    for peak, head in learned.heads.items():
        lines += ["", f"The trees of the {peak} peak set bounds: {head.bounds}. They correct the point: {head.points}."]
    lines += _of_trees(gains.of_card(card))
    lines += ["", "## Classes", "", f"| peak | class of jobs | models | supported level | {' | '.join(_LEVELS)} |"]
    lines.append(f"|---|---|---:|---:|{'---|' * len(_LEVELS)}")
    for peak, head in learned.heads.items():
        for group in head.calibration.groups.classes():
            by_level = card.get("decide", {}).get(peak, {}).get(group.name, {})
            cells = [
                f"{100 * math.expm1(by_level[level][2]):+.1f} % {by_level[level][0]}" for level in _LEVELS if level in by_level
            ]
            n = group.n_models
            lines.append(" | ".join([f"| {peak}", in_words(group.name), f"{n}", f"{n / (n + 1):.3f}", *cells]) + " |")
    lines += ["", "A cell has the bound of a large job at this level, and the one run that sets it."]
    lines += ["", "## Context by stack", ""]
    if learned.contexts:
        lines += ["| stack | libraries | MiB | 90 % between | runs |", "|---|---|---:|---:|---:|"]
        for stack, context in learned.contexts.items():
            for libraries, c in (("all", context), *context.by_libraries.items()):
                ends = f"{c.low_bytes / MIB:.0f} to {c.high_bytes / MIB:.0f}"
                lines.append(f"| {stack} | {libraries or 'none'} | {c.size_bytes / MIB:.0f} | {ends} | {c.n} |")
    else:
        lines.append("None.")
    lines += [
        "",
        "## Limits",
        "",
        "- Bounds hold on average over jobs like those above; a job unlike them is flagged, and its bound is wider.",
        "- A bound is calibrated by the class of the job, and by groups found in the runs (docs/bounds.md); the estimate names",
        "  the group. A level q needs q / (1 - q) models of the class: with fewer there is no guarantee, and the result "
        "says so.",
        "- Runs of one model count as one.",
        "",
    ]
    return "\n".join(lines)


def _of_trees(by_peak: Mapping[str, Gains]) -> list[str]:
    """Return the lines about the trees: their gains by class, and the features that matter."""
    rows = [
        f"| {peak} | {what} | {family_name(family)} | {one.models} | {_percent(one.change)} | "
        f"{_percent(one.low)} to {_percent(one.high)} | {'yes' if one.is_used else 'no'} |"
        for peak, of in by_peak.items()
        for what, by in (("bounds", of.bounds), ("points", of.points))
        for family, one in by.items()
    ]
    if not rows:
        return ["", "No trees were tried: some run has no features."]
    title = "| peak | what | family | models | change of the loss | 95 % of bootstraps | used |"
    lines = ["", "Trees against none, on unseen models (pinball loss of bounds at 0.9 and 0.95, relative error of points):"]
    lines += ["", title, "|---|---|---|---:|---:|---:|---|", *rows]
    for peak, of in by_peak.items():
        for family, costs in of.importances.items():
            named = ", ".join(f"{name} {_percent(cost)}" for name, cost in costs.items())
            lines += [
                "",
                f"Features of the {peak} peak for {family_name(family)}, by the growth of the loss if shuffled: {named}.",
            ]
    return lines


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %"
