"""Numbers that the host reads from the card and that decide something: sizes, branches, loop counts.

Each program is small, and its memory on a card is known by hand arithmetic: weights, or blocks of whole MiB. A bound below
that is wrong: the answer would be that such a program fits on a card, and it would die there. Having no bound is right.
Programs that only print the numbers must keep their bound and must not run again.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import vramcast
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.estimates.result import Estimate
from vramcast.hardware.cards import device

_CARD = device("a100-40gb")
_HEAD = """
import torch

def block(mib):
    return torch.empty(int(mib) << 20, dtype=torch.uint8, device="cuda")

torch.manual_seed(0)
side = {side}
model = torch.nn.Linear(side, side, bias=False, device="cuda")
optimizer = torch.optim.{optimizer}(model.parameters())
kept = []

def forward():
    return model(torch.randn(4, side, device="cuda")).square().mean()

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def mask(n):
    return model(torch.randn(4, side, device="cuda")).flatten()[:n] > 0.3
"""
# Ways to read a loss. The decisions below do not depend on the way.
_READS = {
    "item": "loss.item()",
    "float": "float(loss)",
    "on the host": "loss.detach().cpu().item()",
    "moved": "loss.detach().to('cpu').tolist()",
    "a list": "loss.reshape(1).tolist()[0]",
    "a mean": "sum([loss.item(), loss.item()]) / 2",
    "a sum": "float(loss.item()) + 0",
    "rounded": "round(loss.item(), 4)",
    "through a tensor": "torch.tensor(loss.item()).item()",
    "detached": "loss.detach().double().item()",
}
# Adam takes four times the weights. Each exit is taken or not, depending on an unknown number.
_STOPS = {
    "break after the step": "step(loss)\n    if {read} < {bar}: break",
    "break before the step": "if {read} < {bar}: break\n    step(loss)",
    "break unless": "if not {read} > {bar}: break\n    step(loss)",
    "skip the step": "if {read} > {bar}: step(loss)",
    "skip unless": "if {read} <= {bar}: continue\n    step(loss)",
    "a spike is skipped": "if {read} > 1 / {bar}: continue\n    step(loss)",
    "not a number": "if torch.isnan(loss).item() or {read} != {read}: continue\n    step(loss)",
}
# A block of `mib` MiB, or none, depending on a comparison with a bar far from the drawn value or close to it.
_BARS = ("-200", "0.0", "1e-3", "0.49", "0.5", "0.9", "2.5", "475.0")
_SIDES = ("<", ">")
# Sizes from a count of ones among n: the maximum is n.
_COUNTED = {
    "int": "k = int(mask({n}).sum().item())\n    kept.append(block(k))",
    "item": "k = mask({n}).sum().item()\n    kept.append(block(k))",
    "printed": "k = int(mask({n}).sum().item()); print(k)\n    kept.append(block(k))",
    "count_nonzero": "k = mask({n}).count_nonzero().item()\n    kept.append(torch.empty(k, 1 << 18, device='cuda'))",
    "of the host": "k = mask({n}).sum().cpu().item()\n    kept.append(block(k))",
    "int of a tensor": "k = int(mask({n}).sum())\n    kept.append(block(k))",
    "as a loop": "for _ in range(mask({n}).sum().item()): kept.append(block(1))",
    "as a loop of int": "for _ in range(int(mask({n}).sum())): kept.append(block(1))",
    "the rest": "k = {n} - mask({n}).sum().item()\n    kept.append(block(k))",
    "the rest of int": "k = {n} - int(mask({n}).sum().item())\n    kept.append(block(k))",
    "one more": "k = mask({n}).sum().item() + 1\n    kept.append(block(k))",
    "half": "k = mask({n}).sum().item() // 2 * 2\n    kept.append(block(k))",
    "repeat": "k = mask({n}).sum().item()\n    kept.append(block(1).repeat(k))",
    "slice": "k = mask({n}).sum().item()\n    kept.append(block({n})[: k << 20].clone())",
    "arange": "k = mask({n}).sum().item()\n    kept.append(torch.arange(k << 17, device='cuda'))",
    "a module": "k = mask({n}).sum().item()\n    kept.append(torch.nn.Linear(512, k * 512, bias=False, device='cuda'))",
    "a sum of two": "k = mask({n}).sum().item()\n    kept.append(block((k + mask({n}).sum().item()) // 2))",
    "at least": "k = max(mask({n}).sum().item(), 1)\n    kept.append(block(k))",
    "many at once": "k = sum(mask({n}).view(2, -1).sum(1).tolist())\n    kept.append(block(k))",
    "a place": "k = model(torch.randn(4, side, device='cuda')).flatten()[:{n}].argmax().item() + 1\n    kept.append(block(k))",
}
# Sizes without a maximum: no answer may claim that they fit on a card.
_OPEN = {
    "mean": "kept.append(block(int(forward().item() * 100) + 1))",
    "rounded": "kept.append(block(round(forward().item() * 50)))",
    "ceil": "import math; kept.append(block(math.ceil(forward().item() * 50)))",
    "float": "kept.append(block(float(forward()) * 50))",
    "a loop": "while forward().item() > 1e-4: kept.append(block(1))",
    "a loop that counts down": "error = 1.0\n    while error > 1e-3: error = forward().item(); kept.append(block(1))",
    "int of a float": "kept.append(block(int(forward() * 50)))",
}
# Reads that decide nothing.
_SHOWN = {
    "printed": "print(loss.item())",
    "formatted": "print(f'{loss.item():.4f}', '%.3f' % loss.item(), str(loss.item()))",
    "averaged": "kept.append(loss.item()); print(sum(kept) / len(kept))",
    "as JSON": "import json; print(json.dumps({'loss': loss.item()}))",
    "by NumPy": "import numpy; print(numpy.mean([loss.item()]), numpy.array([loss.item()]).dtype)",
    "checked": "assert isinstance(loss.item(), float)",
    "scaled": "loss = loss * (1 / (1 + loss.item()))",
    "nan": "assert not torch.isnan(loss)",
    "saved": "torch.save({'loss': loss.item()}, 'saved.pt'); torch.load('saved.pt')",
    "best": "best = min(kept + [float('inf')]); print(loss.item() < float('inf'))",
}


def _estimate(folder: Path, name: str, text: str) -> Estimate:
    script = folder / f"{name.replace(' ', '_')}.py"
    script.write_text(text)
    working = os.getcwd()
    os.chdir(folder)
    try:
        return Estimator(device=_CARD, timeout_s=120).command([str(script)])
    finally:
        os.chdir(working)


def _is_covered(folder: Path, name: str, text: str, truth_mib: int) -> Verdict:
    """Compare the bound of a program with its true memory."""
    found = _estimate(folder, name, text)
    if not found.unbounded_calls and found.upper_bound < truth_mib * MIB + found.context.bytes:
        return Verdict(Wrong.NUMBER, f"{truth_mib} MiB and a context: at most {found.upper_bound / MIB:.0f} MiB")
    return HANDLED


def _is_open(folder: Path, name: str, text: str) -> Verdict:
    found = _estimate(folder, name, text)
    return HANDLED if found.unbounded_calls else Verdict(Wrong.NUMBER, f"a bound of {found.upper_bound / MIB:.0f} MiB")


def _is_left_alone(folder: Path, name: str, text: str, usual: str) -> Verdict:
    """Compare a program that only prints the numbers with one that reads nothing."""
    found, other = _estimate(folder, name, text), _estimate(folder, "usual", usual)
    if found.unbounded_calls or found.max_shape_reserved_bytes is not None:
        return Verdict(Wrong.UNCLEAR, f"it decides nothing: {found.unbounded_calls}, {found.warnings}")
    is_equal = (found.reserved, found.upper_bound, found.steps) == (other.reserved, other.upper_bound, other.steps)
    return HANDLED if is_equal else Verdict(Wrong.NUMBER, f"{found.reserved}, {found.upper_bound} for {other.reserved}")


def _loop(body: str, *, side: int, optimizer: str = "SGD", before: str = "loss = forward()") -> str:
    head = _HEAD.replace("{side}", str(side)).replace("{optimizer}", optimizer)
    return f"{head}\nfor _ in range(6):\n    {before}\n    {body}\n"


def _programs() -> Iterator[tuple[str, str, str, int | None]]:
    """Yield kind, name, text, and need of each program in MiB; None without a maximum."""
    weights_mib, side = 1024, 16384
    for stop, (read, words) in itertools.product(_STOPS, _READS.items()):
        text = _loop(_STOPS[stop].format(read=words, bar="1e-3"), side=side, optimizer="Adam")
        yield "a way out by a number that was read", f"{stop}, {read}", text, 4 * weights_mib
    for bar, sign, mib in itertools.product(_BARS, _SIDES, (1200, 4800)):
        text = _loop(f"if loss.item() {sign} {bar}: kept[:] = [block({mib})]\n    step(loss)", side=512)
        yield "a block by a number that was read", f"{mib} MiB where {sign} {bar}", text, mib
    for (name, body), n in itertools.product(_COUNTED.items(), (1000, 2000)):
        words = "kept.clear()\n    " + body.replace("{n}", str(n)) + "\n    step(loss)"
        yield "a size by a number that was read", f"{name}, {n}", _loop(words, side=512), n
    for name, body in _OPEN.items():
        yield "a size without a largest", name, _loop(f"{body}\n    step(loss)", side=512), None


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases."""
    for n, (kind, name, text, truth_mib) in enumerate(_programs()):
        if truth_mib is None:
            yield Case(kind, name, functools.partial(_is_open, folder, f"p{n}", text))
        else:
            yield Case(kind, name, functools.partial(_is_covered, folder, f"p{n}", text, truth_mib))
    usual = _loop("step(loss)", side=512)
    for name, body in _SHOWN.items():
        text = _loop(f"{body}\n    step(loss)", side=512)
        yield Case("a number that is only shown", name, functools.partial(_is_left_alone, folder, name, text, usual))
    stops = folder / "stops.py"
    stops.write_text(_loop(_STOPS["break after the step"].format(read="loss.item()", bar="1e-3"), side=16384, optimizer="Adam"))
    check = ["check", "--on", "a100-40gb", "--memory", "4600MiB", "--json", "--", str(stops)]
    yield Case("a way out by a number that was read", "as a command", functools.partial(vramcast, check, codes={1, 4}))
