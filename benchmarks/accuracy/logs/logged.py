"""Public logs of training scripts that ran on one card: printed peaks compared with `vramcast run`.

    python -m benchmarks.accuracy.logs.logged_sources --from-logs REPOSITORY.git --table parameter_golf.csv --scripts FOLDER
    python -m benchmarks.accuracy.logs.logged --scripts FOLDER [--data FOLDER] [--only TEXT] [--kind eager|compiled] [--jobs N]
        [--torches build/versions]    # environments of other releases: build/versions/2.9.1/bin/python
    [--timeout S]                 # time limit of a run, in seconds

A run has one rank, and its log prints its settings. Each setting is passed to the script in the variable of the same name, with
the variables that its author wrote next to the log. The run here must print the same settings, including its parameter count.
Training is cut to a few steps and followed by validation. The script prints its peaks, in the log and here, so both are read
at the same place of the program, where the run is stopped. Inductor fuses differently in each release: with --torches, a run
uses the torch of its log or the nearest available one. A script that imports FlashAttention 3 gets a stand-in (stand_ins/).
Answers are stored in build/accuracy/logged.jsonl, so a stopped run can be resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.logs import logged_data
from benchmarks.accuracy.logs.logged_sources import Log, Peaks, differences, launched, read_log, variables
from benchmarks.accuracy.runner import BUILD, read_rows
from benchmarks.tables import table
from vramcast.core.errors import UsageError
from vramcast.core.units import MIB
from vramcast.hardware.cards import device
from vramcast.hardware.device import Device
from vramcast.hardware.stack import parse, same_minor

TABLE: Final = "public/parameter_golf.csv"
KEPT: Final = BUILD / "logged.jsonl"
_TRAIN_STEPS: Final = 4  # arbitrary: peaks settle in the second
_SHORT_STEPS: Final = 10  # arbitrary: a run of at most this many steps is not cut
_WARMUP_STEPS: Final = 2  # arbitrary: one without optimizer state, one with it
_TIMEOUT_S: Final = 900.0  # arbitrary: a compiled run takes minutes on a busy machine
_POLL_S: Final = 1.0  # arbitrary: interval at which a script's log is read
_SAME_CARD: Final = (
    0.1  # arbitrary: share of a card's memory by which the totals of nvidia-smi and torch may differ (ECC, firmware)
)
_EAGER_MIB: Final = 1  # spec: the aim for allocated; both sides print it in whole MiB
_RESERVED: Final = 0.01  # spec: the aim for reserved, and for allocated of compiled runs
# spec: nvidia-smi cuts long names; the memory identifies the card. Key: name, MiB.
_CUT_NAMES: Final[dict[tuple[str, int], str]] = {("NVIDIA GeForce RTX 5080 ...", 16303): "rtx5080-laptop"}
_FLASH: Final = "flash_attn_interface"  # no installable package here; its stand-in makes the same requests
_STAND_INS: Final = Path(__file__).resolve().parents[1] / "scripts" / "stand_ins"
_BEGINS: Final = re.compile(r"_start(_step)?$")
_COUNTS: Final = frozenset({"model_params", "total_params"})  # values in which a rebuilt model must agree
# Facts from elsewhere in the author's commit. spec: notebooks/step2.ipynb of commit 8ae9a0177 starts `python train_gpt.py`.
# The RTX 3060's folder has a log `cloud_prep_torchrun.txt` and a log `cloud_prep_local.txt`: the other logs are not torchrun's.
# The author of 2026-04-16_MuonPower notes for the same card, two days before (2026-04-14_TWEO): `python3 train_gpt.py`.
_STARTED: Final = {
    "results/step": False,
    "records/track_non_record_16mb/2026-03-31_EntropyAware": False,
    "records/track_non_record_16mb/2026-04-16_MuonPower": False,
}
# Memory of a process after the collective at the start of a script under torchrun, and the most without it, in MiB.
# measured: public data, context_startup.csv (1 rank), and the first lines of the same logs. Before 2.8, torch has none without.
_CONTEXT_MIB: Final = {
    "NVIDIA A100-SXM4-40GB": (946, 430),
    "NVIDIA A100-SXM4-80GB": (946, 430),
    "NVIDIA GeForce RTX 4090": (902, 400),
    "NVIDIA GeForce RTX 5090": (1126, 510),
    "NVIDIA H100 80GB HBM3": (935, 535),
}
_LARGEST_CONTEXT_MIB: Final = 2000  # arbitrary: a process with more has a model, and is another one
# The variables that torchrun sets for one process: the projects' usual launcher on Linux.
_ONE_RANK: Final = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


class Reason(StrEnum):
    """The reasons why a run is left out or misses; the list is complete."""

    CARD = "the card is not in the table"
    STACK = "the torch is not in the table"
    DATA = "data of another form"
    SETTINGS = "settings not printed"
    RAISED = "the script raised"
    TIME = "not done in time"
    INDUCTOR = "Inductor of another torch"
    TORCH = "operators of another torch"
    OPEN = "not explained"


# Settings that a log does not print, derived from its output: at its default of 524,288 tokens, the validation of this
# script alone allocates 3,603 MiB, and the log's peak is 3,208. From any size up to the training's own, the peaks are the same.
_NOT_PRINTED: Final[dict[str, Callable[[Mapping[str, str]], dict[str, str]]]] = {
    "2c12153aaebe": lambda settings: {"VAL_BATCH_SIZE": settings["train_batch_tokens"]}
}
# Reasons found by inspection for one script's misses; a rule gives the rest.
# 188248629c40 does not print VAL_BATCH_SIZE: an evaluation at the default reserves 2,294 MiB, none 1,158 MiB, and the log has
# 1,390 MiB.
_LOOKED_AT: Final[dict[str, Reason]] = {"188248629c40": Reason.SETTINGS}


@dataclass(frozen=True, slots=True)
class Run:
    """A logged run: the table's row, its log, and the author's notes on it."""

    row: Mapping[str, str]
    source: str
    log: Log
    beside: str = ""

    @property
    def name(self) -> str:
        """Short name of script and log."""
        return f"{self.row['script'][:8]} {self.row['log_blob'][:8]}"

    @property
    def is_compiled(self) -> bool:
        """Return whether the script compiled its model: from the table, or from printed settings if the environment decides."""
        if not self.row["compile"].startswith("compile gated"):
            return self.row["compile"] == "compiled"
        gates = ("enable_compile", "compile_enabled", "compile_structured_mlp")
        return any(self.log.settings.get(gate) in ("1", "True") for gate in gates)

    @property
    def vocabulary(self) -> int | None:
        """Return the tokenizer's size from the data set's name; None if the data have another form."""
        found = re.fullmatch(r"fineweb10B_sp(\d+)(_smoke|_proxy|_valonly)?", self.log.settings.get("dataset", ""))
        return int(found[1]) if found else None

    def card(self) -> Device:
        """Return the card.

        Raises:
            UsageError: vramcast does not know it.
        """
        name, total_mib = self.row["gpu"], self.log.total_mib
        found = device(_CUT_NAMES.get((name, total_mib or 0), name if not name.endswith("...") else "cut"))
        if total_mib is not None and abs(total_mib * MIB / found.total_bytes - 1) > _SAME_CARD:
            raise UsageError(f"The card has {total_mib} MiB, and '{found.key}' has {found.total_bytes // MIB}.")
        return found

    def left_out(self) -> Reason | None:
        """Return the reason why the run cannot be evaluated, before it is run."""
        try:
            self.card()
        except UsageError:
            return Reason.CARD
        try:
            parse(f"torch=={self.row['torch']}")
        except UsageError:
            return Reason.STACK
        if self.vocabulary is None or "tokens" not in self.log.settings:
            return Reason.DATA
        return None if self.log.settings.keys() & _COUNTS else Reason.SETTINGS

    def environment(self, data: Path) -> dict[str, str]:
        """Return the environment variables of the run here."""
        assert self.vocabulary is not None
        settings = self.log.settings
        steps = int(settings.get("iterations", _TRAIN_STEPS))
        own = {
            "DATA_PATH": str(logged_data.shards(data, self.vocabulary, int(settings["tokens"]))),
            "TOKENIZER_PATH": str(logged_data.tokenizer(data, self.vocabulary)),
            "VOCAB_SIZE": str(self.vocabulary),
            "RUN_ID": "logged",
            "ITERATIONS": str(steps if steps <= _SHORT_STEPS else _TRAIN_STEPS),
            "WARMUP_STEPS": str(min(_WARMUP_STEPS, int(settings.get("warmup_steps", _WARMUP_STEPS)))),
            "MAX_WALLCLOCK_SECONDS": settings.get("max_wallclock_seconds", "0"),
        }
        if not self.log.validates_first:
            own["VAL_LOSS_EVERY"] = "0"  # only at the end
        own |= {name.upper(): value for name, value in self.begins.items()}
        if not_printed := _NOT_PRINTED.get(self.row["script"]):
            own |= not_printed(settings)
        alone = self.world_size == 1 and self.by_torchrun
        rank = {**_ONE_RANK, "MASTER_PORT": str(_free_port())} if alone else {}
        return self.said_beside() | variables(self.source, settings) | own | rank

    def said_beside(self) -> dict[str, str]:
        """Return the variables that the author wrote next to the log; none if they contradict it (another run's)."""
        said = {name: value for name, value in launched(self.beside)[0].items() if f'"{name}"' in self.source}
        printed = variables(self.source, self.log.settings)
        return {} if any(_number(said[name]) != _number(printed[name]) for name in said.keys() & printed.keys()) else said

    @property
    def begins(self) -> dict[str, str]:
        """Return the settings that begin something at a step after the cut: here it begins at the first step."""
        steps = {name: int(value) for name, value in self.log.settings.items() if _BEGINS.search(name) and value.isdecimal()}
        return {name: "1" for name, step in steps.items() if step > _TRAIN_STEPS and f'"{name.upper()}"' in self.source}

    @property
    def world_size(self) -> int:
        """Return the number of ranks; rank 0 prints the peaks."""
        return int(self.row["world_size"])

    @property
    def by_torchrun(self) -> bool:
        """Return whether torchrun started it: from the author's notes, else from the project's README; Windows has no NCCL."""
        if self.log.windows:
            return False
        if "torchrun" in Path(self.row["log_path"]).name:
            return True
        if (seen := self._by_context()) is not None:
            return seen
        noted = next((how for start, how in _STARTED.items() if self.row["log_path"].startswith(start)), None)
        return next(how for how in (noted, launched(self.beside)[1], True) if how is not None)

    def _by_context(self) -> bool | None:
        """Return whether the context seen by nvidia-smi is one after a collective; None if that is unclear."""
        if self.row["gpu"] not in _CONTEXT_MIB:
            return None
        after, without = _CONTEXT_MIB[self.row["gpu"]]
        held = [mib for mib in self.log.held_mib if mib <= _LARGEST_CONTEXT_MIB]
        if any(mib >= after for mib in held):
            return True
        return False if all(mib <= without for mib in held) else None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a run here.

    `allocated` and `reserved` are estimates in bytes over the whole run; None without an estimate. `torch` is the release
    that ran; "" for the installed one. `said` is the whole JSON of `vramcast run`, {} without one.
    """

    key: str
    allocated: int | None = None
    reserved: int | None = None
    line: tuple[int, int] | None = None
    otherwise: list[str] = field(default_factory=list)
    seconds: float = 0.0
    message: str = ""
    torch: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def peaks(self) -> Peaks | None:
        """Return allocated and reserved as the script printed them here; if it did not get that far, those of the estimate."""
        if self.line is not None:
            return Peaks(*self.line)
        return None if self.allocated is None or self.reserved is None else Peaks(self.allocated // MIB, self.reserved // MIB)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run with its answer and verdict."""

    run: Run
    answer: Answer | None
    reason: Reason | None

    @property
    def torch_here(self) -> str:
        """Return the release that ran here."""
        return (self.answer.torch if self.answer is not None else "") or _installed()

    @property
    def is_same_torch(self) -> bool:
        """Return whether the log's release ran here, as far as operators and Inductor are concerned."""
        return same_minor(self.run.row["torch"], self.torch_here)

    @property
    def pair(self) -> tuple[Peaks, Peaks] | None:
        """Return logged and estimated peaks if both are known and comparable."""
        if self.run.log.peaks is None or self.answer is None or self.answer.otherwise or self.answer.peaks is None:
            return None
        return self.run.log.peaks, self.answer.peaks


def _number(text: str) -> float | str:
    """Return the value of a setting: 0 and 0.000 are equal."""
    try:
        return float(text)
    except ValueError:
        return text


def hits(logged: Peaks, estimated: Peaks, *, compiled: bool) -> tuple[bool, bool]:
    """Return whether allocated and reserved meet the aims."""
    off = abs(estimated.allocated_mib - logged.allocated_mib)
    allocated = off <= (_RESERVED * logged.allocated_mib if compiled else _EAGER_MIB)
    return allocated, abs(estimated.reserved_mib / logged.reserved_mib - 1) <= _RESERVED


def judge(run: Run, answer: Answer | None) -> Outcome:
    """Return the outcome of a run, with the reason if it is left out or misses."""
    outcome = Outcome(run, answer, run.left_out())
    if outcome.reason is not None or answer is None:
        return outcome
    if answer.otherwise:
        return Outcome(run, answer, Reason.SETTINGS)
    pair = outcome.pair
    if pair is None:
        return Outcome(run, answer, Reason.TIME if "did not end within" in answer.message else Reason.RAISED)
    if all(hits(*pair, compiled=run.is_compiled)):
        return outcome
    looked_at = _LOOKED_AT.get(run.row["script"])
    if outcome.is_same_torch:
        return Outcome(run, answer, looked_at or Reason.OPEN)
    return Outcome(run, answer, looked_at or (Reason.INDUCTOR if run.is_compiled else Reason.TORCH))


def read_runs(rows: Iterable[Mapping[str, str]], folder: Path, world_size: int = 1) -> list[Run]:
    """Return the runs with this many ranks whose sources are in the folder; print the number of missing sources."""
    runs, absent = [], 0
    for row in rows:
        if row["world_size"] != str(world_size):
            continue
        source, log = folder / f"{row['script']}.py", folder / f"{row['log_blob']}.log"
        if source.exists() and log.exists():
            text = log.read_text(encoding="utf-8")
            beside = log.with_suffix(".beside")
            said = beside.read_text(encoding="utf-8") if beside.exists() else ""
            runs.append(Run(row, source.read_text(encoding="utf-8", errors="replace"), read_log(text), said))
        else:
            absent += 1
    if absent:
        print(f"{absent} runs have no source in '{folder}': run benchmarks.accuracy.logs.logged_sources", file=sys.stderr)
    return runs


def release_of(torch: str, torches: Path | None) -> str:
    """Return the release in `torches` that is nearest to a log's torch; "" if that is the installed one."""
    if torches is None:
        return ""
    logged, installed = torch.partition("+")[0], _installed()
    at_hand = {installed, *(path.name for path in torches.iterdir() if _python(torches, path.name).exists())}
    nearest = min(at_hand, key=lambda release: (release != logged, abs(_minor(release) - _minor(logged)), release != installed))
    return "" if nearest == installed else nearest


def _minor(release: str) -> int:
    """Return the minor version, 9 for 2.9.1; each minor release has another Inductor."""
    return int(release.split(".")[1]) if release.count(".") > 1 else 0


def _installed() -> str:
    return metadata.version("torch").partition("+")[0]


def _python(torches: Path, release: str) -> Path:
    return torches / release / "bin" / "python"


def ask(run: Run, scripts: Path, data: Path, key: str, torches: Path | None = None, *, timeout_s: float = _TIMEOUT_S) -> Answer:
    """Return the answer of `vramcast run` for a run, and the peaks that its script printed."""
    release = release_of(run.row["torch"], torches)
    command = command_of(run.row["torch"], run.card(), run.world_size, python_of(torches, release), timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **run.environment(data)}
        if _FLASH in run.source:
            environment["PYTHONPATH"] = with_stand_ins()
        command.append(str(scripts.resolve() / f"{run.row['script']}.py"))
        answer, here = answer_of(command, Path(folder), environment, key, release)
    otherwise = differences({**run.log.settings, **run.begins}, here.settings) if here.settings.keys() & _COUNTS else []
    return replace(answer, otherwise=otherwise)


def with_stand_ins() -> str:
    """Return a PYTHONPATH that includes the stand-ins for packages that cannot be installed here."""
    return os.pathsep.join(path for path in (str(_STAND_INS), os.environ.get("PYTHONPATH")) if path)


def python_of(torches: Path | None, release: str) -> str:
    """Return the interpreter of an environment in `torches`; "" stands for this one."""
    return str(_python(torches, release).absolute()) if torches is not None and release else sys.executable


def command_of(torch: str, card: Device, world_size: int, python: str, timeout_s: float) -> list[str]:
    """Return the command that runs rank 0 of a script on a card, without the script."""
    return [
        *(python, "-m", "vramcast", "run", "--json", "--no-bracket", "--device", card.key),
        *("--stack", f"torch=={torch}", "--until", "end", "--budget-s", str(timeout_s), "--timeout", str(timeout_s)),
        *(("--ranks", "0", "--", "torchrun", f"--nproc_per_node={world_size}") if world_size > 1 else ("--",)),
    ]


def answer_of(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], key: str, release: str
) -> tuple[Answer, Log]:
    """Run the command in the folder until its script has printed its peaks; return the answer and the log."""
    started = time.perf_counter()
    returncode, out, error = until_peak_line(command, folder, environment)
    here = read_log(f"{_printed(folder)}\n{error}")
    seconds = time.perf_counter() - started
    line = None if here.peaks is None else (here.peaks.allocated_mib, here.peaks.reserved_mib)
    try:
        found = json.loads(out)
        peaks = found["peaks"]
    except (ValueError, KeyError):
        message = error.strip().splitlines()[-1:] or [f"exit {returncode}"]
        return Answer(key, line=line, seconds=seconds, message=message[0][:500], torch=release), here
    ended = found["ended"] or ""
    if line is None and "raised" in ended:  # the peaks so far are not the job's
        return Answer(key, seconds=seconds, message=ended[:500], torch=release, said=found), here
    return Answer(key, peaks["allocated"], peaks["reserved"], line, [], seconds, ended[:500], release, found), here


def until_peak_line(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run the command until its script has printed its peaks; return exit status, stdout and stderr.

    Later work (quantization, hour-long evaluations) affects no number in the log.
    """
    out, error = folder / "out.json", folder / "error.txt"
    with out.open("w") as stdout, error.open("w") as stderr:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=stdout, stderr=stderr)
        is_told = False
        while True:
            try:
                process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                said = f"{_printed(folder)}\n{error.read_text(errors='replace')}"
                if not is_told and read_log(said).peaks is not None:
                    process.send_signal(signal.SIGINT)  # its answer is what it observed so far
                    is_told = True
    return process.returncode, out.read_text(errors="replace"), error.read_text(errors="replace")


def _printed(folder: Path) -> str:
    """Return the text that the script wrote into its logs."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("logs/**/*.txt")))


def kept_answers(path: Path = KEPT) -> dict[tuple[str, str], Answer]:
    """Return the stored answers by the log's key and the release of torch that ran; the last answer counts."""
    kept: dict[tuple[str, str], Answer] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        record["line"] = tuple(record["line"]) if record["line"] else None
        answer = Answer(**record)
        kept[answer.key, answer.torch] = answer
    return kept


def keep(answer: Answer, path: Path = KEPT) -> None:
    """Append an answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(answer)) + "\n")


def answers_to(
    runs: Sequence[Run],
    scripts: Path,
    data: Path,
    *,
    jobs: int,
    fresh: bool,
    torches: Path | None = None,
    asks: bool = True,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Answer]:
    """Return the answers by the logs' blobs; run only those without a stored answer of the same torch."""
    kept = {} if fresh else kept_answers()
    asked = {run.row["log_blob"]: release_of(run.row["torch"], torches) for run in runs}
    missing = [run for run in runs if (run.row["log_blob"], asked[run.row["log_blob"]]) not in kept and run.left_out() is None]

    def one(run: Run) -> None:
        answer = ask(run, scripts, data, run.row["log_blob"], torches, timeout_s=timeout_s)
        kept[answer.key, answer.torch] = answer
        keep(answer)
        logged = run.log.peaks
        said = f"{answer.peaks or answer.message} of {logged} {'; '.join(answer.otherwise[:3])}"
        print(f"[{len(kept)}] {run.name} {run.row['gpu']} {answer.seconds:.0f} s: {said}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, missing if asks else ()))
    return {blob: kept[blob, release] for blob, release in asked.items() if (blob, release) in kept}


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the tables as Markdown."""
    rows: list[list[object]] = []
    for outcome in outcomes:
        run, pair, logged = outcome.run, outcome.pair, outcome.run.log.peaks
        how = "compiled" if run.is_compiled else "eager"
        cells: list[object] = [run.name, run.row["gpu"].removeprefix("NVIDIA "), run.row["torch"], outcome.torch_here, how]
        if logged is None or pair is None:
            said = f"{logged.allocated_mib} / {logged.reserved_mib}" if logged else "-"
            note = outcome.answer.otherwise[:2] or [_short(outcome.answer.message)] if outcome.answer else []
            why = ": ".join(filter(None, [outcome.reason or "not run", "; ".join(note)]))
            rows.append([*cells, said, "-", "-", "-", why])
            continue
        estimated = pair[1]
        off = _percent(estimated.allocated_mib, logged.allocated_mib)
        rows.append([
            *cells, f"{logged.allocated_mib} / {logged.reserved_mib}", f"{estimated.allocated_mib} / {estimated.reserved_mib}",
            f"{estimated.allocated_mib - logged.allocated_mib:+d} MiB ({off})",
            _percent(estimated.reserved_mib, logged.reserved_mib), outcome.reason or "",
        ])  # fmt: skip
    columns = ["run", "card", "torch", "torch here", "how", "logged MiB", "here", "allocated", "reserved", "reason"]
    return f"{table(columns, rows)}\n\n{summary(outcomes)}"


_KINDS: Final[dict[str, Callable[[Outcome], bool]]] = {
    "eager": lambda outcome: not outcome.run.is_compiled,
    "compiled": lambda outcome: outcome.run.is_compiled,
    "compiled, the log's release of torch": lambda outcome: outcome.run.is_compiled and outcome.is_same_torch,
    "compiled, another release": lambda outcome: outcome.run.is_compiled and not outcome.is_same_torch,
}


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the number of runs that meet the aims, and the reasons why the others were left out or miss."""
    rows: list[list[object]] = []
    for how, chosen in _KINDS.items():
        judged = [outcome for outcome in outcomes if outcome.pair and chosen(outcome)]
        pairs = [outcome.pair for outcome in judged if outcome.pair]
        if not pairs:
            continue
        kept = [hits(*pair, compiled=outcome.run.is_compiled) for outcome, pair in zip(judged, pairs, strict=True)]
        shares = [f"{100 * sum(one[i] for one in kept) / len(kept):.0f} %" for i in (0, 1)]
        allocated = statistics.median(abs(here.allocated_mib / there.allocated_mib - 1) for there, here in pairs)
        reserved = statistics.median(abs(here.reserved_mib / there.reserved_mib - 1) for there, here in pairs)
        scripts = len({outcome.run.row["script"] for outcome in judged})
        rows.append([how, len(pairs), scripts, *shares, f"{100 * allocated:.2f} %", f"{100 * reserved:.2f} %"])
    columns = ["runs", "n", "scripts", "allocated within 1 MiB (compiled: 1 %)", "reserved within 1 %"]
    columns += ["median error of allocated", "of reserved"]
    counts: dict[tuple[str, Reason], int] = {}
    for outcome in outcomes:
        if outcome.reason is not None:
            kind = "left out" if outcome.pair is None else "missed"
            counts[kind, outcome.reason] = counts.get((kind, outcome.reason), 0) + 1
    why = table(["", "why", "n"], [[kind, reason, n] for (kind, reason), n in sorted(counts.items())])
    return f"{table(columns, rows)}\n\n{why}"


def _short(message: str) -> str:
    """Return the error without its origin and its paths on this machine."""
    return message.removeprefix("vramcast: The job raised ").removeprefix("it raised ").partition(" (/")[0][:80]


def _percent(a: float, b: float) -> str:
    return f"{100 * (a / b - 1):+.2f} %"


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Run what has no stored answer, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scripts", type=Path, required=True, metavar="FOLDER", help="sources and logs, see logged_sources")
    parser.add_argument("--data", type=Path, default=BUILD / "logged-data", metavar="FOLDER", help="where shards are written")
    parser.add_argument("--only", metavar="TEXT", help="only runs whose script, log, card, or path contains TEXT")
    parser.add_argument("--kind", choices=("eager", "compiled"), help="only these")
    parser.add_argument("--torches", type=Path, metavar="FOLDER", help="environments with other releases of torch, by version")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="runs with N ranks (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of parallel runs")
    parser.add_argument("--limit", type=int, metavar="N", help="only N of the usable runs, in the order of blobs")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="S", help="limit of a run (default: %(default)s)")
    parser.add_argument("--kept", action="store_true", help="run nothing: print the table of the stored answers")
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    runs = read_runs(read_rows(TABLE), options.scripts, options.world_size)
    if options.only:
        runs = [
            run for run in runs if options.only in " ".join(run.row[name] for name in ("script", "log_blob", "gpu", "log_path"))
        ]
    if options.kind:
        runs = [run for run in runs if run.is_compiled == (options.kind == "compiled")]
    if options.limit is not None:
        runs = _spread([run for run in runs if run.left_out() is None])[: options.limit]
    kept = answers_to(
        runs,
        options.scripts,
        options.data,
        jobs=options.jobs,
        fresh=options.fresh,
        torches=options.torches,
        asks=not options.kept,
        timeout_s=options.timeout,
    )
    if options.kept:
        runs = [run for run in runs if run.row["log_blob"] in kept]
    print(report([judge(run, kept.get(run.row["log_blob"])) for run in runs]))


def _spread(runs: Sequence[Run]) -> list[Run]:
    """Return the runs ordered by their scripts' blobs, which is independent of their content; repeated scripts come last."""
    seen: Counter[str] = Counter()
    order: list[tuple[int, str, int]] = []
    for i, run in enumerate(runs):
        order.append((seen[run.row["script"]], run.row["script"], i))
        seen[run.row["script"]] += 1
    return [runs[i] for _, _, i in sorted(order)]


if __name__ == "__main__":
    main()
