"""Importers of measured runs: write runs.csv from tables of public data, for rows with a license that allows it.

    python -m benchmarks.measured.importers

The tables are below $VRAMCAST_SHARED/data, or in ../shared/data next to the checkout. A row is imported if it names its commit,
and if its own license and that of its repository in sources.toml are the same. The same tables give the same file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from benchmarks.accuracy.runner import read_rows
from benchmarks.measured.measured_run import RUNS, MeasuredRun, Source, cells_of, run_of, sources, write_runs
from benchmarks.tables import table
from vramcast.core.units import MIB

Row = dict[str, str]

_XMEM: Final = "Stone-ResearchLife/xMem"
# spec: the commits that added the folders
_XMEM_COMMITS: Final = {
    "plot/data/005-ScalabilityOnCoLab/": "d076b7d6e441a470282d8146f35e99b987daf12f",
    "plot/data/": "d61e0764486838fff7a444bb03be7d6d2cd8bbaa",
    "plot/data_new/001-Anova/": "e570c18ef5847b42200e0aa618dd6cb854bdc8e7",
    "plot/data_new/002-Monte Carlo/": "100c2bfa7a5c1eb61082d969f0eb3c6553cee592",
}
_XMEM_TOOLS: Final = ("xmem", "dnnmem", "schedtune", "llmem")
_XMEM_CELLS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "bytes": ("bytes", lambda text: round(float(text))),
    "runtime_s": ("seconds", float),
    "pred_oom": ("oom", "True".__eq__),
    "round2_oom": ("second_oom", "True".__eq__),
}
_PAGE: Final = re.compile(r"https://github\.com/([^/]+/[^/]+)/(?:blob|commit)/([0-9a-f]{40})(?:/(.+))?")
_SPDX: Final = {"BSD-3": "BSD-3-Clause", "Apache-2.0 (LICENSE.txt)": "Apache-2.0"}
_FIGURES: Final = {
    "allocated": "allocated peak", "reserved": "reserved peak", "process": "process peak", "device": "device peak",
}  # fmt: skip
# Those that decide memory; the number of a loader's processes does not.
_VISION_OPTIONS: Final = ("optim_flag", "gradient_accumulation", "num_steps", "memory_format", "scale")


def _number(text: str) -> int | None:
    return int(float(text)) if re.fullmatch(r"\d+(\.0)?", text) else None


def _mib(text: str) -> int:
    return round(float(text) * MIB)


def _figure(text: str) -> str:
    """Return the kind of a figure by its first word; "" if it is none of ours."""
    return _FIGURES.get(text.partition(" ")[0], "") if " at print" not in text else ""


def xmem_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield xMem's runs, with the estimates of four tools that its files print."""
    for row in rows:
        published = {
            tool: {name: read(text) for column, (name, read) in _XMEM_CELLS.items() if (text := row.get(f"{tool}_{column}"))}
            for tool in _XMEM_TOOLS
        }
        mode = {"zero_grad_mode": int(row["zero_grad_mode"])} if row["zero_grad_mode"] else {}
        yield MeasuredRun(
            repository=_XMEM,
            commit=next(commit for folder, commit in _XMEM_COMMITS.items() if row["path"].startswith(folder)),
            path=row["path"],
            licence="MIT",
            job="exp/run.py",
            model=row["model"],
            figure="reserved peak",
            value_bytes=int(row["ground_bytes"]),
            unit_rule="bytes",
            quality="repeatable",
            status="oom" if row["real_oom"] == "True" else "ok",
            batch=int(row["batch"]),
            sizes=row["input_size"],
            precision="fp32",
            optimizer=row["optimizer"],
            options={"family": row["family"], "generation": row["generation"], **mode},
            cards=1,
            card=row["gpu"],
            card_bytes=int(row["total_gpu_memory"]),
            torch="2.6.0",
            published={tool: cells for tool, cells in published.items() if cells},
        )


def paged_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the runs of tables that have a page with its commit in each row."""
    for row in rows:
        page = _PAGE.fullmatch(row["url"])
        # Without a commit, or not clear what was measured or what ran.
        if page is None or " or " in row["metric"] or "cmd not found" in row["notes"]:
            continue
        counted = re.search(r"NGPU=(\d+)|(\d+) (?:GPU|ranks)", row["parallelism"])
        yield MeasuredRun(
            repository=page[1],
            commit=page[2],
            path=page[3] or "",
            licence=_SPDX.get(row["license"], row["license"]),
            job=" ".join(row["job"].split()),
            model=row["model"] if row["model"] != "see notes" else "",
            figure=_figure(row["metric"]),
            value_bytes=_mib(row["value_mib"]),
            unit_rule="GiB, rounded",
            quality="partly" if row["batch"] != "see notes" else "figure only",
            batch=_number(row["batch"]),
            sizes=row["seq"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options=_notes(row),
            cards=int(counted[1] or counted[2]) if counted else None,
            card=row["gpu"].partition(" (")[0],
            torch="" if row["torch"].startswith(("not stated", "see page")) else row["torch"].partition(" (")[0],
        )


def _notes(row: Row) -> dict[str, str]:
    """Return what the row says about the job, without the text around it in the source."""
    notes = row["notes"].partition(" | context:")[0].partition("; steps=")[0]
    return {name: text for name, text in (("parallelism", row["parallelism"]), ("notes", notes)) if text}


def vision_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the runs of vision.csv."""
    for row in rows:
        if not row["value_MiB"] or not _figure(row["figure_kind"]):  # a failure without a figure, or the size of the weights
            continue
        repository, _, path = row["source"].partition(":")
        extra = json.loads(row["extra"] or "{}")
        yield MeasuredRun(
            repository=repository,
            commit=row["commit"],
            path=path,
            licence=_SPDX.get(row["licence"], row["licence"]),
            job=extra.get("benchmark") or row["framework"],
            model=row["model"],
            figure=_figure(row["figure_kind"]),
            value_bytes=_mib(row["value_MiB"]),
            unit_rule=row["unit_rule"].partition(" (")[0],
            quality="repeatable" if row["completeness"].startswith("yes") else "partly",
            batch=_number(row["batch"]),
            sizes=row["image_size"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options={name: extra[name] for name in _VISION_OPTIONS if name in extra},
            cards=_number(row["n_gpus"]),
            card=row["card"],
            card_bytes=_mib(row["card_mib"]) if row["card_mib"] else None,
            torch=row["torch"].partition(" (")[0],
            cuda=row["cuda"].partition(" (")[0],
            cudnn=row["cudnn"],
            os=row["os"],
        )


IMPORTERS: Final[dict[str, Callable[[Iterable[Row]], Iterator[MeasuredRun]]]] = {
    "xmem_runs.csv": xmem_runs,
    "public/torchtitan.csv": paged_runs,
    "public/torchtitan_tables.csv": paged_runs,
    "public/fsdp_qlora.csv": paged_runs,
    "public/nanovlm.csv": paged_runs,
    "public/vision.csv": vision_runs,
}


def is_allowed(run: MeasuredRun, known: dict[str, Source]) -> bool:
    """Return whether a run may be distributed: its repository is in sources.toml, with the license that its row names."""
    source = known.get(run.repository)
    return source is not None and source.licence == run.licence and bool(run.commit)


def imported() -> list[MeasuredRun]:
    """Return the runs that may be distributed, in the order of the tables, with what their sources give."""
    known = sources()
    found = [run for name, runs_in in IMPORTERS.items() for run in runs_in(read_rows(name)) if is_allowed(run, known)]
    return [run_of(cells_of(run, source), source) for run in found for source in (known[run.repository],)]


def main() -> None:
    """Write runs.csv and print how many runs each source has."""
    runs = imported()
    write_runs(runs)
    counts = Counter((run.repository, run.licence, run.figure) for run in runs)
    print(table(["repository", "license", "figure", "n"], [[*key, n] for key, n in sorted(counts.items())], "lll"))
    print(f"\n{RUNS}: {len(runs)} runs, {RUNS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
