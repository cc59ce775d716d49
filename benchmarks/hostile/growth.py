"""Loops that keep more memory with each step, and loops that only look like it: checks the reported line and bytes.

Each program marks the right answer: the report must name the line with `# keeps`; the bytes are counted by hand. For a program
that keeps nothing, the report must not mention growth.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate

_LEAKS = "loops that keep more and more"
_SETTLED = "loops that settle"
_BLOCK_BYTES = 512  # spec: kMinBlockSize in c10/core/AllocatorConfig.h
_FLOAT_BYTES, _HALF_BYTES, _LONG_BYTES, _BOOL_BYTES = 4, 2, 8, 1  # spec: the dtypes of torch
_STEPS = 100_000  # arbitrary: far more than any run executes
_BUDGET_S = 1.0  # arbitrary: the answer must not depend on it
_TIMEOUT_S = 90.0  # arbitrary: for inference programs, which end only at this limit

_TRAINING = """
import collections, contextlib, copy, functools, gc, heapq, queue, sys, types
import torch
B, W, STEPS = {rows}, {width}, {steps}
def net_of():
    return torch.nn.Sequential(torch.nn.Linear(W, W), torch.nn.ReLU(), torch.nn.Linear(W, W)).cuda()
net = net_of()
optimizer = torch.optim.{optimizer}(net.parameters(), lr=0.01)
kept = []
{before}
for step in range(STEPS):
    x = torch.randn({batch}, W, device="cuda"){at_x}
    optimizer.zero_grad()
    y = net(x){at_y}
    loss = y.square().mean(){at_loss}
    loss.backward({backward}){at_backward}
    optimizer.step()
{after}
"""
_LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
B, W = {rows}, {width}
net = torch.nn.Sequential(torch.nn.Linear(W, W), torch.nn.ReLU(), torch.nn.Linear(W, W)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
train = DataLoader(TensorDataset(torch.randn(B * {batches}, W)), batch_size=B)
valid = DataLoader(TensorDataset(torch.randn(B * {valid}, W)), batch_size=B)
kept = []
for epoch in range({epochs}):
    net.train()
    for (x,) in train:
        x = x.cuda(){at_x}
        y = net(x){at_y}
        loss = y.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
{after}
    net.eval()
    seen = []
    with {no_grad}:
        for (x,) in valid:
            out = net(x.cuda()){at_out}
{evaluates}
"""


@dataclass(frozen=True, slots=True)
class _Program:
    """A program and its expected report.

    Attributes:
        name: Name of the case.
        text: Source of the program.
        bytes_per_step: Bytes counted by hand; None if it keeps nothing.
        phase: The growing phase.
        steps_known: Known number of steps.
        timeout_s: Time limit of programs that do not end by themselves.
    """

    name: str
    text: str
    bytes_per_step: int | None = None
    phase: str = "training"
    steps_known: int | None = None
    timeout_s: float = 600.0


def _blocks(*sizes_bytes: int) -> int:
    """Return the allocator's bytes for blocks of these sizes."""
    return sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for size in sizes_bytes)


def _training(
    name: str,
    after: str,
    bytes_per_step: int | None,
    rows: int,
    width: int,
    *,
    at: str = "",
    steps: int = 100_000,
    **parts: str,
) -> _Program:
    """Return a training loop with code at the end of a step; `at` marks the line to find, "" if the code has the mark."""
    marks = {f"at_{name}": "  # keeps" if name == at else "" for name in ("x", "y", "loss", "backward")}
    filled = {"before": "", "backward": "", "optimizer": "SGD", "batch": "B", **marks, **parts}
    body = "\n".join(f"    {line}" for line in after.splitlines())
    text = _TRAINING.format(rows=rows, width=width, steps=_STEPS, after=body, **filled)
    return _Program(name, text, bytes_per_step, steps_known=_STEPS)


def _loader(
    name: str, bytes_per_step: int | None, rows: int, width: int, *, at: str = "", phase: str = "training",
    steps_known: int | None = None, after: str = "pass", evaluates: str = "pass", no_grad: str = "torch.no_grad()",
    batches: int = 40, valid: int = 60, epochs: int = 10,
) -> _Program:  # fmt: skip
    """Return a training with data loaders, and an evaluation after each epoch."""
    marks = {f"at_{name}": "  # keeps" if name == at else "" for name in ("x", "y", "out")}
    text = _LOADER.format(
        rows=rows, width=width, after=f"        {after}", evaluates=f"            {evaluates}", no_grad=no_grad,
        batches=batches, valid=valid, epochs=epochs, **marks,
    )  # fmt: skip
    return _Program(name, text, bytes_per_step, phase, steps_known)


def _leaks(rows: int, width: int) -> Iterable[_Program]:
    """Yield programs that keep something, each with its bytes per step."""
    one = _blocks(_FLOAT_BYTES)
    batch = _blocks(rows * width * _FLOAT_BYTES)
    weights = 2 * _blocks(width * width * _FLOAT_BYTES) + 2 * _blocks(width * _FLOAT_BYTES)
    leak = functools.partial(_training, rows=rows, width=width)
    yield leak("losses", "kept.append(loss)", one, at="loss")
    yield leak("detached losses", "kept.append(loss.detach())", one, at="loss")
    yield leak("outputs", "kept.append(y)", batch, at="y")
    yield leak("detached outputs", "kept.append(y.detach())", batch, at="y")
    yield leak("a row of each output", "kept.append(y[0])", batch, at="y")
    yield leak("inputs", "kept.append(x)", batch, at="x")
    # x and the output of ReLU are kept for the gradients of weights, y for that of the square.
    yield leak("graphs", "kept.append(loss)", 3 * batch + one, at="y", backward="retain_graph=True")
    yield leak("accuracies", "kept.append((y > 0).float().mean())  # keeps", one)
    yield leak("masks", "kept.append(y > 0)  # keeps", _blocks(rows * width * _BOOL_BYTES))
    yield leak("predictions", "kept.append(y.argmax(1))  # keeps", _blocks(rows * _LONG_BYTES))
    yield leak("halves", "kept.append(y.detach().half())  # keeps", _blocks(rows * width * _HALF_BYTES))
    yield leak("a hook", "pass", batch, at="y", before="net[1].register_forward_hook(lambda m, i, o: kept.append(o.detach()))")
    yield leak("closures", "kept.append(lambda y=y: y)", batch, at="y")
    yield leak("a dictionary by step", "cache[step] = y.detach().clone()  # keeps", batch, before="cache = {}")
    yield leak("gradients", "kept.append([p.grad for p in net.parameters()])", weights, at="backward")
    yield leak("copies of gradients", "kept.append([p.grad.clone() for p in net.parameters()])  # keeps", weights)
    yield leak("weights", "kept.append(copy.deepcopy(net.state_dict()))  # keeps", weights)
    history = "kept.append([s['exp_avg'].clone() for s in optimizer.state.values()])  # keeps"
    yield leak("an optimizer's history", history, weights, optimizer="Adam")
    joined = "joined = torch.cat([joined, y.detach()])  # keeps"
    yield leak("a tensor that grows", joined, rows * width * _FLOAT_BYTES, before="joined = torch.empty(0, W, device='cuda')")
    failing = "def fail(y):\n    doubled = torch.cat([y, y])  # keeps\n    raise ValueError('no')"
    caught = "try:\n    fail(y.detach())\nexcept ValueError as error:\n    kept.append(error)"
    # The exception keeps the frame that raised it, and so both of its tensors.
    yield leak("tracebacks", caught, batch + _blocks(2 * rows * width * _FLOAT_BYTES), before=failing)
    cached = "@functools.lru_cache(maxsize=None)\ndef mask(step):\n    return torch.zeros(B, W, device='cuda')  # keeps"
    yield leak("lru_cache without a limit", "mask(step)", batch, before=cached)
    yield leak("every fourth output", "if step % 4 == 0:\n    kept.append(y.detach())", batch // 4, at="y")
    ones = "product = torch.ones(500, device='cuda')"
    # Each product keeps its factors for the gradients.
    yield leak("a product of losses", "product = product * loss  # keeps", _blocks(500 * _FLOAT_BYTES) + one, before=ones)
    yield leak("a queue", "waiting.put(y.detach())", batch, at="y", before="waiting = queue.Queue()")
    loader = functools.partial(_loader, rows=rows, width=width)
    yield loader("batches of a loader", batch, at="x", after="kept.append(x)", batches=200, steps_known=2_000)
    shown = "seen.append(out)"
    yield loader("outputs of an evaluation", batch, at="out", phase="evaluation", evaluates=shown, valid=500, steps_known=500)
    graph = "seen.append(out.mean())"
    # Without no_grad, each mean keeps x, the output of ReLU, and itself; the output of the last layer dies.
    yield loader(
        "an evaluation with gradients", 2 * batch + one, at="out", phase="evaluation", evaluates=graph, valid=500,
        no_grad="torch.enable_grad()", steps_known=500,
    )  # fmt: skip


def _settled(rows: int, width: int) -> Iterable[_Program]:
    """Yield programs that keep nothing in the end."""
    settled = functools.partial(_training, bytes_per_step=None, rows=rows, width=width)
    yield settled("nothing is kept", "pass")
    yield settled("Adam's state", "pass", optimizer="Adam")
    yield settled("numbers", "kept.append(loss.item())")
    yield settled("outputs on the host", "kept.append(y.detach().cpu())")
    for n in (2, 5, 17, 60):
        yield settled(f"a deque of {n}", "last.append(y.detach())", before=f"last = collections.deque(maxlen={n})")
    yield settled("a window of 20", "kept.append(loss.detach())\nif len(kept) > 20:\n    kept.pop(0)")
    yield settled("a list that is emptied", "kept.append(loss.detach())\nif len(kept) == 10:\n    kept.clear()")
    average = "for mean, p in zip(means, net.parameters()):\n    mean.mul_(0.9).add_(p.detach(), alpha=0.1)"
    yield settled("averages in place", average, before="means = [p.detach().clone() for p in net.parameters()]")
    anew = "means = [0.9 * mean + 0.1 * p.detach() for mean, p in zip(means, net.parameters())]"
    yield settled("averages made anew", anew, before="means = [p.detach().clone() for p in net.parameters()]")
    yield settled("a warm-up", "if step < 6:\n    kept.append(y.detach().clone())")
    yield settled("varying batches", "pass", batch="8 + (step * 37) % 61")
    yield settled("random batches", "pass", batch="random.randrange(1, B)", before="import random; random.seed(3)")
    yield settled("batches that were kept", "kept[:] = [x, y.detach()]", batch="8 + (step * 37) % 61")
    yield settled("a buffer in place", "buffer[step % 64] = y.detach()", before="buffer = torch.empty(64, B, W, device='cuda')")
    yield settled(
        "a list that is filled and overwritten",
        "(kept.append(y.detach()) if len(kept) < 30 else kept.__setitem__(step % 30, y.detach()))",
    )
    yield settled("a sum of losses", "total = total + loss", before="total = 0")
    yield settled("the last output", "last = y")
    yield settled(
        "the best five", "kept.append((loss.item(), step, y.detach()))\nkept.sort(key=lambda one: one[:2])\ndel kept[5:]"
    )
    cached = "@functools.lru_cache(maxsize=8)\ndef mask(step):\n    return torch.zeros(B, W, device='cuda')"
    yield settled("lru_cache with a limit", "mask(step)", before=cached)
    by_size = "@functools.lru_cache(maxsize=None)\ndef mask(size):\n    return torch.zeros(size, W, device='cuda')"
    yield settled("a mask for each of seven sizes", "mask(8 + step % 7)", before=by_size)
    yield settled("cycles", "node = types.SimpleNamespace(y=y.detach())\nnode.node = node")
    largest = "largest = max(largest, torch.empty(8 + (step * 37) % 61, W, device='cuda'), key=len)"
    yield settled("the largest batch so far", largest, before="largest = torch.empty(1, W, device='cuda')")
    trimmed = "joined = torch.cat([joined, y.detach()])[-4 * B:].clone()"
    yield settled("a tensor that is trimmed", trimmed, before="joined = torch.empty(0, W, device='cuda')")
    prefetch = "ahead.append(x.clone())\nif len(ahead) > 2:\n    ahead.popleft()"
    yield settled("batches ahead", prefetch, before="ahead = collections.deque()")
    yield settled(
        "a scheduler", "schedule.step()", before="schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)"
    )
    yield settled("a second model", "other = copy.deepcopy(net)")
    yield settled("clipped gradients", "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)")
    yield settled(
        "an average of weights", "mean.update_parameters(net)", before="mean = torch.optim.swa_utils.AveragedModel(net)"
    )
    yield settled("RMSprop with momentum", "pass", optimizer="RMSprop")
    yield settled("the cache is emptied", "if step % 3 == 0:\n    torch.cuda.empty_cache()")
    loader = functools.partial(_loader, bytes_per_step=None, rows=rows, width=width)
    yield loader("a loader")
    yield loader("a short loader", batches=4, valid=2)
    yield loader("numbers of an evaluation", evaluates="seen.append(out.mean().item())")
    yield loader("a metric of an evaluation", evaluates="net.total = getattr(net, 'total', 0) + out.mean()")
    yield loader("the last output of an evaluation", evaluates="seen[:] = [out]")


_OTHERS = {
    "a module's list": (
        """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.seen = torch.nn.Linear({width}, {width}), torch.nn.Linear({width}, {width}), []
    def forward(self, x):
        hidden = self.inner(x)  # keeps
        self.seen.append(hidden.detach())
        return self.outer(hidden.relu())
def train(net, optimizer, steps):
    for step in range(steps):
        loss = net(torch.randn({rows}, {width}, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
net = Net().cuda()
train(net, torch.optim.SGD(net.parameters(), lr=0.1), 7000)
""",
        1, "training", 7_000,
    ),
    "a trainer's history": (
        """
import torch
class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear({width}, {width}).cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.history = dict()
    def step(self, x):
        self.optimizer.zero_grad()
        y = self.net(x)  # keeps
        y.mean().backward()
        self.optimizer.step()
        return y.detach()
    def fit(self):
        done = 0
        while True:
            self.history[done] = self.step(torch.randn({rows}, {width}, device="cuda"))
            done += 1
Trainer().fit()
""",
        1, "training", None,
    ),
    "two optimizers": (
        """
import torch
first, second = torch.nn.Linear({width}, {width}).cuda(), torch.nn.Linear({width}, {width}).cuda()
a, b = torch.optim.Adam(first.parameters()), torch.optim.Adam(second.parameters())
fakes = []
for step in range(5000):
    x = torch.randn({rows}, {width}, device="cuda")
    a.zero_grad()
    first(x).mean().backward()
    a.step()
    b.zero_grad()
    fake = second(x)  # keeps
    fake.mean().backward()
    b.step()
    fakes.append(fake.detach())
""",
        1, "training", 5_000,
    ),
    "gradients accumulated over four batches": (
        """
import torch
net = torch.nn.Linear({width}, {width}).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
outputs = []
for i in range(40000):
    y = net(torch.randn({rows}, {width}, device="cuda"))  # keeps
    y.mean().backward()
    outputs.append(y.detach())
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
        4, "training", 10_000,
    ),
    "no optimizer": (
        """
import torch
net = torch.nn.Linear({width}, {width}).cuda()
outputs = []
for i in range(9000):
    y = net(torch.randn({rows}, {width}, device="cuda"))  # keeps
    y.mean().backward()
    outputs.append(y.detach())
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
            p.grad = None
""",
        1, "training", 9_000,
    ),
    "a generation": (
        """
import torch
net = torch.nn.Linear({width}, {width}).cuda().eval()
@torch.no_grad()
def generate(x):
    past = x
    while True:
        past = torch.cat([past, net(past[-{rows}:])])  # keeps
generate(torch.randn({rows}, {width}, device="cuda"))
""",
        1, "generation", None,
    ),
}  # fmt: skip


def _others(rows: int, width: int) -> Iterable[_Program]:
    batch = rows * width * _FLOAT_BYTES
    for name, (text, n, phase, steps) in _OTHERS.items():
        of_one_block = phase == "generation"
        timeout_s = _TIMEOUT_S if of_one_block else 600.0
        yield _Program(
            name, text.format(rows=rows, width=width), batch if of_one_block else n * _blocks(batch), phase, steps, timeout_s
        )


def _estimate(path: Path, timeout_s: float) -> Estimate:
    return Estimator("a100-40gb", "nullgpu", timeout_s=timeout_s).command([str(path)], until="evaluation", budget_s=_BUDGET_S)


def _verdict(program: _Program, path: Path) -> Verdict:
    path.write_text(program.text)
    found = _estimate(path, program.timeout_s)
    growth = found.growth
    if program.bytes_per_step is None:
        return (
            HANDLED
            if growth is None
            else Verdict(Wrong.NUMBER, f"it settles, and {growth.bytes_per_step} bytes are said to grow ({growth})")
        )
    if growth is None:
        return Verdict(Wrong.NUMBER, f"{program.bytes_per_step} bytes a step are not found")
    line = next(number for number, text in enumerate(program.text.splitlines(), 1) if text.endswith("# keeps"))
    seen = (growth.bytes_per_step, growth.phase, Path(growth.where).name, growth.steps_known, growth.is_judged)
    right = (program.bytes_per_step, program.phase, f"{path.name}:{line}", program.steps_known, True)
    if seen != right:
        return Verdict(Wrong.NUMBER, f"{seen} instead of {right}")
    code = found.verdict.exit_code
    is_full = program.steps_known is not None and growth.full_at_step <= program.steps_known
    is_due = (1,) if is_full else (4,) if program.phase != "evaluation" else (0, 4)
    return HANDLED if code in is_due else Verdict(Wrong.EXIT_CODE, f"exit code {code}, full at step {growth.full_at_step}")


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases."""
    sys.path.insert(0, str(folder))
    for rows, width in ((96, 160), (257, 192)):
        for number, program in enumerate([*_leaks(rows, width), *_others(rows, width)]):
            path = folder / f"leak_{rows}_{number}.py"
            yield Case(_LEAKS, f"{program.name}, {rows} x {width}", functools.partial(_verdict, program, path))
    for number, program in enumerate(_settled(48, 128)):
        path = folder / f"settled_{number}.py"
        yield Case(_SETTLED, program.name, functools.partial(_verdict, program, path))
