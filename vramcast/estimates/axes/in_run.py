"""The axes of a command that are changed while its program runs (`tracer/changes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.estimates.axes.axis import JobAxis
from vramcast.estimates.axes.of_model import divisors
from vramcast.tracer.format.applied_change import applied_change
from vramcast.tracer.protocol.run_options import RunOptions

if TYPE_CHECKING:
    from vramcast.estimates.result import Estimate

AXES_OF_COMMAND: Final = ("batch", "accumulate", "prompt", "lora-rank")
_NONE: Final = {
    "batch": "The command takes no batch from a data loader, TrainingArguments or Ultralytics",
    "prompt": "The command passes no prompt of tokens to `generate` of transformers",
    "lora-rank": "The command makes no LoraConfig of peft",
}
FROM_OUTSIDE: Final = "name what sets it, --axis '{0}=--option', '{0}=env:NAME' or '{0}=config.yaml:key'."
_NEXT: Final = {
    "prompt": "give a script that calls model.generate(input_ids, ...) or a text-generation pipeline. An engine's longest "
    "context is part of its answer (vramcast run)."
}


def axis_in_run(estimate: Estimate, name: str) -> JobAxis:
    """Return an axis of an estimated command.

    Raises:
        UsageError: The command has no such value.
        CannotEstimate: None is possible.
    """
    changed = "batch" if name == "accumulate" else name
    found = applied_change(estimate.trace, changed)
    if found.value is None or found.value < 1:
        raise UsageError(f"{_NONE[changed]}: " + _NEXT.get(changed, FROM_OUTSIDE.format(changed)))
    if found.most is not None and found.most < 1:
        raise CannotEstimate(f"No {name} is possible: {found.limit}. Ask for fewer new tokens.")
    own = found.value

    def to_changes(value: int) -> dict[str, Any]:
        changes: dict[str, Any] = {changed: (own, value) if changed == "batch" else value}
        return changes | ({"accumulate": own // value} if name == "accumulate" else {})

    def options_at(value: int) -> RunOptions:
        return RunOptions(changes=() if value == own else tuple(to_changes(value).items()))

    def way(value: int, changed_estimate: Estimate) -> str:
        seen = [applied_change(changed_estimate.trace, one) for one in to_changes(value)]
        return ", ".join(one.way for one in seen) if all(one.way for one in seen) and seen[0].now == value else ""

    values = divisors(own) if name == "accumulate" else ()
    most, limit = (own, f"the global batch of {own}") if values else (found.most, found.limit)
    return JobAxis(name, own, lambda value: estimate.job, way, options_at, most, limit, values, found.search)
