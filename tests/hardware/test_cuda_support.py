"""Cards that CUDA has dropped are refused before a job runs."""

from __future__ import annotations

import pytest

from vramcast.core.errors import UsageError
from vramcast.hardware import cuda_support
from vramcast.hardware.cards import device


@pytest.mark.parametrize(
    ("cuda", "card", "dropped"),
    [(13, "v100", True), (13, "p100-16gb", True), (13, "t4", False), (13, "h200", False), (0, "v100", False)],
)
def test_volta_and_older_need_cuda_12(monkeypatch: pytest.MonkeyPatch, cuda: int, card: str, dropped: bool) -> None:
    monkeypatch.setattr(cuda_support, "installed_cuda", lambda: cuda)
    assert cuda_support.is_dropped(device(card)) is dropped
    if dropped:
        with pytest.raises(UsageError, match=r"cu126.*--on t4 --memory 15\.\d+GiB"):
            cuda_support.refuse_dropped(device(card))
    else:
        cuda_support.refuse_dropped(device(card))


@pytest.mark.parametrize(("version", "major"), [("13.0.96", 13), ("14.1", 14), ("dev", 0)])
def test_installed_cuda_is_that_of_its_runtime(monkeypatch: pytest.MonkeyPatch, version: str, major: int) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert cuda_support.installed_cuda.__wrapped__() == major
