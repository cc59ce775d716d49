"""The worker survives failing jobs: after any death, the caller gets an error with a reason, and the next job works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulator.allocator_driver import play
from vramcast.core.errors import JobError, NullGpuError, UsageError, WorkerError
from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu import client
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.nullgpu.library.build import build
from vramcast.tracer.nullgpu.library.entry_points import read_list

Run = Callable[..., Any]


@pytest.fixture
def works(trace: Run, tiny_models: Path) -> Callable[[], bool]:
    """Return a function that checks whether a small job still has its usual answer."""

    def check() -> bool:
        result = trace(fresh=True, target=f"{tiny_models}:mlp", batch="8x16")
        return bool(result.status == "ok" and result.steps == 3 and result.trace.header["peaks"]["allocated"] > 0)

    return check


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ValueError('broken on purpose')", "The job raised ValueError: broken on purpose"),
        ("raise KeyboardInterrupt", "The job raised KeyboardInterrupt: no message"),
        ("class Own(BaseException): pass\nraise Own('mine')", "The job raised Own: mine"),
        ("sys.exit(1)", "The job ended with exit code 1"),
        ("sys.exit('no data')", "The job raised SystemExit: no data"),
        ("import not_a_package_of_ours", "No module named 'not_a_package_of_ours'"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(): return f()\nf()", "RecursionError"),
        (
            "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own",
            "Own: no message (its __str__ raised ValueError)",
        ),
    ],
)
def test_reports_jobs_exception_with_traceback(probe: Run, works: Callable[[], bool], source: str, message: str) -> None:
    with pytest.raises(JobError) as error:
        probe(source)
    assert message in str(error.value)
    assert "Traceback" in error.value.job_traceback
    assert works()


@pytest.mark.parametrize("source", ["sys.exit()", "sys.exit(0)", "raise SystemExit"])
def test_script_may_exit_without_error(probe: Run, source: str) -> None:
    _, result = probe(source)
    assert result.status == "ok"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os; os._exit(3)", "ended with exit code 3"),
        ("import os; os._exit(0)", "ended with exit code 0"),
        ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
        ("import os; os.abort()", "was killed by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL: it was probably out of memory"),
    ],
)
def test_reports_death_of_jobs_process(probe: Run, works: Callable[[], bool], source: str, message: str) -> None:
    with pytest.raises(WorkerError) as error:
        probe(source, timeout_s=60)
    assert message in str(error.value)
    assert works()


def test_large_output_does_not_block(probe: Run, works: Callable[[], bool]) -> None:
    said, _ = probe("for _ in range(2000): print('x' * 1000); print('y' * 1000, file=sys.stderr)\nnote(done=True)")
    assert said == {"done": True}
    assert works()


def test_error_has_models_last_output(trace: Run, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        "import os\ndef model():\n    print('checking the licence server')\n    import sys; sys.stdout.flush(); os._exit(5)\n"
    )
    with pytest.raises(WorkerError, match=r"(?s)ended with exit code 5.*checking the licence server"):
        trace(target=f"{tmp_path / 'dies.py'}:model", batch="1x1")


NEVER_ENDS = """
import time
while True:
    try:
        time.sleep(600)
    except BaseException:  # also what stops it in time
        pass
"""


def test_stops_endless_job(probe: Run, works: Callable[[], bool]) -> None:
    with pytest.raises(WorkerError, match="did not end within 1 s: raise the limit"):
        probe(NEVER_ENDS, timeout_s=1.0)
    assert works()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.perf_counter() + 30
    while not condition():
        assert time.perf_counter() < end
        time.sleep(0.02)


def test_replaces_worker_killed_during_job(
    tracer: Callable[[], NullGpuTracer], probe: Run, works: Callable[[], bool], tmp_path: Path
) -> None:
    pid = tracer().pid
    assert pid is not None
    marker = tmp_path / "runs"
    killer = threading.Thread(target=lambda: (wait_for(marker.exists), os.kill(pid, signal.SIGKILL)))
    killer.start()
    with pytest.raises(WorkerError, match="was killed"):
        probe(f"import pathlib, time; pathlib.Path({str(marker)!r}).touch(); time.sleep(600)", timeout_s=600.0)
    killer.join()
    assert works()
    assert tracer().pid not in (None, pid)


def test_reports_externally_killed_job(probe: Run, works: Callable[[], bool], tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    killer = threading.Thread(
        target=lambda: (
            wait_for(lambda: marker.exists() and marker.read_text() != ""),
            os.kill(int(marker.read_text()), signal.SIGKILL),
        )
    )
    killer.start()
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        probe(
            f"import os, pathlib, time; pathlib.Path({str(marker)!r}).write_text(str(os.getpid())); time.sleep(600)",
            timeout_s=60.0,
        )
    killer.join()
    assert works()


def test_job_leaves_nothing_for_the_next(probe: Run) -> None:
    probe("import os; os.environ['LEFT'] = '1'; os.chdir('/'); sys.path.append('/left'); sys.modules['left'] = sys")
    said, _ = probe("import os; note(left=['LEFT' in os.environ, '/left' in sys.path, 'left' in sys.modules])")
    assert said == {"left": [False, False, False]}


def test_wrong_description_is_usage_error(trace: Run, works: Callable[[], bool]) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        trace(target="resnet50", batch="1x1")
    assert works()


def test_error_lists_rejected_calls(probe: Run) -> None:
    refused = next(name for name, (library, kind) in read_list().items() if (library, kind) == ("libcublas", "refuse"))
    with pytest.raises(JobError, match=f"RuntimeError: a status of 15 .*the null GPU rejected: {refused}"):
        probe(
            f"""
            import ctypes
            soname = next(line.split("/")[-1].strip() for line in open("/proc/self/maps") if "null-cublas.so" in line)
            status = ctypes.CDLL(os.path.join({str(build())!r}, soname)).{refused}()
            raise RuntimeError(f"a status of {{status}}")
            """
        )


def test_jobs_of_two_threads_run_in_sequence(trace: Run, tiny_models: Path) -> None:
    results: list[Any] = []
    jobs = [{"target": f"{tiny_models}:mlp", "batch": f"{n}x16", "mode": "infer"} for n in (8, 4096)]
    threads = [
        threading.Thread(target=lambda job=job: results.append(trace(fresh=True, **job))) for job in jobs for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted({r.trace.header["peaks"]["allocated"] for r in results}) == sorted(
        trace(**job).trace.header["peaks"]["allocated"] for job in jobs
    )
    assert len(results) == 4


@pytest.mark.usefixtures("needs_null_gpu")
def test_worker_reports_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.sys, "executable", "/bin/false")
    with pytest.raises(NullGpuError, match="did not start"):
        NullGpuTracer()
    later = NullGpuTracer(wait=False)
    with pytest.raises(NullGpuError, match=r"does not start: The worker did not start.* Run vramcast doctor"):
        _ = later.torch_version


def test_closing_twice_is_harmless(tracer: Callable[[], NullGpuTracer], works: Callable[[], bool]) -> None:
    worker = tracer()
    worker.close()
    worker.close()
    assert works()


def test_quick_answer_does_not_overtake_parent(tracer: Callable[[], NullGpuTracer]) -> None:
    for _ in range(60):
        (result,) = play([[("malloc", 0, 5 << 20, 0)]], device("t4"), tracer=tracer())
        assert len(result.addresses) == 1
        assert result.statistics["reserved_bytes.all.peak"] == 20 << 20
