"""A warm worker and its connection under failures of callers, jobs and machines; without torch, so that it starts at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn

import pytest

from vramcast.core.errors import TimeLimit, UsageError, WorkerError
from vramcast.jobs.job import Command
from vramcast.tracer.processes.job_process import python_path
from vramcast.tracer.processes.warm_worker import WarmWorker
from vramcast.tracer.protocol.messages import LENT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm workers fork")

SERVES = """
import sys
from vramcast.tracer.processes.fork_server import serve

def run(job):
    names = {}
    exec(getattr(job, "code", job), names)
    return names.get("answer")

serve(int(sys.argv[1]), lambda: (run, None))
"""
CALLS = f"""
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, or in a shell's background
signal.signal(signal.SIGINT, signal.default_int_handler)
from vramcast.tracer.processes.warm_worker import WarmWorker
worker = WarmWorker([sys.executable, "-c", {SERVES!r}], os.environ)
"""
SLEEPS = "import os, time; open({path!r}, 'w').write(str(os.getpid())); time.sleep(600)"


def start(source: str = SERVES) -> WarmWorker:
    return WarmWorker([sys.executable, "-c", source], {**os.environ, "PYTHONPATH": python_path()})


@pytest.fixture(scope="module")
def worker() -> Iterator[WarmWorker]:
    one = start()
    yield one
    one.close()


def ask(worker: WarmWorker, job: Any, *, timeout_s: float = 60.0) -> Any:
    return worker.ask(job, os.environ, timeout_s=timeout_s, advice=".")


def ask_or_fail(worker: WarmWorker, job: Any) -> None:
    with contextlib.suppress(WorkerError):  # an attack on the previous job may hit this one
        ask(worker, job)


def number(n: int) -> str:
    return f"answer = {n}"


def wait_for(condition: Callable[[], Any], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Late(Exception):
    """The exception of a caller's own time limit."""


@contextlib.contextmanager
def alarm(delay_s: float, error: type[BaseException] = Late) -> Iterator[None]:
    def ring(signum: int, frame: FrameType | None) -> NoReturn:
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- answers match their requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Late, TimeoutError, OSError, KeyboardInterrupt, SystemExit])
def test_signal_handlers_exception_drops_answer(worker: WarmWorker, error: type[BaseException]) -> None:
    with pytest.raises(error) as raised, alarm(0.05, error):
        ask(worker, "import time; time.sleep(0.3); answer = 8192")
    assert type(raised.value) is error
    assert [ask(worker, number(n)) for n in (1, 2)] == [1, 2]


def test_signal_handler_may_make_request(worker: WarmWorker) -> None:
    found: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: found.append(ask(worker, number(2))))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        assert ask(worker, "import time; time.sleep(0.3); answer = 1") == 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found == [2]
    assert ask(worker, number(3)) == 3


@pytest.mark.parametrize(
    "ending",
    ["", "\nif not pid: raise SystemExit(0)", "\nif not pid: raise ValueError", "\nif not pid: import sys; sys.exit(3)"],
)
def test_forking_job_answers_once(worker: WarmWorker, ending: str) -> None:
    assert ask(worker, f"import os; pid = os.fork(); answer = 1{ending}") == 1
    assert [ask(worker, number(n)) for n in (2, 3)] == [2, 3]


def test_answer_to_other_request_is_error() -> None:
    astray = start(
        "import socket, sys; from vramcast.tracer.protocol.messages import receive, send\n"
        "connection = socket.socket(fileno=int(sys.argv[1])); send(connection, {'ready': None})\n"
        "while True: n = receive(connection)['number']; send(connection, {'number': n + 1, 'answer': 7, 'imported': ()})"
    )
    with pytest.raises(WorkerError, match="answered request 2 instead of 1"):
        ask(astray, number(1))
    assert not astray.is_alive


def test_unreadable_answer_is_error(worker: WarmWorker) -> None:
    only_there = "import sys, types; m = sys.modules['there'] = types.ModuleType('there')\n"
    only_there += "class C: __module__ = 'there'\nm.C = C; answer = C()"
    with pytest.raises(WorkerError, match=r"answer cannot be read \(ModuleNotFoundError"):
        ask(worker, only_there)
    assert ask(worker, number(1)) == 1


def test_each_thread_gets_its_own_answer(worker: WarmWorker) -> None:
    found: dict[int, int] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: ask(worker, number(n))})) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n for n in range(8)}


def test_unawaited_worker_serves_or_ends(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    slow = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(1){SERVES}"
    first, second = (WarmWorker([sys.executable, "-c", slow], environment, wait=False) for _ in range(2))
    wait_for((tmp_path / "begun").exists)
    second.close()
    assert second.pid is None
    assert ask(first, number(1)) == 1
    first.close()
    dead = WarmWorker([sys.executable, "-c", "raise SystemExit('no torch here')"], environment, wait=False)
    with pytest.raises(WorkerError, match="did not start: no torch here"):
        ask(dead, number(1))


def test_concurrent_threads_share_one_worker() -> None:
    found: list[WarmWorker] = []
    command = [sys.executable, "-c", SERVES]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    threads = [
        threading.Thread(target=lambda: found.append(WarmWorker.shared("test_warm", command, environment))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    found[0].close()


# -- forks of the caller ---------------------------------------------------------------------------------------------------


def in_fork(work: Callable[[], int]) -> int:
    """Return the exit code of a fork of this process that does some work and exits by sys.exit, as a script does."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            sys.exit(work())
        except SystemExit as error:
            code = int(str(error.code))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork_uses_its_own_worker(worker: WarmWorker) -> None:
    assert ask(worker, number(1)) == 1
    pid = worker.pid

    def work() -> int:
        right = worker.pid is None and ask(worker, number(2)) == 2 and worker.pid not in (None, pid)
        worker.close()
        return 0 if right else 1

    assert in_fork(work) == 0
    assert ask(worker, number(3)) == 3
    assert worker.pid == pid


def test_fork_does_not_wait_for_parents_job(worker: WarmWorker, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    found: list[int] = []
    code = f"open({str(path)!r}, 'w').close(); import time; time.sleep(1); answer = 1"
    thread = threading.Thread(target=lambda: found.append(ask(worker, code)))
    thread.start()
    wait_for(path.exists)
    assert in_fork(lambda: 0 if ask(worker, number(2)) == 2 and not found else 1) == 0
    thread.join()
    assert found == [1]


# -- deaths
# ------------------------------------------------------------------------------------------------------------------


def test_killed_worker_restarts_for_next_job(worker: WarmWorker) -> None:
    assert ask(worker, number(1)) == 1
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not worker.is_alive)
    assert ask(worker, number(2)) == 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os._exit(77)", "ended with exit code 77: the job, or a library in it, ended its own process"),
        ("import os; os._exit(0)", "ended with exit code 0: the job, or a library in it, ended its own process"),
        ("import os; print('bye'); os._exit(0)", r"exit code 0: see its last output.\nbye"),
        ("import os; os.closerange(0, 256)", "must not close file descriptors that it has not opened"),
        ("import os; os.kill(os.getppid(), 9); import time; time.sleep(60)", "The worker was killed"),
        ("import os; os.kill(os.getppid(), 15); import time; time.sleep(60)", "The worker was ended by SIGTERM while it ran"),
    ],
)
def test_job_ending_its_process_is_reported(worker: WarmWorker, code: str, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        ask(worker, code)
    assert ask(worker, number(1)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import os; os.close(1); os.close(2)",
        "import sys\nclass Bad:\n    def flush(self): raise ValueError\nsys.stdout = Bad()",
        "import sys; print('x' * (1 << 20))",
    ],
)
def test_job_may_close_its_stdout(worker: WarmWorker, code: str) -> None:
    assert ask(worker, f"{code}\nanswer = 1") == 1


def test_jobs_children_end_with_it(worker: WarmWorker, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    code = "import os, subprocess\np = [subprocess.Popen(['sleep', '600'], start_new_session=s).pid for s in (False, True)]\n"
    code += "answer = p\nif os.fork() == 0:\n    if os.fork() == 0:\n"
    code += f"        {SLEEPS.format(path=str(path))}\n    os._exit(0)\n"
    code += f"while not (os.path.exists({str(path)!r}) and os.path.getsize({str(path)!r})): pass"
    pids = ask(worker, code)
    wait_for(lambda: not any(map(runs, [*pids, int(path.read_text())])))


def test_late_job_ends_with_its_children(worker: WarmWorker, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pytest.raises(TimeLimit, match=r"did not end within 0\.5 s"):
        ask(worker, f"import os\nif os.fork() == 0: os.setsid()\n{SLEEPS.format(path=str(path))}", timeout_s=0.5)
    # On a slow machine it may have ended before it could say its number.
    wait_for(lambda: not (path.exists() and path.read_text()) or not runs(int(path.read_text())))
    assert ask(worker, number(1)) == 1


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_rejects_nonpositive_timeout(worker: WarmWorker, timeout_s: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        ask(worker, number(1), timeout_s=timeout_s)


def test_accepts_any_long_timeout(worker: WarmWorker) -> None:
    assert ask(worker, number(1), timeout_s=float("inf")) == 1


@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_worker_and_job_end_with_caller(tmp_path: Path, death: signal.Signals) -> None:
    path = tmp_path / "pid"
    job = SLEEPS.format(path=str(path))
    # A fork of the caller outlives it and must not keep the worker alive; it has closed the caller's pipes.
    code = f"{CALLS}\nif os.fork() == 0: import time; os.closerange(0, 3); time.sleep(5); os._exit(0)\n"
    lent = tmp_path / "lent"
    lent.mkdir()
    code += f"worker.ask({job!r}, {{**os.environ, {LENT!r}: {str(lent)!r}}}, timeout_s=600, advice='.')"
    environment = {**os.environ, "PYTHONPATH": python_path()}
    caller = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: path.exists() and path.read_text() != "")
    pid = int(path.read_text())
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent != caller.pid
    caller.send_signal(death)
    caller.communicate(timeout=60)
    wait_for(lambda: not runs(pid) and not runs(parent))
    assert not lent.exists()


def test_importing_worker_ends_with_its_caller(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    slow = "import sys; from vramcast.tracer.processes.fork_server import serve\n"
    slow += f"serve(int(sys.argv[1]), lambda: exec({SLEEPS.format(path=str(path))!r}))"
    environment = {**os.environ, "PYTHONPATH": python_path()}
    caller = subprocess.Popen([sys.executable, "-c", CALLS.replace(repr(SERVES), repr(slow))], env=environment)
    wait_for(lambda: path.exists() and path.read_text() != "")
    caller.kill()
    caller.wait()
    wait_for(lambda: not runs(int(path.read_text())))


def test_script_output_passes_and_models_does_not(worker: WarmWorker, capfd: pytest.CaptureFixture[str]) -> None:
    says = "import os, sys, subprocess; print('one'); print('two', file=sys.stderr); subprocess.run(['echo', 'three'])"
    ask(worker, SimpleNamespace(command=Command(("train.py",)), code=says))
    assert capfd.readouterr() == ("", "one\ntwo\nthree\n")
    ask(worker, says)
    assert capfd.readouterr() == ("", "")


# -- everything at once
# ------------------------------------------------------------------------------------------------------


# An alarm may ring between two lines of a start: newly opened files are then closed by the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:subprocess:ResourceWarning")
def test_answers_under_attack_match_requests_or_raise(worker: WarmWorker) -> None:
    draw = random.Random(15)
    answered = 0
    for n in range(40):
        job = f"import time; time.sleep({draw.random() / 20}); answer = {n}"
        attack = draw.choice(["none", "alarm", "worker", "fork", "thread"])
        delay_s = draw.random() / 20
        pid = worker.pid
        try:
            if attack == "alarm":
                with alarm(delay_s):
                    answer = ask(worker, job)
            elif attack == "fork":
                assert in_fork(lambda job=job, n=n: 0 if ask(worker, job) == n else 1) == 0
                continue
            elif attack == "thread":
                other = threading.Thread(target=ask_or_fail, args=(worker, number(-1)))
                other.start()
                answer = ask(worker, job)
                other.join()
            else:
                if attack == "worker" and pid is not None:
                    threading.Timer(
                        delay_s, lambda pid=pid: os.kill(pid, signal.SIGKILL) if worker.pid == pid else None
                    ).start()
                answer = ask(worker, job)
        except (Late, WorkerError):
            continue
        assert answer == n
        answered += 1
    assert answered > 10
