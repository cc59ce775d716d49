"""The stand-in for torch._dynamo: absent from jobs that compile nothing, and the module itself for all others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.lanes import sampled
from vramcast.jobs.job import Command, Job
from vramcast.tracer.nullgpu.client import NullGpuTracer

_START = """
import sys, torch
from vramcast.tracer.hooks import absent_dynamo
absent_dynamo.stand_in()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
assert "torch._dynamo.config" not in sys.modules
"""
_END = """
import torch._dynamo.config
assert torch._dynamo is sys.modules["torch._dynamo"] and torch._dynamo.__file__
assert torch._dynamo.config is sys.modules["torch._dynamo.config"] and torch._dynamo.config.__spec__.origin
optimizer.step()
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "use",
    sampled(
        [
            "from torch._dynamo.eval_frame import OptimizedModule",
            "import torch._dynamo.compiled_autograd as part; assert part.__name__ == 'torch._dynamo.compiled_autograd'",
            "import torch._dynamo.repro.after_aot as part; assert torch._dynamo.repro.after_aot is part",
            "torch._dynamo.config.suppress_errors = True",
            "from torch._dynamo.utils import is_compile_supported as asked; assert asked('cpu')",
            "assert torch.compile(lambda x: x + 1, backend='eager')(torch.zeros(2)).sum() == 2",
            "twice = torch.compile(backend='eager')(lambda x: 2 * x); assert 'torch._inductor.config' not in sys.modules; "
            "assert torch.compile(lambda x: twice(x) + 1, backend='eager', fullgraph=True)(torch.ones(2)).sum() == 6",
            "step = torch.compile(optimizer.step, backend='eager'); step(); step()",
            "assert torch._dynamo.disable(lambda x: x)(3) == 3; torch._dynamo.reset()",
        ],
        3,
    ),
)
def test_every_use_gets_the_module_itself(use: str) -> None:
    run = subprocess.run([sys.executable, "-c", f"{_START}\n{use}\n{_END}"], capture_output=True, text=True, timeout=120)
    assert not run.returncode, run.stderr


def test_job_that_compiles_nothing_does_not_import_it(
    make_job: Callable[..., Job], tmp_path: Path, needs_null_gpu: None
) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, torch, torchvision\n"
        "model = torchvision.models.resnet18().cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.zeros(2, 3, 64, 64).cuda()).sum().backward()\n"
        "optimizer.step()\n"
        f"open({str(tmp_path / 'said')!r}, 'w').write(str('torch._dynamo.config' in sys.modules))\n"
    )
    with closing(NullGpuTracer()) as tracer:  # that of other tests has imported for the next job what a job before needed
        tracer.trace(make_job(command=Command((str(script),)), steps=9, search_path=tuple(sys.path)))
    assert (tmp_path / "said").read_text() == "False"


def test_compiled_step_takes_the_same_memory(probe: Callable[..., Any]) -> None:
    """Compile after the stand-in has marked functions: their marks are the module's own then."""
    script = """
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        def step():
            optimizer.zero_grad()
            model(torch.zeros(8, 256, device="cuda")).sum().backward()
            optimizer.step()
        step()
        compiled = torch.compile(step, backend="eager")
        compiled(), compiled()
        """
    imported = "import torch._dynamo\nassert torch._dynamo.config" + script.replace("\n        ", "\n")
    peaks = [probe(source)[1].trace.header["peaks"] for source in (script, imported)]
    assert peaks[0] == peaks[1]
