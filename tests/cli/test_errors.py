"""Every error of the command line is one line which begins with `vramcast: ` and names the next step."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.errors import NullGpuError
from vramcast.tracer.nullgpu.client import NullGpuTracer

Call = Callable[..., tuple[int, str, str]]


def one_line(err: str) -> str:
    assert err.startswith("vramcast: "), err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    return err


BATCH = ("--batch", "8x16")
# Arguments after the verb; {models} is a file with small models. What the line must say: the value, and the next step.
WRONG = [
    ("estimate", ("resnet50", *BATCH), ("'resnet50'", "torchvision:resnet50")),
    ("estimate", ("torchvision:resnet5", *BATCH), ("'resnet5'", "did you mean")),
    ("estimate", ("timm:nope", *BATCH), ("'nope'", "timm")),
    ("estimate", ("hf:nope", *BATCH), ("'nope'", "model type")),
    ("estimate", ("hf:missing.json", *BATCH), ("'missing.json'", "config.json")),
    ("estimate", ("missing.py:model", *BATCH), ("'missing.py'", "file.py:factory")),
    ("estimate", ("no.such.package:model", *BATCH), ("no.such.package", "package.module:factory")),
    ("estimate", ("{models}:mpl", *BATCH), ("'mpl'", "did you mean mlp")),
    ("estimate", ("{models}:returns_text", *BATCH), ("str", "nn.Module")),
    ("estimate", ("{models}:mlp",), ("--batch", "for example --batch 32x3x224x224")),
    ("estimate", ("{models}:mlp", "--batch", "8x"), ("8x", "32x3x224x224")),
    ("estimate", ("{models}:mlp", "--batch", "8x16:float33"), ("'float33'", "use one of")),
    ("estimate", ("{models}:mlp", "--batch", "a=8x16", "--batch", "8x16"), ("mixes", "name all of them")),
    ("estimate", ("{models}:mlp", *BATCH, "--labels", "8,4"), ("8,4", "32x3x224x224")),
    ("estimate", ("{models}:mlp", *BATCH, "--labels", "9:int64"), ("(9,)", "cross-entropy wants")),
    ("estimate", ("{models}:mlp", *BATCH, "--optimizer", "adamm"), ("'adamm'", "use one of")),
    ("estimate", ("{models}:mlp", *BATCH, "--optimizer", "adam:fused=yes"), ("fused=yes", "fused=true")),
    ("estimate", ("{models}:mlp", *BATCH, "--device", "h300"), ("h300", "h200")),
    ("estimate", ("{models}:mlp", *BATCH, "--memory", "much"), ("'much'", "12GiB")),
    ("estimate", ("{models}:mlp", *BATCH, "--precision", "fp8"), ("fp8", "bf16")),
    ("estimate", ("{models}:mlp", *BATCH, "--mode", "test"), ("test", "infer")),
    ("estimate", ("{models}:mlp", *BATCH, "--zero-grad", "never"), ("never", "step-start")),
    ("estimate", ("{models}:mlp", *BATCH, "--level", "2"), ("2.0", "between 0 and 1")),
    ("estimate", ("{models}:mlp", *BATCH, "--level", "high"), ("high", "--help")),
    ("estimate", ("{models}:mlp", *BATCH, "--steps", "0"), ("0", "at least 1")),
    ("estimate", ("{models}:mlp", *BATCH, "--checkpointing"), ("no switch", "without --checkpointing")),
    ("estimate", ("{models}:mlp", *BATCH, "--tracer", "magic"), ("magic", "nullgpu")),
    ("estimate", ("{models}:mlp", *BATCH, "--colour"), ("--colour", "--help")),
    ("estimate", (), ("TARGET", "--help")),
    ("guess", (), ("guess", "estimate")),
    ("sweep", ("{models}:mlp", *BATCH), ("--batch-sizes 8..512", "--max-batch")),
    ("sweep", ("{models}:mlp", *BATCH, "--batch-sizes", "9..8"), ("9..8", "8..512")),
    ("run", (), ("No script", "train.py args")),
    ("run", ("--", "missing.py"), ("'missing.py'", "train.py args")),
    ("check", ("{models}:mlp", *BATCH, "--on", "h300"), ("h300", "h200")),
]  # fmt: skip


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize(("verb", "arguments", "words"), WRONG, ids=lambda value: None if isinstance(value, str) else "")
def test_wrong_usage_is_one_line_and_exit_2(
    call: Call, tiny_models: Path, verb: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    code, out, err = call(verb, *(a.replace("{models}", str(tiny_models)) for a in arguments))
    assert code == 2, err
    assert out == ""
    line = one_line(err)
    assert all(word in line for word in words), line


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize(
    ("target", "batch", "words"),
    [
        ("{models}:Raises", "8x16", ("RuntimeError: the model is broken",)),
        ("{models}:cannot_build", "8x16", ("KeyError", "no such layer")),
        ("{models}:mlp", "8x15", ("RuntimeError", "shapes cannot be multiplied")),
    ],
)
def test_a_model_which_raises_is_one_line_and_exit_3(
    call: Call, tiny_models: Path, target: str, batch: str, words: tuple[str, ...]
) -> None:
    target = target.replace("{models}", str(tiny_models))
    code, out, err = call("estimate", target, "--batch", batch)
    assert (code, out) == (3, "")
    assert all(word in one_line(err) for word in words)
    code, out, err = call("estimate", target, "--batch", batch, "--json")
    said = json.loads(out)
    assert code == 3
    assert (said["schema"], said["error"]) == (1, "JobError")
    assert all(word in said["message"] for word in words)
    code, _, err = call("estimate", target, "--batch", batch, "--verbose")
    assert "Traceback" in err


@pytest.mark.usefixtures("tracer")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('no training here')", ("without one optimizer step", "torch.optim")),
        ("raise ValueError('bad\\ndata')", ("ValueError: bad",)),
        ("import sys; sys.exit(1)", ("SystemExit: 1",)),
        ("import no_such_package", ("No module named 'no_such_package'",)),
        ("def broken(:", ("SyntaxError",)),
        ("import os; os._exit(4)", ("ended with exit code 4",)),
        ("import ctypes; ctypes.string_at(0)", ("SIGSEGV",)),
    ],
)
def test_a_script_which_fails_is_one_line_and_exit_3(call: Call, tmp_path: Path, source: str, words: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source) + "\n")
    code, out, err = call("run", "--", str(script))
    assert (code, out) == (3, "")
    assert all(word in one_line(err) for word in words)
    code, out, _ = call("run", "--json", "--", str(script))
    assert code == 3
    assert set(json.loads(out)) >= {"schema", "error", "message"}


@pytest.mark.usefixtures("tracer")
def test_a_time_limit_is_one_line_and_exit_3(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import time; time.sleep(600)")
    code, _, err = call("run", "--timeout", "1", "--", str(script))
    assert code == 3
    assert "raise the limit" in one_line(err)


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize("place", ["folder", "no/such/folder/trace.pickle", "full"])
def test_a_snapshot_which_cannot_be_written_is_one_line(call: Call, tiny_models: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").symlink_to("/dev/full")  # a link, so that a mistake could only replace the link
    code, _, err = call("estimate", f"{tiny_models}:mlp", *BATCH, "--snapshot", str(tmp_path / place))
    assert code == 2
    assert str(tmp_path / place) in one_line(err)
    assert (tmp_path / "full").is_symlink()


def test_a_script_without_the_null_gpu_is_one_line_and_exit_3(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent() -> None:
        raise NullGpuError("torch 2.13.0 is a CPU-only build: install a CUDA build.")

    monkeypatch.setattr(NullGpuTracer, "shared", absent)
    script = tmp_path / "train.py"
    script.write_text("print('never run')\n")
    code, out, err = call("run", "--", str(script))
    assert (code, out) == (3, "")
    assert "install a CUDA build" in one_line(err)


def test_a_cache_which_cannot_be_written_is_one_line_and_exit_3(
    call: Call, tiny_models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needs_null_gpu: None
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(NullGpuTracer, "_shared", None)
    code, out, err = call("estimate", f"{tiny_models}:mlp", *BATCH, "--tracer", "nullgpu", "--json")
    assert code == 3
    assert json.loads(out)["error"] == "NullGpuError"
    assert "VRAMCAST_CACHE" in one_line(err)


def test_ctrl_c_is_one_line_and_exit_130(call: Call, tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramcast.cli import estimate

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(estimate, "run_job", interrupted)
    code, out, err = call("estimate", f"{tiny_models}:mlp", *BATCH)
    assert (code, out) == (130, "")
    assert one_line(err) == "vramcast: interrupted\n"
