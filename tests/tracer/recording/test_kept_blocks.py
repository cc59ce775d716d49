"""The line that allocated each live block: from the allocator's stacks, and for blocks of a backward pass from its caller."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from vramcast.tracer.format.trace import Action, Trace
from vramcast.tracer.program.loops import Loop
from vramcast.tracer.recording.kept_blocks import KeptBlocks


class Account:
    def __init__(self) -> None:
        self.at = 0
        self.live: dict[int, list[tuple[str, int]]] = {}

    def position(self) -> int:
        return self.at

    def live_stacks(self) -> Any:
        for address, stack in self.live.items():
            yield address, [{"filename": file, "line": line, "name": "f"} for file, line in stack]


def test_blocks_have_line_of_latest_request() -> None:
    account: Any = Account()
    kept = KeptBlocks(account)
    account.at = 3
    kept.calls_backward()  # from here
    account.live = {
        64: [("/x/site-packages/torch/nn/modules/linear.py", 125), ("/home/me/model.py", 7), ("/home/me/train.py", 30)],
        128: [],  # a thread of autograd's
    }
    account.at = 5
    kept.look(Loop(0, "evaluation"))
    # The first block at address 64 is gone; another one has its address.
    actions = [Action.ALLOC, Action.FREE_REQUESTED, Action.ALLOC, Action.ALLOC, Action.ALLOC]
    columns = {"action": actions, "size_bytes": [8] * 5, "block": [0, 0, 2, 3, 4], "address": [64, 64, 64, 128, 192]}
    (row, line), (backward_row, backward_line) = kept.facts(Trace.build(columns), lambda at: at)
    assert (row, line) == (2, "/home/me/model.py:7")
    assert backward_row == 3
    assert backward_line.partition(":")[0].endswith("test_kept_blocks.py")
