"""Generator of simulator/csrc/rules.h: the allocator's constants and the simulator's enumerations, from Python.

python -m benchmarks.simulator.allocator_header
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from vramcast.simulator import rules
from vramcast.simulator.card import BASE, CHUNK_BYTES, PAGE_BYTES, SPAN, AddressPolicy
from vramcast.simulator.requests import RequestKind
from vramcast.tracer.format.trace import Action

PATH = Path(__file__).resolve().parents[2] / "simulator" / "csrc" / "rules.h"
_BYTES = {
    "MIN_BLOCK": (rules.MIN_BLOCK_BYTES, "every block is a multiple of it"),
    "SMALL": (rules.SMALL_BYTES, "the largest request that the small pool serves"),
    "SMALL_SEGMENT": (rules.SMALL_SEGMENT_BYTES, "segment, and page of expandable segments, of small pools"),
    "MIN_LARGE": (rules.MIN_LARGE_BYTES, "from this size on, a segment is as large as its first block"),
    "ROUND_LARGE": (rules.ROUND_LARGE_BYTES, "and a multiple of this"),
    "PAGE": (PAGE_BYTES, "the driver's"),
    "CHUNK": (CHUNK_BYTES, "chunk of addresses on Linux"),
    "BASE": (BASE, "first address"),
    "SPAN": (SPAN, "size of the address range"),
}


def header() -> str:
    """Return the header's text."""
    lines = ["/* Made by benchmarks/simulator/allocator_header.py from simulator/rules.py, which names the sources. */"]
    lines += [f"#define {name} {size_bytes}ll /* {meaning} */" for name, (size_bytes, meaning) in _BYTES.items()]
    lines.append(f"#define N_INTERVALS {rules.N_INTERVALS}")
    wanted = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP, Action.OOM)
    enums = (
        ("request", [(kind.name, int(kind)) for kind in RequestKind]),
        ("action", [(action.name, int(action)) for action in wanted]),
        ("policy", [(name.upper(), number) for number, name in enumerate(get_args(AddressPolicy))]),
    )
    lines += [f"enum {name} {{ {', '.join(f'{member} = {value}' for member, value in members)} }};" for name, members in enums]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(header())
