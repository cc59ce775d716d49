"""Entry points of NVIDIA's libraries that the wheels of other libraries look up: writes `tracer/nullgpu/csrc/wheels.txt`.

python -m benchmarks.hardware.looked_up WHEEL.whl ... > tracer/nullgpu/csrc/wheels.txt

binutils lists the undefined symbols of the shared libraries in a wheel. A library that looks up names at run time, as
nvidia-ml-py does, is searched as text. flash-attn and apex have no wheels; the calls in their sources are listed here.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

from vramcast.tracer.nullgpu.library.entry_points import guess, run_tool

_HEAD = """\
# Entry points of NVIDIA's libraries that libraries of the PyTorch ecosystem look up in addition to torch's own. They were read
# from wheels by `python -m benchmarks.hardware.looked_up` (2026-11-22). The stand-ins export all of them;
# entry_points.txt has their behaviour, and a call outside that list is an error. This file has only names, no text of NVIDIA's.
"""
# Calls in the sources of libraries without wheels, from `git grep` for names of the runtime and of cuBLAS.
_FROM_SOURCES = {
    "apex 6424da3b, sources": {
        "libcudart": """cudaDeviceReset cudaDeviceSynchronize cudaEventCreate cudaEventDestroy cudaEventElapsedTime
        cudaEventRecord cudaFree cudaFuncSetAttribute cudaGetDevice cudaGetDeviceCount cudaGetDeviceProperties
        cudaGetErrorString cudaGetLastError cudaIpcCloseMemHandle cudaIpcGetMemHandle cudaIpcOpenMemHandle
        cudaLaunchCooperativeKernel cudaLaunchKernel cudaLaunchKernelExC cudaMalloc cudaMemcpy cudaMemcpyAsync
        cudaMemset cudaMemsetAsync cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxActiveClusters
        cudaOccupancyMaxPotentialClusterSize cudaStreamSynchronize""",
        "libcublas": "cublasGemmEx cublasGetStream_v2",
        "libcublasLt": """cublasLtMatmul cublasLtMatmulAlgoGetHeuristic cublasLtMatmulDescInit_internal
        cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceInit_internal cublasLtMatmulPreferenceSetAttribute
        cublasLtMatrixLayoutInit_internal""",
        "libcudnn": """cudnnBackendExecute cudnnCreateTensorDescriptor cudnnDestroyTensorDescriptor cudnnGetErrorString
        cudnnGetStream cudnnSetTensor4dDescriptor""",
        "libnccl": """ncclCommDestroy ncclCommInitRank ncclGetErrorString ncclGetUniqueId ncclGroupEnd ncclGroupStart
        ncclMemAlloc ncclMemFree ncclRecv ncclSend""",
    },
    "flash-attn 0251105a, sources": {
        "libcudart": """cudaDeviceGetAttribute cudaFuncSetAttribute cudaGetDevice cudaGetDeviceCount cudaGetDeviceProperties
        cudaGetErrorString cudaGetLastError cudaLaunchCooperativeKernel cudaLaunchKernel cudaLaunchKernelExC
        cudaOccupancyMaxActiveBlocksPerMultiprocessor""",
        "libcublas": "cublasGemmEx",
        "libcublasLt": """cublasLtMatmul cublasLtMatmulAlgoGetHeuristic cublasLtMatmulDescInit_internal
        cublasLtMatmulDescSetAttribute cublasLtMatmulPreferenceInit_internal cublasLtMatmulPreferenceSetAttribute
        cublasLtMatrixLayoutInit_internal""",
    },
}


def looked_up_by(path: Path) -> dict[str, str]:
    """Return {symbol: library} of the NVIDIA entry points that a shared library needs, without those that it includes."""
    text = run_tool("nm", "-D", "--undefined-only", str(path))
    names = {line.split()[-1].partition("@")[0] for line in text.splitlines() if line}
    return {name: library for name in sorted(names) if (library := guess(name))}


def of_wheel(path: Path) -> dict[str, str]:
    """Return {symbol: library} of one wheel."""
    found: dict[str, str] = {}
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        for name in wheel.namelist():
            if re.search(r"\.so(\.\d+)*$", name):
                copy = Path(folder) / "library.so"
                copy.write_bytes(wheel.read(name))
                found |= looked_up_by(copy)
            elif name == "pynvml.py":
                text = wheel.read(name).decode()
                found |= dict.fromkeys(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text), "libnvidia-ml")
    return found


def section(name: str, found: dict[str, str]) -> str:
    """Return a wheel's section of the file."""
    lines = [f"[{name}]"]
    for library in sorted(set(found.values())):
        names = " ".join(sorted(one for one, owner in found.items() if owner == library))
        lines += [f"{library}: {line}" for line in textwrap.wrap(names, 110, break_long_words=False)]
    return "\n".join(lines) + "\n"


def main(wheels: list[Path]) -> None:
    """Print the file."""
    print(_HEAD)
    for path in sorted(wheels):
        name, version = path.name.split("-")[:2]
        if found := of_wheel(path):
            print(section(f"{name} {version}", found))
    for source, libraries in _FROM_SOURCES.items():
        print(section(source, {name: library for library, names in libraries.items() for name in names.split()}))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
