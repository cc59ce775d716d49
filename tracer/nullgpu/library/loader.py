"""Loads the null GPU into this process, before torch; both the worker and tests use it.

glibc matches a needed library by its SONAME against those already loaded. So it is enough to load the stand-ins, globally,
before `import torch`. There is no LD_PRELOAD, which would leak into every child (compilers, data loaders).
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import NullGpuError
from vramcast.tracer.format.ledger import Entry
from vramcast.tracer.nullgpu.library.build import TOOLS
from vramcast.tracer.protocol.job_result import CardAccount

_WATCHDOG_MS: Final = 2000  # arbitrary: twenty times its period; a group without a watchdog is waited for only once


class NullGpu:
    """The loaded libraries; one per process."""

    def __init__(self, folder: Path) -> None:
        """Load all stand-ins from `folder`, as made by `build()`; torch must not be loaded yet.

        Raises:
            NullGpuError: torch is already loaded, or a library does not load.
        """
        if "torch" in sys.modules:
            raise NullGpuError("torch is already loaded in this process: the null GPU must come first. Use the worker process.")
        self._folder = folder
        try:
            self._driver = ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
            for path in sorted(folder.glob("null-*.so")):
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise NullGpuError(
                f"A stand-in library in {folder} does not load ({error}): delete the folder and try again."
            ) from None
        _replace_paths(folder)
        self._driver.nullgpu_report.restype = ctypes.c_size_t
        self._driver.nullgpu_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._driver.nullgpu_know.restype = ctypes.c_size_t
        self._driver.nullgpu_know.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
        # Triton compiles its launcher against libcuda and looks for it in this folder.
        os.environ["TRITON_LIBCUDA_PATH"] = str(folder)

    @staticmethod
    def configure(device: str) -> None:
        """Set the device model: `Device.to_config()` plus context_bytes; read at the first CUDA call of the process."""
        os.environ["NULLGPU_DEVICE"] = device

    def show_tools(self) -> None:
        """Make nvidia-smi visible to the job's processes, and share their total memory on the card with all of them."""
        account = _nameless_file("nullgpu-account")
        os.ftruncate(account, 8)
        os.environ["NULLGPU_ACCOUNT"] = f"/proc/{os.getpid()}/fd/{account}"
        os.environ["NULLGPU_PYTHON"] = sys.executable
        os.environ["NULLGPU_SMI"] = str(Path(__file__).parents[1] / "child" / "smi.py")
        os.environ["PATH"] = os.pathsep.join(filter(None, (str(self._folder / TOOLS), os.environ.get("PATH", os.defpath))))

    def know(self, reads: Sequence[bytes]) -> int:
        """Set the answers to the next reads from the device; return how many answers were left from the last call."""
        sizes = (ctypes.c_uint64 * len(reads))(*map(len, reads))
        return int(self._driver.nullgpu_know(b"".join(reads), sizes, len(reads)))

    def let_watchdog_look(self) -> None:
        """Wait until the watchdog of NCCL's groups, if there is one, has seen the end of each collective so far.

        It looks every 100 ms, as on a real card, where steps take longer than that.
        """
        self._driver.nullgpu_await_watchdog(_WATCHDOG_MS)

    def set_driver(self, now_bytes: int, graph_bytes: int, node_bytes: int) -> None:
        """Take memory for the driver: now, and from now on for each CUDA graph that can be launched and each of its nodes."""
        self._driver.nullgpu_set_driver(*map(ctypes.c_uint64, (now_bytes, graph_bytes, node_bytes)))

    def on_trial(self, callback: Callable[[], None]) -> None:
        """Call a function in each search of cudnn.benchmark, once for each plan that it tries."""
        self._on_trial = ctypes.CFUNCTYPE(None)(callback)  # kept as long as the library may call it
        self._driver.nullgpu_on_trial(self._on_trial)

    def split_into(self, ranks: int) -> None:
        """Set the size of the communicator that the next split makes; 0: unknown."""
        self._driver.nullgpu_split_into(ranks)

    def taken(self) -> CardAccount:
        """Return the card's own account of the memory taken from it."""
        ever, now = ctypes.c_uint64(), ctypes.c_uint64()
        self._driver.nullgpu_taken(ctypes.byref(ever), ctypes.byref(now))
        return CardAccount(ever.value, now.value)

    def workspaces(self) -> list[int]:
        """Return the addresses of workspaces that were passed to libraries, of those which the ledger does not name by size."""
        starts = ctypes.POINTER(ctypes.c_uint64)()
        return starts[: self._driver.nullgpu_workspaces(ctypes.byref(starts))]

    def ledger(self) -> list[Entry]:
        """Return the calls so far that were not fully answered."""
        size = self._driver.nullgpu_report(None, 0) + 4096  # arbitrary: room for lines that appear in between
        buffer = ctypes.create_string_buffer(size)
        self._driver.nullgpu_report(buffer, size)
        return [Entry.reported(line) for line in buffer.value.decode().splitlines()]


def _replace_paths(folder: Path) -> None:
    """Let Python code that loads a library of NVIDIA's by its path get the stand-in: glibc matches no SONAME then.

    `import cudnn`, NVIDIA's front end, loads nvidia/cudnn/lib/libcudnn.so.9 in this way.
    """
    stand_ins = {f"lib{path.stem.removeprefix('null-')}": str(path) for path in folder.glob("null-*.so")}
    load = ctypes.CDLL.__init__

    @functools.wraps(load)
    def load_stand_in(self: ctypes.CDLL, name: Any = None, *args: Any, **kwargs: Any) -> None:
        is_path = isinstance(name, str | os.PathLike) and os.path.dirname(name)
        load(self, stand_ins.get(os.path.basename(name).partition(".")[0], name) if is_path else name, *args, **kwargs)

    vars(ctypes)["CDLL"].__init__ = load_stand_in


def _nameless_file(name: str) -> int:
    """Return the descriptor of a file without a name: in memory, or on disk if that is refused, as in a sandbox."""
    try:
        return os.memfd_create(name)
    except OSError:
        file, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
        os.set_inheritable(file, False)
        return file


def foreign_libraries() -> list[str]:
    """Return the files of NVIDIA's own driver and CUDA libraries that are mapped into this process; must be empty.

    Source: the licence boundary in docs/null-gpu.md; Linux /proc/self/maps.
    """
    names = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5] if line.count("/") else ""
        if re.search(r"/nvidia/[^ ]*\.so|/lib(cuda|cudart|cublas\w*|cudnn\w*|cusolver|cufft|nccl|nvrtc)\.so", path):
            names.add(path)
    return sorted(name for name in names if "/nullgpu/" not in name)
