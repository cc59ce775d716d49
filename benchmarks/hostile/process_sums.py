"""Processes of one job on one card: the sum of their memory decides, not the largest of them.

Each program starts processes that hold blocks of whole MiB, at once or one after the other. Its memory at the fullest moment
is known by hand arithmetic: the blocks of the processes alive, and a context for each. A bound below that is wrong, and
so is an estimate more than two MiB per process above it.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from benchmarks.hostile.command import vramcast
from vramcast.core.units import MIB
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device

_CARD = device("rtx4060")
_LIMIT_S = 400.0  # arbitrary: several interpreters that import torch, on a busy machine
_CHILD = """
import sys, time, torch

def hold(mib, seconds):
    block = torch.empty(int(mib) << 20, dtype=torch.uint8, device="cuda")
    time.sleep(seconds)

def train(mib):
    weights = torch.empty((int(mib) << 20) // 4, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        weights.sum().backward()
        optimizer.step()

class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, at): return torch.zeros(1 << 20, dtype=torch.uint8, device="cuda").sum().cpu()

if __name__ == "__main__":
    train(sys.argv[2]) if sys.argv[1] == "train" else hold(sys.argv[2], float(sys.argv[1]))
"""
_HEAD = """
import multiprocessing, subprocess, sys, time
from child import hold, train

def start(mib, seconds=3, how="{how}"):
    if how == "subprocess":
        return subprocess.Popen([sys.executable, "child.py", str(seconds), str(mib)])
    process = multiprocessing.get_context(how).Process(target=hold, args=(mib, seconds))
    process.start()
    process.wait = process.join
    return process

if __name__ == "__main__":
    import torch
"""
# Programs with their memory at the fullest moment, by the sizes of their children and their own: blocks and processes.
_AT_ONCE = """
    children = [start(mib) for mib in {children}]
    own = torch.empty({own} << 20, dtype=torch.uint8, device="cuda")
    for child in children: child.wait()
"""
_ONE_BY_ONE = """
    for mib in {children}: start(mib, seconds=0).wait()
    own = torch.empty({own} << 20, dtype=torch.uint8, device="cuda")
"""
_EVALUATED = """
    own = torch.empty({own} << 20, dtype=torch.uint8, device="cuda")
    for mib in {children}: start(mib, seconds=0).wait()
"""
_KINDS = {
    "at once": (_AT_ONCE, lambda children, own: (sum(children) + own, len(children) + 1)),
    "one by one": (_ONE_BY_ONE, lambda children, own: max((max(children), 1), (own, 1))),
    "beside the parent": (_EVALUATED, lambda children, own: (max(children) + own, 2)),
}
_SIZES = (((1024,), 512), ((1024, 2048), 256), ((512, 512, 512), 1024), ((300, 200, 100, 50), 64))
_KILLED = """
    import os, signal
    child = start(1024, seconds=60)
    own = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    time.sleep(6)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
"""
_CUT = """
    first = subprocess.Popen([sys.executable, "child.py", "train", "512"])
    time.sleep(8)
    second = subprocess.Popen([sys.executable, "child.py", "train", "256"])
    second.wait()
    first.wait()
"""
_LOADER = """
    from torch.utils.data import DataLoader
    from child import Data
    own = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    for batch in DataLoader(Data(), batch_size=8, num_workers=2, multiprocessing_context="spawn"): pass
"""


def _sums(folder: Path, text: str, blocks_mib: int, processes: int) -> Verdict:
    """Compare a program with a card that is too small for all of its processes, and with one that is large enough."""
    (folder / "main.py").write_text(text)
    working = os.getcwd()
    os.chdir(folder)
    try:
        found = Estimator(device=_CARD, timeout_s=_LIMIT_S).command(["main.py"])
    finally:
        os.chdir(working)
    context_bytes = found.context.bytes - sum(one.reserved for one in found.processes[1:] if one.is_at_once)
    truth_bytes = blocks_mib * MIB + context_bytes
    at_once = [one for one in found.processes if one.is_at_once]
    if not found.unbounded_calls and found.upper_bound < truth_bytes:
        return Verdict(Wrong.NUMBER, f"{blocks_mib} MiB and contexts: at most {found.upper_bound / MIB:.0f} MiB")
    if max(len(at_once), 1) != processes or not 0 <= found.process - truth_bytes <= 2 * processes * MIB:
        return Verdict(Wrong.NUMBER, f"{found.process / MIB:.0f} MiB for {truth_bytes / MIB:.0f}, {len(at_once)} at once")
    return HANDLED


def cases(folder: Path) -> Iterable[Case]:
    """Yield the cases."""
    (folder / "child.py").write_text(_CHILD)
    kind = "processes of a job on one card"
    for (name, (body, truth)), (at, (children, own)) in itertools.product(_KINDS.items(), enumerate(_SIZES)):
        how = ("subprocess", "spawn")[at % 2]
        text = _HEAD.replace("{how}", how) + body.replace("{children}", str([*children])).replace("{own}", str(own))
        yield Case(kind, f"{name}, {how}, {children} and {own}", functools.partial(_sums, folder, text, *truth(children, own)))
    fork = _HEAD.replace("{how}", "fork") + _ONE_BY_ONE.replace("{children}", "[512, 256]").replace("{own}", "1024")
    yield Case(kind, "one by one, fork", functools.partial(_sums, folder, fork, 1024, 1))
    head = _HEAD.replace("{how}", "subprocess")
    yield Case(kind, "cut short, not waited for", functools.partial(_sums, folder, head + _CUT, 2 * (512 + 256), 2))
    for name, body, sizes, codes in (
        ("at once", _AT_ONCE.replace("{children}", "[3072, 3072, 3072]").replace("{own}", "1024"), "7GiB", {1}),
        ("killed", _KILLED, "7GiB", {4}),
        ("loading workers", _LOADER, "680MiB", {1, 4}),
    ):
        script = folder / f"{name.replace(' ', '_')}.py"
        script.write_text(head + body)
        check = ["check", "--on", "rtx4060", "--memory", sizes, "--json", "--", str(script)]
        yield Case(kind, f"{name}, as a command", functools.partial(_command, folder, check, codes))


def _command(folder: Path, arguments: list[str], codes: set[int]) -> Verdict:
    working = os.getcwd()
    os.chdir(folder)
    try:
        return vramcast(arguments, codes=codes, limit_s=_LIMIT_S)
    finally:
        os.chdir(working)
