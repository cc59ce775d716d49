"""Untrusted code: rows of a data set that name code, and a cache that others can write to; also a valid shared cache.

A file that the hostile code would create reveals a fault. Files of another user need root; without it, those cases are left
out.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import vramcast

STRANGER = 12345  # arbitrary: neither root nor the current user
_JOB = ('vramcast.datasets.workloads.networks:mlp?{"inputs":64,"outputs":4,"width":64,"depth":1}', "--batch", "8x64")


def cases(folder: Path) -> Iterable[Case]:
    """Yield all cases."""
    yield from _rows(folder)
    place = Path(tempfile.mkdtemp(prefix="hostile-cache-"))  # readable by every user, unlike `folder`
    place.chmod(0o755)
    try:
        yield from _caches(place)
    finally:
        shutil.rmtree(place)


def _rows(folder: Path) -> Iterator[Case]:
    from tests.jobs.test_targets import REFUSED
    from vramcast.datasets.run import Measurement, Passport, Run, Workload

    planted = folder / "planted"
    (folder / "evil.py").write_text(f"import pathlib; pathlib.Path({str(planted)!r}).touch()\ndef net(): pass\n")
    (folder / "config.json").write_text('{"model_type": "bert", "auto_map": {"AutoModel": "evil.Net"}}')
    targets = [
        f'os:system?{{"command":"touch {planted}"}}', f'subprocess:getoutput?{{"cmd":"touch {planted}"}}',
        f"{folder}/evil.py:net", "evil:net", f'builtins:exec?{{"source":"open({str(planted)!r}, 1)"}}',
        f'shutil:copy?{{"src":"/etc/hostname","dst":"{planted}"}}', "hf:config.json", f"hf:{folder}/config.json",
        *REFUSED,
    ]  # fmt: skip

    def run(number: int, verb: str) -> Verdict:
        workload = Workload("row", target=targets[number], batch=("1x3x8x8",))
        row = Run(
            str(number), workload, Passport("vramcast measure", gpu="NVIDIA H200"), Measurement("ok", reserved_bytes=2**30)
        )
        source = folder / f"{number}.jsonl"
        source.write_text(json.dumps(row.to_dict()) + "\n")
        out = folder / "out"
        options = {"train": ["--out", str(out)], "calibrate": ["--out", str(out), "--artifact", "default"], "evaluate": []}[
            verb
        ]
        verdict = inside([verb, str(source), *options], codes=[2])
        return Verdict(Wrong.NUMBER, "the row's code was run") if planted.exists() or out.exists() else verdict

    for number, target in enumerate(targets):
        for verb in ("train", "calibrate", "evaluate") if number < 3 else ("evaluate",):
            yield Case("targets of a data set", f"{verb} {target[:60]}", lambda n=number, v=verb: run(n, v))  # type: ignore[misc]


def _caches(place: Path) -> Iterator[Case]:
    good, planted = place / "good", place / "planted"
    found: dict[str, Path] = {}

    def estimate(cache: Path, *codes: int, says: str = "") -> Verdict:
        verdict = vramcast(
            ["estimate", *_JOB, "--device", "a100-40gb", "--json"],
            codes=codes, environment={"VRAMCAST_CACHE": str(cache)}, says=says, cwd=place, limit_s=400,
        )  # fmt: skip
        return Verdict(Wrong.NUMBER, "planted code was run") if planted.exists() else verdict

    def filled() -> Verdict:
        verdict = estimate(good, 0)
        found.update({name: next(good.glob(pattern)) for name, pattern in _KEPT.items()})
        return verdict

    yield Case("caches", "a new one", filled)

    def spoiled(name: str, spoil: Callable[[Path], object]) -> Verdict:
        cache = place / "spoiled"
        shutil.rmtree(cache, ignore_errors=True)
        shutil.copytree(good, cache, symlinks=True)
        spoil(cache / found[name].relative_to(good) if name else cache)
        return estimate(cache, 3, says="is not used")

    def plants(path: Path) -> None:
        (path / "sitecustomize.py").write_text(f"open({str(planted)!r}, 'w')")

    ways: dict[str, Callable[[Path], object]] = {
        "open to all": lambda path: path.chmod(0o777),
        "open to the group": lambda path: path.chmod(0o775),
        "open and sticky": lambda path: path.chmod(0o1777),
    }
    if os.geteuid() == 0:
        ways["a stranger's"] = lambda path: os.chown(path, STRANGER, STRANGER)
    for name in ("", *_KEPT):
        for how, spoil in ways.items():
            if how != "open and sticky" or name in ("", "libraries", "links"):
                yield Case("caches", f"{name or 'the folder'} {how}", lambda n=name, s=spoil: spoiled(n, s))  # type: ignore[misc]
    yield Case("caches", "a sitecustomize.py among the links", lambda: spoiled("links", plants))
    yield Case("caches", "a relative path", lambda: estimate(Path("good"), 0))
    if os.geteuid() == 0:
        for name, function in (("read by another user", _second_user), ("written by another user", _second_user_writes)):
            yield Case("caches", name, lambda f=function: f(good))  # type: ignore[misc]


_KEPT = {
    "libraries": "nullgpu/*", "libcuda.so.1": "nullgpu/*/libcuda.so.1", "the simulator": "caching-*.so", "links": "import/*",
    "answers": "cudnn.sqlite",
}  # fmt: skip


def _second_user(good: Path) -> Verdict:
    from tests.core.test_cache import as_stranger
    from vramcast.tracer.nullgpu.library.build import build

    return _as(good, lambda: as_stranger(build, Path("/")), lambda said: said == next(good.glob("nullgpu/*")))


def _second_user_writes(good: Path) -> Verdict:
    from tests.core.test_cache import as_stranger, put
    from vramcast.core.errors import CannotEstimate

    return _as(good, lambda: as_stranger(lambda: put("new"), Path("/root")), lambda said: isinstance(said, CannotEstimate))


def _as(cache: Path, ask: Callable[[], Any], is_right: Callable[[Any], bool]) -> Verdict:
    before = os.environ.get("VRAMCAST_CACHE")
    os.environ["VRAMCAST_CACHE"] = str(cache)
    try:
        said = ask()
    finally:
        os.environ.pop("VRAMCAST_CACHE")
        if before is not None:
            os.environ["VRAMCAST_CACHE"] = before
    if is_right(said):
        return HANDLED
    return Verdict(Wrong.TRACEBACK if str(said).startswith("TRACEBACK") else Wrong.UNCLEAR, str(said)[-200:])


def inside(arguments: list[str], *, codes: Iterable[int], says: str = "") -> Verdict:
    """Run a command quickly in this process and return the verdict; an exception is a traceback."""
    import contextlib
    import io

    from benchmarks.hostile.command import judge
    from vramcast.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return judge(code, out.getvalue(), err.getvalue(), codes=list(codes), says=says, is_json="--json" in arguments)
