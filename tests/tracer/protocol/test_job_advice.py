"""Advice on exceptions of jobs."""

from __future__ import annotations

from urllib.error import URLError

import pytest

from vramcast.tracer.protocol.job_advice import advice


def raised_in(file: str, error: BaseException) -> BaseException:
    """Return an error raised in a file of that name."""
    space = {"error": error}
    with pytest.raises(type(error)) as found:
        exec(compile("raise error", file, "exec"), space)
    return found.value


@pytest.mark.parametrize("file", ["/site-packages/torch/hub.py", "/site-packages/torchvision/models/_api.py"])
def test_unfetched_weights_are_unnecessary(file: str) -> None:
    assert "weights=None" in advice(raised_in(file, URLError("Name or service not known")))


def test_suggests_downloading_file_first() -> None:
    assert "download the file first" in advice(raised_in("train.py", ConnectionError("refused")))


@pytest.mark.parametrize(
    ("message", "way"),
    [
        ("No module named 'flash_attn'", 'attn_implementation="sdpa"'),
        ("FlashAttention2 has been toggled on, but it cannot be used: the package flash_attn seems not to be there", "sdpa"),
        ("'NeighborSampler' requires either 'pyg-lib' or 'torch-sparse'; No module named 'torch_sparse'", "sparse_csr"),
        ("No module named 'apex'", "fused=True"), ("No module named 'numpy.linalg.flashy'", ""),
    ],
)  # fmt: skip
def test_an_absent_package_has_a_substitute(message: str, way: str) -> None:
    found = advice(ModuleNotFoundError(message))
    assert way in found if way else not found
    assert not advice(ValueError(message))


def test_terminal_input_suggests_pipe() -> None:
    assert "echo yes | vramcast run" in advice(EOFError("EOF when reading a line"))


@pytest.mark.parametrize("error", [EOFError("Ran out of input"), ValueError("no data"), TimeoutError("30 s")])
def test_jobs_own_errors_get_no_advice(error: Exception) -> None:
    assert advice(raised_in("train.py", error)) == ""
