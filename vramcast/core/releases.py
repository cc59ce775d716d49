"""The releases of PyTorch that vramcast was tried with, and the one that its numbers were made with."""

from __future__ import annotations

from typing import Final

REFERENCE: Final = "2.14.1"  # arbitrary: that of the group `torch` in pyproject.toml; a test compares the two
INSTALL: Final = f"pip install torch=={REFERENCE}"
# measured: `python -m benchmarks.new_torch` under each
SEEN: Final = ((2, 6), (2, 9), (2, 10), (2, 11), (2, 13), (2, 14), (2, 15))
# measured: null GPU, benchmarks.surveys.versions; since then each product of matrices frees its workspace
FREES_WORKSPACES: Final = (2, 15)
