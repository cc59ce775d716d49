"""Requests of single operators on a card, by the rules."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramcast.hardware.cards import device  # noqa: E402
from vramcast.tracer.format.trace import Action  # noqa: E402
from vramcast.tracer.recording.recorder import ProfilePlace  # noqa: E402
from vramcast.tracer.rules.convolution_workspaces import ConvolutionWorkspaces  # noqa: E402
from vramcast.tracer.rules.history import History  # noqa: E402
from vramcast.tracer.rules.operator_call import OperatorCall  # noqa: E402
from vramcast.tracer.rules.rule_table import RULES  # noqa: E402


def requests(func: Any, *args: Any) -> list[int]:
    """Return the sizes of an operator's requests in addition to its results."""
    card, history = device("a100"), History()
    workspaces = ConvolutionWorkspaces(card, card.total_bytes)
    RULES[func](
        OperatorCall(
            func, args, {}, (), card, history, ProfilePlace(), workspaces, lambda _: True, torch.Tensor.untyped_storage
        )
    )
    trace = history.trace({})
    return [int(size_bytes) for size_bytes in trace.size_bytes[trace.action == Action.ALLOC]]


@pytest.mark.parametrize(("length", "rows"), [(128, 128), (129, 256), (512, 512), (520, 640)])
def test_flash_attention_backward_rounds_rows_to_128(length: int, rows: int) -> None:
    # PyTorch's mha_bwd in flash_api.cpp rounds the length of the queries up to 128, and a head's width to 32: fp32 sums of a
    # row's products, and the gradient of the queries. The null GPU runs that code, and makes the same requests.
    query, gradient = (torch.empty(2, length, 4, 64, dtype=torch.bfloat16, device="meta").transpose(1, 2) for _ in range(2))
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    assert requests(backward, gradient, query, query, query, gradient) == [4 * 2 * 4 * rows, 4 * 2 * 4 * rows * 64]
