"""The caller's end of the null GPU: starts the worker and the cuDNN oracle, sends jobs, turns failures into errors.

It needs no torch in the caller's process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from vramcast.core.deadline import Deadline
from vramcast.core.errors import CompilerError, MissingPeerValue, NullGpuError, TimeLimit, VramcastError, WorkerError
from vramcast.core.location import import_root
from vramcast.hardware.device import Device
from vramcast.hardware.stack import Stack
from vramcast.hardware.throughput import Roofline
from vramcast.jobs.job import Job
from vramcast.tracer.format.ledger import CallHandling, Code, Entry
from vramcast.tracer.format.rank_facts import are_shards_equal
from vramcast.tracer.format.serving import are_engines_alike
from vramcast.tracer.nullgpu.child.main import Program
from vramcast.tracer.nullgpu.child.subprocesses import SharedFolder
from vramcast.tracer.nullgpu.cudnn.answer_cache import answers_file
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle
from vramcast.tracer.nullgpu.cudnn.libraries import choose, completed, installed_stack
from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries
from vramcast.tracer.nullgpu.fullest_rank import fullest_rank, has_failed
from vramcast.tracer.nullgpu.library.build import build, build_watcher, find_torch
from vramcast.tracer.observation import Observation
from vramcast.tracer.processes.fork_safety import Lock
from vramcast.tracer.processes.job_process import checked, job_environment
from vramcast.tracer.processes.warm_worker import WarmWorker
from vramcast.tracer.protocol import alloc_conf
from vramcast.tracer.protocol.job_result import Result
from vramcast.tracer.protocol.messages import LENT
from vramcast.tracer.protocol.run_options import AS_USUAL, RunOptions, Tape

_SOFT: Final = 0.7  # arbitrary: share of the time after which a command is stopped; the rest is for processing its data


class NullGpuTracer:
    """A warm worker for one interpreter; jobs run one after the other, each in its own process.

    Use `NullGpuTracer.shared()`: starting one costs seconds, a job on it milliseconds. Each cuDNN that jobs query has its own
    oracle process, from the first such job until `close`.

    Args:
        ask_cudnn: Whether cuDNN is queried at all; if not, its workspaces count as 0.
        start_oracle: Starts the oracle for the cuDNN in a folder; by default one that keeps its answers in the user's cache.
        wait: Whether to return only when the worker serves; else the first job waits for it.
    """

    name = "nullgpu"
    _shared: NullGpuTracer | None = None
    _shared_lock = Lock()

    def __init__(
        self, *, ask_cudnn: bool = True, start_oracle: Callable[[Path], CudnnOracle] | None = None, wait: bool = True
    ) -> None:
        """Build the stand-ins if needed and start the worker.

        Raises:
            NullGpuError: torch has no CUDA code, there is no compiler, or the worker does not start; the message gives the next
                step.
        """
        torch = find_torch()
        self.cuda_major = int(str(torch.cuda).partition(".")[0])
        libraries = self._libraries = build(torch)
        self._torch_file = torch.lib.parent / "__init__.py"
        self._ask_cudnn = ask_cudnn
        self._start_oracle = start_oracle or _oracle
        self._oracles: dict[Path, CudnnOracle] = {}
        self._oracles_lock = Lock()
        command = [sys.executable, "-m", "vramcast.tracer.nullgpu.worker", str(libraries)]
        # torch looks for another back end while it is imported: it must not see a job's settings.
        neutral = self._environment()
        alloc_conf.forget(neutral)
        self.why_profiled = ""
        try:
            neutral["NULLGPU_WATCHER"] = str(build_watcher(torch))
        except CompilerError as error:
            neutral["NULLGPU_WATCHER"] = ""
            first = " ".join(str(error).splitlines()[:2])
            self.why_profiled = f"PyTorch's profiler observes the job, several times slower than vramcast's library: {first}"
        with _explaining_errors():
            self._worker = WarmWorker(command, neutral, wait=wait)

    @property
    def torch_version(self) -> str:
        """Version of the torch that the worker has imported.

        Raises:
            NullGpuError: The worker did not start.
        """
        with _explaining_errors():
            return str(self._worker.ready)

    def _environment(self) -> dict[str, str]:
        environment = {
            **job_environment(),
            "NULLGPU_CUDNN_SOCKET": "",
            "KINETO_LOG_LEVEL": "99",  # the profiler need not complain on stderr that it finds no device activity
        }
        environment.pop("LD_PRELOAD", None)
        return environment

    @classmethod
    def shared(cls) -> NullGpuTracer:
        """Return the tracer of this process, made at the first call. Its worker and oracles restart after they die."""
        return cls._of_process(wait=True)

    @classmethod
    def _of_process(cls, *, wait: bool) -> NullGpuTracer:
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls(wait=wait)
                atexit.register(cls._shared.close)
            return cls._shared

    @classmethod
    def start_ahead(cls) -> None:
        """Start the tracer of this process without waiting; its first user gets any error."""
        with contextlib.suppress(VramcastError):
            cls._of_process(wait=False)

    def trace(self, job: Job, options: RunOptions = AS_USUAL, *, timeout_s: float = 1800.0) -> Result:
        """Run `job` and return its result (status ok or oom).

        A job that read from the card runs a second time, with its values followed on the host. The first run shows that most
        jobs do not need this.

        Args:
            job: The job to run.
            options: The options of the run.
            timeout_s: Time limit for all runs together, after which the job is killed.
        Raises:
            JobError: The job's own code raised.
            UsageError: The job's description is wrong, or accesses are requested on a card without known peak throughput.
            WorkerError: Its process died or ran out of time.
        """
        if options.accesses:
            Roofline.of(job.device)  # raises before the job is traced, not after
        if job.parallel is not None:  # each rank runs once, like the ranks of commands
            options = replace(options, follow_values=True)
        deadline = Deadline.after(timeout_s)
        result = self._run(job, options, deadline)
        if result.reads and job.command is None and not options.follow_values:
            followed = self._run(job, replace(options, follow_values=True), deadline)
            if followed.status != "error" or result.status == "error":
                result = followed
        return checked(result)

    def observe(self, job: Job, options: RunOptions, *, timeout_s: float) -> Observation:
        """See `Tracer`."""
        result = self.trace(job, options, timeout_s=timeout_s)
        is_silent = any(entry.code is Code.NO_ORACLE for entry in result.ledger)
        why = self.cudnn_answer(options.stack_of_plans(job.stack)) if is_silent else ""
        notes = (f"convolution workspaces count as 0: {why}" if is_silent else "", self.why_profiled)
        return Observation.of(result, self.name, notes=tuple(filter(None, notes)))

    def _run(self, job: Job, options: RunOptions, deadline: Deadline) -> Result:
        """Run `job` once, or again if the oracle ended meanwhile: without it cuDNN's answers count as 0.

        Raises:
            WorkerError: The oracle was killed again. An oracle that ended by itself would do so each time; the result reports
                it.
        """
        device, stack = job.device.with_memory(job.total_bytes), options.stack_of_plans(job.stack)
        for _ in range(2):
            oracle = self._oracle_for(stack)
            result = self._ask_job(job, self._cudnn_environment(device, oracle, job.stack), deadline, options)
            if oracle is None or oracle.is_alive or not any(entry.code is Code.NO_ORACLE for entry in result.ledger):
                break
        else:
            if oracle is not None and oracle.was_killed:
                raise WorkerError("The cuDNN oracle was killed twice: is the machine out of memory? Try again.")
        calls = sum(entry.hits for entry in result.ledger if entry.name.startswith("cudnn"))
        if calls and oracle is not None and choose(stack).is_another:
            result.ledger.append(Entry.of(CallHandling.ASSUMED, Code.OTHER_CUDNN, calls))
        if calls and installed_stack().avoids_cudnn_in_3d and not completed(job.stack).avoids_cudnn_in_3d:
            result.ledger.append(Entry.of(CallHandling.ASSUMED, Code.OTHER_CONV3D, calls))
        return result

    def _ask_job(self, job: Job, environment: dict[str, str], deadline: Deadline, options: RunOptions) -> Result:
        """Run `job` once, and return the result of the rank, and of the command's process, that takes most of its card."""
        world, asked = job.world, job.command.ranks if job.command is not None else "auto"
        tape, results = Tape(), dict[int, Result]()
        waiting: dict[int, int] = {}  # rank that waits for another's data -> number of messages on the tape at that time
        # The stages of a pipeline are known once the first rank has run.
        while left := [number for number in world.chosen(asked, tape.pairs)
                       if number not in results or waiting.get(number, len(tape.said)) < len(tape.said)]:  # fmt: skip
            found = self._ask_rank(job, environment, deadline, replace(options, rank=left[0], tape=tape))
            tape.add(found.said)
            results[left[0]] = found
            waiting.pop(left[0], None)
            if found.error == MissingPeerValue.__name__:
                waiting[left[0]] = len(tape.said)
            elif has_failed(found) or _is_as_all(job, found):
                break
        return fullest_rank(results, world)

    def _ask_rank(self, job: Job, environment: dict[str, str], deadline: Deadline, options: RunOptions) -> Result:
        if job.command is None:
            result: Result = self._ask(job, environment, deadline, options)
            return result
        options = replace(options, limit_s=_SOFT * deadline.left_s())
        shared = SharedFolder.made(job, options, libraries=self._libraries, torch=self._torch_file, root=str(import_root()))
        with shared as processes:
            variables = {**environment, LENT: str(processes.folder)}
            own = self._ask(job, variables, deadline, options)
            several, words = job.command.world.size > 1, job.command.words
            found = processes.only(own) if several else processes.fullest(own, words, context_bytes=options.context_bytes)
            return replace(found, max_resident_bytes=own.max_resident_bytes, grown_bytes=own.grown_bytes)

    def run(self, program: Program, *, timeout_s: float = 600.0) -> Any:
        """Run our own code with the null GPU as torch's card, in a separate process, and return its result.

        Raises:
            TimeLimit: Its time is up.
            WorkerError: Its process died.
        """
        return self._ask(program, self._cudnn_environment(program.device, self._oracle_for(None)), Deadline.after(timeout_s))

    def _ask(
        self, job: Job | Program, environment: dict[str, str], deadline: Deadline, options: RunOptions | None = None
    ) -> Any:
        _ = self.torch_version  # raises if the worker does not serve
        advice = ": raise the limit, or trace fewer steps."
        variables = {**self._environment(), **environment}
        try:
            return self._worker.ask(job, variables, options, timeout_s=deadline.left_s(), advice=advice)
        except TimeLimit:
            raise TimeLimit.within(deadline.limit_s, advice) from None

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None: it is not running."""
        return self._worker.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the worker is running now; the next job starts it in any case."""
        return self._worker.is_alive

    def cudnn_answer(self, stack: Stack | None = None) -> str:
        """Return the source of cuDNN's workspaces, for people: a version, or the reason for having none."""
        try:
            choice = choose(stack)
            version = self._oracle(choice.library.folder).version()
        except (NullGpuError, WorkerError) as error:
            return f"unknown: {error}"
        return f"cuDNN {version} in its deviceless mode" + (f"; {choice.warning}" if choice.warning else "")

    def _oracle(self, cudnn: Path) -> CudnnOracle:
        """Return the oracle process for the cuDNN in a folder, started on first use and after it has ended.

        Raises:
            NullGpuError: It does not start, or there is no C compiler.
            WorkerError: It was killed while it started.
        """
        with self._oracles_lock:
            oracle = self._oracles.get(cudnn)
            if oracle is None or not oracle.is_alive:
                if oracle is not None:
                    oracle.close()
                oracle = self._oracles[cudnn] = self._start_oracle(cudnn)
            return oracle

    def _oracle_for(self, stack: Stack | None) -> CudnnOracle | None:
        """Return the oracle for the cuDNN of a stack; None: there is none, and `cudnn_answer` gives the reason."""
        with contextlib.suppress(NullGpuError):
            return self._oracle(choose(stack).library.folder) if self._ask_cudnn else None
        return None

    @staticmethod
    def _cudnn_environment(device: Device, oracle: CudnnOracle | None, stack: Stack | None = None) -> dict[str, str]:
        """Return the environment variables of the null cuDNN's oracle and card, and of the kernels that the stack prefers."""
        record = json.dumps(device.cudnn_record(), separators=(",", ":"))
        found = {"NULLGPU_CUDNN_SOCKET": str(oracle.socket_path) if oracle else "", "NULLGPU_CUDNN_DEVICE": record}
        stack = completed(stack)
        if not stack.avoids_engines_on_sm_120:
            found["NULLGPU_TAKES_ALL_ENGINES"] = "1"
        if not stack.prefers_cudnn_attention:
            found["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"
        return found

    @classmethod
    @contextlib.contextmanager
    def stoppable(cls) -> Iterator[Callable[[], bool]]:
        """Yield a function that ends the training command running inside, in any of its runs, and keeps its recording.

        It returns False if an answer cannot come soon, because the worker still starts.
        """

        def stop() -> bool:
            return cls._shared is None or cls._shared._worker.stop()

        try:
            yield stop
        finally:
            if cls._shared is not None:
                cls._shared._worker.go_on()

    def close(self) -> None:
        """Stop the worker and the oracles."""
        self._worker.close()
        for oracle in self._oracles.values():
            oracle.close()


def _is_as_all(job: Job, found: Result) -> bool:
    """Return whether a rank represents all others: they do the same, with shards of equal sizes."""
    if found.trace is None:
        return False
    return are_shards_equal(found.trace) if job.command is None else are_engines_alike(found.trace)


@contextlib.contextmanager
def _explaining_errors() -> Iterator[None]:
    """Turn the error of a worker that does not start into one that explains it."""
    try:
        yield
    except WorkerError as error:
        raise NullGpuError(f"The null GPU does not start: {error} Run vramcast doctor.") from None


def _oracle(cudnn: Path) -> CudnnOracle:
    """Return a started oracle process for the cuDNN in a folder.

    Raises:
        NullGpuError: The libraries for it do not compile, this is no cuDNN, or it does not start.
    """
    try:
        return CudnnOracle(cudnn, oracle_libraries(cudnn), cache=answers_file()).__enter__()
    except (CompilerError, OSError) as error:
        raise NullGpuError(str(error)) from None
