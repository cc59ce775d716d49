"""Tests of the seeded faults: each has a complete header, names existing tests, and applies to the code."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.seeded_faults.__main__ import ROOT, Fault, main, read_faults, run_tests

AT_LEAST = 40
FAULTS = read_faults()


def test_has_at_least_forty_faults() -> None:
    assert len(FAULTS) >= AT_LEAST


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_header_is_complete(fault: Fault) -> None:
    assert re.fullmatch(r"[A-Z].{20,}\.", fault.text)
    assert fault.tests == tuple(dict.fromkeys(fault.tests))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_named_test_file_exists(fault: Fault) -> None:
    assert [test for test in fault.tests if not (ROOT / test.partition("::")[0]).is_file()] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_patch_changes_only_product_code(fault: Fault) -> None:
    changed = re.findall(r"^\+\+\+ b/(\S+)$", fault.patch.read_text(), re.MULTILINE)
    assert len(changed) == 1
    assert Path(changed[0]).parts[0] in ("tracer", "simulator", "learner", "datasets", "vramcast")


@pytest.mark.integration
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_patch_applies(fault: Fault, tmp_path: Path) -> None:
    # Apply in a copy of the changed file, so that a checkout without git is checked too.
    (name,) = re.findall(r"^\+\+\+ b/(\S+)$", fault.patch.read_text(), re.MULTILINE)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    check = ["git", "apply", "--check", str(fault.patch)]
    done = subprocess.run(check, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("status", "outcome"), [(0, "missed"), (1, "found"), (2, "error"), (4, "error"), (5, "error")])
def test_only_failed_test_finds_fault(status: int, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "...\nFAILED tests/core/test_units.py::test_a[x - y] - assert 1 == 2\n1 failed" if status == 1 else ""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            command, status if "pytest" in command else 0, said if "pytest" in command else "", ""
        )

    monkeypatch.setattr(subprocess, "run", run)
    found, test = run_tests(tmp_path, None, ["-m", ""])
    assert found == outcome
    assert status != 1 or test == "tests/core/test_units.py::test_a[x - y]"


def test_lane_without_tests_misses_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 5, "", ""))
    assert run_tests(tmp_path, None, ["-m", "not integration"]) == ("missed", "the lane has none of the tests")


def test_rejects_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-fault"])
    assert "no-such-fault" in capsys.readouterr().err
