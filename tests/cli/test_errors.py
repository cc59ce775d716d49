"""Errors of the command line: each is one line that begins with `vramcast: ` and names the next step."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vramcast.core.errors import DownloadError, NullGpuError
from vramcast.estimates.estimator import Estimator
from vramcast.tracer.nullgpu.client import NullGpuTracer

Call = Callable[..., tuple[int, str, str]]


def one_line(err: str) -> str:
    assert err.startswith("vramcast: "), err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    return err


BATCH = ("--batch", "8x16")
# Arguments after the verb; {models} is a file with small models. The line must have the value and the next step.
WRONG = [
    ("estimate", ("resnet50", *BATCH), ("resnet50:", "torchvision:resnet50")),
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
    ("estimate", ("{models}:mlp", *BATCH, "--labels", "9:int64"), ("(9,)", "cross-entropy expects")),
    ("estimate", ("{models}:mlp", *BATCH, "--optimizer", "adamm"), ("'adamm'", "use one of")),
    ("estimate", ("{models}:mlp", *BATCH, "--optimizer", "adam:fused=yes"), ("fused=yes", "fused=true")),
    ("estimate", ("{models}:mlp", *BATCH, "--device", "h300"), ("h300", "h200")),
    ("estimate", ("{models}:mlp", *BATCH, "--memory", "much"), ("'much'", "12GiB")),
    ("estimate", ("{models}:mlp", *BATCH, "--precision", "fp8"), ("fp8", "bf16")),
    ("estimate", ("{models}:mlp", *BATCH, "--mode", "test"), ("test", "infer")),
    ("estimate", ("{models}:mlp", *BATCH, "--zero-grad", "never"), ("never", "step-start")),
    ("estimate", ("{models}:mlp", *BATCH, "--level", "2"), ("it is 2", "between 1e-06 and 0.999999")),
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
    *((verb, ("x:y", *BATCH, option, ""), (option, "empty"))
      for verb, options in {
          "check": ("--memory", "--labels", "--device", "--on", "--artifact", "--snapshot", "--plot", "--cards", "--stack",
                    "--optimizer", "--precision", "--level", "--steps", "--timeout", "--num-classes", "--lr"),
          "plan": ("--limit", "--out", "--chart", "--link", "--device-index"),
          "sweep": ("--batch-sizes",),
      }.items() for option in options),
    ("estimate", ("", *BATCH), ("TARGET", "empty")),
    ("estimate", ("x:y", "--batch", ""), ("--batch", "empty")),
    ("replay", ("",), ("SNAPSHOT", "empty")),
    ("replay", ("x.pickle", "--context", "0"), ("--context", "not positive")),
    ("replay", ("x.pickle", "--device-index", "-1"), ("--device-index", "at least 0")),
    ("replay", ("x.pickle", "--cards", "24GiB"), ("--what-if common",)),
    ("replay", ("x.pickle", "--what-if", "common", "--cards", "24"), ("24 bytes", "unit")),
    ("estimate", ("x:y", *BATCH, "--memory", "12"), ("12 bytes", "unit", "12GiB")),
    ("estimate", ("x:y", *BATCH, "--memory", "99999999999999999999999GiB"), ("99999999999999999999999GiB", "2^63")),
    ("estimate", ("x:y", *BATCH, "--memory", "１２GiB"), ("--memory", "１２GiB", "12GiB")),
    ("estimate", ("x:y", *BATCH, "--host-memory", "12 apples"), ("--host-memory", "12 apples", "12GiB")),
    ("estimate", ("x:y", "--batch", "２x3x64x64"), ("--batch", "２x3x64x64", "32x3x224x224")),
    ("estimate", ("torchvision:resnet18", "--batch-size", "２"), ("--batch-size", "２", "whole")),
    ("estimate", ("x:y", *BATCH, "--steps", "３"), ("--steps", "３", "whole")),
    ("check", ("x:y", *BATCH, "--on", "t4", "--on", "rtx4090"), ("--on is given twice", "name one card")),
    ("check", ("x:y", *BATCH, "--on", "t4", "--device", "t4"), ("--on is given twice",)),
    ("estimate", ("x:y", *BATCH, "--level", "0.999999999"), ("it is 0.999999999", "between 1e-06 and 0.999999")),
    ("estimate", ("x:y", *BATCH, "--timeout", "-1"), ("--timeout", "-1", "between")),
    ("estimate", ("x:y", *BATCH, "--timeout", "0"), ("--timeout", "between")),
    ("estimate", ("x:y", *BATCH, "--timeout", "nan"), ("--timeout", "finite")),
    ("estimate", ("x:y", *BATCH, "--timeout", "1e400"), ("--timeout", "inf", "finite")),
    ("estimate", ("x:y", *BATCH, "--timeout", "1e9"), ("--timeout", "between")),
    ("estimate", ("x:y", *BATCH, "--level", "nan"), ("nan", "finite")),
    ("estimate", ("x:y", *BATCH, "--lr", "nan"), ("nan", "finite")),
    ("estimate", ("x:y", *BATCH, "--steps", "9" * 30), ("at most",)),
    ("estimate", ("torchvision:resnet18", *BATCH, "--num-classes", "-1"), ("-1", "at least 0")),
    ("estimate", ("x:y", *BATCH, "--num-classes", "5"), ("torchvision:", "file.py:factory?")),
    ("estimate", ("x:y", "--batch", "x=8x16", "--batch", "x=8x16"), ("'x'", "twice")),
    ("estimate", ("x:y", "--batch", "4294967296x4294967296"), ("2^63",)),
    ("estimate", ("x:y", *BATCH, "--labels", "8:int64=1.5"), ("1.5", "whole")),
    ("estimate", ("x:y", *BATCH, "--labels", "8:int64<0"), ("0", "at least 1")),
    ("estimate", ("{models}:mlp", *BATCH, "--labels", "8:int64=-5"), ("-5", "4 classes")),
    ("estimate", ("{models}:mlp", *BATCH, "--labels", "8:int64=4"), ("4 classes", "counted from 0")),
    ("sweep", ("x:y", *BATCH, "--batch-sizes", "1..900000000000000000"), ("2^63",)),
    ("sweep", ("x:y", *BATCH, "--batch-sizes", "8", "--max-batch"), ("--batch-sizes", "leave out")),
    ("measure", ("--budget-s", "nan"), ("--budget-s", "finite")),
    ("measure", ("--workers", "0"), ("--workers", "at least 1")),
    ("serve", ("--workers", "0"), ("--workers", "at least 1")),
    ("serve", ("--port", "70000"), ("--port", "at most 65535")),
    ("serve", ("--level", "3"), ("--level", "between")),
    ("sweep", ("x:y", "--world-sizes", "x"), ("--world-sizes", "8..512")),
    ("devices", ("voodoo",), ("'voodoo'", "vramcast devices lists all")),
    ("train", ("x.jsonl", "--out", "x", "--folds", "1"), ("--folds", "at least 2")),
    ("train", ("x.jsonl", "--out", "x", "--jobs", "9" * 12), ("--jobs", "at most")),
    ("evaluate", ("x.jsonl", "--level", "nan"), ("--level", "finite")),
    ("evaluate", ("x.jsonl", "--level", "1"), ("--level", "between 1e-06 and 0.999999")),
    ("evaluate", ("",), ("RUNS", "empty")),
]  # fmt: skip


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize(("verb", "arguments", "words"), WRONG, ids=lambda value: None if isinstance(value, str) else "")
def test_wrong_usage_exits_2_with_one_line(
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
def test_raising_model_exits_3_with_one_line(
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
        ("print('no training here')", ("without requesting GPU memory", "on device 'cuda'")),
        (
            "import sys; sys.modules['jax'] = sys",
            ("train.py' ended without requesting GPU memory through PyTorch: it imports JAX",),
        ),
        ("input('continue? ')", ("EOFError", "echo yes | vramcast run")),
        ("raise ValueError('bad\\ndata')", ("ValueError: bad",)),
        ("import sys; sys.exit(1)", ("ended with exit code 1 (", "train.py:1, in <module>)", "--verbose")),
        ("import no_such_package", ("No module named 'no_such_package'",)),
        ("def broken(:", ("SyntaxError",)),
        ("import os; os._exit(4)", ("ended with exit code 4",)),
        ("import ctypes; ctypes.string_at(0)", ("SIGSEGV",)),
    ],
)
def test_failing_script_exits_3_with_one_line(call: Call, tmp_path: Path, source: str, words: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source) + "\n")
    code, out, err = call("run", "--", str(script))
    assert (code, out) == (3, "")
    assert all(word in one_line(err) for word in words)
    code, out, _ = call("run", "--json", "--", str(script))
    assert code == 3
    assert set(json.loads(out)) >= {"schema", "error", "message"}


@pytest.mark.usefixtures("tracer")
def test_names_limit_set_by_job(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    limit = "torch.cuda.set_per_process_memory_fraction(0.25)"
    script.write_text(f"import torch\n{limit}\ntorch.empty(6 << 30, dtype=torch.uint8, device='cuda')\n")
    code, _, err = call("run", "--device", "rtx4090", "--", str(script))
    assert code == 1
    assert "own limit, 5.91 GiB of the card (torch.cuda.set_per_process_memory_fraction)" in one_line(err)
    assert "exceeds the memory of any card" not in err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module named 'numpy'", name="numpy"), "(numpy is missing or incomplete here: pip install"),
        (ImportError("libtorch.so: failed to map segment"), "is main memory low"),
        (MemoryError(), "is main memory low"),
    ],
)
def test_missing_module_error_names_cause(call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def raises(options: object) -> int:
        raise error

    monkeypatch.setattr("vramcast.cli.verbs.devices.main", raises)
    code, _, err = call("devices")
    assert code == 3
    assert words in one_line(err)


@pytest.mark.usefixtures("tracer")
def test_time_limit_exits_3_with_one_line(call: Call, tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import time; time.sleep(600)")
    code, _, err = call("run", "--timeout", "1", "--", str(script))
    assert code == 3
    assert "raise the limit" in one_line(err)


@pytest.mark.usefixtures("auto_tracer")
@pytest.mark.parametrize("place", ["folder", "no/such/folder/trace.pickle", "full"])
def test_unwritable_snapshot_is_one_line(call: Call, tiny_models: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").symlink_to("/dev/full")  # a link, so that a mistake could only replace the link
    code, _, err = call("estimate", f"{tiny_models}:mlp", *BATCH, "--snapshot", str(tmp_path / place))
    assert code == 2
    assert str(tmp_path / place) in one_line(err)
    assert (tmp_path / "full").is_symlink()


def test_script_without_null_gpu_exits_3(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent() -> None:
        raise NullGpuError("torch 2.13.0 is a CPU-only build: install a CUDA build.")

    monkeypatch.setattr(NullGpuTracer, "shared", absent)
    script = tmp_path / "train.py"
    script.write_text("print('never run')\n")
    code, out, err = call("run", "--", str(script))
    assert (code, out) == (3, "")
    assert "install a CUDA build" in one_line(err)


def test_unwritable_cache_exits_3_with_one_line(
    call: Call, tiny_models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needs_null_gpu: None
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(NullGpuTracer, "_shared", None)
    code, out, err = call("estimate", f"{tiny_models}:mlp", *BATCH, "--tracer", "nullgpu", "--json")
    assert code == 3
    assert json.loads(out)["error"] == "NullGpuError"
    assert "VRAMCAST_CACHE" in one_line(err)


def test_ctrl_c_exits_130_with_one_line(call: Call, tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Estimator, "estimate_job", interrupted)
    code, out, err = call("estimate", f"{tiny_models}:mlp", *BATCH)
    assert (code, out) == (130, "")
    assert one_line(err) == "vramcast: interrupted\n"


# ------------------------------------------------------------------------------------------------ unexpected errors
@pytest.mark.parametrize(
    "error",
    [ValueError("no reason"), SystemExit(1), RecursionError(), MemoryError(), OSError(28, "No space"), BrokenPipeError(32, "")],
    ids=lambda error: type(error).__name__,
)
def test_unexpected_error_exits_3_with_one_object(call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(Estimator, "estimate_job", fails)
    code, out, err = call("check", "--on", "t4", "x:y", *BATCH, "--json")
    assert code == 3
    assert json.loads(out)["error"] == type(error).__name__
    assert "--verbose" in one_line(err)
    code, out, err = call("check", "--on", "t4", "x:y", *BATCH, "--verbose")
    assert (code, out) == (3, "")
    assert err.startswith("Traceback (most recent call last)")
    assert err.splitlines()[-1].startswith("vramcast: ")


def test_names_file_of_os_error(call: Call) -> None:
    code, out, err = call("plan", "a" * 3000, "--json")
    assert (code, json.loads(out)["error"]) == (3, "OSError")
    assert "File name too long" in one_line(err)
    assert "This error is unexpected" not in err


def test_signal_exit_is_no_error(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*arguments: object, **options: object) -> None:
        raise SystemExit(128 + 15)

    monkeypatch.setattr(Estimator, "estimate_job", unexpected)
    assert call("check", "--on", "t4", "x:y", *BATCH) == (143, "", "")


def test_reports_low_memory_limit_before_imports(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100 << 20, -1))
    code, out, err = call("check", "--on", "t4", "x:y", *BATCH, "--json")
    assert (code, json.loads(out)["error"]) == (3, "CannotEstimate")
    assert "100.0 MiB" in one_line(err)


def test_failed_download_is_one_object(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from vramcast.cli.verbs import doctor

    def fails(version: str) -> None:
        raise DownloadError("no network")

    monkeypatch.setattr(doctor, "fetch", fails)
    code, out, _ = call("doctor", "--get-cudnn", "9.10.2", "--json")
    assert (code, json.loads(out)) == (3, {"schema": 1, "error": "DownloadError", "message": "no network"})


def test_shortens_long_job_message(call: Call, tmp_path: Path, auto_tracer: str) -> None:
    (tmp_path / "long.py").write_text("def model(): raise RuntimeError('x' * 10_000_000 + ' the end')")
    code, out, err = call("estimate", f"{tmp_path}/long.py:model", *BATCH, "--tracer", auto_tracer, "--json", "--verbose")
    message = json.loads(out)["message"]
    assert code == 3
    assert len(message) < 11_000
    assert len(err) < 120_000
    assert len(err.splitlines()[-1]) < 3_000
    for text in (message, err.splitlines()[-1]):
        assert "characters cut" in text
        assert "the end (" in text
        assert text.endswith("long.py:1, in model)")
