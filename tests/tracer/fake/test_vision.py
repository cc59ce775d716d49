"""The replacement of torchvision's operators, compared with its own library."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from vramcast.tracer.fake.vision import suppress  # noqa: E402
from vramcast.tracer.program.imports import define_torchvision_operators  # noqa: E402


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
def test_suppresses_boxes_like_torchvision(seed: int, threshold: float) -> None:
    if define_torchvision_operators():
        pytest.skip("torchvision's library does not load with this torch")
    ops = pytest.importorskip("torchvision.ops")
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(60, 2, generator=generator) * 50
    boxes = torch.cat([corners, corners + torch.rand(60, 2, generator=generator) * 30], 1)
    scores = torch.rand(60, generator=generator)
    assert suppress(boxes, scores, threshold).tolist() == ops.nms(boxes, scores, threshold).tolist()


def test_no_boxes_leave_none() -> None:
    assert suppress(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []
