"""`vramcast doctor --measure-context`: the context of this machine's card, measured and put into the site file.

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
from vramcast.hardware.site_file import VARIABLE, SiteContext, context_block, write_contexts

_PROBE = "vramcast.datasets.collector.context_probe"
_MOST_S = 120.0  # arbitrary: two seconds on a machine whose packages are in its memory


def measured(machine: Machine) -> list[SiteContext]:
    """Return the contexts of the machine's card: bare, and after kernels.

    Raises:
        CannotEstimate: there is no card, or nobody can tell what it holds.
    """
    card = _asked(machine, None)
    told = _asked(machine, card["uuid"])
    ran = {name for name, of in (("cublas", MATMULS), ("cudnn", CONVOLUTIONS)) if not set(of) <= told["failed"].keys()}
    found = {frozenset[str](): told["bare_bytes"]}
    if ran:
        found[frozenset(ran)] = told["kernels_bytes"]
    sizes = {libraries: round(size / MIB, 2) for libraries, size in found.items()}
    return [
        SiteContext(card["gpu"], card["torch"], told["driver"], libraries, mib, mib, mib, "")
        for libraries, mib in sizes.items()
    ]


def _asked(machine: Machine, uuid: str | None) -> dict[str, Any]:
    told: dict[str, Any] = machine.run(_PROBE, uuid, _MOST_S)
    if "absent" in told:
        raise CannotEstimate(f"No context was measured: {told['absent']}. Run this on the machine which has the card.")
    return told


def measure_context(options: argparse.Namespace) -> int:
    """Measure, write, and say what and where; return 0."""
    machine = RealGpu()
    try:
        with progress("measuring the context"):
            contexts = measured(machine)
    finally:
        machine.close()
    file = options.site or os.environ.get(VARIABLE) or None
    if file is not None:
        write_contexts(file, contexts)
    if options.json:
        rows = [
            {
                "gpu": one.gpu, "torch": one.torch, "driver": one.driver, "libraries": sorted(one.libraries),
                "size_mib": one.size_mib,
            }
            for one in contexts
        ]  # fmt: skip
        answer(json.dumps({"schema": 1, "file": file, "contexts": rows}))
        return 0
    first = contexts[0]
    answer(f"{first.gpu}, torch {first.torch}, driver {first.driver}")
    for one in contexts:
        when = f"after kernels of torch, {' and '.join(sorted(one.libraries))}" if one.libraries else "bare"
        answer(f"  {when}: {one.size_mib} MiB")
    if file is None:
        answer(f"Nothing was written: name a file with --site or {VARIABLE}, or put this into yours.\n")
        answer("\n".join(map(context_block, contexts)), end="")
        return 0
    answer(f"written to {file}" + ("" if os.environ.get(VARIABLE) == file else f"; it is used where {VARIABLE} names it"))
    return 0
