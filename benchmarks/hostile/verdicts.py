"""One verdict: the same value, exit code, and reason, byte for byte, in every answer about a job.

A model goes through `estimate`, `check`, `sweep`, the Python API, the report, the service, and its webhook; a command through
`run`, `check`, the Python API, and the report.
"""

from __future__ import annotations

import asyncio
import base64
import html
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile import inside
from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator, estimate_command
from vramcast.jobs.text import JobText

_KIND: Final = "one verdict"
_CARD: Final = "rtx3060"
# Models that the service, which runs no code, also knows by name.
_MODELS: Final = ("torchvision:resnet18", "torchvision:squeezenet1_1", "torchvision:mobilenet_v3_small", "torchvision:alexnet")
_BATCHES: Final = ("32x3x160x160", "64x3x160x160")
_LOOP: Final = """
import torch
net = torch.nn.Linear(1024, {width}).cuda()
optimizer = torch.optim.Adam(net.parameters())
for step in range(5):
    optimizer.zero_grad()
    loss = net(torch.randn(64, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    {more}
"""
_COMMANDS: Final = {
    "whole": "",
    "raises": "if step == 3: raise ValueError('no more data')",
    "exits": "if step == 3: raise SystemExit(3)",
    "no largest shape": "torch.bincount(torch.randint(0, 99, (2_000_000,), device='cuda'))",
}
_SIZES: Final = ("large", "between", "small")


@dataclass(frozen=True, slots=True)
class _Job:
    """A job on a card of some size, as on the command line."""

    words: tuple[str, ...]
    memory_bytes: int
    target: str = ""
    batch: str = ""


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases of this group: 40 jobs; some fit, some do not, and some are uncertain."""
    for target in _MODELS:
        for batch in _BATCHES:
            for size in _SIZES:
                yield Case(_KIND, f"{target} {batch}, {size} card", _model(folder, target, batch, size))
    for width in (8192, 16384):
        for name, more in _COMMANDS.items():
            script = folder / f"{name.replace(' ', '_')}{width}.py"
            script.write_text(_LOOP.format(width=width, more=more))
            for size in ("large", "small"):
                yield Case(_KIND, f"a command ({name}, {width}), {size} card", _command(folder, script, size))


def _model(folder: Path, target: str, batch: str, size: str) -> Any:
    def run() -> Verdict:
        estimate = _first(target, batch)
        memory_bytes = _memory_bytes(estimate, size)
        job = _Job((target, "--batch", batch), memory_bytes, target, batch)
        text = JobText.of({"target": target, "batch": [batch], "memory": str(memory_bytes)})
        said = {
            **_by_command_line(folder, "estimate", job),
            **_by_command_line(folder, "check", job),
            "sweep": _swept(job),
            "Python": Estimator(_CARD).estimate_job(text.job(_card())).verdict.to_dict(),
            **_served(folder, job),
        }
        return _judged(said)

    return run


def _command(folder: Path, script: Path, size: str) -> Any:
    def run() -> Verdict:
        memory_bytes = _memory_bytes(estimate_command([str(script)], device=_CARD), size)
        job = _Job(("--", str(script)), memory_bytes)
        said = {
            **_by_command_line(folder, "run", job),
            **_by_command_line(folder, "check", job),
            "Python": estimate_command([str(script)], device=_CARD, memory=memory_bytes).verdict.to_dict(),
        }
        return _judged(said)

    return run


@cache
def _first(target: str, batch: str) -> Any:
    return Estimator(_CARD).estimate_job(JobText.of({"target": target, "batch": [batch]}).job(_card()))


def _card() -> Any:
    return Estimator(_CARD).card


def _memory_bytes(estimate: Any, size: str) -> int:
    """Return a card on which a job without unknowns fits, is uncertain, or does not fit."""
    point_bytes, bound_bytes = estimate.process, estimate.upper_bound
    return {"large": 2 * bound_bytes, "between": (point_bytes + bound_bytes) // 2, "small": point_bytes - 64 * MIB}[size]


def _judged(said: dict[str, Any]) -> Verdict:
    """Return whether all answers agree; a report has its reason in words."""
    verdicts = {json.dumps(one) for one in said.values()}
    if len(verdicts) > 1:
        return Verdict(Wrong.NUMBER, f"verdicts differ: {said}")
    return HANDLED


# ------------------------------------------------------------------------------------------------ the answers
def _by_command_line(folder: Path, verb: str, job: _Job) -> dict[str, Any]:
    """Return a verb's answer as JSON, as text, as its exit code, and in its report."""
    page = folder / "page.html"
    options = ("--device", _CARD, "--memory", str(job.memory_bytes), "--report", str(page))
    code, out, err = _ran([verb, *options, "--json", *job.words])
    said: dict[str, Any] = json.loads(out)["verdict"]
    _, text, _ = _ran([verb, *options, *job.words])
    if verb == "check" and (code != said["exit_code"] or err.splitlines()[-1] != f"{said['value']}: {said['reason']}"):
        return {verb: f"exit {code}: {err.splitlines()[-1]}"}
    bar, *lines = text.splitlines()
    if not bar.endswith(f": {said['value']}") or not any(f"{said['value']}: {said['reason']}" in line for line in lines):
        return {verb: said, f"{verb}, text": text}
    sentence = f"{said['reason'][0].upper()}{said['reason'][1:]}."
    if sentence not in html.unescape(page.read_text()):
        return {verb: said, f"{verb}, report": "another reason"}
    return {verb: said}


def _ran(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, stdout and stderr."""
    ended: list[tuple[int, str, str]] = []

    def note(code: int, out: str, err: str) -> Verdict:
        ended.append((code, out, err))
        return HANDLED

    inside.here(arguments, note)
    return ended[0]


def _swept(job: _Job) -> Any:
    """Return the answer of a sweep over one size."""
    size = job.batch.partition("x")[0]
    options = ("--device", _CARD, "--memory", str(job.memory_bytes), "--batch-sizes", size, "--json")
    _, out, _ = _ran(["sweep", *options, *job.words])
    return json.loads(out)["rows"][0]["verdict"]


class _Pool:
    """Workers of the service, in this process."""

    waiting = replaced = 0

    async def start(self) -> None:
        """Do nothing."""

    async def stop(self) -> None:
        """Do nothing."""

    async def ask(self, values: dict[str, Any], asker: str = "") -> dict[str, Any]:
        """Answer like a worker."""
        from vramcast.cluster.service.worker_main import answer

        return await asyncio.to_thread(answer, values)


def _served(folder: Path, job: _Job) -> dict[str, Any]:
    """Return the answer of the service to a client, and of its webhook to the API server."""
    from starlette.testclient import TestClient

    from vramcast.cluster.service.access import Rules
    from vramcast.cluster.service.store import Store

    body = {"target": job.target, "batch": [job.batch], "device": _CARD, "capacity_bytes": job.memory_bytes, "wait_s": 100}
    found = []
    for rules, path, sent in (
        (Rules(), "/v1/estimates", body),
        (Rules(), "/v1/checks", body),
        (Rules(admits=True), "/admission/watch/mutate", _review(job)),
    ):
        pool: Any = _Pool()
        with closing(Store(folder / "store")) as store, TestClient(_app(store, pool, rules)) as http:
            found.append(http.post(path, json=sent).json())
    estimated, checked, reviewed = found
    patches = json.loads(base64.b64decode(reviewed["response"]["patch"]))
    noted = next(one["value"] for one in patches if one["path"].endswith("vramcast.dev~1verdict"))
    value, _, reason = noted.partition(": ")
    by_webhook = {"value": value, "exit_code": {"fits": 0, "does not fit": 1, "uncertain": 4}[value], "reason": reason}
    return {"service": estimated["estimate"]["verdict"], "service, check": checked["verdict"], "webhook": by_webhook}


def _app(store: Any, pool: Any, rules: Any) -> Any:
    from vramcast.cluster.service.app import create_app
    from vramcast.cluster.service.service import Service

    return create_app(Service(store, pool, "v1"), [pool], rules)


def _review(job: _Job) -> dict[str, Any]:
    asked = {"target": job.target, "batch": job.batch, "device": _CARD, "capacity-bytes": str(job.memory_bytes)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job", "annotations": {f"vramcast.dev/{name}": text for name, text in asked.items()}},
        "spec": {"containers": [{"name": "train", "image": "x"}]},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "object": pod}}
