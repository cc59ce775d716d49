from __future__ import annotations

import pytest

from vramcast.tracer.operators import convolutions, is_convolution


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::cudnn_convolution", True),
        ("aten::_conv_depthwise2d", True),
        ("aten::convolution_backward", True),
        ("ConvolutionBackward0", True),  # where autograd's node asks itself
        ("aten::_convert_indices_from_coo_to_csr", False),
        ("aten::addmm", False),
    ],
)
def test_convolutions_are_known_by_their_names_in_any_case(name: str, expected: bool) -> None:
    assert is_convolution(name) is expected


def test_no_operator_is_no_convolution() -> None:
    assert convolutions(["aten::mm", "aten::conv2d"]).tolist() == [False, True, False]
    assert convolutions([])[-1:].tolist() == [False]
