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
from pathlib import Path
from typing import Final

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.cluster.random_scripts import Scripts

_LIMIT_S = 30.0  # arbitrary
_SEED, _DRAWN = 1, 600  # arbitrary: about one in five of them is understood
_EVERY = 6  # arbitrary: every sixth combination is tried
_UNSURE = frozenset({"until", "while"})  # shapes that the reader may leave alone
_DEFAULT = 8  # arbitrary: the batch of a command that names none
_OTHERS = 10  # arbitrary: memory of a training without its batch
_SUBMITTED = {"HOME": "/home/ann", "FROM_OUTSIDE": "300"}  # the environment of the submission
_NOTES = """#!/bin/sh
note=LOG/$$.$(date +%s%N)
date +%s%N > "$note.tmp"
printf '%s\\0' "$(basename "$0")" "BATCH=$BATCH" "$@" >> "$note.tmp"
sleep 0.1
date +%s%N > "$note.end"
mv "$note.tmp" "$note"
"""
_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_FILES: Final[dict[str, str]] = _TABLE["files"]
# Stand-ins of wrappers: they skip their options and run the rest.
_WRAPPERS = {
    "uv": 'shift; case $1 in *.py) exec python "$@";; esac; exec "$@"',
    "poetry": 'shift; exec "$@"',
    "conda": 'shift; while [ "${1#-}" != "$1" ]; do case $1 in -n|-p) shift;; esac; shift; done; exec "$@"',
    "apptainer": 'shift; while [ "${1#-}" != "$1" ]; do case $1 in --bind|-B) shift;; esac; shift; done; shift; exec "$@"',
    "srun": 'n=1; while [ "${1#-}" != "$1" ]; do case $1 in -n) n=$2; shift;; --ntasks=*) n=${1#*=};; esac; shift; done\n'
    'for k in $(seq "$n"); do "$@" & done; wait',
    "mpirun": 'n=1; while [ "${1#-}" != "$1" ]; do case $1 in -np|-n) n=$2; shift;; esac; shift; done\n'
    'for k in $(seq "$n"); do "$@" & done; wait',
    "module": "exit 0",
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
        from vramcast.jobs.shell.grammar import NotUnderstood
        from vramcast.jobs.shell.plan import peak_bytes
        from vramcast.jobs.shell.script import read_script

        with contextlib.chdir(self.job):
            try:
                found = read_script(script, folder=str(self.job), environment=dict(_SUBMITTED), files=_FILES)
            except NotUnderstood as error:
                return str(error)
        return peak_bytes(found.plan, {step: _takes(step.words, dict(step.environment)) for step in found.steps})

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
            name, batch, *words = rest.decode().split("\0")[:-1]
            ended = int(note.with_name(f"{note.name}.end").read_text())
            yield int(begun), ended, _takes([name, *words], {"BATCH": batch.removeprefix("BATCH=")})


def _takes(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the memory of a training by its words: the last batch counts, else the variable."""
    found = re.findall(r"--batch[= ](\d+)(?= |$)", " ".join(words))
    said = environment.get("BATCH", "")
    return _OTHERS + int(found[-1] if found else said if said.isdecimal() else _DEFAULT)


def _largest(spans: Iterable[tuple[int, int, int]]) -> int:
    events = sorted(event for begun, ended, size in spans for event in ((begun, size), (ended, -size)))
    return max(itertools.accumulate(size for _, size in events), default=0)
