"""Attempts of a tenant's code in the service's sandbox: system calls, uncounted memory, and the features that jobs need.

Each case is a Python text that runs there alone. `tenants.py` tests a whole service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.hostile.case import HANDLED, Case, Verdict, Wrong
from vramcast.cluster.service.control_group import ControlGroup, control_groups
from vramcast.cluster.service.sandbox import FOLDERS_IN_MEMORY, missing, sandboxed
from vramcast.cluster.service.workers import Workers, WorkerSlot
from vramcast.core.errors import VramcastError
from vramcast.core.units import MIB

_LIMIT_S: Final = 60.0  # arbitrary
_JOB_BYTES: Final = 600 * MIB  # arbitrary: more than an interpreter takes, and less than the capacity of the folders in memory
_SYSCALL: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*a): return libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
def refused(result):
    error = ctypes.get_errno()
    print("refused" if result == -1 and error in (1, 38) else f"{result}, errno {error}")
"""
# spec: Linux on x86_64
_CALLS: Final = {
    "a user namespace by unshare": "refused(call(272, 0x10000000))",
    "a mount namespace by unshare": "refused(call(272, 0x20000))",
    "a user namespace by clone": "refused(call(56, 0x10000000 | 17, 0, 0, 0, 0))",
    "a user namespace by clone3": "b = ctypes.create_string_buffer(88); b[3] = 0x10; refused(call(435, b, 88))",
    "a namespace by setns": "refused(call(308, os.open('/proc/self/ns/user', 0), 0))",
    "a mount of tmpfs": "refused(call(165, b'x', b'/tmp', b'tmpfs', 0, 0))",
    "a mount by fsopen": "refused(call(430, b'tmpfs', 0))",
    "an unmount": "refused(call(166, b'/tmp', 2))",
    "chroot": "refused(call(161, b'/tmp'))",
    "pivot_root": "refused(call(155, b'/tmp', b'/tmp'))",
    "memory by memfd_create": "refused(call(319, b'x', 0))",
    "memory by memfd_secret": "refused(call(447, 0))",
    "memory by shmget": "refused(call(29, 0, 1 << 30, 0o1600))",
    "memory by a message queue": "refused(call(240, b'x', 0o102, 0o600, 0))",
    "memory shared and anonymous": "refused(call(9, 0, 1 << 30, 3, 0x21, -1, 0))",
    "memory shared, validated and anonymous": "refused(call(9, 0, 1 << 30, 3, 0x23, -1, 0))",
    "the 32-bit numbers of x32": "refused(call(0x40000000 | 165, b'x', b'/tmp', b'tmpfs', 0, 0))",
    "ptrace of the first process": "refused(call(101, 16, 1, 0, 0))",
    "a look into the first process's memory": "refused(call(310, 1, 0, 0, 0, 0, 0))",
    "a write into the first process's memory": "refused(call(311, 1, 0, 0, 0, 0, 0))",
    "a descriptor of the first process": "refused(call(438, os.pidfd_open(1), 0, 0))",
    "io_uring": "b = ctypes.create_string_buffer(120); refused(call(425, 8, b))",
    "userfaultfd": "refused(call(323, 1))",
    "bpf": "refused(call(321, 0, 0, 0))",
    "perf_event_open": "refused(call(298, 0, 0, -1, -1, 0))",
    "keys": "refused(call(250, 0, -3, 1))",
}
_TRIES: Final = {
    "mmap of /dev/zero": """
import mmap, os
try: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 1 << 20); print("mapped")
except OSError: print("refused")""",
    "a file in /": "try: open('/x', 'w'); print('written')\nexcept OSError: print('refused')",
    "a file in /dev": "try: open('/dev/x', 'w'); print('written')\nexcept OSError: print('refused')",
    "a module in the job's folder in the place of a library's": """
import importlib, sys
open("this.py", "w").write("print('planted')")
importlib.invalidate_caches()
print("refused" if "" not in sys.path and "/job" not in sys.path else "imported")""",
    "more than a thousand processes": """
import os, signal
n = 0
try:
    for n in range(1000):
        if os.fork() == 0: signal.pause()
except BlockingIOError: print("refused")
os.kill(-1, 9)""",
    "more than its /dev/shm": """
try:
    with open("/dev/shm/x", "wb") as file:
        for _ in range(1100): file.write(bytes(1 << 20))
except OSError: print("refused")""",
    "unshare -Urm mount": """
import subprocess
done = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True)
print("refused" if done.returncode else "mounted")""",
}
_NEEDS: Final = {
    "multiprocessing.Pool": "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))",
    "multiprocessing.Queue": "import multiprocessing as m\nq = m.Queue(); q.put([1, 2]); print(q.get())",
    "multiprocessing.Semaphore": "import multiprocessing as m\ns = m.Semaphore(1); s.acquire(); print([1, 2])",
    "shared memory": """
from multiprocessing.shared_memory import SharedMemory
s = SharedMemory(create=True, size=1 << 20); s.buf[0] = 1; print([s.buf[0], 2]); s.close(); s.unlink()""",
    "an array that processes share": "import multiprocessing as m\na = m.RawArray('i', [1, 2]); print(list(a))",
    "threads": "import concurrent.futures as f\nwith f.ThreadPoolExecutor(50) as p: print(list(p.map(abs, [-1, -2])))",
    "programs": "import subprocess\nsubprocess.run(['sh', '-c', 'echo [1, 2]'])",
    "temporary files": "import tempfile\nwith tempfile.TemporaryFile('w+') as f: f.write('[1, 2]'); f.seek(0); print(f.read())",
}
_HELD: Final = {
    "its own memory": "x = bytearray(900 << 20)",
    "that of children, each small": """
import os
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(150 << 20); time.sleep(60)""",
    "files in /tmp": "write('/tmp/x', 900)",
    "files in the job's folder": "write('/job/x', 900)",
    "files in /dev/shm": "write('/dev/shm/x', 900)",
    "a little in each folder": "[write(f'{place}/x', 280) for place in ('/tmp', '/job', '/dev/shm')]",
    "a file that was deleted": """
import os
file = open('/tmp/x', 'wb')
os.unlink('/tmp/x')
for _ in range(900): file.write(bytes(1 << 20))
file.flush()""",
    "a file that is mapped, its pages given back": """
import mmap
f = open('/tmp/x', 'w+b'); f.truncate(900 << 20); m = mmap.mmap(f.fileno(), 900 << 20)
for at in range(0, 900 << 20, 4096): m[at] = 1
m.madvise(mmap.MADV_DONTNEED)""",
    "empty files without end": "for n in range(3_000_000): open(f'/tmp/{n}', 'w').close()",
    "tables of pages without pages": """
import mmap
m = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
for at in range(0, 1 << 40, 2 << 20): m[at]""",
}
_BUFFERS: Final = {
    "pipes": """
import os
for n in range(60):
    if os.fork() == 0:
        kept = []
        for _ in range(2000):
            r, w = os.pipe(); os.set_blocking(w, False); kept.append((r, w))
            try: os.write(w, bytes(1 << 16))
            except OSError: pass
        time.sleep(60)""",
    "sockets": """
import os, socket
for n in range(12):
    if os.fork() == 0:
        kept = []
        for _ in range(1500):
            a, b = socket.socketpair(); a.setblocking(False); kept.append((a, b))
            try:
                while True: a.send(bytes(1 << 16))
            except OSError: pass
        time.sleep(60)""",
}
_PROLOGUE: Final = """
import sys, time
sys.stdin.readline()
def write(path, mib):
    with open(path, "wb") as file:
        for _ in range(mib): file.write(bytes(1 << 20))
"""
_EPILOGUE: Final = """
time.sleep(3)
print('{"error": {"kind": "usage", "message": "it was let"}}', flush=True)
"""


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases; none without a sandbox."""
    if missing():
        return
    cache = folder / "cache"
    cache.mkdir(mode=0o755)
    for name, code in _CALLS.items():
        yield Case("calls of the kernel", name, _says(cache, _SYSCALL + code, "refused"))
    for name, code in _TRIES.items():
        yield Case("calls of the kernel", name, _says(cache, code, "refused"))
    for name, code in _NEEDS.items():
        yield Case("what jobs need", name, _says(cache, code, "[1, 2]"))
    groups: list[ControlGroup | None] = [None]
    with contextlib.suppress(OSError):  # then memory outside processes is not tested: the documentation promises no limit
        groups += control_groups(1, _JOB_BYTES)
    for group in groups:
        how = "a control group" if group else "looks"
        for name, code in {**_HELD, **(_BUFFERS if group else {})}.items():
            yield Case(f"memory, held by {how}", name, _is_held(cache, code, group))
    for group in groups:
        if group is not None:
            group.remove()


def _says(cache: Path, code: str, expected: str) -> Callable[[], Verdict]:
    """Return a function that runs code in the sandbox and checks its last output."""

    def run() -> Verdict:
        try:
            done = subprocess.run(sandboxed(["-c", code], cache), capture_output=True, text=True, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            return Verdict(Wrong.HANG, f"did not end within {_LIMIT_S:g} s")
        said = (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]
        return HANDLED if said == expected else Verdict(Wrong.WALL, said)

    return run


def _is_held(cache: Path, code: str, group: ControlGroup | None) -> Callable[[], Verdict]:
    """Return a function that runs code in a pool with a memory limit, and expects the limit to end it."""

    async def ended() -> Verdict:
        command = sandboxed(["-c", _PROLOGUE + code + _EPILOGUE], cache, 0, group)
        workers = Workers(
            [WorkerSlot(command, group, () if group else FOLDERS_IN_MEMORY)], 1, _LIMIT_S, _JOB_BYTES, is_fresh=True
        )
        await workers.start()
        try:
            return Verdict(Wrong.WALL, json.dumps(await workers.ask({}))[:200])
        except VramcastError as error:
            return HANDLED if "--job-memory" in str(error) else Verdict(Wrong.UNCLEAR, str(error)[:200])
        finally:
            place = workers._places[0]
            await workers._end(place)

    return lambda: asyncio.run(ended())
