"""Peaks that torchtitan's authors logged in their commit messages, compared with `vramcast run` of the same commands.

    python -m benchmarks.accuracy.logs.titan --repository TORCHTITAN.git --packages FOLDER \
        [--torches build/versions] [--only TEXT]

Each command is run as typed, in the tree of its own commit, by the release of torch that followed its nightly; one rank of
each kind is traced. Offline replacements are documents of random words under the data set's name, and a tokenizer with as many
words. Nothing of the project is in this repository.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.accuracy.runner import BUILD, read_rows
from benchmarks.scripts.formats import c4
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.jobs.stub_tokenizer import write_tokenizer

KEPT: Final = BUILD / "titan.jsonl"
_TIMEOUT_S: Final = 900.0  # arbitrary: far above the 30 s of an 8B model's rank
_MOST_STEPS: Final = 10  # arbitrary: the reserved memory in the logs is constant from there on
_BRANCHED: Final = timedelta(
    days=35
)  # arbitrary: about the time from a release's branch, after which nightlies count on, to the release
# spec: pypi.org, release dates
_RELEASED: Final = {
    "2.6": "2025-01-29", "2.7": "2025-04-23", "2.8": "2025-08-06", "2.9": "2025-10-15", "2.10": "2026-01-21",
    "2.11": "2026-03-23", "2.12": "2026-05-13", "2.13": "2026-07-08", "2.14": "2026-09-02",
}  # fmt: skip
# spec: torch's names of the cards in these logs, by words of the name; else by memory
_CARDS: Final = (("PG509", "a100-80gb"), ("A100", "a100-80gb"), ("H200", "h200"), ("H100", "h100"), ("B200", "b200"))
_BY_GIB: Final = ((80.0, "h100"), (100.0, "h100"), (145.0, "h200"), (400.0, "b200"))
_SCRIPT: Final = re.compile(
    r"((?:\b[A-Z][A-Z_]*=(?:\"[^\"]*\"|\S+)\s+)*)(?:\\\s*)?(?:[a-z-]+\s+)?(\./run_(?:llama_)?train\.sh)(.*)", re.DOTALL
)
_TENSOR_PARALLEL: Final = re.compile(r"using (\d+)-way Tensor Parallel")
_LOGGED: Final = re.compile(r"steps (\d+)\.\.(\d+), first ([\d.]+) last ([\d.]+) GiB")
_CAPACITY: Final = re.compile(r"capacity ([\d.]+) GiB")
_BEFORE: Final = re.compile(r"/ (?:w/o this PR|Before\b)[^/]*(?:/ ```)?[^/]*$")
# spec: benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, and the commit that it names: settings not given are the
# configuration's own; two sequences a rank
_PUBLISHED: Final = "9dec370"
_EIGHT_B: Final = "train.py --job.config_file ./train_configs/llama3_8b.toml --training.dataset c4_test"
_CONFIGURED: Final = f"{_EIGHT_B} --training.batch_size 2"
_LONG: Final = f"{_EIGHT_B} --training.batch_size 1 --activation_checkpoint.mode full"
_SEVENTY_B: Final = (
    "train.py --job.config_file ./train_configs/llama3_70b.toml --training.dataset c4_test --training.batch_size 16"
)
_EXPANDABLE: Final = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"  # spec: run_llama_train.sh of that commit
# spec: docs/float8.md of that commit, tensorwise scaling
_FLOAT8: Final = (
    "--training.compile --float8.enable_float8_linear --float8.enable_fsdp_float8_all_gather"
    " --float8.precompute_float8_dynamic_scale_for_fsdp"
)
_NODE: Final = f"{_EXPANDABLE} torchrun --nproc_per_node=8"
_CONTEXTS: Final = {1: 3_890, 2: 2_540, 4: 1_071, 8: 548}  # ranks that share a sequence -> tokens a second
_TABLES: Final = {
    "FSDP / 5,762": f"{_NODE} {_CONFIGURED}",
    "FSDP / 5,605": f"{_NODE} --nnodes=16 {_CONFIGURED}",
    "FSDP + torch.compile / 6,667": f"{_NODE} {_CONFIGURED} --training.compile",
    "FSDP + torch.compile / 6,514": f"{_NODE} --nnodes=16 {_CONFIGURED} --training.compile",
    "FSDP + torch.compile + Float8 / 8,532": f"{_NODE} {_CONFIGURED} {_FLOAT8}",
    "FSDP + torch.compile + Float8 / 8,380": f"{_NODE} --nnodes=16 {_CONFIGURED} {_FLOAT8}",
    "2D / 829": f"{_NODE} --nnodes=32 {_SEVENTY_B} {_FLOAT8}",
} | {
    f"FSDP {8 // ranks}, CP {ranks} / {32_768 * ranks} / {speed:,}": f"{_NODE} {_LONG} {_FLOAT8}"
    f" --training.seq_len {32_768 * ranks} --experimental.context_parallel_degree {ranks}"
    for ranks, speed in _CONTEXTS.items()
}
# spec: the same tables; these rows are not in our public table
_PAGE_GIB: Final = {
    "FSDP + torch.compile / 6,667": 77.0, "FSDP + torch.compile / 6,514": 62.0,
    "FSDP + torch.compile + Float8 / 8,532": 76.8, "FSDP + torch.compile + Float8 / 8,380": 61.8, "2D / 829": 71.9,
    "FSDP 8, CP 1 / 32768 / 3,890": 83.9, "FSDP 4, CP 2 / 65536 / 2,540": 84.2, "FSDP 2, CP 4 / 131072 / 1,071": 84.0,
    "FSDP 1, CP 8 / 262144 / 548": 84.5,
}  # fmt: skip
_NAMED: Final = re.compile(r"CUDA capacity: (.+?) with [\d.]+ ?GiB")
# A stub in a folder on PATH: it prints what the project's launching script would have started, word by word.
_TORCHRUN: Final = """#!/bin/sh
{python} -c 'import json, os, sys; print(json.dumps(dict(words=sys.argv[1:], environment=dict(os.environ))))' "$@"
"""
_TOKENIZER: Final = re.compile(r"(?:\./)?(assets/(?:hf|tokenizer)/[\w./-]+|torch\w+/datasets/tokenizer/[\w./-]+)")
_VOCABULARIES: Final = {"llama": 128_256, "deepseek": 102_400, "": 128_256}  # spec: their tokenizers
_WORDS: Final = 128_000  # spec: Llama 3's tokenizer without its 256 special tokens
_ALONE: Final = ("PATH", "PYTHONPATH", "PWD", "OLDPWD", "SHLVL", "_", "HOME", "TMPDIR", "LOG_RANK", "NGPU", "LC_CTYPE")


@dataclass(frozen=True, slots=True)
class Launch:
    """The command of the project's own script: the words after `torchrun`, and the variables that it sets."""

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def command(self) -> list[str]:
        """Return the command for `vramcast run`."""
        return ["env", *(f"{name}={value}" for name, value in self.environment), "torchrun", *self.words]


@dataclass(frozen=True, slots=True)
class Typed:
    """A typed command: variables, the launching script ("" for torchrun itself), and the words after it."""

    told: dict[str, str]
    script: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A logged run: its place, the typed command, and its output."""

    commit: str
    date: str
    typed: str
    value_mib: float
    notes: str
    capacity_gib: float

    @property
    def name(self) -> str:
        """Name for tables."""
        return f"{self.commit[:8]} {self.short}"

    @cached_property
    def short(self) -> str:
        """Return the command without the parts common to all rows."""
        found = _SCRIPT.search(self.typed)
        words = (found[1] + found[3]) if found else self.typed
        return " ".join(words.replace('"', "").replace("./torchtitan/models/", "").split())[:90]

    @property
    def key(self) -> str:
        """Key of stored answers."""
        return f"{self.commit} {self.typed} {self.value_mib}"

    @property
    def tree(self) -> str:
        """Return the commit whose code ran: the parent, if the block says so."""
        return f"{self.commit}^" if _BEFORE.search(self.notes) else self.commit

    @property
    def steps(self) -> int:
        """Return the number of the job's steps that the figure covers, but no more than needed."""
        found = _LOGGED.search(self.notes)
        return min(int(found[2]), _MOST_STEPS) if found else _MOST_STEPS

    @property
    def release(self) -> str:
        """Return the release of torch to which this nightly belongs."""
        day = (date.fromisoformat(self.date) + _BRANCHED).isoformat()
        return next((release for release, released in _RELEASED.items() if released > day), "2.15")


def rows_of(rows: Iterable[dict[str, str]]) -> list[Row]:
    """Return the rows of torchtitan.csv with the command in the same block as the numbers."""
    found = []
    for row in rows:
        capacity = _CAPACITY.search(row["gpu"])
        day = re.search(r"\d{4}-\d\d-\d\d", row["torch"])
        if "cmd in the same block" in row["notes"] and capacity and day:
            commit = row["url"].rsplit("/", 1)[1]
            found.append(Row(commit, day[0], row["job"], float(row["value_mib"]), row["notes"], float(capacity[1])))
    return found


def table_rows(rows: Iterable[dict[str, str]]) -> list[Row]:
    """Return the rows of the tables of December 2024 whose command is known."""
    told_mib = {row["job"]: float(row["value_mib"]) for row in rows if "202412" in row["source"]}
    told_mib |= {job: gib * 1024 for job, gib in _PAGE_GIB.items()}
    notes = "steps 1..90, first 0 last 0 GiB"
    return [
        Row(_PUBLISHED, "2024-12-23", typed, told_mib[job], notes, 95.0) for job, typed in _TABLES.items() if job in told_mib
    ]


def all_rows() -> list[Row]:
    """Return the rows of both public tables."""
    return rows_of(read_rows("public/torchtitan.csv")) + table_rows(read_rows("public/torchtitan_tables.csv"))


def typed_command(text: str) -> Typed | None:
    """Return the typed command; None if nothing in the text starts the project.

    The numbers follow the last command of a block. The shell's own echo of it (`+ torchrun ...`) counts only if the
    command itself is missing.
    """
    typed = re.split(r"\s\+ ", text)[0]
    ends = [found.end() for found in re.finditer(r"\./run_(?:llama_)?train\.sh", typed)]
    found = _SCRIPT.search(typed[ends[-2] if len(ends) > 1 else 0 :]) if ends else None
    if found is not None:
        told = dict(word.split("=", 1) for word in shlex.split(found[1]))
        arguments = _words(found[3])
        if parallel := _TENSOR_PARALLEL.search(text):
            arguments += ["--training.tensor_parallel_degree", parallel[1]]
        return Typed(told, found[2], tuple(arguments))
    if echoed := re.search(r"((?:\b[A-Z_]+=\S+ )*)\btorchrun (.*)", text, re.DOTALL):
        return Typed(dict(word.split("=", 1) for word in shlex.split(echoed[1])), "", tuple(_words(echoed[2])))
    return None


def _words(text: str) -> list[str]:
    return shlex.split(re.split(r"[`>]|====", text.replace("\\\n", " ").replace("\\ ", " "))[0])


def launch(tree: Path, typed: Typed) -> Launch:
    """Return the command that a launching script starts: it runs with a `torchrun` that only prints how it was called.

    Raises:
        ValueError: the script is not in this tree, or does not reach its launch.
    """
    told, script, arguments = typed.told, typed.script, typed.words
    if not script:
        return Launch(arguments, tuple(sorted(told.items())))
    if not (tree / script).exists():
        raise ValueError(f"{script} is not in this commit")
    with tempfile.TemporaryDirectory() as folder:
        fake = Path(folder) / "torchrun"
        fake.write_text(_TORCHRUN.format(python=shlex.quote(sys.executable)), encoding="utf-8")
        fake.chmod(0o755)
        plain = {"PATH": f"{folder}:{os.environ['PATH']}", "USER": "user", "HOME": folder}
        done = subprocess.run(
            ["bash", script, *arguments], cwd=tree, env=plain | told, capture_output=True, text=True, check=False
        )
    try:
        said = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise ValueError(f"{script} ended with {done.returncode}: {done.stderr.strip()[-200:]}") from None
    added = {name: value for name, value in said["environment"].items() if name not in {*_ALONE, "USER", *told}}
    kept = {name: value for name, value in told.items() if name not in ("NGPU", "LOG_RANK", "CONFIG_FILE", "MODULE", "CONFIG")}
    return Launch(tuple(said["words"]), tuple(sorted({**added, **kept}.items())))


# ---------------------------------------------------------------------------------------------------- the tree
def export(repository: Path, commit: str, folder: Path) -> None:
    """Write a commit's files to a folder, without those that the repository does not hold (large ones).

    Raises:
        ValueError: the repository does not have the commit.
    """
    git = ["git", "--git-dir", str(repository)]
    listed = subprocess.run([*git, "ls-tree", "-r", "-z", commit, "--"], capture_output=True, check=False)
    if listed.returncode:
        raise ValueError(f"the repository does not have {commit[:8]}")
    entries = [line.split("\t", 1) for line in listed.stdout.decode().split("\0") if line]
    blobs = "".join(f"{facts.split()[2]}\n" for facts, _ in entries).encode()
    answer = subprocess.run([*git, "cat-file", "--batch"], input=blobs, capture_output=True, check=True).stdout
    for _, path in entries:
        head, _, answer = answer.partition(b"\n")
        if head.endswith(b"missing"):
            continue
        size = int(head.split()[2])
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(answer[:size])
        answer = answer[size + 1 :]


def complete(tree: Path, shared: Path, words: Sequence[str]) -> None:
    """Add offline replacements: documents under the names of the data sets, and tokenizers.

    Args:
        tree: The project.
        shared: Folder for files that many trees share.
        words: Words after the command; they may name a tokenizer.
    """
    if not shared.exists():
        shared.mkdir(parents=True)
        c4(shared)
        tokens = itertools.chain(
            (bytes([number]) for number in range(256)),
            (bytes(letters) for n in (2, 3, 4) for letters in itertools.product(range(97, 123), repeat=n)),
        )
        lines = (f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(itertools.islice(tokens, _WORDS)))
        (shared / "tokenizer.model").write_text("".join(lines), encoding="ascii")
    for name, config in (
        ("allenai/c4", "en"),
        ("tatsu-lab/alpaca", "default"),
        ("tests/assets/c4_test", "default"),
        ("test/assets/c4_test", "default"),
    ):
        folder = tree / name
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data.json"
        if not data.exists():
            data.symlink_to(shared / "data.json")
            facts = f"---\nconfigs:\n- config_name: {config}\n  data_files: data.json\n---\n"
            (folder / "README.md").write_text(facts, encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for name in ("*.toml", "config_registry.py") for path in tree.rglob(name)]
    for path in {path for text in [*texts, *words] for path in _TOKENIZER.findall(text)}:
        target = tree / path
        if target.suffix == ".model" and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(shared / "tokenizer.model")
        elif target.suffix != ".model" and not (target / "tokenizer.json").exists():
            target.mkdir(parents=True, exist_ok=True)
            size = next(size for name, size in _VOCABULARIES.items() if name in path.lower())
            known = SimpleNamespace(
                vocab_size=size, bos_token_id=0, eos_token_id=1, pad_token_id=1, max_position_embeddings=131_072
            )
            write_tokenizer(known, target)


# ---------------------------------------------------------------------------------------------------- the run
@dataclass(frozen=True, slots=True)
class Answer:
    """Our estimate for a row in MiB, or the reason for none; `said` is the whole JSON of `vramcast run`, {} without one."""

    here_mib: float | None
    torch: str = ""
    reason: str = ""
    said: dict[str, Any] = field(default_factory=dict)


def card_of(row: Row, message: str) -> str:
    """Return the card of our table: by the name in the commit's message, else by its memory."""
    for name in _NAMED.findall(message):
        for words, ours in _CARDS:
            if words in name:
                return ours
    return next(ours for gib, ours in _BY_GIB if row.capacity_gib < gib)


def python_of(row: Row, torches: Path | None) -> Path:
    """Return the Python with the installed release of torch that is nearest to a row's."""
    installed = {path.name: path / "bin" / "python" for path in torches.iterdir()} if torches else {}
    numbered = {_number(version): python for version, python in installed.items() if python.exists()}
    wanted = _number(row.release)
    return min(numbered.items(), key=lambda item: abs(item[0] - wanted), default=(0, Path(sys.executable)))[1]


def _number(version: str) -> int:
    return int(version.split(".")[1])


def run(
    launched: Launch, row: Row, tree: Path, python: Path, card: str, packages: Path | None, *, timeout_s: float = _TIMEOUT_S
) -> Answer:
    """Return the answer of `vramcast run` for a command."""
    own = str(Path(__file__).resolve().parents[3])
    paths = [own, str(tree), *([str(packages.absolute())] if packages else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    words = [
        str(python), "-m", "vramcast", "run", "--json", "--device", card, "--memory", f"{row.capacity_gib}GiB",
        "--no-bracket", "--until", "steps", "--steps", str(row.steps), "--timeout", str(timeout_s), "--", *launched.command,
    ]  # fmt: skip
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = {}
    if "peaks" not in said:
        return Answer(None, reason=(done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200])
    first = next((rank["peaks"]["reserved"] for rank in said["ranks"] if rank["rank"] == 0), said["peaks"]["reserved"])
    why = next((warning for warning in said["warnings"] if "ended early" in warning), "")
    reason = "" if said["steps"] == row.steps else f"{said['steps']} of {row.steps} steps: {why.rpartition(': it ')[2]}"
    return Answer(first / MIB if not reason else None, said["torch"], reason[:200], said)


def answer_of(
    row: Row, repository: Path, torches: Path | None, packages: Path | None, shared: Path, *, timeout_s: float = _TIMEOUT_S
) -> Answer:
    """Return our answer for a row, or the reason why there is none."""
    typed = typed_command(row.typed)
    if typed is None:
        return Answer(None, reason="no launching script in what was typed")
    message = subprocess.run(
        ["git", "--git-dir", str(repository), "log", "-1", "--format=%B", row.commit, "--"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        try:
            export(repository, row.tree, tree)
            complete(tree, shared, typed.words)
            launched = launch(tree, typed)
        except ValueError as error:
            return Answer(None, reason=str(error))
        return run(launched, row, tree, python_of(row, torches), card_of(row, message), packages, timeout_s=timeout_s)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line per row, and the median."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repository", type=Path, required=True, metavar="GIT", help="torchtitan's git directory")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="datasets, tiktoken, tyro, torchdata, without torch")
    parser.add_argument("--torches", type=Path, metavar="FOLDER", help="environments with other releases of torch, by version")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose commit or command contains TEXT")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="S", help="limit of a run (default: %(default)s)")
    parser.add_argument("--kept", action="store_true", help="run nothing: print the table of the stored answers")
    parser.add_argument("--fresh", action="store_true", help="also run rows with a stored answer")
    options = parser.parse_args(arguments)
    rows = all_rows()
    kept = kept_answers()
    for row in rows:
        is_known = row.key in kept and kept[row.key].here_mib is not None
        if options.only in row.name and not options.kept and (options.fresh or not is_known):
            kept[row.key] = answer = answer_of(
                row, options.repository, options.torches, options.packages, BUILD / "titan-data", timeout_s=options.timeout
            )
            print(f"{row.name}: {answer.here_mib or answer.reason} of {row.value_mib:.0f}", file=sys.stderr, flush=True)
            KEPT.parent.mkdir(parents=True, exist_ok=True)
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": row.key, **asdict(kept[row.key])}) + "\n")
    told = [(row, kept[row.key]) for row in rows if row.key in kept]
    columns = ["commit", "command", "torch", "torch here", "logged MiB", "here", "reserved", "reason"]
    print(table(columns, (_cells(row, answer) for row, answer in told)))
    offs = sorted(abs(answer.here_mib / row.value_mib - 1) for row, answer in told if answer.here_mib is not None)
    if offs:
        errors = f"{100 * median(offs):.2f} % in the median, at most {100 * offs[-1]:.2f} %"
        print(f"\n{len(offs)} of {len(told)} rows: error of reserved {errors}")


def kept_answers() -> dict[str, Answer]:
    """Return the stored answers by the rows' keys; the last answer counts."""
    kept = {}
    for line in KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []:
        said = json.loads(line)
        key = said.pop("key")
        kept[key] = Answer(**said)
    return kept


def _cells(row: Row, answer: Answer) -> list[object]:
    """Return the table cells of a row."""
    commit = row.tree.replace(row.commit, row.commit[:8])
    start = [commit, row.short, row.release, answer.torch, f"{row.value_mib:,.0f}"]
    if answer.here_mib is None:
        return [*start, "-", "", answer.reason]
    return [*start, f"{answer.here_mib:,.0f}", f"{100 * (answer.here_mib / row.value_mib - 1):+.2f} %", answer.reason]


if __name__ == "__main__":
    main()
