"""Untrusted code in the sandbox: what it tries, and what it gets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.service.sandbox import JOB, missing, sandboxed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}"),
]
Tried = Callable[[str], str]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """Runs Python code in a sandbox; returns what it printed."""
    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o755)
    (cache / "prepared").write_text("null GPU")

    def run(code: str) -> str:
        done = subprocess.run(sandboxed(["-c", code], cache), capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() or done.stderr.strip()[-300:]

    if "hello" not in (said := run("print('hello')")):
        pytest.skip(f"bubblewrap may not make a sandbox here: {said}")
    return run


def test_it_is_nobody_in_a_folder_of_its_own(tried: Tried) -> None:
    assert tried("import os; print(os.getuid(), os.getcwd(), os.listdir())") == f"65000 {JOB} []"
    assert tried("open('x', 'w').write('1'); print(open('x').read())") == "1"


def test_it_reads_the_prepared_cache_and_does_not_write_it(tried: Tried) -> None:
    assert tried("print(open('/cache/prepared').read())") == "null GPU"
    assert "Error" in tried("open('/cache/other', 'w')")


@pytest.mark.parametrize("path", ["/etc/shadow", "/etc/passwd", "/root/.ssh", "/home", "/var"])
def test_it_sees_nothing_of_the_machine(tried: Tried, path: str) -> None:
    assert tried(f"import os; print(os.path.exists({path!r}))") == "False"


def test_it_does_not_see_the_service_s_files(tried: Tried, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    assert "Error" in tried(f"print(open({str(token)!r}).read())")


def test_it_does_not_write_to_python_or_to_vramcast(tried: Tried) -> None:
    for place in (sys.prefix, sys.base_prefix, "/usr"):
        assert "Error" in tried(f"open({place + '/planted.py'!r}, 'w')")


def test_it_has_no_network(tried: Tried) -> None:
    assert "Error" in tried("import socket; socket.create_connection(('127.0.0.1', 22), 2)")
    assert tried("import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"


def test_it_sees_no_other_process_and_inherits_no_variable(tried: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    assert tried("import os; print('SECRET_TOKEN' in os.environ)") == "False"
    assert int(tried("import os; print(len([p for p in os.listdir('/proc') if p.isdecimal()]))")) <= 3


def test_it_does_not_fill_the_disk(tried: Tried) -> None:
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


def test_it_does_not_fork_without_end(tried: Tried) -> None:
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


def test_it_gains_no_rights(tried: Tried) -> None:
    assert "Error" in tried("import os; os.setuid(0)")
    code = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'CapEff'))])"
    assert tried(code) == "['0000000000000000', '1']"
