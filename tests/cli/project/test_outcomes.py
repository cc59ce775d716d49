"""Results of a check, written and read back: from itself, from an artifact, from an untrusted file."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cli.project.outcomes import WORST, JobOutcome, Outcomes, load
from vramcast.core.errors import UsageError

Make = Callable[..., JobOutcome]


def test_exit_code_is_the_worst() -> None:
    for codes in permutations(WORST, 3):
        jobs = {str(code): JobOutcome({}, code, "") for code in codes}
        assert Outcomes(jobs).exit_code == next(code for code in (2, 1, 3, 4, 0) if code in codes)
    assert Outcomes({}).exit_code == 0


def test_round_trips_through_file(tmp_path: Path, outcome: Make) -> None:
    found = Outcomes({"a": outcome(100, batch="8x16"), "b": outcome(None, code=3, verdict="no\nanswer")})
    (tmp_path / "found.json").write_text(json.dumps(found.to_dict()))
    assert load(tmp_path / "found.json") == found


WRONG: list[Any] = [
    [], {}, 5, None, {"schema": 1}, {"schema": 2, "jobs": {}, "vramcast": "1"}, {"schema": 1, "jobs": [], "vramcast": "1"},
    *(
        {"schema": 1, "vramcast": "1", "jobs": {"a": job}}
        for job in (
            5, {}, {"asked": {}, "exit_code": 9, "verdict": "", "estimate": None},
            {"asked": [], "exit_code": 0, "verdict": "", "estimate": None},
            {"asked": {}, "exit_code": 0, "verdict": "", "estimate": {}},
            {"asked": {}, "exit_code": 0, "verdict": "", "estimate": {"peaks": {"process": "1"}}},
            {"asked": {}, "exit_code": 0, "verdict": "", "estimate": {"peaks": {"process": -1}}},
            {"asked": {}, "exit_code": 0, "verdict": "", "estimate": [{"peaks": 1}]},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("values", WRONG)
def test_rejects_other_file_with_next_step(tmp_path: Path, values: Any) -> None:
    (tmp_path / "found.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match="vramcast check --results"):
        load(tmp_path / "found.json")


@pytest.mark.parametrize("said", [b"", b"\xff", b"{", b"[" * 200_000, b"NaN"])
def test_rejects_invalid_json(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "found.json").write_bytes(said)
    with pytest.raises(UsageError, match="vramcast check --results"):
        load(tmp_path / "found.json")


def test_rejects_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.json.*cannot be read"):
        load(tmp_path / "absent.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["schema", "jobs", "asked", "exit_code", "estimate", "peaks", "process", "a"]), inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_file_gives_no_traceback(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"schema": 1, "vramcast": "1", "jobs": values}))
    with suppress(UsageError):
        load(path)
