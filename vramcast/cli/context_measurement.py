"""`vramcast doctor --measure-context`: measure the CUDA context of this machine's card and write it to the site file.

vramcast doctor --measure-context --site site.toml
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from vramcast.cli.streams import answer
from vramcast.cli.terminal import progress
from vramcast.core.errors import CannotEstimate
from vramcast.core.units import MIB
from vramcast.datasets.collector.context_probe import CONVOLUTIONS, MATMULS
from vramcast.datasets.collector.machine import Machine, RealGpu
from vramcast.hardware.card_file import ContextRow, Interval
from vramcast.hardware.cards import SITE_VARIABLE
from vramcast.hardware.site_contexts import context_block, fields, write_contexts

_PROBE = "vramcast.datasets.collector.context_probe"
_MOST_S = 120.0  # arbitrary: it takes two seconds where the packages are in the page cache


def measured(machine: Machine) -> list[ContextRow]:
    """Return the contexts of the machine's card: bare, and after kernels.

    Raises:
        CannotEstimate: There is no card, or its memory use cannot be read.
    """
    card = _asked(machine, None)
    reply = _asked(machine, card["uuid"])
    ran = {name for name, of in (("cublas", MATMULS), ("cudnn", CONVOLUTIONS)) if not set(of) <= reply["failed"].keys()}
    found = {frozenset[str](): reply["bare_bytes"]}
    if ran:
        found[frozenset(ran)] = reply["kernels_bytes"]
    sizes = {libraries: round(size / MIB, 2) for libraries, size in found.items()}
    return [
        ContextRow((card["gpu"],), libraries, Interval(mib, mib, mib), "", (card["torch"],), reply["driver"])
        for libraries, mib in sizes.items()
    ]


def _asked(machine: Machine, uuid: str | None) -> dict[str, Any]:
    reply: dict[str, Any] = machine.run(_PROBE, uuid, _MOST_S)
    if "absent" in reply:
        raise CannotEstimate(f"No context was measured: {reply['absent']}. Run this on the machine that has the card.")
    return reply


def measure_context(options: argparse.Namespace) -> int:
    """Measure the context, write it, and report where; return 0."""
    machine = RealGpu()
    try:
        with progress("measuring the context"):
            contexts = measured(machine)
    finally:
        machine.close()
    file = options.site or os.environ.get(SITE_VARIABLE) or None
    if file is not None:
        write_contexts(file, contexts)
    if options.json:
        answer(json.dumps({"schema": 1, "file": file, "contexts": list(map(fields, contexts))}))
        return 0
    first = fields(contexts[0])
    answer(f"{first['gpu']}, torch {first['torch']}, driver {first['driver']}")
    for one in contexts:
        when = f"after kernels of torch, {' and '.join(sorted(one.libraries))}" if one.libraries else "before any kernel"
        answer(f"  {when}: {one.size.mib} MiB")
    if file is None:
        answer(f"Nothing was written: name a file with --site or {SITE_VARIABLE}, or copy these lines into your site file.\n")
        answer("\n".join(map(context_block, contexts)), end="")
        return 0
    answer(
        f"written to {file}"
        + ("" if os.environ.get(SITE_VARIABLE) == file else f"; to use it, set {SITE_VARIABLE} to this file")
    )
    return 0
