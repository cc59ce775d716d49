"""Batch scripts, read and run: the reader's result compared with the same script under a real Bash.

Python, launchers, and wrappers are stand-ins that record their words, their variables, and their times; the memory of a
training depends on its batch. A script counts as a wrong number if the reader reports less than it took, because a request
would become too small. A script that the reader leaves alone is handled, unless it is one of those that it must understand.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.cluster.random_scripts import Scripts

RIGHT, ALONE, WRONG = "understood rightly", "left alone", "understood wrongly"  # outcomes of `compared`
_LIMIT_S = 30.0  # arbitrary
_AT_ONCE = 6  # arbitrary: scripts in places of their own; the stand-ins mostly sleep
_SEED, _DRAWN = 1, 600  # arbitrary: about one in five of them is understood
_EVERY = 6  # arbitrary: every sixth combination is tried
_UNSURE = frozenset({"until", "while"})  # shapes that the reader may leave alone
_DEFAULT = 8  # arbitrary: the batch of a command that names none
_OTHERS = 10  # arbitrary: memory of a training without its batch
_SUBMITTED = {"HOME": "/home/ann", "FROM_OUTSIDE": "300"}  # the environment of the submission
_NOTES = """#!/bin/sh
note=LOG/$$.$(date +%s%N)
date +%s%N > "$note.tmp"
printf '%s\\0' "$(basename "$0")" "BATCH=$BATCH" "$(cat conf.yaml 2>/dev/null)" "$@" >> "$note.tmp"
sleep 0.1
date +%s%N > "$note.end"
mv "$note.tmp" "$note"
"""
_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FILES: Final[dict[str, str]] = _TABLE["files"]
# Stand-ins of wrappers: they read the options that set variables or numbers of tasks, skip the others, and run the rest.
_UV = r"""shift; f=$UV_ENV_FILE
while [ "${1#-}" != "$1" ]; do
  case $1 in --env-file) f=$2; shift;; --env-file=*) f=${1#*=};; --no-env-file) f=;; esac; shift
done
while read -r line; do
  k=${line%%=*}; [[ $k == \#* || -z $k || -n ${!k+x} ]] || export "$line"
done < "${f:-/dev/null}"
case $1 in *.py) exec python "$@";; esac; exec "$@"
"""
_SRUN = r"""n=1; e=$SLURM_EXPORT_ENV; [ -n "$SLURM_NPROCS" ] && n=$SLURM_NPROCS; [ -n "$SLURM_NTASKS" ] && n=$SLURM_NTASKS
while [ "${1#-}" != "$1" ]; do
  case $1 in
    -n) n=$2; shift;; -n*) n=${1#-n};; --ntasks=*|--ntasks-per-gpu=*) n=${1#*=};; -i) exec < "$2"; shift;;
    --export) e=$2; shift;; --export=*) e=${1#*=};;
  esac; shift
done
case ,$e, in ,,|*,ALL,*) ;; *) unset BATCH;; esac
IFS=,; for one in $e; do case $one in *=*) export "$one";; esac; done; unset IFS
first=(); while [ $# -gt 0 ] && [ "$1" != ":" ]; do first+=("$1"); shift; done
[ "$1" = ":" ] && { shift; srun "$@" & }
for k in $(seq "$n"); do "${first[@]}" & done; wait
"""
_MPIRUN = r"""n=1
while [ "${1#-}" != "$1" ]; do
  case $1 in
    -np|-n) n=$2; shift;; -x) export "$2"; shift;;
    -genv|-env) case $2 in *=*) export "$2";; *) export "$2=$3"; shift;; esac; shift;;
  esac; shift
done
first=(); while [ $# -gt 0 ] && [ "$1" != ":" ]; do first+=("$1"); shift; done
[ "$1" = ":" ] && { shift; mpirun "$@" & }
for k in $(seq "$n"); do "${first[@]}" & done; wait
"""
_APPTAINER = r"""for v in $(compgen -e | grep -E '^(APPTAINER|SINGULARITY)ENV_'); do export "${v#*ENV_}=${!v}"; done
shift
while [ "${1#-}" != "$1" ]; do case $1 in --env) export "$2"; shift;; --bind|-B) shift;; esac; shift; done
shift; exec "$@"
"""
_WRAPPERS = {
    "uv": _UV,
    "poetry": 'shift; exec "$@"',
    "conda": 'shift; while [ "${1#-}" != "$1" ]; do case $1 in -n|-p) shift;; esac; shift; done; exec "$@"',
    "apptainer": _APPTAINER,
    "srun": _SRUN,
    "mpirun": _MPIRUN,
    "wandb": '[ "$1" = agent ] && exec python train.py --batch 900; exit 0',
    "module": '[ "$2" != broken ]',
    "nvidia-smi": "exit 0",
    "make": 'exec python train.py --batch 900',
}  # fmt: skip
_WRAPPERS |= {"singularity": _WRAPPERS["apptainer"], "mpiexec": _WRAPPERS["mpirun"], "mamba": _WRAPPERS["conda"]}
_TRAINERS = ("python", "python3", "python3.12", "torchrun", "accelerate", "deepspeed")


def cases(folder: Path) -> Iterable[Case]:
    """Yield all cases."""
    place = _Place(folder)
    plain, odd, shapes = _TABLE["plain"], _TABLE["odd"], _TABLE["shapes"]

    def case(kind: str, name: str, script: str, is_usual: bool) -> Case:
        return Case(kind, name, lambda: place.verdict(script, is_usual))

    for (name, shape), (k, command) in itertools.product(shapes.items(), enumerate(plain)):
        if (k + len(name)) % _EVERY == 0 or name == "alone":
            other = plain[(k * 7 + len(name)) % len(plain)]
            script = _filled(shape, command, other)
            yield case("batch scripts of known commands", f"{name}: {command} / {other}", script, name not in _UNSURE)
    kind = "batch scripts with an odd command"
    for (name, shape), (k, command) in itertools.product(shapes.items(), enumerate(odd)):
        if (k + len(name)) % _EVERY == 0 or name == "two in turn":
            other = plain[k % len(plain)]
            yield case(kind, f"{name}: {command}", _filled(shape, command, other), is_usual=False)
            yield case(kind, f"{name}, behind: {command}", _filled(shape, other, command), is_usual=False)
    for table in ("usual", "tricky"):
        for name, script in _TABLE[table].items():
            yield case("batch scripts and their variables", name, script, table == "usual")
    drawn = Scripts(_SEED)
    for number in range(_DRAWN):
        yield case("batch scripts drawn at random", str(number), drawn.draw(), is_usual=False)


def _filled(shape: str, first: str, second: str) -> str:
    """Return a script: two commands with different batches in a shape."""
    commands = {"C": re.sub(r"\bN\b", "64", first), "D": re.sub(r"\bN\b", "200", second)}
    return re.sub(r"\b[CD]\b", lambda found: commands[found[0]], shape)


class _Place:
    """A place for scripts to run: a new job folder for each, and stand-ins on PATH."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.log, self.job = folder / "bin", folder / "log", folder / "job"
        self.bin.mkdir()
        for name, text in _WRAPPERS.items():
            self._write(self.bin / name, f"#!/bin/bash\n{text}\n")
        for name in _TRAINERS:
            self._write(self.bin / name, _NOTES.replace("LOG", str(self.log)))

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def _fresh(self) -> None:
        """Empty the log and the job's folder, and write the job's files."""
        for folder in (self.log, self.job):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for name, text in _FILES.items():
            self._write(self.job / name, text)

    def verdict(self, script: str, is_usual: bool) -> Verdict:
        """Read a script, run it, and compare."""
        self._fresh()
        said = self._read(script)
        if isinstance(said, str):
            return Verdict(Wrong.UNCLEAR, f"left alone: {said}") if is_usual else HANDLED
        took = self._took(script)
        return Verdict(Wrong.NUMBER, f"the reader reports {said}, and it took {took}") if said < took else HANDLED

    def _read(self, script: str) -> int | str:
        """Return the memory of a script according to the reader, or the reason why it is left alone."""
        from vramcast.cluster.shell.grammar import NotUnderstood
        from vramcast.cluster.shell.plan import peak_bytes
        from vramcast.cluster.shell.script import read_script

        with contextlib.chdir(self.job):
            try:
                found = read_script(script, folder=str(self.job), environment=dict(_SUBMITTED), files=_FILES)
            except NotUnderstood as error:
                return str(error)
        return peak_bytes(
            found.plan, {step: _takes(step.words, dict(step.environment), _FILES["conf.yaml"]) for step in found.steps}
        )

    def _took(self, script: str) -> int:
        """Return the memory of a script under Bash: the largest sum of simultaneous trainings."""
        environment = {**_SUBMITTED, "PATH": f"{self.bin}:/usr/bin:/bin"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["/bin/bash", "-c", script],
                cwd=self.job, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S,
            )  # fmt: skip
        return _largest(self._notes())

    def _notes(self) -> Iterator[tuple[int, int, int]]:
        for note in self.log.glob("*[0-9]"):
            begun, _, rest = note.read_bytes().partition(b"\n")
            name, batch, config, *words = rest.decode().split("\0")[:-1]
            ended = int(note.with_name(f"{note.name}.end").read_text())
            yield int(begun), ended, _takes([name, *words], {"BATCH": batch.removeprefix("BATCH=")}, config)


def compared(scripts: Sequence[str], folder: Path) -> list[tuple[str, str, str]]:
    """Return each script with its outcome, and what was seen."""
    places: SimpleQueue[_Place] = SimpleQueue()
    for k in range(_AT_ONCE):
        (folder / str(k)).mkdir()
        places.put(_Place(folder / str(k)))
    reader = places.get()
    reader._fresh()
    said = [reader._read(script) for script in scripts]
    places.put(reader)

    def one(script: str, size: int | str) -> tuple[str, str, str]:
        if isinstance(size, str):
            return script, ALONE, size
        place = places.get()
        place._fresh()
        took = place._took(script)
        places.put(place)
        return script, RIGHT if size >= took else WRONG, f"the reader reports {size}, and it took {took}"

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, scripts, said))


def _takes(words: Sequence[str], environment: Mapping[str, str], config: str) -> int:
    """Return the memory of a training by its words: the last batch counts, else the config's, else the variable."""
    found = re.findall(r"--batch[= ](\d+)(?= |$)", " ".join(words))
    if not found and "--config" in words:
        found = re.findall(r"batch: (\d+)", config)
    said = environment.get("BATCH", "")
    return _OTHERS + int(found[-1] if found else said if said.isdecimal() else _DEFAULT)


def _largest(spans: Iterable[tuple[int, int, int]]) -> int:
    events = sorted(event for begun, ended, size in spans for event in ((begun, size), (ended, -size)))
    return max(itertools.accumulate(size for _, size in events), default=0)
