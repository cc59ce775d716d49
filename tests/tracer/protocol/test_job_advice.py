"""What to do about what a job raised."""

from __future__ import annotations

from urllib.error import URLError

import pytest

from vramcast.tracer.protocol.job_advice import advice


def raised_in(file: str, error: BaseException) -> BaseException:
    """Return an error that was raised in a file of that name."""
    space = {"error": error}
    with pytest.raises(type(error)) as found:
        exec(compile("raise error", file, "exec"), space)
    return found.value


@pytest.mark.parametrize("file", ["/site-packages/torch/hub.py", "/site-packages/torchvision/models/_api.py"])
def test_weights_that_cannot_be_fetched_need_not_be_there(file: str) -> None:
    assert "weights=None" in advice(raised_in(file, URLError("Name or service not known")))


def test_a_file_that_cannot_be_fetched_is_to_be_there_before() -> None:
    assert "download the file first" in advice(raised_in("train.py", ConnectionError("refused")))


def test_a_job_that_asks_a_terminal_is_told_of_pipes() -> None:
    assert "echo yes | vramcast run" in advice(EOFError("EOF when reading a line"))


@pytest.mark.parametrize("error", [EOFError("Ran out of input"), ValueError("no data"), TimeoutError("30 s")])
def test_a_jobs_own_matters_get_no_advice(error: Exception) -> None:
    assert advice(raised_in("train.py", error)) == ""
