"""Untrusted code in the sandbox: its attempts, and their results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pydantic")
from vramcast.cluster.service.sandbox import JOB, missing, sandboxed  # after the line above
from vramcast.cluster.service.workers import Workers, WorkerSlot

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}"),
]
Tried = Callable[[str], str]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Return a function that runs Python code in a sandbox and returns its output."""
    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o755)
    (cache / "prepared").write_text("null GPU")

    def run(code: str) -> str:
        done = subprocess.run(sandboxed(["-c", code], cache), capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() or done.stderr.strip()[-300:]

    if "hello" not in (said := run("print('hello')")):
        pytest.skip(f"bubblewrap may not make a sandbox here: {said}")
    return run


def test_runs_unprivileged_in_own_folder(tried: Tried) -> None:
    assert (
        tried("import os; print(os.getuid(), os.getcwd(), os.listdir())")
        == f"{65000 if os.geteuid() == 0 else os.geteuid()} {JOB} []"
    )
    assert tried("open('x', 'w').write('1'); print(open('x').read())") == "1"


def test_reads_but_never_writes_cache(tried: Tried) -> None:
    assert tried("print(open('/cache/prepared').read())") == "null GPU"
    assert "Error" in tried("open('/cache/other', 'w')")


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/passwd", "/root/.ssh", "/home", "/var"])
def test_cannot_see_the_machine(tried: Tried, path: str) -> None:
    assert tried(f"import os; print(os.path.exists({path!r}))") == "False"


def test_cannot_see_files_of_service(tried: Tried, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    assert "Error" in tried(f"print(open({str(token)!r}).read())")


def test_cannot_write_to_python_or_vramcast(tried: Tried) -> None:
    for place in (sys.prefix, sys.base_prefix, "/usr"):
        assert "Error" in tried(f"open({place + '/planted.py'!r}, 'w')")


def test_has_no_network(tried: Tried) -> None:
    assert "Error" in tried("import socket; socket.create_connection(('127.0.0.1', 22), 2)")
    assert tried("import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"


def test_isolates_processes_and_variables(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    assert tried("import os; print('SECRET_TOKEN' in os.environ)") == "False"
    assert int(tried("import os; print(len([p for p in os.listdir('/proc') if p.isdecimal()]))")) <= 3


def test_cannot_fill_the_disk(tried: Tried) -> None:
    code = """
written = 0
try:
    for number in range(40):
        with open(f"part{number}", "wb") as file:
            written += file.write(bytes(64 << 20))
            file.flush()
except OSError as error:
    print(type(error).__name__, written <= 1 << 30)
"""
    assert tried(code) == "OSError True"


def test_cannot_fork_without_limit(tried: Tried) -> None:
    code = """
import os, signal
children = []
try:
    while len(children) < 5000:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except BlockingIOError:
    print("no more", len(children) < 512)
for child in children:
    os.kill(child, 9)
"""
    assert tried(code) == "no more True"


def test_cannot_gain_privileges(tried: Tried) -> None:
    assert "Error" in tried("import os; os.setuid(0)")
    code = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'CapEff'))])"
    assert tried(code) == "['0000000000000000', '1']"


def test_kill_during_start_leaves_no_process(tmp_path: Path) -> None:
    """Its first process had a child that was not yet in any list, and was not ended."""
    tmp_path.chmod(0o755)
    mark = f"mark = {os.getpid()}; input()"

    async def start_and_end(delay_s: float) -> None:
        workers = Workers([WorkerSlot(sandboxed(["-c", mark], tmp_path))], 1, 9.0, 1 << 30)
        await workers.start()
        await asyncio.sleep(delay_s)
        await asyncio.wait_for(workers.stop(), 9)

    for number in range(20):
        asyncio.run(start_and_end(number / 1000))
    latest_s = time.monotonic() + 9
    while any(mark in line for line in command_lines()):  # the kernel ends a killed process asynchronously
        assert time.monotonic() < latest_s
        time.sleep(0.01)


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def test_has_own_user_if_service_is_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    command = [sandboxed(["-c", "import os; print(os.getuid())"], tmp_path, number) for number in (0, 7)]
    said = [int(subprocess.run(one, capture_output=True, text=True, check=True).stdout) for one in command]
    assert said == ([65000, 65007] if os.geteuid() == 0 else [os.geteuid()] * 2)


@pytest.mark.parametrize(
    "code",
    [
        "import multiprocessing as m\nwith m.Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
        "import multiprocessing as m\nq = m.Queue(); q.put([1, 2]); print(q.get())",
        "import multiprocessing as m\ns = m.Semaphore(); s.acquire(); print([1, 2])",
    ],
    ids=["pool", "queue", "semaphore"],
)
def test_supports_multiprocessing(tried: Tried, code: str) -> None:
    assert tried(code) == "[1, 2]"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.memfd_create('x')",
        "import mmap; mmap.mmap(-1, 1 << 20)",
        "import mmap, os; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)",
        "import subprocess; subprocess.run(['unshare', '-Urm', 'true'], check=True)",
        "open('/x', 'w')",
        "open('/dev/x', 'w')",
    ],
    ids=["memfd", "shared and anonymous", "zero", "user namespace", "root", "dev"],
)
def test_forbids_uncounted_memory_and_namespaces(tried: Tried, code: str) -> None:
    assert "Error" in tried(code)


def test_service_imports_no_code_from_folder(tried: Tried) -> None:
    assert tried("import sys; print('' in sys.path, '/job' in sys.path)") == "False False"
