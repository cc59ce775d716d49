"""What an operator is, read from its name: the one place which knows how PyTorch's tracers spell the same thing.

`aten::cudnn_convolution` asks forward, `aten::convolution_backward` backward; where autograd's node asks itself, it is
`ConvolutionBackward0`. So names are read without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

# spec: torch 2.11, native_functions.yaml. `convert` is no convolution: `_convert_indices_from_coo_to_csr`.
CONVOLUTION: Final = re.compile(r"conv(?!ert)", re.IGNORECASE)


def is_convolution(name: str) -> bool:
    """Return whether an operator is a convolution, forward or backward."""
    return CONVOLUTION.search(name) is not None


def convolutions(names: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Return for each operator of a trace whether it is a convolution; the last entry, which index -1 finds, is none."""
    return np.array([*(is_convolution(name) for name in names), False])
