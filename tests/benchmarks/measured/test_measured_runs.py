"""Tests of the measured runs in the repository: every row may be distributed, and the importers write exactly this file."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.logs import tabled
from benchmarks.accuracy.runner import data_folder
from benchmarks.measured import importers, measured_run, published_tables
from benchmarks.measured.cells import figure, spdx
from benchmarks.measured.measured_run import (
    EDGE,
    FIGURES,
    LICENCES,
    QUALITIES,
    STATUSES,
    TRAITS,
    MeasuredRun,
    read_runs,
    sources,
    write_runs,
)  # fmt: skip
from benchmarks.measured.screens import SCREENS, screened
from vramcast.core.units import MIB

ROOT = Path(__file__).parents[3]
MOST_BYTES = 1_500_000  # arbitrary: a file that git and a reader can take
RUNS = read_runs()
# The rows of logs/simulated_runs.csv name logs and commits, but no repository.
SIMULATED = {
    "golf": "openai/parameter-golf", "modded": "KellerJordan/modded-nanogpt", "titan": "pytorch/torchtitan",
    "qlora": "AnswerDotAI/fsdp_qlora", "nanovlm": "huggingface/nanoVLM", "ms-swift": "modelscope/ms-swift",
}  # fmt: skip
RUN = MeasuredRun("a/b", "0" * 40, "c.md", "MIT", "train.py", "net", "reserved peak", 5, "bytes", "partly")


def is_distributable(run: MeasuredRun) -> bool:
    source = sources().get(run.repository)
    return source is not None and run.licence == source.licence and run.licence in LICENCES


def test_every_row_has_license_that_allows_it() -> None:
    assert [run for run in RUNS if not is_distributable(run)] == []
    assert not is_distributable(replace(RUNS[0], licence="CC-BY-NC-4.0"))
    assert not is_distributable(replace(RUNS[0], licence=""))
    assert not is_distributable(replace(RUNS[0], repository="itu-rad/GPUMemNet"))


def test_every_row_names_commit_and_page() -> None:
    assert [run for run in RUNS if not re.fullmatch("[0-9a-f]{40}", run.commit)] == []
    assert RUN.url == f"https://github.com/a/b/blob/{'0' * 40}/c.md"
    assert replace(RUN, path="").url == f"https://github.com/a/b/commit/{'0' * 40}"


def test_every_row_has_values_of_schema() -> None:
    for run in RUNS:
        assert run.figure in FIGURES
        assert run.quality in QUALITIES
        assert run.status in STATUSES
        assert set(filter(None, run.traits.split(", "))) <= set(TRAITS)
        if run.figure == EDGE:
            assert run.value_bytes is None
            assert run.batch is not None
            assert run.failed_batch is not None
            assert run.batch < run.failed_batch
        else:
            assert run.measured_bytes > MIB
        assert run.job
        assert run.unit_rule
        assert run.reason


def test_notice_has_every_license_and_copyright_line() -> None:
    notice = (ROOT / "benchmarks" / "measured" / "LICENSES.md").read_text(encoding="utf-8")
    for repository, source in sources().items():
        assert f"| https://github.com/{repository} | {source.licence} | {source.copyright or '-'} |" in notice
        assert source.licence == "Apache-2.0" or f"## {source.licence}" in notice


def test_simulated_runs_are_of_sources_with_known_license() -> None:
    assert {row["source"] for row in tabled.read_table()} == set(SIMULATED)
    allowed = {of: entry.licence for of, entry in sources().items()} | {
        entry.where.removeprefix("https://github.com/"): entry.why.partition(",")[0] for entry in measured_run.not_included()
    }
    assert {name: allowed[repository] for name, repository in SIMULATED.items() if allowed[repository] not in LICENCES} == {}


def test_wheel_has_no_measured_runs() -> None:
    assert "benchmarks" not in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = configuration[configuration.index("[tool.setuptools") :].partition("[tool.ruff")[0]
    assert "benchmarks" not in packages


def test_file_is_small() -> None:
    assert measured_run.RUNS.stat().st_size < MOST_BYTES


def test_written_runs_are_read_back(tmp_path: Path) -> None:
    write_runs(RUNS, tmp_path / "runs.csv")
    assert (tmp_path / "runs.csv").read_bytes() == measured_run.RUNS.read_bytes()
    assert read_runs(tmp_path / "runs.csv") == RUNS


def test_importer_leaves_out_other_licenses_and_rows_without_commit() -> None:
    known = sources()
    xmem = next(run for run in RUNS if run.repository == "Stone-ResearchLife/xMem")
    assert importers.is_allowed(xmem, known)
    assert not importers.is_allowed(replace(xmem, licence="AGPL-3.0: figure only"), known)
    assert not importers.is_allowed(replace(xmem, repository="unslothai/notebooks"), known)
    page = "https://github.com/pytorch/torchtitan/blob/main/README.md"
    row = {"url": page, "metric": "reserved", "notes": "", "license": "BSD-3"}
    assert list(published_tables.paged_runs([row])) == []


def test_batches_of_text_vary_unless_lines_are_filled() -> None:
    by_job = {run.job: run.traits for run in RUNS if run.repository == "modelscope/ms-swift" and run.path.endswith(".md")}
    filled = {job for job in by_job if "packing" in job}
    assert filled
    assert {job for job, said in by_job.items() if "varied batches" not in said} == filled
    assert {run.traits for run in RUNS if run.repository == "Stone-ResearchLife/xMem"} == {"convolutions", "varied batches"}


def test_keys_tell_different_figures_apart() -> None:
    by_key: dict[str, set[tuple[object, ...]]] = {}
    for run in RUNS:
        by_key.setdefault(run.key, set()).add((run.job_key, run.figure, run.commit, run.path))
    assert [jobs for jobs in by_key.values() if len(jobs) > 1] == []
    assert RUN.key == replace(RUN, value_bytes=6).key != replace(RUN, figure="allocated peak").key
    assert RUN.job_key == replace(RUN, value_bytes=6, figure="allocated peak").job_key != replace(RUN, batch=8).job_key


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"boxes_per_image": "5.2"}}, "crowded images"),
        ({"options": {"n_images": "12"}, "batch": 16}, "fewer images"),
        ({"options": {"run_index": "2/3"}}, "a later run"),
        ({"options": {"flags": "training run 12 of one process (memory of the earlier runs may be held)"}}, "a later run"),
        ({"options": {"completeness": "log starts at epoch 11; resumed run"}}, "resumed"),
        ({"options": {"args": {"multi_scale": "True"}}}, "several sizes"),
        ({"card_bytes": 100, "value_bytes": 95}, "nearly full"),
        ({"figure": ""}, "kind of the figure"),
    ],
)
def test_screen_leaves_out_row_with_its_reason(changes: dict[str, Any], words: str) -> None:
    found = screened(replace(RUN, **changes))
    assert found.quality == "screened"
    assert words in found.reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "options": {"boxes_per_image": "4.9", "n_images": "16", "run_index": "1/3", "flags": "read to epoch 21 of 100"},
            "batch": 16,
        },
        {"options": {"args": {"freeze": "None", "multi_scale": "0.0", "rect": "False"}}},
        {"options": {"args": {"freeze": "5"}}},
        {"card_bytes": 100, "value_bytes": 95, "figure": "allocated peak"},
        {"card_bytes": 100, "value_bytes": 93},
    ],
)
def test_screen_keeps_other_rows(changes: dict[str, Any]) -> None:
    run = replace(RUN, **changes)
    assert screened(run) == run


def test_screens_do_not_read_estimates() -> None:
    assert [run for run in RUNS if screened(replace(run, published={})).reason != screened(run).reason] == []
    assert len({screen.why for screen in SCREENS}) == len(SCREENS)


def test_cells_have_one_meaning() -> None:
    assert [figure(text) for text in ("allocated_at_print", "reserved_peak (rounded, by the author)", "out of memory")] == [
        "allocated at print", "reserved peak", "",
    ]  # fmt: skip
    assert [spdx(text) for text in ("BSD-3", "Apache-2.0 (LICENSE.txt)", "none", "LICENSE in the repository")] == [
        "BSD-3-Clause", "Apache-2.0", "", "",
    ]  # fmt: skip


@pytest.mark.skipif(
    not all((data_folder() / name).exists() for name in importers.IMPORTERS),
    reason="the public tables are missing (VRAMCAST_SHARED)",
)
def test_importers_write_this_file() -> None:
    imported = importers.imported()
    assert Counter(run.repository for run in imported) == Counter(run.repository for run in RUNS)
    assert imported == RUNS
