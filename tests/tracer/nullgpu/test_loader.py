"""Loading the null GPU: before torch, once, without any library of NVIDIA's; and the licence boundary."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vramcast.core.errors import NullGpuError
from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu.library.build import build
from vramcast.tracer.nullgpu.library.loader import NullGpu, foreign_libraries

START = """
import ctypes, sys
from pathlib import Path
from vramcast.tracer.nullgpu.library.loader import NullGpu, foreign_libraries
folder = Path(sys.argv[1])
gpu = NullGpu(folder)
gpu.configure(sys.argv[2])
def library(name): return ctypes.CDLL(str(folder / name))
def ledger(): return {entry.words: (entry.kind.value, entry.hits) for entry in gpu.ledger()}
"""


@pytest.fixture(scope="module")
def folder(needs_null_gpu: None, clean_environment: None) -> Path:
    return build()


def on_null_gpu(folder: Path, source: str, config: str | None = None) -> subprocess.CompletedProcess[str]:
    config = config if config is not None else device("a100-40gb").to_config() + ";context_bytes=0"
    code = START + textwrap.dedent(source)
    return subprocess.run([sys.executable, "-c", code, str(folder), config], capture_output=True, text=True, timeout=120)


def test_refused_call_fails_and_is_named(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        blas = library("null-cublas.so")
        print([blas.cublasDnrm2_v2() for _ in range(2)], ledger()["cublasDnrm2_v2"])
        """,
    )
    assert said.stdout == "[15, 15] ('refused', 2)\n", said.stderr
    assert "cublasDnrm2_v2 is not implemented and must return a result: refused" in said.stderr
    assert said.stderr.count("cublasDnrm2_v2") == 1  # reported once, counted always


def test_reviewed_call_succeeds_and_is_counted(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        blas = library("null-cublas.so")
        print([blas.cublasSgemv_v2() for _ in range(3)], ledger()["cublasSgemv_v2"])
        """,
    )
    assert said.stdout == "[0, 0, 0] ('noop', 3)\n", said.stderr
    assert said.stderr == ""


def test_undocumented_driver_tables_are_missing(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        cuda, table = library("libcuda.so.1"), ctypes.c_void_p(5)
        print(cuda.cuGetExportTable(ctypes.byref(table), bytes(16)), table.value, ledger()["cuGetExportTable"])
        """,
    )
    assert said.stdout == "500 None ('refused', 1)\n", said.stderr  # 500: CUDA_ERROR_NOT_FOUND


def test_unknown_driver_call_is_missing(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        cuda, function, status = library("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
        for name in (b"cuMemCreate", b"cuMadeUp"):
            flags = ctypes.c_ulonglong(0)
            error = cuda.cuGetProcAddress_v2(name, ctypes.byref(function), 13000, flags, ctypes.byref(status))
            print(error, bool(function.value))
        """,
    )
    assert said.stdout.splitlines() == ["0 True", "500 False"], said.stderr


def test_loads_no_nvidia_library(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        import torch
        torch.zeros(4, device="cuda") + torch.ones(4, device="cuda")
        torch.nn.Conv2d(1, 1, 3).cuda()(torch.zeros(1, 1, 8, 8, device="cuda"))
        print(torch.cuda.get_device_name(), torch.cuda.get_device_capability(), foreign_libraries())
        """,
    )
    assert said.stdout == f"{device('a100-40gb').name} (8, 0) []\n", said.stderr


def test_detects_library_from_nvidia_wheel(folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "nvidia" / "npp" / "lib" / "libnppc.so.13"  # recognized by its place; NVIDIA's own is not used
    library.parent.mkdir(parents=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(library)], check=True)
    said = on_null_gpu(folder, f"ctypes.CDLL({str(library)!r}); print(foreign_libraries())")
    assert said.stdout == f"[{str(library)!r}]\n", said.stderr


@pytest.mark.parametrize("name", ["cudnn", "cudnn_graph", "curand"])
def test_library_loaded_by_path_is_the_stand_in(folder: Path, name: str) -> None:
    if not (folder / f"null-{name}.so").exists():
        pytest.skip(f"this torch does not link lib{name}")
    said = on_null_gpu(
        folder,
        f"""
        path = Path("nvidia/{name}/lib/lib{name}.so.9")  # does not exist
        print([Path(ctypes.CDLL(one)._name).name for one in (path, str(path))], foreign_libraries())
        """,
    )
    assert said.stdout == f"{['null-' + name + '.so'] * 2} []\n", said.stderr


def test_rejects_torch_loaded_before(folder: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(NullGpuError, match="torch is already loaded in this process"):
        NullGpu(folder)


def test_damaged_library_error_names_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    code = "import sys; from pathlib import Path\n"
    code += "from vramcast.tracer.nullgpu.library.loader import NullGpu; NullGpu(Path(sys.argv[1]))"
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert f"A stand-in library in {tmp_path} does not load" in said.stderr
    assert "delete the folder" in said.stderr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "no '=' in|no total_bytes in"),
        ("total_bytes=5", "missing 'major'"),
        ("total_bytes=lots", "not a number 'lots'"),
        ("total_bytes=5;warp=32", "unknown key 'warp'"),
        ("total_bytes", "no '=' in 'total_bytes'"),
    ],
)
def test_wrong_device_model_aborts_with_reason(folder: Path, config: str, message: str) -> None:
    said = on_null_gpu(folder, 'library("libcuda.so.1").cuInit(0)', config)
    assert said.returncode == -6
    assert re.search(f"bad configuration: ({message})", said.stderr), said.stderr


def test_lists_foreign_libraries() -> None:
    assert isinstance(foreign_libraries(), list)
