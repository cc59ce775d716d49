"""Loading the null GPU: before torch, once, with nothing of NVIDIA's own beside it; and the licence boundary."""

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


def test_a_refused_call_fails_and_is_named(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        blas = library("null-cublas.so")
        print([blas.cublasDotEx() for _ in range(2)], ledger()["cublasDotEx"])
        """,
    )
    assert said.stdout == "[15, 15] ('refused', 2)\n", said.stderr
    assert "cublasDotEx is not implemented and must return a result: refused" in said.stderr
    assert said.stderr.count("cublasDotEx") == 1  # said once, counted always


def test_a_reviewed_call_without_results_succeeds_and_is_counted(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        blas = library("null-cublas.so")
        print([blas.cublasSgemv_v2() for _ in range(3)], ledger()["cublasSgemv_v2"])
        """,
    )
    assert said.stdout == "[0, 0, 0] ('noop', 3)\n", said.stderr
    assert said.stderr == ""


def test_the_drivers_undocumented_tables_are_not_found(folder: Path) -> None:
    said = on_null_gpu(
        folder,
        """
        cuda, table = library("libcuda.so.1"), ctypes.c_void_p(5)
        print(cuda.cuGetExportTable(ctypes.byref(table), bytes(16)), table.value, ledger()["cuGetExportTable"])
        """,
    )
    assert said.stdout == "500 None ('refused', 1)\n", said.stderr  # 500: CUDA_ERROR_NOT_FOUND


def test_a_call_the_driver_does_not_have_is_not_found(folder: Path) -> None:
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


def test_nothing_of_nvidias_own_is_loaded_beside_it(folder: Path) -> None:
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


def test_a_library_from_nvidias_wheels_beside_it_is_seen(folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "nvidia" / "curand" / "lib" / "libcurand.so.10"  # by its place; NVIDIA's own stays away
    library.parent.mkdir(parents=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(library)], check=True)
    said = on_null_gpu(folder, f"ctypes.CDLL({str(library)!r}); print(foreign_libraries())")
    assert said.stdout == f"[{str(library)!r}]\n", said.stderr


def test_torch_must_not_be_loaded_before(folder: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(NullGpuError, match="torch is already loaded in this process"):
        NullGpu(folder)


def test_a_damaged_library_says_which_folder_to_delete(folder: Path, tmp_path: Path) -> None:
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
def test_a_wrong_device_model_stops_the_process_and_says_why(folder: Path, config: str, message: str) -> None:
    said = on_null_gpu(folder, 'library("libcuda.so.1").cuInit(0)', config)
    assert said.returncode == -6
    assert re.search(f"bad configuration: ({message})", said.stderr), said.stderr


def test_this_process_is_clean() -> None:
    assert isinstance(foreign_libraries(), list)
