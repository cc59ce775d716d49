"""A parser of `deepspeed`: its options, the machines and cards that they select, and the variables of the script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.jobs.commands.launcher import OPTIONS, Launcher, LauncherProcesses, first_rank, whole_number
from vramcast.jobs.ranks import Rank, World

_HOSTS: Final = "/job/hostfile"  # spec: DeepSpeed 0.19, launcher/runner.py, DLTS_HOSTFILE
_HOST: Final = re.compile(r"(\S+)\s+slots=(\d+)")  # spec: the same, _parse_hostfile
_SAY: Final = "give --num_nodes and --num_gpus"


def _of_deepspeed(options: dict[str, Any], words: tuple[str, ...], environment: Mapping[str, str]) -> LauncherProcesses:
    if options.get("autotuning"):
        raise CannotEstimate("deepspeed --autotuning runs many jobs: omit it, and vary the script's own options.")
    world = _world(options, environment)
    kept = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    ranks = {name: value for name, value in first_rank(world).items() if name in kept}
    ranks |= Rank(0, world).variables({"LOCAL_SIZE": "", "CROSS_RANK": "", "CROSS_SIZE": ""})  # spec: DeepSpeed 0.18, launch.py
    arguments = words[1:] if "no_local_rank" in options else ("--local_rank=0", *words[1:])
    return LauncherProcesses((words[0], *arguments), "module" in options, "no_python" in options, ranks, world)


def _world(options: Mapping[str, Any], environment: Mapping[str, str]) -> World:
    """Return the ranks and machines.

    Raises:
        UsageError: DeepSpeed would reject these options, or they do not determine the ranks.
        CannotEstimate: Machines have different numbers of ranks.
    """
    include, exclude = options.get("include", ""), options.get("exclude", "")
    nodes = whole_number("--num_nodes", options.get("num_nodes", "-1"))
    cards = whole_number("--num_gpus", options.get("num_gpus", "-1"))
    if (include and exclude) or ((include or exclude) and max(nodes, cards) >= 0):
        raise UsageError("deepspeed: give either --include, or --exclude, or --num_nodes and --num_gpus.")
    hosts = _hosts(options.get("hostfile", _HOSTS))
    if hosts:
        chosen = _filtered(hosts, include, exclude)
        sizes = [cards if cards > 0 else len(slots) for slots in chosen.values()][: nodes if nodes > 0 else None]
        if not sizes:
            raise UsageError("deepspeed: --exclude leaves no card.")
    elif exclude:
        raise UsageError(f"deepspeed --exclude: no host file here gives the number of cards of a machine: {_SAY}.")
    elif include:
        sizes = [max(len(slots), 1) for slots in _named(include).values()]
    elif max(nodes, cards) < 0 and "hostfile" in options:
        raise UsageError(
            f"deepspeed: the host file '{options['hostfile']}', which gives the number of ranks, does not exist: {_SAY}."
        )
    else:
        seen = environment.get("CUDA_VISIBLE_DEVICES", "")  # DeepSpeed uses it if no option selects cards
        visible = len(seen.split(",")) if nodes <= 1 and cards <= 0 and seen not in ("", "-1") else 1
        sizes = [cards if cards > 0 else visible] * max(nodes, 1)
    if len(set(sizes)) > 1:
        numbers = ", ".join(map(str, sizes))
        raise CannotEstimate(f"deepspeed: the machines have {numbers} ranks: only machines with equal numbers are supported.")
    return World(sum(sizes), sizes[0])


def _hosts(path: str) -> dict[str, list[int]]:
    """Return the machines of a host file with their cards; none if there is no such file, as in DeepSpeed."""
    if not Path(path).is_file():
        return {}
    hosts: dict[str, list[int]] = {}
    for line in map(str.strip, Path(path).read_text(encoding="utf-8").splitlines()):
        if line and not line.startswith("#"):
            found = _HOST.match(line)
            if found is None or found[1] in hosts:
                raise UsageError(f"deepspeed: the host file '{path}' has a line that DeepSpeed rejects: {line}")
            hosts[found[1]] = list(range(int(found[2])))
    if not hosts:
        raise UsageError(f"deepspeed: the host file '{path}' names no machine.")
    return hosts


def _named(text: str) -> dict[str, set[int]]:
    """Parse `worker-0@worker-1:0,2`; a machine without cards means all of its cards."""
    named: dict[str, set[int]] = {}
    for part in text.split("@"):
        host, _, slots = part.partition(":")
        numbers = {whole_number("a card of --include or --exclude", slot) for slot in slots.split(",")} if slots else set()
        named[host] = named.get(host, set()) | numbers
    return named


def _filtered(hosts: Mapping[str, list[int]], include: str, exclude: str) -> dict[str, list[int]]:
    """Return the selected machines and cards, in the order of the host file."""
    if not include and not exclude:
        return dict(hosts)
    named = _named(include or exclude)
    for host, slots in named.items():
        if host not in hosts or not slots <= set(hosts[host]):
            raise UsageError(f"deepspeed: '{include or exclude}' names a machine or a card that is not in the host file.")
    left: dict[str, list[int]] = {}
    for host, cards in hosts.items():
        asked = (named[host] or set(cards)) if host in named else set()
        left[host] = [card for card in cards if (card in asked) == bool(include)]
    return {host: cards for host, cards in left.items() if cards}


DEEPSPEED: Final = Launcher("deepspeed", OPTIONS["deepspeed"]["valued"], OPTIONS["deepspeed"]["flags"], _of_deepspeed)
