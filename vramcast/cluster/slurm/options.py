"""Resources that a submission requests, from its options in cli_filter's form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vramcast.core.checks import decimal

# spec: sbatch(1); each may give cards, per job, node, socket or task
CARD_OPTIONS: Final = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
_COUNTED: Final = re.compile(r"(?:gres[:/])?(gpu|shard)(?:[:/=][A-Za-z_][\w.-]*)?(?:[:=]([0-9]{1,9}))?(?:\(.*\))?")

_NODES: Final = re.compile(r"([0-9]{1,6})([kKmM]?)(?![0-9a-zA-Z])")
_THOUSANDS: Final = {"": 1, "k": 1024, "m": 1024**2}  # spec: sbatch(1), --nodes: "2k" is 2048


@dataclass(frozen=True, slots=True)
class RequestedResources:
    """The resources that a job requests.

    Attributes:
        cards: Whole cards, on all nodes; 0: none.
        shards: Shards on one node; 0: none.
        partitions: Partitions named; empty: Slurm's default.
        nodes: Number of nodes.
        tasks: Number of processes that `srun` starts.
        others: Other generic resources, which stay unchanged.
        comment: The user's comment.
    """

    cards: int
    shards: int
    partitions: tuple[str, ...]
    nodes: int
    tasks: int
    others: tuple[str, ...] = ()
    comment: str = ""

    @property
    def is_of_gpus(self) -> bool:
        """Return whether the job requests cards, whole or in parts."""
        return bool(self.cards or self.shards)


def read_options(options: Mapping[str, Any]) -> RequestedResources:
    """Return the resources that options request.

    Args:
        options: Options by long name, in the form of `slurm.json_cli_options`.
    """

    def text(name: str) -> str:
        value = options.get(name)
        return value if isinstance(value, str) else ""

    nodes = _first_number(text("nodes")) or 1
    tasks = _first_number(text("ntasks")) or nodes * _first_number(text("ntasks-per-node"))
    per_card = _first_number(text("ntasks-per-gpu"))
    cards, shards, others = 0, 0, []
    for part in filter(None, text("gres").split(",")):
        match = _COUNTED.fullmatch(part)
        if match is None:
            others.append(part)
        elif match[1] == "gpu":
            cards += int(match[2] or 1) * nodes
        else:
            shards += int(match[2] or 1)
    of_job, per_node, per_task, per_socket = (
        sum(decimal(part.rpartition(":")[2]) or 0 for part in text(name).split(",")) for name in CARD_OPTIONS
    )
    for match in map(_COUNTED.fullmatch, text("tres-per-task").split(",")):
        per_task += int(match[2] or 1) if match and match[1] == "gpu" else 0
    cards = max(cards, of_job, nodes * max(per_node, per_socket))
    # spec: sbatch(1): where the number of tasks is not given, it follows from the cards, and the other way round
    tasks = tasks or cards * per_card or (cards // per_task if per_task else 0) or nodes
    cards = max(cards, tasks * per_task, -(-tasks // per_card) if per_card else 0)
    partitions = tuple(filter(None, text("partition").split(",")))
    return RequestedResources(cards, shards, partitions, nodes, tasks, tuple(others), text("comment"))


def _first_number(text: str) -> int:
    """Return the smallest number of nodes or tasks in `2`, `2-4`, `2k` or `1m`; 0 if there is none. # spec: sbatch(1)"""
    match = _NODES.match(text)
    return int(match[1]) * _THOUSANDS[match[2].lower()] if match else 0
