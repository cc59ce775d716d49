"""Jobs that must behave when traced as they do for real: loading, reading, catching, counting, and their input.

Each script writes its observations to a file. The truth is the result of the same script on the CPU without vramcast, or the
input.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import runpy
import subprocess
import sys
import textwrap
import threading
import time
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from vramcast.core.errors import CannotEstimate, JobError, NothingAsked, UsageError
from vramcast.estimates.estimator import Estimator, estimate_command
from vramcast.estimates.result import Estimate
from vramcast.tracer.format.trace import INTERRUPTED
from vramcast.tracer.nullgpu.client import NullGpuTracer

_CARD: Final = "rtx4060"
_LOADS: Final = {
    "on the card": "torch.load(file, map_location=D)",
    "on a device": "torch.load(file, map_location=torch.device(D))",
    "by a function": "torch.load(file, map_location=lambda s, l: s if D == 'cpu' else s.cuda())",
    "by a table": "torch.load(file, map_location={'cpu': D})",
    "as a pickle": "torch.load(file, map_location=D, weights_only=False)",
    "mapped": "torch.load(file, map_location=D, mmap=True)",
    "copied": "copy.deepcopy(torch.load(file, map_location=D))",
    "then moved": "{name: t.to(D) for name, t in torch.load(file).items()}",
}
_CONTENTS: Final = {
    "scalars": "{'a': torch.tensor(5.0), 'b': torch.tensor(6), 'c': torch.tensor(True)}",
    "vectors": "{'a': torch.arange(9.0), 'b': torch.arange(9).view(3, 3), 'c': torch.ones(2, 3).T}",
    "small types": "{'a': torch.ones(5).bfloat16(), 'b': torch.ones(5, dtype=torch.int8), 'c': torch.ones(5).half()}",
    "one storage": "(lambda x: {'a': x[:3], 'b': x[3:], 'c': x})(torch.arange(6.0))",
}
_LOADED: Final = """
import copy, json, os, sys, torch
D, file = os.environ["D"], sys.argv[1] + ".pt"
torch.empty(8, device=D)
if D == "cpu":
    torch.save({content}, file)
found = {load}
json.dump({{name: (t.tolist(), str(t.dtype)) for name, t in found.items()}}, open(sys.argv[1], "w"))
"""
_OPTIMIZERS: Final = ("AdamW", "Adam", "NAdam", "RAdam", "Adamax", "ASGD", "RMSprop", "Adagrad", "SGD")
_RESUMED: Final = """
import json, os, sys, torch
D, file = os.environ["D"], sys.argv[1] + ".pt"
torch.manual_seed(0)
def made():
    net = torch.nn.Linear(8, 8, device=D)
    return net, torch.optim.{name}(net.parameters(), lr=0.5)
def trained(net, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 8, device=D)).sum().backward()
        optimizer.step()
        scheduler.step()
net, optimizer = made()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
if D == "cpu":
    trained(net, optimizer, scheduler, 3)
    torch.save({{"net": net.state_dict(), "opt": optimizer.state_dict(), "lr": scheduler.state_dict()}}, file)
    net, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
held = torch.load(file, map_location=D)
net.load_state_dict(held["net"])
optimizer.load_state_dict(held["opt"])
scheduler.load_state_dict(held["lr"])
trained(net, optimizer, scheduler, 2)
steps = [float(state["step"]) for state in optimizer.state.values() if "step" in state]
json.dump([steps, scheduler.last_epoch, optimizer.param_groups[0]["lr"]], open(sys.argv[1], "w"))
"""
_COUNTS: Final = {
    "unique": "x.unique().tolist()",
    "unique, counts": "[part.tolist() for part in x.unique(return_counts=True)]",
    "unique, inverse and counts": "[p.tolist() for p in torch.unique(x, return_inverse=True, return_counts=True)]",
    "unique, unsorted": "sorted(torch.unique(x, sorted=False).tolist())",
    "unique rows, counts": "[p.tolist() for p in torch.unique(x.view(4, 2), dim=0, return_counts=True)]",
    "unique_consecutive, counts": "[p.tolist() for p in torch.unique_consecutive(x, return_counts=True)]",
    "largest class": "int(x.unique(return_counts=True)[1].max())",
    "rare ones": "(lambda u, c: u[c < 2].tolist())(*x.unique(return_counts=True))",
    "rows of the largest": "torch.zeros(int(x.unique(return_counts=True)[1].max()), 2, device=x.device).shape[0]",
    "bincount": "torch.bincount(x.flatten().long()).tolist()",
    "copied": "__import__('copy').deepcopy(x).tolist()",
    "loop over groups": "[int((x == value).sum()) for value in x.unique()]",
}  # fmt: skip
_COUNTED: Final = """
import json, os, sys, torch
D = os.environ["D"]
x = torch.tensor([3, 1, 4, 1, 1, 3, 2, 6]).to({dtype}).to(D)
json.dump({expression}, open(sys.argv[1], "w"))
"""
_READS: Final = {
    "read": "sys.stdin.read()", "lines": "''.join(sys.stdin)", "bytes": "sys.stdin.buffer.read().decode()",
    "number 0": "open(0).read()", "the device": "open('/dev/stdin').read()", "input": "input() + '\\n'",
    "a child": "__import__('subprocess').run(['cat'], capture_output=True, text=True).stdout",
}  # fmt: skip
_READING: Final = """
import json, sys, torch
with open(sys.argv[1], "a") as notes:
    notes.write(json.dumps({way}) + "\\n")
torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
"""
_TRAINING: Final = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
        self.raises = None
        self.layers[{place}].register_forward_hook(self.look)
    def look(self, module, given, result):
        if self.raises is not None:
            raise self.raises
    def forward(self, x):
        return self.layers(x)
net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())
for attempt in range({attempts}):
    net.raises = {error}("attempt")
    try:
        net(torch.randn(64, 256, device="cuda"))
    except {error}:
        pass
    net.raises = None
for epoch in range(50):
    net.train()
    for step in range(3):
        optimizer.zero_grad()
        net(torch.randn(64, 256, device="cuda")).sum().backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        for batch in range(2):
            net(torch.randn(64, 256, device="cuda"))
"""
_SLEEPS: Final = """
import pathlib, sys, time, torch
if "asks" in sys.argv:
    kept = torch.empty(1 << 20, device="cuda")
pathlib.Path(sys.argv[1]).touch()
try:
    time.sleep(600)
except BaseException:
    if "raises" in sys.argv:
        raise ValueError("of my own")
    raise
"""
_SLOW: Final = """
import time, torch
net = torch.nn.Linear(1024, 1024).cuda()
while True:
    y = net(torch.randn(4096, 1024, device="cuda"))
    (y.sum() + y[y.detach().mean(1) > -5].sum()).backward()
    time.sleep(0.1)
"""


class _Named(NamedTuple):
    x: Any
    n: int = 1


@dataclasses.dataclass
class _Plain:
    x: Any
    scale: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Nested:
    x: Any
    inner: _Plain


class _Movable:
    def __init__(self, x: Any) -> None:
        self.x = x

    def to(self, device: Any) -> _Movable:
        return _Movable(self.x.to(device))


@contextmanager
def _surrounded(stdin: int | None = None, **environment: str) -> Iterator[None]:
    """Change standard input and variables of this process within the block."""
    before, kept = dict(os.environ), os.dup(0)
    os.environ.update(environment)
    if stdin is not None:
        os.dup2(stdin, 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.environ.clear()
        os.environ.update(before)


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name.replace(' ', '_').replace(',', '')}.py"
    path.write_text(textwrap.dedent(text))
    return path


def _as_on_the_host(folder: Path, name: str, text: str) -> Verdict:
    """Run a script on the CPU without vramcast, then traced; both must have the same result."""
    script = _written(folder, name, text)
    notes = script.with_suffix(".json")
    argv = sys.argv
    try:
        sys.argv = [str(script), str(notes)]
        with _surrounded(D="cpu"):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = argv
    truth = json.loads(notes.read_text())
    notes.unlink()
    with _surrounded(D="cuda"):
        found = estimate_command([str(script), str(notes)], device=_CARD, until="end")
    if not notes.exists():
        return Verdict(Wrong.NUMBER, found.course.ended)
    seen = json.loads(notes.read_text())
    return HANDLED if seen == truth else Verdict(Wrong.NUMBER, f"{seen} instead of {truth}")


def _reads(folder: Path, way: str, kind: str, text: str) -> Verdict:
    """Give a text to a job that runs several times because its card is full; each run must read all of it."""
    script = _written(folder, f"reads {kind}", _READING.format(way=way))
    given, notes = folder / "given", script.with_suffix(".json")
    given.write_text(text)
    notes.unlink(missing_ok=True)
    with given.open("rb") as file, subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.wait()
        file.seek(0)
        stdin = file.fileno() if kind == "file" else writer.stdout.fileno()
        with _surrounded(stdin):
            estimate_command([str(script), str(notes)], device=_CARD, memory="1GiB", until="end")
    seen = [json.loads(line) for line in notes.read_text().splitlines()]
    return HANDLED if len(seen) > 1 and set(seen) == {text} else Verdict(Wrong.NUMBER, f"{seen} instead of {text!r}")


def _trained(folder: Path, place: int, attempts: int, error: str) -> Estimate:
    script = _written(
        folder, f"caught {place} {attempts} {error}", _TRAINING.format(place=place, attempts=attempts, error=error)
    )
    return estimate_command([str(script)], device=_CARD, until="evaluation")


def _caught(folder: Path, place: int, attempts: int, error: str) -> Verdict:
    """Compare a job that catches errors of its forward pass with one that raises none."""
    whole, found = _trained(folder, place, 0, error), _trained(folder, place, attempts, error)
    seen = [[(phase.name, phase.steps) for phase in one.course.phases] for one in (whole, found)]
    if seen[0] != seen[1] or found.course.not_reached or found.course.ended:
        return Verdict(Wrong.NUMBER, f"{seen[1]} instead of {seen[0]}; {found.course.not_reached} {found.course.ended}")
    peaks = [(one.allocated, one.reserved, one.breakdown) for one in (whole, found)]
    return HANDLED if peaks[0] == peaks[1] else Verdict(Wrong.NUMBER, f"{peaks[1]} instead of {peaks[0]}")


def _net() -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(256, 256)

        def forward(self, batch: Any = None, x: Any = None) -> Any:
            return self.linear(getattr(batch, "x", batch) if x is None else x)

    return Net()


def _batches() -> dict[str, Any]:
    import torch

    x = torch.zeros(64, 256)
    return {
        "a tensor": x, "a tuple": (x,), "a dict": {"x": x}, "an OrderedDict": OrderedDict(x=x), "a tokenizer's": UserDict(x=x),
        "an array": x.numpy(), "a dict of arrays": {"x": x.numpy()}, "a dataclass": _Plain(x),
        "a frozen one": _Nested(x, _Plain(x)), "a named tuple": _Named(x), "an object": _Movable(x),
        "a dataclass with labels": (_Plain(x), x),
    }  # fmt: skip


def _batch(form: str, tracer: str) -> Verdict:
    """Compare a batch of some form with the same batch as a tensor: the device must hold the same data."""
    found = Estimator(_CARD, tracer).estimate(_net(), _batches()[form])
    plain = Estimator(_CARD, tracer).estimate(_net(), _batches()["a tensor"])
    same = found.allocated == plain.allocated or "labels" in form or form == "a frozen one"  # these hold more
    return HANDLED if same else Verdict(Wrong.NUMBER, f"{found.allocated} instead of {plain.allocated}")


def _no_batch(make: Callable[[], Any], words: str) -> Verdict:
    try:
        Estimator(_CARD).estimate(_net(), make())
    except UsageError as error:
        return HANDLED if words in str(error) else Verdict(Wrong.UNCLEAR, str(error)[:200])
    return Verdict(Wrong.EXIT_CODE, "taken for a batch")


def _interrupted(folder: Path, words: tuple[str, ...], due: str) -> Verdict:
    """Stop a job that sleeps; the result must contain `due`."""
    script, sleeps = _written(folder, "sleeps", _SLEEPS), folder / "sleeps"
    sleeps.unlink(missing_ok=True)

    def once_it_sleeps(stop: Callable[[], None]) -> None:
        while not sleeps.exists():
            time.sleep(0.01)
        stop()

    try:
        with NullGpuTracer.stoppable() as stop:
            threading.Thread(target=once_it_sleeps, args=(stop,), daemon=True).start()
            said = estimate_command([str(script), str(sleeps), *words], device=_CARD).course.ended
    except (JobError, NothingAsked) as error:
        said = str(error)
    return HANDLED if due in said else Verdict(Wrong.UNCLEAR, f"'{due}' is not in: {said}")


def _early_stop(folder: Path) -> Verdict:
    script = _written(folder, "sleeps", _SLEEPS)
    try:
        with NullGpuTracer.stoppable() as stop:
            stop()
            estimate_command([str(script), str(folder / "never"), "asks"], device=_CARD, timeout_s=60)
    except NothingAsked as error:
        return HANDLED if INTERRUPTED in str(error) else Verdict(Wrong.UNCLEAR, str(error))
    return Verdict(Wrong.HANG, "the job went on")


def _in_time(folder: Path, limit_s: float) -> Verdict:
    """Limit the time of a job that runs again with other values."""
    started = time.monotonic()
    try:
        estimate_command([str(_written(folder, "slow", _SLOW))], device=_CARD, timeout_s=limit_s, until="end")
    except CannotEstimate as error:
        if "raise the limit" not in str(error):
            return Verdict(Wrong.UNCLEAR, str(error)[:200])
    took_s = time.monotonic() - started
    slack_s = 3.0  # arbitrary: the answer itself, on a busy machine
    return HANDLED if took_s <= limit_s + slack_s else Verdict(Wrong.HANG, f"{took_s:.1f} s of {limit_s:g}")


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases."""
    partial = functools.partial
    for (how, load), (what, content) in itertools.product(_LOADS.items(), _CONTENTS.items()):
        text = _LOADED.format(content=content, load=load)
        yield Case("loaded values", f"{what}, {how}", partial(_as_on_the_host, folder, f"loaded {how} {what}", text))
    for name in _OPTIMIZERS:
        yield Case("resumed optimizers", name, partial(_as_on_the_host, folder, f"resumed {name}", _RESUMED.format(name=name)))
    for (what, expression), dtype in itertools.product(_COUNTS.items(), ("torch.int64", "torch.int32")):
        text = _COUNTED.format(expression=expression, dtype=dtype)
        yield Case("counted values", f"{what}, {dtype}", partial(_as_on_the_host, folder, f"counted {what} {dtype}", text))
    for (how, way), kind in itertools.product(_READS.items(), ("file", "pipe")):
        yield Case("standard input", f"a {kind}, {how}", partial(_reads, folder, way, kind, '{"batch": 4096}\n'))
    for place, attempts, error in itertools.product((0, 2), (1, 3), ("ValueError", "torch.OutOfMemoryError", "StopIteration")):
        yield Case(
            "caught errors", f"{error}, {attempts} times, layer {place}", partial(_caught, folder, place, attempts, error)
        )
    for form, tracer in itertools.product(_batches(), ("nullgpu", "fake")):
        yield Case("forms of batches", f"{form}, {tracer}", partial(_batch, form, tracer))
    yield from _refused_batches()
    for words, due in (
        (("asks",), INTERRUPTED),
        (("asks", "raises"), "it raised ValueError: of my own"),
        (("raises",), "The job raised ValueError: of my own"),
        ((), INTERRUPTED),
    ):
        yield Case("interrupts", " and ".join(words) or "nothing asked", partial(_interrupted, folder, words, due))
    yield Case("interrupts", "before the job begins", partial(_early_stop, folder))
    for limit_s in (4.0, 8.0):
        yield Case("limits of time", f"{limit_s:g} s for several runs", partial(_in_time, folder, limit_s))


def _refused_batches() -> Iterator[Case]:
    import torch

    data = torch.utils.data
    sources: dict[str, tuple[Callable[[], Any], str]] = {
        "a data loader": (lambda: data.DataLoader(torch.zeros(8, 4)), "next(iter(loader))"),
        "a data set": (lambda: data.TensorDataset(torch.zeros(8, 4)), "default_collate"),
        "an iterator": (lambda: iter([torch.zeros(8, 4)]), "next(iter(loader))"),
        "a shape": (lambda: (32, 3, 224, 224), "TensorSpec"),
        "a text": (lambda: "32x3x224x224", "TensorSpec"),
        "a function": (lambda: torch.zeros, "TensorSpec"),
    }
    for name, (make, words) in sources.items():
        yield Case("forms of batches", f"{name} is refused", functools.partial(_no_batch, make, words))
