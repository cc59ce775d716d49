"""A watched process on the null GPU: the job's own, a fork of it, or a Python that it starts.

the job's own    child.run_job: everything begins before the program
a fork of it     continues its parent's recording, and claims the card when it first touches it
a Python         before_torch loads the stand-ins; everything begins when CUDA is first touched: most never touch it
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vramcast.core import progress
from vramcast.core.progress import Stage
from vramcast.hardware.device import mps_limit
from vramcast.hardware.throughput import Roofline
from vramcast.jobs.job import Job
from vramcast.jobs.ranks import Rank
from vramcast.tracer.format.ledger import CallHandling
from vramcast.tracer.format.nccl_calls import sized
from vramcast.tracer.format.trace import CHANGES, CIRCUMSTANCES, COURSE, LOOPS, MPS_LIMIT, SAVED, SERVING, SHARDING, Trace
from vramcast.tracer.hooks import torch_api
from vramcast.tracer.hooks.replacement import ReplacedAttribute
from vramcast.tracer.libraries import inductor
from vramcast.tracer.libraries.library import TracedProcess
from vramcast.tracer.nullgpu.child import lifetimes
from vramcast.tracer.nullgpu.child.subprocesses import Claim, ProcessQuestion, not_waited_for
from vramcast.tracer.nullgpu.cudnn.libraries import completed
from vramcast.tracer.nullgpu.library.loader import NullGpu, foreign_libraries
from vramcast.tracer.program.cutoff import STOP, stoppable
from vramcast.tracer.program.training_loop import LoopLimits, StopJob
from vramcast.tracer.protocol.job_result import Result, peak_resident_bytes
from vramcast.tracer.protocol.messages import LENT
from vramcast.tracer.protocol.run_options import LoopWatch, RunOptions

if TYPE_CHECKING:
    from vramcast.tracer.protocol.alloc_conf import Watch
    from vramcast.tracer.ranks.simulated_peers import AbsentRanks

# Helpers that compile for the job: they see the card, but take no memory on it.
_HELPERS: Final = (torch_api.COMPILE_WORKER,)
_FRAMEWORKS: Final = {"jax": "JAX", "tensorflow": "TensorFlow", "paddle": "PaddlePaddle", "cupy": "CuPy", "mxnet": "MXNet"}
_KEPT: list[Any] = []  # objects that have only weak references elsewhere, or that an ending process need not take apart


class ProcessObserver:
    """The observer of one process.

    Args:
        job: The job.
        options: The options of the run.
        gpu: Its card.
        settings: Settings of its allocator.
        started_s: Start of the job, by `time.monotonic`; None: now.
    Attributes:
        recorder: Records it, and stops a command once enough was seen.
        rank: Its rank.
        values: Follows its values; None: values are not followed.
    """

    def __init__(self, job: Job, options: RunOptions, gpu: NullGpu, settings: Watch, started_s: float | None = None) -> None:
        from vramcast.tracer.recording.job_context import Observer  # torch comes after the stand-ins
        from vramcast.tracer.recording.recorder import Recorder
        from vramcast.tracer.values.follower import Values
        from vramcast.tracer.values.host_weights import HostWeights

        self._job, self._options, self._gpu, self._settings = job, options, gpu, settings
        self._started_s = time.monotonic() if started_s is None else started_s
        self._observer = Observer()
        self._around = contextlib.ExitStack()
        is_command = job.command is not None
        self.rank = Rank(options.rank, job.world)
        self.recorder = Recorder(
            limits=_limits(job, options.watch), shapes=options.shapes,
            roofline=Roofline.of(job.device) if options.accesses else None,
            step_over=self._step_over, device_index=self.rank.local, watch=options.watch,
        )  # fmt: skip
        self.recorder.course.is_rank = job.world.size > 1
        is_hollow = job.world.size > 1 if job.command is None else not job.command.precise_values
        self._host_weights = HostWeights() if is_hollow else None
        is_followed = is_command or options.follow_values
        self.values = Values(gpu, answers=options.answers, host_weights=self._host_weights) if is_followed else None
        self._absent: AbsentRanks | None = None
        self._claim: Claim | None = None
        self._touched_s = 0.0
        self._accounts: dict[str, Any] = {}  # of a serving engine
        self._changes: dict[str, dict[str, Any]] = {}  # possible and applied changes of the program
        self._before: frozenset[int] = frozenset()  # processes that had not been waited for when this one began
        self._finishing = threading.Lock()
        self._ended = ""

    def _step_over(self) -> None:
        self._gpu.let_watchdog_look()
        if self.values is not None:
            self.values.step_over()

    def prepare(self, *, is_own: bool = False) -> None:
        """Follow values, and replace functions that a program may take a reference to; call it before the program runs.

        Args:
            is_own: Whether it is the job's own process. Processes that it starts may be ranks: the traced one, or others.
        """
        from vramcast.tracer.changes import registry as changes
        from vramcast.tracer.libraries import registry
        from vramcast.tracer.nullgpu.child import older_torch
        from vramcast.tracer.ranks.simulated_peers import AbsentRanks
        from vramcast.tracer.recording import kv_caches
        from vramcast.tracer.values.follower import patched

        self._around.enter_context(older_torch.followed(completed(self._job.stack)))
        if self.rank.world.size > 1:
            self._absent = AbsentRanks(self.rank, self._options.tape, is_started=not is_own, split_into=self._gpu.split_into)
            self._around.enter_context(self._absent.answered())
        if self._job.command is not None:
            self._around.enter_context(registry.in_program(self._process()))
            self._around.enter_context(kv_caches.noted(self.recorder.note_kv_cache))
            self._around.enter_context(changes.installed(dict(self._options.changes), self._changes))
        if self._host_weights is not None:
            self._around.enter_context(self._host_weights.found())
        if self.values is not None:
            self._around.enter_context(patched(self.values, self._absent))
            self._around.enter_context(self.values)

    def begin(self, *, before_stop: Callable[[], None] = lambda: None) -> None:
        """Start watching, before the process touches the card.

        Args:
            before_stop: Called before the job ends by a limit, or at its user's request.
        """
        from vramcast.tracer.libraries import registry

        self.recorder.start()
        self._gpu.on_trial(self.recorder.note_trial)
        self._around.enter_context(self._observer)
        if self._options.checkpointed:
            from vramcast.tracer.recording import recomputation

            self._around.enter_context(recomputation.installed(self._options.checkpointed))
        if self._options.swaps is not None:
            from vramcast.tracer.recording.swap_hooks import SwapHooks

            self._around.enter_context(SwapHooks(self._options.swaps, note=self.recorder.note_saved).installed())
        inductor.hide_hooks()
        if self._job.command is not None:
            self._around.enter_context(registry.on_card(self._process(before_stop)))
            if self.recorder.course.sampled is not None:
                self._around.enter_context(self.recorder.course.sampled.active())
            self._let_stop(before_stop)

    def _process(self, before_stop: Callable[[], None] = lambda: None) -> TracedProcess:
        return TracedProcess(
            folder=os.environ[LENT], world=self.rank.world, card=self._job.device, course=self.recorder.course,
            values=self.values, note_kv_cache=self.recorder.note_kv_cache, set_driver=self._gpu.set_driver,
            before_stop=before_stop, accounts=self._accounts,
        )  # fmt: skip

    def end(self) -> None:
        """Stop watching, so that our own book-keeping is not recorded."""
        self._around.close()

    def complete(self, result: Result, *, is_whole: bool, ended: str) -> None:
        """Stop the recording and put all observations into a result; a failed job has no trace.

        Args:
            result: Result with its status and the versions.
            is_whole: Whether a command reached its own end.
            ended: Reason for an earlier end, in words, unless we stopped it.
        """
        progress.tell(Stage.HISTORY)
        has_failed = result.status == "error"
        result.steps = self.recorder.course.steps
        result.ledger = [*self._gpu.ledger(), *(self.values.ledger() if self.values is not None else ())]
        result.taken, result.touched_s = self._gpu.taken(), self._touched_s
        result.note_settings(self._settings)
        if not has_failed:
            result.trace = self._trace(result, is_whole=is_whole, ended=ended)
        result.foreign = foreign_libraries()
        result.max_resident_bytes = peak_resident_bytes()
        if self._absent is not None:
            result.said, result.answers = self._absent.said(), dict(self._absent.answers)
            result.ledger = sized(result.ledger, self._absent.group_sizes)
        _KEPT.append(self)

    def _trace(self, result: Result, *, is_whole: bool, ended: str) -> Trace:
        """Return the recorded trace, with further observations in its header."""
        sizes = [entry.size_bytes for entry in result.ledger if entry.kind is CallHandling.WORKSPACE]
        header: dict[str, Any] = {CIRCUMSTANCES: self._observer.seen(), "tracer": "nullgpu", "device": self._job.device.key}
        header |= {"torch": result.torch, "cuda": result.cuda}
        if self._job.world.size > 1:
            header[SHARDING] = self.recorder.holdings.to_header()
        if self._accounts:
            header[SERVING] = self._accounts
        if limit_bytes := mps_limit(os.environ):
            header[MPS_LIMIT] = limit_bytes
        if any(self._changes.values()):
            header[CHANGES] = {name: facts for name, facts in self._changes.items() if facts}
        trace = self.recorder.stop(header=header, workspace_sizes=sizes, workspaces=self._gpu.workspaces())
        is_command = self._job.command is not None
        loops = self.recorder.loops(trace, is_whole=is_whole and is_command)  # a model's job stands for a longer one
        trace = replace(trace, header={**trace.header, LOOPS: loops})
        if self._options.swaps is not None:
            trace.header[SAVED] = self.recorder.saved(trace)
        if not is_command:
            return trace
        course = self.recorder.course.facts(self.recorder.phases(trace), is_whole=is_whole, ended=ended)
        course["frameworks"] = [name for module, name in _FRAMEWORKS.items() if module in sys.modules]
        return replace(trace, header={**trace.header, COURSE: course})

    def _let_stop(self, before_stop: Callable[[], None] = lambda: None) -> None:
        if threading.current_thread() is not threading.main_thread():  # signal handlers cannot be set here
            return
        limit_s = self._options.limit_s
        left_s = None if limit_s is None else limit_s - (time.monotonic() - self._started_s)
        self._around.enter_context(
            stoppable(
                self.recorder.course,
                limit_s,
                left_s=left_s,
                first=before_stop,
                has_absent=self.rank.world.size > 1,
            )
        )

    # -------------------------------------------------------------------------------- other processes of the job
    def follow_forks(self) -> None:
        """Let forks of the job's own process by `multiprocessing` report their memory, if they touch CUDA."""
        util.register_after_fork(self, ProcessObserver._in_fork)
        _when_touched(self._note_touch)
        _KEPT.append(self)

    def _note_touch(self) -> None:
        self._touched_s = lifetimes.now_s()

    def _in_fork(self) -> None:
        self.note_start(not_waited_for())
        _when_touched(self._touch_in_fork)

    def note_start(self, before: frozenset[int]) -> None:
        """Note the job's processes that had ended when this one began but had not been waited for."""
        self._before = before

    def _touch_in_fork(self) -> None:
        self._let_stop()
        self._claim_card()

    def touch(self) -> None:
        """Start watching a Python that the job started: it is about to touch CUDA for the first time."""
        self.begin()
        self._claim_card()
        atexit.register(self.finish)
        said = sys.excepthook

        def ended(kind: type[BaseException], error: BaseException, at: Any) -> None:
            if issubclass(kind, StopJob):
                self.finish()  # this ends the process
            self._note(error)
            said(kind, error, at)

        sys.excepthook = ended

    def _claim_card(self) -> None:
        self._claim = Claim(
            " ".join(os.path.basename(word) if at == 0 else word for at, word in enumerate(sys.argv)) or "python",
            self._before,
        )
        util.Finalize(None, self.finish, exitpriority=0)  # processes of `multiprocessing` end without atexit

    def _note(self, error: BaseException) -> None:
        """Note the error that ended the process."""
        failed = Result("error")
        failed.fail(error)
        self._ended = f"it {failed.message}"

    def finish(self) -> None:
        """Write the result; a stopped process ends here, like one that has done its work."""
        if self._claim is None or not self._claim.is_mine or not self._finishing.acquire(blocking=False):
            return
        is_stopped = self.recorder.course.is_stopped
        try:
            self.end()
            result = self._result(is_stopped=is_stopped)
        except Exception as error:  # a damaged process must neither keep the job from its end nor be forgotten
            result = Result("error")
            result.fail(error)
        self._claim.say(result)
        if is_stopped:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(0)

    def _result(self, *, is_stopped: bool) -> Result:
        """Return the recorded result; a full card ended the process, unless it completed its steps."""
        import torch

        ended = self._ended or self.recorder.course.stopped_by
        result = Result("ok", torch=str(torch.__version__), cuda=str(torch.version.cuda))
        self.complete(result, is_whole=not is_stopped and not ended, ended=ended)
        assert result.trace is not None
        if result.status == "ok" and result.trace.header["peaks"]["ooms"] and not is_stopped:
            result.status, result.message = "oom", "CUDA out of memory in a process that the job started."
        return result


def before_torch(folder: str, origin: str | None) -> Callable[[], None] | None:
    """Load the stand-ins, and return the work to do after torch is imported; None: this is another torch."""
    question, before = ProcessQuestion.read(folder), not_waited_for()
    if origin is None or not os.path.samefile(origin, question.torch):
        return None
    gpu = NullGpu(Path(question.libraries))
    # The profiler warns about host memory older than itself; torch reads the level once.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return lambda: _after_torch(question, gpu, before)


def _after_torch(question: ProcessQuestion, gpu: NullGpu, before: frozenset[int]) -> None:
    """Prepare the process, which has not touched CUDA yet; most never will."""
    from vramcast.tracer.hooks import host_checks
    from vramcast.tracer.protocol import alloc_conf

    if any(helper in word for word in sys.orig_argv for helper in _HELPERS):
        return
    with contextlib.suppress(ValueError):  # outside the main thread
        signal.signal(STOP, signal.SIG_IGN)
    host_checks.take_as_passed()
    inductor.prepare()
    settings = alloc_conf.Watch(question.job.alloc_conf, applies=True)
    settings.start()
    watched = ProcessObserver(question.job, question.options, gpu, settings, question.started_s)
    watched.note_start(before)
    watched.prepare()
    _when_touched(watched.touch)


def _when_touched(action: Callable[[], None]) -> None:
    """Call `action` before CUDA is touched for the first time."""
    replaced: list[ReplacedAttribute] = []

    def first(original: Callable[[], None]) -> Callable[[], None]:
        def touch() -> None:
            while replaced:
                replaced.pop().remove()
            action()
            original()

        return touch

    replaced += [ReplacedAttribute(owner, name, first) for owner, name in torch_api.places("lazy_init")]


def _limits(job: Job, watch: LoopWatch | None) -> LoopLimits | None:
    if job.command is None:
        return None
    if watch is not None:
        return LoopLimits.of_watch(watch, job.training.steps)
    return LoopLimits(job.training.steps, job.command.until, job.command.budget_s)
