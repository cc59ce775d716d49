"""Schedulers' hooks and hostile files, texts, and objects: hooks run nothing from a job's folder and lose no request."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import functools
import io
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong

_LIMIT_S = 60.0  # arbitrary
_PROMPT_S = 5.0  # arbitrary: for work in the hook's own process
_MODULES: Final = (
    "json",
    "argparse",
    "re",
    "typing",
    "tomllib",
    "signal",
    "dataclasses",
    "pathlib",
    "subprocess",
    "sitecustomize",
    "usercustomize",
    "vramcast",
    "encodings",
    "collections",
    "types",
)
_HOOKS: Final = {"submit": ("submit", "sbatch", "{}"), "epilog": ("epilog",)}
_COMMENTS: Final = (
    "x\nset partition secret",
    "x\r\nrefuse never",
    "x\rset gres gpu:8",
    "\nset qos high",
    "x\u2028set partition secret",
    "x\x85refuse no",
    "x\x0bset a b",
    "x\x0cset a b",
    "x\x1cset a b",
    "\n\n\nsay hello\n",
    "vramcast=" + "a" * 64 + ":1:999999999\nset a b",
    "x\tset a b",
    "x\x00set a b",
)
_OUTPUTS: Final = (
    "%1000000000j",
    "%10000000000j",
    "%" + "9" * 4000 + "j",
    "%10j" * 900,
    "%j" * 5000,
    "%x",
    "%x.out",
    "/dev/zero",
    "/dev/tty",
    ".",
    "..",
    "pipe",
    "%%%",
    "%",
    "a\0b",
    "*",
    "**",
    "[",
    "x" * 5000,
    "../%x/../%x",
)
_NAMES: Final = ("**", "*", "**/**", "[", "[!", "?", "", "a/b", "..", "\0", "%j")
_SCRIPTS: Final = ("/dev/zero", "/dev/stdin", "pipe", ".", "/proc/self/mem", "missing", "a\0b", "x" * 5000)
# Requests of a pod for a part of a card: annotations, limits.
_PARTS: Final[tuple[tuple[dict[str, str], dict[str, Any]], ...]] = (
    ({"gpu-fraction": "0.5"}, {}),
    ({"gpu-memory": "20k"}, {}),
    ({"gpu-memory": "20000"}, {}),
    ({"gpu-fraction-num-devices": "2"}, {}),
    *(
        ({}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": size})
        for size in ("20k", "20000", "2e4", "20K", "20480Mi", "0", "", "1_000", "9" * 5000, 20000)
    ),
    ({}, {"nvidia.com/gpumem-percentage": "50"}),
    ({}, {"volcano.sh/vgpu-memory": "10k"}),
    ({}, {"volcano.sh/vgpu-memory-percentage": "50"}),
    ({}, {"nvidia.com/mig-3g.20gb": "1"}),
    ({}, {"nvidia.com/mig-1g.5gb": "7"}),
    ({}, {"nvidia.com/gpu.shared": "1"}),
)
_SCHEDULERS: Final = ("kai-scheduler", "hami-scheduler", "volcano", "default-scheduler")


def cases(folder: Path) -> Iterable[Case]:
    """Yield all cases."""
    yield from _of_folders(folder)
    yield from _of_texts(folder)
    yield from _of_pods()


# ------------------------------------------------------------------------------------------------ folders
def _of_folders(folder: Path) -> Iterator[Case]:
    from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle

    settings = folder / "vramcast.toml"
    settings.write_text("service = 'http://127.0.0.1:9'\n[partitions]\nsmall = 't4'\n")

    def trap(name: str) -> tuple[Path, Path]:
        place = folder / f"trap-{name}"
        place.mkdir(exist_ok=True)
        planted = place / "RUN"
        (place / f"{name}.py").write_text(f"open({str(planted)!r}, 'w')\n")
        return place, planted

    def hook(name: str, words: tuple[str, ...], path: str) -> Verdict:
        place, planted = trap(name)
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(place)} | ({path: str(place)} if path else {})
        command = [sys.executable, "-I", "-P", "-m", "vramcast.cluster.slurm", "--settings", str(settings), *words]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
        if planted.exists():
            return Verdict(Wrong.NUMBER, "the folder's module was run")
        return Verdict(Wrong.TRACEBACK, done.stderr[-300:]) if done.returncode or done.stderr else HANDLED

    def oracle(name: str) -> Verdict:
        place, planted = trap(name)
        with contextlib.chdir(place), CudnnOracle(place, place) as started:
            lives = started.is_alive
        if planted.exists():
            return Verdict(Wrong.NUMBER, "the folder's module was run")
        return HANDLED if lives else Verdict(Wrong.UNCLEAR, "the oracle did not start")

    for (which, words), name, path in itertools.product(_HOOKS.items(), _MODULES, ("", "PYTHONPATH")):
        title = f"{which}, {name}.py in the folder{f' and on {path}' if path else ''}"
        yield Case("hooks in a folder of traps", title, functools.partial(hook, name, words, path))
    for name in _MODULES:
        yield Case("the cuDNN oracle in a folder of traps", name, functools.partial(oracle, name))


# ------------------------------------------------------------------------------------------------ texts
def _of_texts(folder: Path) -> Iterator[Case]:
    from vramcast.cluster.slurm import submit
    from vramcast.cluster.slurm.decision import Decision
    from vramcast.cluster.slurm.exit_status import outcome_of, read_environment
    from vramcast.cluster.slurm.question import submission_of

    def told(text: str) -> Verdict:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            submit._tell(Decision(f"say {text}", changes={"comment": text, "gres": "shard:4"}))
        lines = [
            line
            for line in out.getvalue().splitlines()
            if not line.startswith(("set comment ", "set gres shard:4", "say say "))
        ]
        return Verdict(Wrong.NUMBER, f"instructions: {lines}") if lines else HANDLED

    def ended(output: str, name: str) -> Verdict:
        variables = {"SLURM_JOB_ID": "12", "SLURM_JOB_UID": "1", "SLURM_JOB_NAME": name, "SLURM_JOB_STDOUT": output}
        with _prompt() as verdict:
            job = read_environment({**variables, "SLURM_JOB_WORK_DIR": str(folder), "SLURM_JOB_EXIT_CODE": "256"})
            if job is not None and outcome_of(job) != "unknown":
                return Verdict(Wrong.NUMBER, outcome_of(job))
        return verdict[0]

    def submitted(script: str) -> Verdict:
        with _prompt() as verdict:
            if submission_of("sbatch", {"argv": [script]}, folder) is not None:
                return Verdict(Wrong.NUMBER, "it was read")
        return verdict[0]

    os.mkfifo(folder / "pipe")
    for text in _COMMENTS:
        yield Case("texts of submissions and jobs", f"comment {text[:30]!r}", functools.partial(told, text))
    for output in _OUTPUTS:
        yield Case("texts of submissions and jobs", f"output {output[:30]!r}", functools.partial(ended, output, "name"))
    for name in _NAMES:
        yield Case("texts of submissions and jobs", f"name {name!r}", functools.partial(ended, "%x.out", name))
    for script in _SCRIPTS:
        yield Case("texts of submissions and jobs", f"script {script[:30]!r}", functools.partial(submitted, script))


@contextlib.contextmanager
def _prompt() -> Iterator[list[Verdict]]:
    """Yield a list for verdicts on the block; it gets a fault if the block takes too long."""
    began, found = time.monotonic(), [HANDLED]
    yield found
    if (took_s := time.monotonic() - began) > _PROMPT_S:
        found[0] = Verdict(Wrong.HANG, f"{took_s:.1f} s")


# ------------------------------------------------------------------------------------------------ pods
def _of_pods() -> Iterator[Case]:
    import jsonpatch

    from vramcast.cluster.answer import Answer
    from vramcast.cluster.kubernetes.mutation import mutate
    from vramcast.cluster.kubernetes.review import read
    from vramcast.core.errors import UsageError
    from vramcast.core.units import GIB

    async def fits(_: Any) -> Answer:
        return Answer("a" * 64, True, 4 * GIB, 3 * GIB, 40 * GIB)

    def review(about: Any) -> bytes:
        request = {"uid": "1", "object": about}
        return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()

    def kept(annotations: dict[str, str], limits: dict[str, Any], scheduler: str) -> Verdict:
        named = {"vramcast.dev/target": "torchvision:resnet18", "vramcast.dev/device": "a100-40gb", **annotations}
        container = {"name": "train", "resources": {"limits": limits}}
        about = {
            "kind": "Pod",
            "metadata": {"annotations": named},
            "spec": {"schedulerName": scheduler, "containers": [container]},
        }
        found = asyncio.run(mutate(read(review(about)), fits, "fill"))["response"]
        patch = json.loads(base64.b64decode(found["patch"])) if "patch" in found else []
        after = jsonpatch.apply_patch(copy.deepcopy(about), patch)
        own = {name: value for name, value in after["metadata"]["annotations"].items() if name in annotations or "gpu" in name}
        is_same = after["spec"] == about["spec"] and own == annotations
        return HANDLED if is_same else Verdict(Wrong.NUMBER, f"the pod's own request became {after}"[:300])

    def refused(body: bytes) -> Verdict:
        try:
            read(body)
        except UsageError:
            return HANDLED
        return Verdict(Wrong.UNCLEAR, "it was read")

    for (noted, limits), scheduler in itertools.product(_PARTS, _SCHEDULERS):
        title = f"{scheduler}: {noted or limits}"[:80]
        yield Case("pods that ask for a part of a card", title, functools.partial(kept, noted, limits, scheduler))
    begin = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "object": {"a": '
    for depth in (200, 900, 5_000, 100_000):
        for left, right in ((b'{"a": ', b"}"), (b"[", b"]")):
            body = begin + left * depth + b"1" + right * depth + b"}}}"
            yield Case("reviews beyond reason", f"nested {depth} deep in {left!r}", functools.partial(refused, body))
    for digits in (5_000, 1_000_000):
        yield Case("reviews beyond reason", f"{digits} digits", functools.partial(refused, begin + b"9" * digits + b"}}}"))
