"""One job on a card of rules, in its own process: the common frame of the tracers without CUDA code."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from vramcast.jobs.job import Job
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.format.ledger import Entry
from vramcast.tracer.format.trace import CIRCUMSTANCES
from vramcast.tracer.program.imports import look_in
from vramcast.tracer.protocol.alloc_conf import Watch
from vramcast.tracer.protocol.job_result import Result, peak_resident_bytes
from vramcast.tracer.recording.job_context import Observer
from vramcast.tracer.rules.ruled_card import RuledCard


def go_where(job: Job) -> None:
    """Look for modules and files where the caller would."""
    look_in(job.search_path)
    os.chdir(job.working_folder)


def trace(
    job: Job,
    tracer: str,
    card: RuledCard,
    modes: Iterable[AbstractContextManager[Any]],
    run: Callable[[], Inputs | None],
    *,
    cuda: str,
) -> Result:
    """Run the job in this process and return the result, without the tracer's own ledger.

    Never raises for the job's own failures.

    Args:
        job: The job.
        tracer: Its name.
        card: The card it runs on.
        modes: Context managers around it, the last one innermost.
        run: Runs it, and returns the inputs that were made from its sizes.
        cuda: CUDA's version.
    """
    result = Result("ok", torch=str(torch.__version__), cuda=cuda)
    observer, settings = Observer(), Watch(job.alloc_conf, applies=False)
    managers: list[AbstractContextManager[Any]] = [observer, card.convolution_workspaces, *modes]
    settings.start()
    card.recorder.start()
    try:
        with ExitStack() as stack:
            for manager in managers:
                stack.enter_context(manager)
            result.inputs = run()
    except BaseException as error:  # the user's code may raise anything
        result.fail(error)
    gc.disable()
    result.steps = card.recorder.course.steps
    result.note_settings(settings)
    result.ledger = [Entry.counted(name, hits) for name, hits in sorted(card.unmodelled.items())]
    result.ledger += card.convolution_workspaces.ledger()
    if result.status != "error":
        header = {"tracer": tracer, "torch": result.torch, "device": job.device.key, CIRCUMSTANCES: observer.seen()}
        sizes = card.workspaces.sizes | card.convolution_workspaces.sizes
        result.trace = card.recorder.stop(header=header, workspace_sizes=sizes)
    result.max_resident_bytes = peak_resident_bytes()
    return result
