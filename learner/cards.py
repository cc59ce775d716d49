"""CARD.md of an artifact: what it was made of, how well it did on models which it had not seen, and what it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.learner.model import Learned
from vramcast.units import MIB


def card_text(learned: Learned, name: str, facts: Mapping[str, Any]) -> str:
    """Return the card as Markdown.

    Args:
        learned: The artifact.
        name: What to call it.
        facts: Further lines for "Made from": sources, licences, versions.
    """
    card = learned.card
    lines = [
        f"# {name}",
        "",
        "A learned correction of vramcast: quantiles of measured / simulated reserved memory, and the context by stack.",
        "",
        "## Made from",
        "",
        f"- {card['runs']} runs of {card['groups']} models, {card['censored']} of them lower bounds (out of memory)",
        *(f"- {key}: {value}" for key, value in facts.items()),
        f"- seed {card['seed']}, {card['folds']} folds by model, parameters {card['parameters'] or 'default'}",
        "",
        "## On models which it had not seen",
        "",
        "| group | runs | simulated, median | p90 | corrected, median | p90 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for what, groups in card["by"].items():
        for group, errors in groups.items():
            cells = [errors[key] for key in ("simulated_median", "simulated_p90", "corrected_median", "corrected_p90")]
            shown = " | ".join(f"{100 * value:.2f} %" for value in cells)
            lines.append(f"| {what} {group or '(none)'} | {errors['runs']:.0f} | {shown} |")
    where = ", ".join(sorted(learned.helps)) or "nowhere: the simulation is used as it is"
    lines += ["", f"The correction is used for: {where}.", "", "## Context by stack", ""]
    if learned.contexts:
        lines += ["| stack | MiB | 90 % between | runs |", "|---|---:|---:|---:|"]
        lines += [
            f"| {stack} | {c.size_bytes / MIB:.0f} | {c.low_bytes / MIB:.0f} to {c.high_bytes / MIB:.0f} | {c.n} |"
            for stack, c in learned.contexts.items()
        ]
    else:
        lines.append("None: no process peak was measured.")
    lines += [
        "",
        "## Limits",
        "",
        "- Bounds hold on average over jobs like those above; a job unlike them is flagged and its bound is wider.",
        "- A bound is calibrated on the runs of its GPU and family, else of its family, its kind, or all; which, the",
        "  estimate says. A level q takes q / (1 - q) models.",
        "- Runs of one model count as one.",
        "",
    ]
    return "\n".join(lines)
