"""Decision on a submission: the options to change, the message for its user, and whether it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from vramcast.cluster.answer import Answer, Unanswerable
from vramcast.cluster.slurm.comment_field import Ticket
from vramcast.cluster.slurm.options import CARD_OPTIONS, RequestedResources
from vramcast.cluster.slurm.site_settings import SiteSettings
from vramcast.core.errors import NoAnswer
from vramcast.core.units import gib

_SAYS: Final = "vramcast: "


@dataclass(slots=True)
class Decision:
    """A decision for Slurm.

    Attributes:
        line: Message for the user; "": none.
        is_refused: Whether the submission fails.
        changes: New options by long name; "" removes one.
    """

    line: str = ""
    is_refused: bool = False
    changes: dict[str, str] = field(default_factory=dict)


def decide(
    asked: RequestedResources,
    answers: Mapping[str, Answer | NoAnswer],
    settings: SiteSettings,
    *,
    steps_ask_for_cards: bool = False,
) -> Decision:
    """Return the decision on a job.

    Args:
        asked: The resources it requests.
        answers: By partition of the settings, the answer for its card, or the reason why there is none.
        settings: The site's settings.
        steps_ask_for_cards: Whether its own `srun` requests `gpu`.
    """
    wanted = [name for name in (asked.partitions or settings.partitions) if name in answers]
    if not wanted or len(wanted) < len(asked.partitions):
        return Decision()  # the card of a partition is unknown here
    known = {name: answer for name in wanted if isinstance(answer := answers[name], Answer)}
    if not known:
        return unanswered(next(one for name in wanted if isinstance(one := answers[name], NoAnswer)), settings)
    roomy = [name for name, answer in known.items() if answer.may_run]
    if not roomy:
        if len(known) < len(wanted):
            return Decision()  # a partition without an answer may have room
        return _refused(known, answers, settings, asked.comment)
    return _granted(roomy, known, asked, settings, steps_ask_for_cards=steps_ask_for_cards)


def unanswered(why: NoAnswer, settings: SiteSettings) -> Decision:
    """Return the decision on a job without an answer: unless the settings refuse it, it is submitted unchanged."""
    if settings.when_away == "refuse" and not isinstance(why, Unanswerable):
        return Decision(f"{_SAYS}refused: {why}. Submit again in a minute.", is_refused=True)
    return Decision(f"{_SAYS}no estimate ({why}); the job is submitted unchanged.")


def _refused(
    known: Mapping[str, Answer], answers: Mapping[str, Answer | NoAnswer], settings: SiteSettings, comment: str
) -> Decision:
    cards = ", ".join(
        f"{settings.partitions[name]} ({gib(answer.capacity_bytes)}, partition {name})" for name, answer in known.items()
    )
    roomy = [name for name, answer in answers.items() if isinstance(answer, Answer) and answer.may_run]
    advice = f"It fits in partition {roomy[0]}." if roomy else "No partition has a larger card: make the job smaller."
    line = f"the job needs {gib(min(one.process_bytes for one in known.values()))}, more than {cards}. {advice}"
    if settings.mode == "watch":  # it runs, and its end is worth recording
        one = next(iter(known.values()))
        return Decision(f"{_SAYS}{line}", changes=_ticket(one, one.capacity_bytes, comment))
    return Decision(f"{_SAYS}refused: {line}", is_refused=True)


def _granted(
    roomy: list[str],
    known: Mapping[str, Answer],
    asked: RequestedResources,
    settings: SiteSettings,
    *,
    steps_ask_for_cards: bool,
) -> Decision:
    """Return the decision on a job that fits somewhere: any partition with room it requested, else the first with room."""
    possible = roomy if asked.partitions else roomy[:1]
    answer = max((known[name] for name in possible), key=lambda one: one.request_bytes)
    shards, most = shards_of(answer.request_bytes, settings), answer.capacity_bytes // settings.shard_bytes
    share = f"for {answer.holds_for}" if answer.holds_for else f"at {settings.level:g}"
    takes = f"{_SAYS}{gib(answer.process_bytes)}, at most {gib(answer.request_bytes)} {share}"
    changes: dict[str, str] = {}
    if not asked.partitions:
        changes["partition"] = roomy[0]
    elif set(roomy) < set(asked.partitions) and len(known) == len(asked.partitions):
        changes["partition"] = ",".join(roomy)
    granted_bytes = answer.capacity_bytes
    if asked.cards > 1:
        line = f"{takes} of each card; the request for {asked.cards} cards is unchanged."
    elif asked.shards:
        line, granted = _of_shards(asked.shards, min(shards, most), shards_of(answer.process_bytes, settings), takes)
        granted_bytes = min(granted * settings.shard_bytes, answer.capacity_bytes)
        if granted != asked.shards:
            changes |= _gres(granted, most, asked)
    elif shards >= most:
        line = f"{takes}: the whole card."
        changes |= {} if asked.cards else _gres(shards, most, asked)
    elif asked.cards and (answer.steps_ask_for_cards or steps_ask_for_cards or not settings.shrinks):
        why = "because its steps request gpu themselves" if settings.shrinks else "as requested"
        line = f"{takes}; it keeps the whole card {why}."
    else:
        line = f"{takes}: {shards} of {most} shards{' instead of the whole card' if asked.cards else ''}."
        changes |= _gres(shards, most, asked)
        granted_bytes = shards * settings.shard_bytes
    comment = _ticket(answer, granted_bytes, asked.comment)
    if settings.mode == "watch":
        return Decision(f"{line.rstrip('.')} (watch mode: nothing is changed).", changes=comment)
    return Decision(line, changes=changes | comment)


def _ticket(answer: Answer, granted_bytes: int, comment: str) -> dict[str, str]:
    """Return a comment with a job's ticket; commands that overlap have no single estimate, and get no ticket."""
    return {"comment": Ticket(answer.id, granted_bytes, answer.capacity_bytes).added_to(comment)} if answer.id else {}


def _of_shards(asked: int, needed: int, least: int, takes: str) -> tuple[str, int]:
    """Return the message for a job that requests shards itself, and the number of shards it gets."""
    if asked >= needed:
        return f"{takes}: the {asked} shards are enough ({needed} would be).", asked
    if asked >= least:
        return f"{takes}: {asked} shards may be too few, {needed} would be enough.", asked
    return f"{takes}: {asked} shards are too few; the job gets {needed}.", needed


def shards_of(size_bytes: int, settings: SiteSettings) -> int:
    """Return the number of shards that hold this many bytes."""
    return max(1, -(-size_bytes // settings.shard_bytes))


def _gres(shards: int, most: int, asked: RequestedResources) -> dict[str, str]:
    """Return the options that request shards, or the whole card if these are all its shards; other resources stay."""
    wanted = "gpu:1" if shards >= most else f"shard:{shards}"
    return {"gres": ",".join((wanted, *asked.others)), **dict.fromkeys(CARD_OPTIONS, "")}
