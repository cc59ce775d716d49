"""The table for readers: the changes, and a job's own words, which never become Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cli.project.comment import MARKER, as_markdown, as_text
from vramcast.cli.project.comparison import Base, ProjectComparison
from vramcast.cli.project.outcomes import JobOutcome, Outcomes, load

Make = Callable[..., JobOutcome]


def compared(now: dict[str, JobOutcome], before: dict[str, JobOutcome] | None = None) -> ProjectComparison:
    return ProjectComparison(Outcomes(now), Base("main", Outcomes(before)) if before is not None else None)


def test_table_lists_changes_since_base(outcome: Make) -> None:
    found = compared(
        {"grown": outcome(2048), "same": outcome(10), "smaller": outcome(100), "fresh": outcome(5)},
        {"grown": outcome(1024), "same": outcome(10), "smaller": outcome(400), "gone": outcome(1)},
    )
    text = as_markdown(found)
    assert text.splitlines()[0] == MARKER
    assert text.splitlines()[1] == "### GPU memory: 4 of 4 jobs fit"
    assert "| job | card | process peak | since main | upper bound | card has | verdict |" in text
    assert "| `grown` | `t4` | 2.00 GiB | +1.00 GiB | 2.50 GiB for 99 of 100 jobs | 15.00 GiB | fits |" in text
    assert "| `same` | `t4` | 10.0 MiB | no change |" in text
    assert "| `smaller` | `t4` | 100.0 MiB | -300.0 MiB |" in text
    assert "| `fresh` | `t4` | 5.0 MiB | new |" in text
    assert "- `No longer checked since main: gone.`" in text


def test_omits_changes_without_base(outcome: Make) -> None:
    text = as_markdown(compared({"a": outcome(2048)}))
    assert "since" not in text
    assert "### GPU memory: 1 of 1 jobs fit" in text


def test_heading_counts_failures(outcome: Make) -> None:
    jobs = {
        "a": outcome(5),
        "b": outcome(9, code=1, verdict="does not fit"),
        "c": outcome(None, code=3, verdict="why"),
        "d": outcome(None, code=3, verdict="why"),
    }
    assert "### GPU memory: 1 does not fit, 2 cannot be estimated, of 4 jobs" in as_markdown(compared(jobs))


def test_remarks_on_incomparable_results(outcome: Make) -> None:
    now = {"a": outcome(5, batch="32x16"), "b": outcome(5, torch="2.12.0"), "c": outcome(5)}
    before = {"a": outcome(5, batch="16x16", lr=1), "b": outcome(5), "c": outcome(None, code=3, verdict="why")}
    found = compared(now, before)
    assert found.remarks == [
        "The table of a has changed since main: batch, lr.",
        f"main was checked with other software (vramcast {found.found.vramcast}, here {found.found.vramcast}; torch, tracer or "
        "artifact differ for b): part of the change may come from the software.",
    ]
    assert "| `c` | `t4` | 5.0 MiB | unknown |" in as_markdown(found)


def test_marks_no_job_as_new_without_base_results(outcome: Make) -> None:
    found = ProjectComparison(Outcomes({"a": outcome(5)}), Base("main", None, "its pyproject.toml has no [tool.vramcast]."))
    text = as_markdown(found)
    assert "- `There is no comparison with main: its pyproject.toml has no [tool.vramcast].`" in text
    assert "| unknown |" in text


def test_json_lists_changes_and_serves_as_base(tmp_path: Path, outcome: Make) -> None:
    found = compared({"a": outcome(2)}, {"a": outcome(1), "gone": outcome(1)})
    values = found.to_dict()
    assert values["since"]["change_bytes"] == {"a": 1 << 20}
    assert values["since"]["removed"] == ["gone"]
    (tmp_path / "r.json").write_text(json.dumps(values))
    assert load(tmp_path / "r.json") == found.found


@pytest.mark.parametrize(
    "said",
    ["@everyone see <img src=x>", "a | b", "`code` **bold**", "two\n\n# lines", "[link](http://x)", "| --- |\n<!-- x -->"],
)
def test_job_text_is_code_in_one_cell(outcome: Make, said: str) -> None:
    rows = as_markdown(compared({said: outcome(None, code=3, verdict=said)})).splitlines()[5:]
    assert len(rows) == 1
    cells = rows[0].replace("\\|", "").strip("| ").split(" | ")
    assert len(cells) == 6
    assert cells[0].startswith("`")
    assert cells[0].endswith("`")
    assert rows[0].count("`") == 6  # name, card and verdict


@given(st.text(min_size=1), st.text())
def test_any_name_and_verdict_fill_one_row(name: str, verdict: str) -> None:
    found = compared({name: JobOutcome({}, 3, verdict)})
    rows = as_markdown(found).split("\n")
    assert len(rows) == 7  # marker, heading, blank line, header, rule, row, end of file
    assert rows[5].replace("\\|", "").count("|") == 7
    assert len(as_text(found).splitlines()) == 2


@pytest.mark.parametrize("asked", [{"device": "t4", "on": "h100"}, {"on": "t4", "device": "h100"}, {"on": "h100"}])
def test_shows_requested_card_without_estimate(asked: dict[str, str]) -> None:
    assert "| `h100` | - | - | - | `why` |" in as_markdown(compared({"a": JobOutcome(asked, 3, "why")}))


def test_base_name_is_not_markdown() -> None:
    found = ProjectComparison(Outcomes({}), Base("a|<b>`@c`", Outcomes({})))
    assert "| process peak | since a{0}{0}b{0}{0}{0}c{0} | upper bound |".format("?") in as_markdown(found)


def test_text_columns_are_aligned(outcome: Make) -> None:
    lines = as_text(compared({"a": outcome(5), "a long name": outcome(5000)}, {})).splitlines()
    assert {line.index("t4") for line in lines[1:]} == {lines[0].index("card  ", lines[0].index("card has") + 8)}
