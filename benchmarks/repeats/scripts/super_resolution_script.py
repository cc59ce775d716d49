"""One case of traiNNer-redux's benchmark_archs.py, as a script for `vramcast run`.

    python super_resolution_script.py '{"name": "span_s", "scale": 2, "channels_last": true, "printed": "peak.json"}'

The measuring function is the project's own, from its script at the row's commit, which must be importable. It resets the peak
after its warm-up and keeps the last output alive. Only the number of runs is smaller.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, Final

import torch

_RUNS: Final = 2  # spec: the second has the output of the first alive; later ones are equal


def main(job: dict[str, Any]) -> None:
    """Measure the case, and write the peak that the script reads."""
    theirs: Any = importlib.import_module("benchmark_archs")
    torch.backends.cudnn.benchmark = True
    # inferred: in torch 2.5, autocast keeps its copies of the weights in inference mode too. The fix of PyTorch #158232 (2025),
    # which ended that, is later.
    torch.inference_mode = torch.no_grad  # type: ignore[misc, assignment]
    cases = {
        f"{name} {theirs.format_extra_params(more)}".strip(): (name, arch, more)
        for name, arch, more in theirs.FILTERED_REGISTRIES_PARAMS
    }
    name, arch, more = cases[job["name"]]
    theirs.device, theirs.input_shape, theirs.scale, theirs.use_amp = "cuda", (1, 3, 480, 640), job["scale"], True
    theirs.warmup_runs = 0  # the run that counts how many follow is the warm-up
    theirs.range = lambda n: range(min(n, _RUNS))
    theirs.dtype_str, theirs.dtype = theirs.get_dtype(name, True)
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # earlier networks have left cuBLAS's workspace
    layout = torch.channels_last if job["channels_last"] else torch.preserve_format
    gib = theirs.benchmark_arch(job["name"], name, arch, more, layout)[4]
    Path(job["printed"]).write_text(json.dumps({"allocated": round(gib * 2**30)}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
