"""Training logs that contain their script: source, settings, and measured peaks, extracted from a git store.

    python -m benchmarks.accuracy.logs.logged_sources --from-logs REPOSITORY.git --table parameter_golf.csv --scripts FOLDER
    python -m benchmarks.accuracy.logs.logged_sources --from-logs REPOSITORY.git --table modded_nanogpt.csv --needs

A log of these projects begins with the whole source of the script, then a line of `=` signs, versions and `nvidia-smi`, then
the output of the script. The folder gets `SHA.py`, the sources; `BLOB.log`, the text after them; and `BLOB.beside`, the
author's texts next to the log: the command, or a `result.json` with the environment. None of these belong in this
repository. --needs counts the logs by ranks and by the requirements of their scripts.
"""

from __future__ import annotations

import argparse
import collections
import csv
import hashlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from benchmarks.tables import table
from vramcast.datasets.histories.logged import RULE, settings_of, split

_SHA_DIGITS: Final = 12  # spec: the table's column `script`
_VARIABLE: Final = re.compile(r"""["']([A-Z][A-Z0-9_]+)["']""")
_PEAK: Final = re.compile(r"peak memory allocated: (\d+) MiB reserved: (\d+) MiB")
_TOTAL: Final = re.compile(r"/\s*(\d+)MiB")
_IN_USE: Final = re.compile(r"(\d+)MiB\s*/\s*\d+MiB")
_PROCESS: Final = re.compile(r"^\|\s+\d+\s+\S+\s+\S+\s+\d+\s+(C|G|C\+G)\s.*?(\d+)MiB\s*\|$", re.MULTILINE)
_SHOWN: Final = re.compile(r"""(?<![\w.])(\w+)[:=]\{\w+\.(\w+)\}(?=[\s"',;)|])""")
_NUMBER: Final = re.compile(r"""(?:int|float)\((?:os\.)?environ(?:\.get\(|\[)\s*["']([A-Z][A-Z0-9_]+)["']""")
_READ: Final = re.compile(
    r"""^\s*(\w+)(?:\s*:[^=\n]+)?\s*=[^\n]*environ(?:\.get\(|\[)\s*["']([A-Z][A-Z0-9_]+)["']""", re.MULTILINE
)
_ASSIGNED: Final = re.compile(r"""(?<![\w.])(?:\$env:)?([A-Z][A-Z0-9_]{3,})=["']?([\w.+-]+)""")
_CONFIGURED: Final = re.compile(r""""([A-Z][A-Z0-9_]{3,})": "?([\w.+-]+)""")
_PYTHON: Final = re.compile(r"\bpython3? +[\w./-]*train\w*\.py")
_VALIDATED: Final = re.compile(r"^step:0/\d+ val_loss", re.MULTILINE)
_BLOB_PAGE: Final = re.compile(r"/blob/([0-9a-f]{40})/(.+)$")
# Settings that differ in each run: paths, run length, and settings that do not affect memory.
_OWN: Final = frozenset(
    {"dataset", "pattern", "tokens", "train_shards", "tokenizer_path", "iterations", "warmup_steps", "max_wallclock_seconds",
     "seed", "run_id", "world_size", "rank", "local_rank", "logfile", "device", "path", "total_mem_gib"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks on the script's own line, in whole MiB as it prints them."""

    allocated_mib: int
    reserved_mib: int


@dataclass(frozen=True, slots=True)
class Log:
    """The output of a script.

    Attributes:
        settings: `name:value` or `name=value` before the first step; the first of a name counts.
        peaks: The peaks on the script's line, None if it was not reached.
        total_mib: The card's memory from nvidia-smi.
        windows: True if it ran on Windows, which has no NCCL: not started by torchrun.
        validates_first: True if it validated before the first step; later steps reuse the segments of that.
        held_mib: The memory of compute processes at the start or, if nvidia-smi could not list them, of each card. If a
            script calls nvidia-smi after making its process group, the one number of these is its own context.
    """

    settings: Mapping[str, str]
    peaks: Peaks | None
    total_mib: int | None
    windows: bool
    validates_first: bool = True
    held_mib: tuple[int, ...] = ()


def sha_of(source: bytes) -> str:
    """Return the name of a script in the tables."""
    return hashlib.sha256(source).hexdigest()[:_SHA_DIGITS]


def read_log(text: str) -> Log:
    """Return the content of a log, without the source."""
    found = _PEAK.search(text)
    # If several runs wrote into one file, the settings belong to the run that printed the peak.
    head, _, section = text[: found.start() if found else None].rpartition(RULE)
    settings = settings_of(section.splitlines())
    total = _TOTAL.search(text)
    started = head.rpartition(RULE)[2]  # versions and nvidia-smi
    processes = _PROCESS.findall(started)
    held = [mib for kind, mib in processes if "C" in kind] if processes else _IN_USE.findall(started)
    return Log(
        settings,
        Peaks(int(found[1]), int(found[2])) if found else None,
        int(total[1]) if total else None,
        "MSC v." in text,
        _VALIDATED.search(text) is not None,
        tuple(int(mib) for mib in held),
    )


def variables(source: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run that printed `settings`: a variable in the source has the name of its setting.

    `train_seq_len:512` is TRAIN_SEQ_LEN=512, `tie_embeddings:True` TIE_EMBEDDINGS=1 and `layers:[0, 2]` LAYERS=0,2, if the
    source has those names; `gates_enabled:True` is GATES=1 if it has `gates_enabled = ...environ.get("GATES"...`,
    and `dim:512` MODEL_DIM=512 if it also prints `dim:{args.model_dim}`.
    """
    known = {name.lower(): name for name in _VARIABLE.findall(source)}
    read: dict[str, str] = dict(_READ.findall(source))
    known |= {name.lower(): variable for name, variable in read.items() if name.lower() not in known}
    shown = {name.lower(): attribute for name, attribute in _SHOWN.findall(source) if attribute in read}
    known |= {name: read[attribute] for name, attribute in shown.items() if name not in known}
    words = {"True": "1", "False": "0"}
    numbers = set(_NUMBER.findall(source))
    given = {
        known[name.lower()]: words.get(value, value.strip("[]").replace(" ", ""))
        for name, value in settings.items()
        if name.lower() in known and not _is_own(name, value)
    }
    return {name: value for name, value in given.items() if name not in numbers or _is_number(value)}


def _is_number(text: str) -> bool:
    """Return whether a setting is numeric: a script may print a word for a special value (`rope_dims:full`)."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def launched(text: str) -> tuple[dict[str, str], bool | None]:
    """Return the environment in an author's texts, and whether torchrun started the script; None if the texts do not tell.

    A variable with different values is left out: the texts describe several runs.
    """
    found: dict[str, set[str]] = {}
    for name, value in [*_ASSIGNED.findall(text), *_CONFIGURED.findall(text)]:
        found.setdefault(name, set()).add(value)
    started = True if "torchrun" in text else False if _PYTHON.search(text) else None
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}, started


def differences(logged: Mapping[str, str], printed: Mapping[str, str]) -> list[str]:
    """Return the log's settings that a run printed differently, or not at all: `model_params 17059912, here 17060424`."""
    return [
        f"{name} {value}, here {printed.get(name, 'not printed')}"
        for name, value in logged.items()
        if not _is_own(name, value) and not _is_rate(value) and printed.get(name) != value
    ]


def _is_own(name: str, value: str) -> bool:
    """Return whether a setting depends on the machine: by its name, or because it is a path."""
    return name.lower() in _OWN or "/" in value


def _is_rate(value: str) -> bool:
    """Return whether a value is a fraction: rates and weights of a loss, which do not affect memory."""
    return re.fullmatch(r"-?\d*\.\d*(e-?\d+)?|-?\d+e-\d+", value) is not None


def _git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", "--git-dir", str(repository), *words], capture_output=True, check=False).stdout


def source_at(repository: Path, url: str) -> str:
    """Return the source in the log on a page of the repository, `.../blob/COMMIT/PATH`; "" if it is not there."""
    found = _BLOB_PAGE.search(url)
    blob = _git(repository, "show", f"{found[1]}:{unquote(found[2])}") if found else b""
    return split(blob)[0].decode("utf-8", "replace")


def needs(source: str, ranks: str) -> str:
    """Return the first requirement of a script that applies."""
    if "get_kernel(" in source:
        return "a kernel from a hub"
    if "flash_attn_interface" in source:
        return "FlashAttention 3"
    if re.search(r"assert world_size == 8", source) or ranks == "8":
        return "8 ranks"
    return "nothing" if source else "a log with its source"


def _beside(repository: Path, log_path: str) -> str:
    """Return the author's texts in the folder of a log, from the newest commit that touched it."""
    commit = _git(repository, "log", "--all", "--format=%H", "-1", "--", log_path).decode().strip()
    if not commit:
        return ""
    folder = Path(log_path).parent
    names = _git(repository, "ls-tree", "--name-only", commit, f"{folder}/").decode().splitlines()
    texts = [name for name in names if Path(name).name in ("README.md", "result.json") or name.endswith(".sh")]
    return "\n".join(_git(repository, "show", f"{commit}:{name}").decode("utf-8", "replace") for name in texts)


def extract(repository: Path, rows: Sequence[Mapping[str, str]], folder: Path) -> list[str]:
    """Write sources and logs of the table's rows from a git directory to `folder`; return a line for each missing one."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for row in rows:
        log = folder / f"{row['log_blob']}.log"
        if log.exists():
            continue
        command = ["git", "--git-dir", str(repository), "cat-file", "blob", row["log_blob"]]
        done = subprocess.run(command, capture_output=True, check=False)
        source, text = split(done.stdout)
        if done.returncode or sha_of(source) != row["script"]:
            missing.append(f"{row['log_path']}: {'its blob is not there' if done.returncode else 'another source'}")
            continue
        (folder / f"{row['script']}.py").write_bytes(source)
        (folder / f"{row['log_blob']}.beside").write_text(_beside(repository, row["log_path"]), encoding="utf-8")
        log.write_text(text, encoding="utf-8")
    return missing


def main() -> None:
    """Extract the runs with the requested number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--from-logs", type=Path, required=True, metavar="GITDIR", help="a clone of the logs' repository")
    parser.add_argument("--table", type=Path, required=True, help="the table that names the logs by their blobs")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--scripts", type=Path, metavar="FOLDER", help="write sources and logs to FOLDER")
    chosen.add_argument("--needs", action="store_true", help="count the logs by what their scripts need")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="runs with N ranks (default: 1)")
    options = parser.parse_args()
    with open(options.table, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if options.needs:
        logs = {row["url"]: row["world_size"] or "unknown" for row in rows}
        counts = collections.Counter((ranks, needs(source_at(options.from_logs, url), ranks)) for url, ranks in logs.items())
        print(table(["ranks", "needs", "logs"], [[*key, n] for key, n in sorted(counts.items())]))
        return
    rows = [row for row in rows if row["world_size"] == str(options.world_size) and row.get("log_blob")]
    missing = extract(options.from_logs, rows, options.scripts)
    print(*missing, sep="\n", file=sys.stderr)
    print(f"{len(rows) - len(missing)} of {len(rows)} logs in {options.scripts}")


if __name__ == "__main__":
    main()
