"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vramcast.cli.main import main


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command in this process; returns exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse's own way out
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run
