"""Rules that map jobs of a history to workloads, by the script's text or by the job's name.

    [{"script_sha256": "9f86d0...", "target": "torchvision:resnet50", "batch": ["32x3x224x224"], "optimizer": "sgdm"},
     {"name": "bert-*", "target": "hf:bert", "batch": ["input_ids=8x128:int64<30522"]}]

The first matching rule fills the fields that the history leaves empty; fields in the history stay. A run's own batch size
replaces the first dimension of the rule's tensors. Runs that match no rule
keep their peaks: they serve only as a baseline.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from vramcast.core.errors import DatasetError
from vramcast.core.plain import from_plain, json_value
from vramcast.datasets.histories.reader import whole_text
from vramcast.datasets.run import Run, Workload
from vramcast.jobs.job import TensorSpec, parse_batch


@dataclass(frozen=True, slots=True)
class Rule:
    """A known workload and the jobs it describes: those of a script, or those whose name matches a pattern (fnmatch)."""

    known: Workload
    script_sha256: str | None = None
    name: str | None = None

    def matches(self, workload: Workload) -> bool:
        """Return whether a job matches this rule."""
        if self.script_sha256 is not None:
            return self.script_sha256 == workload.script_sha256
        return self.name is not None and fnmatch.fnmatchcase(workload.name, self.name)


def read_rules(path: str | os.PathLike[str]) -> list[Rule]:
    """Return the rules in a JSON file.

    Raises:
        DatasetError: The file cannot be read, or a rule is wrong; the message names it.
    """
    values = json_value(whole_text(path), f"'{path}'")
    if not isinstance(values, list):
        raise DatasetError(f"'{path}' is not a JSON list of rules: see the example in docs/histories.md.")
    return [_rule(value, f"'{path}' rule {place}") for place, value in enumerate(values)]


def _rule(value: Any, where: str) -> Rule:
    if not isinstance(value, dict):
        raise DatasetError(f"{where} is {str(value)[:40]!r}, but must be an object.")
    keys = [key for key in ("script_sha256", "name") if key in value]
    if len(keys) != 1 or not isinstance(value[keys[0]], str):
        raise DatasetError(f"{where} has {' and '.join(keys) or 'no key'}: give exactly one of name and script_sha256.")
    known = from_plain(Workload, {"name": "*", **value}, where)
    try:
        if known.batch:
            parse_batch(known.batch)
        if known.labels:
            TensorSpec.parse(known.labels)
    except ValueError as error:  # a UsageError, or a number of thousands of digits
        raise DatasetError(f"{where}: {error}") from None
    return Rule(known, **{keys[0]: value[keys[0]]})


def join(runs: Sequence[Run], known: Sequence[Rule]) -> tuple[list[Run], int]:
    """Return the runs, completed by the first matching rule, and the number of runs that matched.

    Args:
        runs: Runs of a history.
        known: Rules, in order of preference.
    """
    joined = []
    matched = 0
    for run in runs:
        rule = next((rule for rule in known if rule.matches(run.workload)), None)
        matched += rule is not None
        joined.append(run if rule is None else replace(run, workload=_filled(run.workload, rule.known)))
    return joined, matched


def _filled(workload: Workload, known: Workload) -> Workload:
    """Return `workload` with its empty fields (None, empty) taken from `known`."""
    names = [field.name for field in fields(Workload) if field.name not in ("name", "user", "gpus")]
    filled = replace(workload, **{name: getattr(workload, name) or getattr(known, name) for name in names})
    if workload.batch_size is None or workload.batch:
        return filled
    # The run's own batch size counts, so that one rule describes a model at every batch size.
    return replace(
        filled,
        batch=tuple(_of_size(text, workload.batch_size) for text in filled.batch),
        labels=_of_size(filled.labels, workload.batch_size) if filled.labels and not workload.labels else filled.labels,
    )


def _of_size(tensor: str, batch_size: int) -> str:
    """Return a tensor's text with another first dimension: `x=8x128:int64` becomes `x=32x128:int64`."""
    return re.sub(r"^((?:[^=:]*=)?)(?:\d+\.\.)?\d+", rf"\g<1>{batch_size}", tensor, count=1)
