"""Runs one job on fake tensors, in a process of its own: one job, then it is gone."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import Any

from vramcast.job import Job
from vramcast.tracer.alloc_conf import Watch
from vramcast.tracer.imports import define_torchvision_operators
from vramcast.tracer.ledger import Entered, Entry
from vramcast.tracer.result import Result, peak_resident_bytes
from vramcast.tracer.run_options import RunOptions
from vramcast.tracer.trace import CIRCUMSTANCES


def warm_up() -> None:
    """Import what every job needs."""
    import vramcast.tracer.fake.autocast
    import vramcast.tracer.fake.composites
    import vramcast.tracer.fake.cuda
    import vramcast.tracer.fake.mode
    import vramcast.tracer.fake.recorder
    import vramcast.tracer.values.follow  # noqa: F401

    _prepare_torchvision()


def run_job(job: Job, options: RunOptions) -> Result:
    """Run `job` in this process and return what came out; never raises for the job's own failures."""
    if job.search_path:
        sys.path[:] = [*job.search_path]
    os.chdir(job.working_folder)

    import torch

    from vramcast.tracer import host_checks, step
    from vramcast.tracer.circumstances import Observer
    from vramcast.tracer.convolution_workspaces import ConvolutionWorkspaces
    from vramcast.tracer.fake import composites, cuda
    from vramcast.tracer.fake.autocast import Autocast
    from vramcast.tracer.fake.history import History
    from vramcast.tracer.fake.mode import CardMode
    from vramcast.tracer.fake.recorder import FakeRecorder
    from vramcast.tracer.fake.tensor import CudaTensor
    from vramcast.tracer.values.follow import Values

    host_checks.take_as_passed()
    _prepare_torchvision()
    result = Result("ok", torch=str(torch.__version__), cuda=str(torch.version.cuda))
    history = History()
    recorder = FakeRecorder(history)
    convolution_workspaces = ConvolutionWorkspaces(job.device, job.total_bytes, job.stack)
    mode = CardMode(history, recorder, job.device, convolution_workspaces)
    cuda.pretend(job.device, job.total_bytes, history)
    library = composites.register(mode, job.device.compute_capability)
    autocast = Autocast()
    devices = ("cuda", "meta")
    values = Values(mode.known, on_card=lambda t: isinstance(t, CudaTensor), devices=devices, answers=options.answers)
    mode.call = lambda: values.call
    build_model = step.build_model

    def build(job: Job) -> Any:
        mode.building = True
        try:
            return build_model(job)
        finally:
            mode.building = False

    observer = Observer()
    step.build_model = build
    settings = Watch(job.alloc_conf, applies=False)
    settings.start()
    recorder.start()
    try:
        with observer, convolution_workspaces, mode, values:
            step.run(job, torch.device("cuda"))
    except BaseException as error:  # the user's code may raise anything
        result.fail(error)
    gc.disable()
    result.steps = recorder.steps
    result.note_settings(settings)
    result.ledger = [Entry.counted(name, hits) for name, hits in sorted(mode.unmodelled.items())]
    result.ledger += convolution_workspaces.ledger() + values.ledger()
    if mode.host_reads:
        result.ledger.append(Entry(Entered.READ, "values read from the card", mode.host_reads))
    if result.status != "error":
        header = {"tracer": "fake", "torch": str(torch.__version__), "device": job.device.key, CIRCUMSTANCES: observer.seen()}
        result.trace = recorder.stop(header=header, workspace_sizes=mode.workspaces.sizes | convolution_workspaces.sizes)
    del library, autocast
    result.max_resident_bytes = peak_resident_bytes()
    return result


def _prepare_torchvision() -> None:
    if define_torchvision_operators() and not _KEPT:
        from vramcast.tracer.fake import vision

        with contextlib.suppress(Exception):  # a torchvision which does not import: the job says so, if it needs one
            _KEPT.append(vision.register())


_KEPT: list[Any] = []
