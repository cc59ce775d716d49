"""cuDNN's heuristics and plans for a described device: the documented deviceless mode, through ctypes.

Only documented entry points are called (create, set, finalize, get, destroy, version) on the installed, unchanged library. No
device is simulated for it: the driver library it finds refuses every call, and a device-property record describes the device,
as cuDNN documents for ahead-of-time compilation (cuDNN >= 9.8). Engines that call cuBLASLt find our stand-in (stand_ins.py);
without it they would drop out of the lists.

A plan's workspace is read in one of two ways, because a plan with kernels compiled at run time cannot be finished if no driver
takes the compiled module (status 5001 after about a second of NVRTC):

    engine precompiled           build the plan, as PyTorch does       CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE
    engine compiled at run time  query the engine configuration        CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE

Both numbers were equal in each of 8,893 precompiled configurations.
# measured: cuDNN 9.19, records of sm_80, sm_86, sm_90, 8 convolutions x 3 directions x 4 layouts, 2026-11
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vramcast.hardware.cards import device
from vramcast.tracer.nullgpu.cudnn import graph as cg

OLDEST_VERSION = 90800  # measured: 9.8.0 takes a record and answers like 9.10.2; 9.5 and 9.7 support no record, 2026-11
KEPT_QUERIES = 4  # arbitrary: a client requests HEUR, then PLAN 0, 1, ... of the same graph

# cuDNN decides once per process whether TF32 is possible, by the first card in a query: after a V100 it gave an A100 5
# suggestions instead of 27. So every process starts with this query.
# measured: 4,788 lists; with any order of cards after it, equal to lists from separate processes; V100 first, 1,098 differ,
# 2026-11
_FIRST_CARD = "a100-40gb"
# Its list is complete in a cuDNN that needs no device to judge its engines. 9.8 and 9.10 leave 24 engines for sm_80 and newer
# out of all lists ("Failed to init host reserved space"), and end the process on queries about sm_100.
# measured: `python -m benchmarks.hardware.cudnn_engines --cudnn DIR`, 2026-11
_FIRST_QUESTION = cg.convolution_graph("forward", (32, 64, 56, 56), (256, 64, 1, 1))
_FIRST_WITHHELD, _FIRST_FATAL = 800, 1000  # measured: deviceVer of the first cards that this holds for
# spec: cuDNN 9 backend API, cudnnBackendDescriptorType_t
_ENGINE, _ENGINECFG, _ENGINEHEUR, _PLAN, _KNOB_CHOICE, _DEVICEPROP = 2, 3, 4, 5, 7, 38
# spec: cuDNN 9 backend API, cudnnBackendAttributeName_t
_HEUR_MODE, _HEUR_GRAPH, _HEUR_RESULTS, _HEUR_DEVICEPROP = 200, 201, 202, 204
_CFG_ENGINE, _CFG_KNOB_CHOICES, _CFG_WORKSPACE_SIZE = 300, 302, 303
_GRAPH_ENGINE_COUNT = 802
_PLAN_CONFIG, _PLAN_WORKSPACE_SIZE = 401, 402
_KNOB_TYPE, _KNOB_VALUE = 600, 601
_ENGINE_GRAPH, _ENGINE_INDEX, _ENGINE_NUMERICAL_NOTE, _ENGINE_BEHAVIOR_NOTE, _ENGINE_DEVICEPROP = (
    1300, 1301, 1303, 1305, 1307,
)  # fmt: skip
_DEVICEPROP_JSON = 2702
# spec: cuDNN 9 backend API, cudnnBackendAttributeType_t
_T_HEUR_MODE, _T_KNOB_TYPE, _T_NUMERICAL_NOTE, _T_BEHAVIOR_NOTE = 8, 9, 11, 19
_ELEMENT_BYTES = {  # spec: cuDNN 9 backend API; all others are C enumerations or int32
    cg.TYPE_BOOLEAN: 1, cg.TYPE_CHAR: 1, cg.TYPE_INT64: 8, cg.TYPE_DOUBLE: 8, cg.TYPE_FRACTION: 8,
}  # fmt: skip
_ENUM_BYTES = 4  # spec: System V x86-64 and AArch64 ABI
_RUNTIME_COMPILATION = 0  # spec: CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION
_MAX_NOTES = 64  # arbitrary; cuDNN 9.19 has 10 numerical and 5 behaviour notes
_KINDS = {
    _ENGINE: "engine", _ENGINECFG: "engine configuration", _ENGINEHEUR: "heuristics query", _PLAN: "plan",
    _KNOB_CHOICE: "knob choice", _DEVICEPROP: "device record",
}  # fmt: skip
_Values = Sequence[int] | Sequence[ctypes.c_void_p]
_CUDA_SUCCESS = 0  # spec: CUDA driver API, CUresult
_DATA_TYPES = 22  # spec: cuDNN 9.19, cudnnDataType_t; cuDNN itself ends the process at an unknown one (seen with 22)


class CudnnUnusable(Exception):
    """No usable cuDNN was found; the message gives the reason and a remedy."""


class CudnnFailure(Exception):
    """cuDNN refused a call; has its status (cudnnStatus_t)."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(f"cuDNN status {status} in {what}")
        self.status = status
        self.what = what


class PlanFailure(CudnnFailure):
    """cuDNN accepted the request, but the plan does not build."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One suggestion of the heuristics: the engine's global index, its numerical and its behaviour notes."""

    engine: int
    numerical_notes: tuple[int, ...]
    behavior_notes: tuple[int, ...]


def find_library(cudnn_dir: Path) -> Path:
    """Return the library with the backend API: libcudnn_graph.so.9, or the older single entry libcudnn.so.9.

    Raises:
        CudnnUnusable: Neither exists.
    """
    for name in ("libcudnn_graph.so.9", "libcudnn.so.9"):
        if (cudnn_dir / name).is_file():
            return cudnn_dir / name
    raise CudnnUnusable(f"No libcudnn_graph.so.9 in {cudnn_dir}: install torch's CUDA build or nvidia-cudnn.")


class CublasLt:
    """The stand-in for cuBLASLt in this process, and its records since the last request.

    Args:
        folder: Its folder, from `oracle_libraries`.
    Attributes:
        ask_for_limit: Makes its heuristics request the largest allowed workspace (True), or none; returns how many of them
            since the last call were allowed any.
    Raises:
        CudnnUnusable: It is missing or does not load, or another library of that name is in this process.
    """

    def __init__(self, folder: Path) -> None:
        path = next(folder.glob("libcublasLt.so.*"), None)
        if path is None:
            raise CudnnUnusable(f"No stand-in for cublasLt in {folder}: cuDNN would leave out the engines that need it.")
        library = _loaded_first(path)
        self.cuda_major = path.name.rpartition(".")[2]
        try:
            self.ask_for_limit = _function(library, "vramcast_cublaslt_ask_for_limit", [ctypes.c_int])
            self._refused = _function(library, "vramcast_cublaslt_refused", result=ctypes.c_char_p)
        except AttributeError:
            raise CudnnUnusable(f"This process has a {path.name} other than vramcast's stand-in.") from None

    def refused(self) -> str:
        """Return the name of the first function since the last call that it does not support; "": none."""
        return cast("bytes", self._refused()).decode()


def _loaded_first(path: Path) -> ctypes.CDLL:
    """Load a stand-in, and return the process's library with its SONAME: this detects a preloaded or a second library."""
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(path.name)
    except OSError as error:
        raise CudnnUnusable(f"The stand-in {path} cannot be loaded: {error}") from None


def load(cudnn_dir: Path, libraries: Path) -> Backend:
    """Load the installed cuDNN over a driver library that refuses all calls.

    Args:
        cudnn_dir: Folder of libcudnn_graph.so.9 (or libcudnn.so.9), e.g. site-packages/nvidia/cudnn/lib.
        libraries: Folder of the stand-ins, from `oracle_libraries`. cuDNN's libcudnn_engines_runtime_compiled.so.9 names
            libcuda.so.1 NEEDED; each entry point of that library must return an error.
    Raises:
        CudnnUnusable: There is nothing to load, it is too old, or this process has a driver that does not refuse calls.
    """
    driver = _loaded_first(libraries / "libcuda.so.1")
    if driver.cuInit(0) == _CUDA_SUCCESS:
        # A legal boundary, not a convenience: NVIDIA's libraries never run on a driver that simulates a device.
        raise CudnnUnusable("libcuda.so.1 in this process does not refuse cuInit; cuDNN is not loaded over it.")
    cublaslt = CublasLt(libraries)
    path = find_library(cudnn_dir)
    has_nvrtc = _has_nvrtc(cudnn_dir, cublaslt.cuda_major)
    try:
        library = ctypes.CDLL(str(path))
        version = _function(library, "cudnnGetVersion", result=ctypes.c_size_t)()
    except (OSError, AttributeError) as error:
        raise CudnnUnusable(f"{path} cannot be loaded: {error}") from None
    if version < OLDEST_VERSION:
        raise CudnnUnusable(f"cuDNN {version} in {cudnn_dir} is too old for device records: {OLDEST_VERSION} is needed.")
    backend = Backend(library, int(version), cublaslt, has_nvrtc=has_nvrtc)
    try:
        backend.begin()
    except CudnnFailure as error:
        raise CudnnUnusable(f"cuDNN {version} in {cudnn_dir} does not answer: {error}.") from None
    return backend


def _has_nvrtc(cudnn_dir: Path, cuda_major: str) -> bool:
    """Load NVRTC from pip's folders, next to cuDNN or in this interpreter, else from the system's folders.

    It needs no device. Without it cuDNN leaves out the engines that it compiles at run time.
    """
    name = f"libnvrtc.so.{cuda_major}"
    places = [cudnn_dir.parent.parent, *(Path(entry) / "nvidia" for entry in sys.path)]
    files = [place / folder / "lib" / name for place in places for folder in (f"cu{cuda_major}", "cuda_nvrtc")]
    for file in (*(str(file) for file in files if file.is_file()), name):
        try:
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False


def _function(
    library: ctypes.CDLL, name: str, arguments: Sequence[type] = (), result: type = ctypes.c_int
) -> Callable[..., int]:
    function = getattr(library, name)
    function.argtypes = list(arguments)
    function.restype = result
    return cast("Callable[..., int]", function)


@dataclass(frozen=True, slots=True)
class PlanSize:
    """The workspace of a plan.

    Attributes:
        workspace_bytes: cuDNN's answer.
        cublaslt_limit_bytes: Possible additional bytes: the engine lets cuBLASLt request a workspace, and here cuBLASLt
            requests none. 0 if the answer is cuDNN's alone.
        withheld: Number of cuDNN's own suggestions for this graph that it left out because it had no device or no NVRTC; a real
            card may take one of them instead.
    """

    workspace_bytes: int
    cublaslt_limit_bytes: int = 0
    withheld: int = 0


@dataclass(frozen=True, slots=True)
class _Query:
    """A finished heuristics query, kept so that plans of its configurations can be built."""

    owner: ExitStack
    handles: list[ctypes.c_void_p]
    configs: list[EngineConfig]
    limits_bytes: list[int]  # as in PlanSize, one per configuration
    n_dropped: int


class Backend:
    """The few cuDNN calls, for one caller at a time (the oracle holds a lock)."""

    def __init__(self, library: ctypes.CDLL, version: int, cublaslt: CublasLt, *, has_nvrtc: bool) -> None:
        self.version = version
        self.has_nvrtc = has_nvrtc
        self._cublaslt = cublaslt
        attribute = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p]
        self._create = _function(library, "cudnnBackendCreateDescriptor", [ctypes.c_int, ctypes.c_void_p])
        self._set = _function(library, "cudnnBackendSetAttribute", attribute)
        self._get = _function(library, "cudnnBackendGetAttribute", [*attribute, ctypes.c_void_p])
        self._finalize = _function(library, "cudnnBackendFinalize", [ctypes.c_void_p])
        self._destroy = _function(library, "cudnnBackendDestroyDescriptor", [ctypes.c_void_p])
        self._queries: OrderedDict[tuple[str, int, cg.Descriptor], _Query] = OrderedDict()
        self.withholds = False

    def begin(self) -> None:
        """Make the first query of the process, which also shows whether this cuDNN withholds engines without a device."""
        record = json.dumps(device(_FIRST_CARD).cudnn_record())
        self.withholds = self.dropped(record, 0, cg.parse(_FIRST_QUESTION)) > 0

    # -- questions

    def heuristics(self, record: str, mode: int, graph: cg.Descriptor) -> list[EngineConfig]:
        """Return cuDNN's suggestions for a graph on the device of a record, best first.

        Args:
            record: Device-property record, JSON.
            mode: cudnnBackendHeurMode_t: 0 INSTANT, 1 B, 2 FALLBACK, 3 A.
            graph: The operation graph.

        Raises:
            CudnnFailure: the record, the graph or the query was refused.
        """
        return self._query(record, mode, graph).configs

    def dropped(self, record: str, mode: int, graph: cg.Descriptor) -> int:
        """Return how many further suggestions cuDNN's heuristics had that failed its own support check."""
        return self._query(record, mode, graph).n_dropped

    def plan(self, record: str, mode: int, index: int, graph: cg.Descriptor) -> PlanSize:
        """Return the workspace of one suggestion's plan.

        Raises:
            PlanFailure: The plan does not build.
            CudnnFailure: The query itself was refused.
            IndexError: There is no such suggestion.
        """
        query = self._query(record, mode, graph)
        if not 0 <= index < len(query.configs):
            raise IndexError(f"Configuration {index} was requested, but the heuristics gave {len(query.configs)}.")
        workspace_bytes = self._workspace_bytes(query.handles[index], query.configs[index].behavior_notes)
        is_judged = self.has_nvrtc and not (self.withholds and _device_version(record) >= _FIRST_WITHHELD)
        return PlanSize(workspace_bytes, query.limits_bytes[index], 0 if is_judged else query.n_dropped)

    def engine(self, record: str, engine: int, knobs: Sequence[tuple[int, int]], graph: cg.Descriptor) -> PlanSize:
        """Return the workspace of a hand-made configuration's plan.

        Args:
            record: Device-property record, JSON.
            engine: Global index of the engine.
            knobs: (cudnnBackendKnobType_t, value); other knobs keep cuDNN's default.
            graph: The operation graph.
        Raises:
            PlanFailure: The engine does not take the graph, a knob or the device.
            CudnnFailure: The record or the graph was refused.
        """
        with ExitStack() as owner:
            device, operations = self._device(owner, record), self._build(owner, graph)
            try:
                self._cublaslt.ask_for_limit(False)
                config, notes = self._hand_made(owner, device, operations, engine, knobs)
                limit_bytes = 0
                if self._cublaslt.ask_for_limit(True):
                    greedy, _ = self._hand_made(owner, device, operations, engine, knobs)
                    limit_bytes = self._growth_bytes(config, greedy)
                return PlanSize(self._workspace_bytes(config, notes), limit_bytes)
            except PlanFailure:
                raise
            except CudnnFailure as failure:
                raise PlanFailure(failure.status, failure.what) from None

    def statuses(self, record: str, graph: cg.Descriptor) -> Iterator[int]:
        """Yield for each engine, by global index, the status of its default configuration; 0: it takes the graph."""
        with ExitStack() as owner:
            device, operations = self._device(owner, record), self._build(owner, graph)
            for index in range(self._int64(operations, _GRAPH_ENGINE_COUNT)):
                try:
                    with ExitStack() as one:
                        self._hand_made(one, device, operations, index, ())
                    yield 0
                except CudnnFailure as failure:
                    yield failure.status

    # -- steps

    def _query(self, record: str, mode: int, graph: cg.Descriptor) -> _Query:
        key = (record, mode, graph)
        if key in self._queries:
            self._queries.move_to_end(key)
            return self._queries[key]
        with ExitStack() as owner:
            self._cublaslt.ask_for_limit(False)
            handles, n_dropped = self._suggestions(owner, record, mode, graph)
            configs = [self._describe(handle) for handle in handles]
            limits_bytes = [0] * len(handles)
            if self._cublaslt.ask_for_limit(True):
                try:
                    limits_bytes = self._limits_bytes(handles, configs, record, mode, graph)
                finally:
                    self._cublaslt.ask_for_limit(False)
            if refused := self._cublaslt.refused():
                raise CudnnUnusable(f"cuDNN called {refused} in a way that vramcast's stand-in for cuBLASLt does not support.")
            query = _Query(owner.pop_all(), handles, configs, limits_bytes, n_dropped)
        self._queries[key] = query
        if len(self._queries) > KEPT_QUERIES:
            self._queries.popitem(last=False)[1].owner.close()
        return query

    def _suggestions(self, owner: ExitStack, record: str, mode: int, graph: cg.Descriptor) -> tuple[list[ctypes.c_void_p], int]:
        """Return cuDNN's suggestions, and how many more it announced than it gave."""
        heuristics = self._made(
            owner,
            _ENGINEHEUR,
            (_HEUR_GRAPH, cg.TYPE_DESCRIPTOR, [self._build(owner, graph)]),
            (_HEUR_MODE, _T_HEUR_MODE, [mode]),
            (_HEUR_DEVICEPROP, cg.TYPE_DESCRIPTOR, [self._device(owner, record)]),
        )
        expected = self._read(heuristics, _HEUR_RESULTS, cg.TYPE_DESCRIPTOR, 0, None)
        handles = [self._new(owner, _ENGINECFG) for _ in range(expected)]
        given = self._fill(heuristics, _HEUR_RESULTS, handles)
        return handles[:given], expected - given

    def _limits_bytes(
        self, handles: list[ctypes.c_void_p], configs: list[EngineConfig], record: str, mode: int, graph: cg.Descriptor
    ) -> list[int]:
        """Return the growth of each suggestion's workspace when cuBLASLt requests its limit, as it does now."""
        with ExitStack() as owner:
            greedy, _ = self._suggestions(owner, record, mode, graph)
            engines = [self._describe(handle).engine for handle in greedy]
            if engines != [config.engine for config in configs]:
                raise CudnnUnusable("cuDNN's list depends on the workspace that cuBLASLt requests, which is unknown.")
            return [self._growth_bytes(*pair) for pair in zip(handles, greedy, strict=True)]

    def _growth_bytes(self, config: ctypes.c_void_p, greedy: ctypes.c_void_p) -> int:
        return max(0, self._int64(greedy, _CFG_WORKSPACE_SIZE) - self._int64(config, _CFG_WORKSPACE_SIZE))

    def _device(self, owner: ExitStack, record: str) -> ctypes.c_void_p:
        if self.withholds and _device_version(record) >= _FIRST_FATAL:
            raise CudnnUnusable(f"cuDNN {self.version} ends the process on queries about such a card without a device.")
        return self._made(owner, _DEVICEPROP, (_DEVICEPROP_JSON, cg.TYPE_CHAR, record.encode()))

    def _build(self, owner: ExitStack, node: cg.Descriptor) -> ctypes.c_void_p:
        values = ((a, [self._build(owner, child) for child in a.children] or a.values) for a in node.attributes)
        return self._made(owner, node.type, *((a.name, a.ctype, given) for a, given in values))

    def _hand_made(
        self,
        owner: ExitStack,
        device: ctypes.c_void_p,
        operations: ctypes.c_void_p,
        index: int,
        knobs: Sequence[tuple[int, int]],
    ) -> tuple[ctypes.c_void_p, tuple[int, ...]]:
        engine = self._made(
            owner,
            _ENGINE,
            (_ENGINE_GRAPH, cg.TYPE_DESCRIPTOR, [operations]),
            (_ENGINE_INDEX, cg.TYPE_INT64, [index]),
            (_ENGINE_DEVICEPROP, cg.TYPE_DESCRIPTOR, [device]),
        )
        choices = [
            self._made(owner, _KNOB_CHOICE, (_KNOB_TYPE, _T_KNOB_TYPE, [knob]), (_KNOB_VALUE, cg.TYPE_INT64, [value]))
            for knob, value in knobs
        ]
        chosen = [(_CFG_KNOB_CHOICES, cg.TYPE_DESCRIPTOR, choices)] if choices else []
        config = self._made(owner, _ENGINECFG, (_CFG_ENGINE, cg.TYPE_DESCRIPTOR, [engine]), *chosen)
        return config, self._notes(engine, _ENGINE_BEHAVIOR_NOTE, _T_BEHAVIOR_NOTE)

    def _describe(self, config: ctypes.c_void_p) -> EngineConfig:
        with ExitStack() as owner:
            engine = self._new(owner, _ENGINE)
            self._fill(config, _CFG_ENGINE, [engine])
            index = self._int64(engine, _ENGINE_INDEX)
            numerical = self._notes(engine, _ENGINE_NUMERICAL_NOTE, _T_NUMERICAL_NOTE)
            behavior = self._notes(engine, _ENGINE_BEHAVIOR_NOTE, _T_BEHAVIOR_NOTE)
            return EngineConfig(index, numerical, behavior)

    def _workspace_bytes(self, config: ctypes.c_void_p, behavior_notes: Sequence[int]) -> int:
        try:
            if _RUNTIME_COMPILATION in behavior_notes:
                return self._int64(config, _CFG_WORKSPACE_SIZE)
            with ExitStack() as owner:
                plan = self._made(owner, _PLAN, (_PLAN_CONFIG, cg.TYPE_DESCRIPTOR, [config]))
                return self._int64(plan, _PLAN_WORKSPACE_SIZE)
        except CudnnFailure as failure:
            raise PlanFailure(failure.status, failure.what) from None

    # -- calls

    def _new(self, owner: ExitStack, kind: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        _check(self._create(kind, ctypes.byref(handle)), f"creating a descriptor of type {kind}")
        owner.callback(self._destroy, handle)
        return handle

    def _made(self, owner: ExitStack, kind: int, *attributes: tuple[int, int, _Values]) -> ctypes.c_void_p:
        """Return a finished descriptor with these attributes: (name, type, values)."""
        handle = self._new(owner, kind)
        for name, ctype, values in attributes:
            count, raw = _laid_out(name, ctype, values)
            _check(self._set(handle, name, ctype, count, raw), f"setting attribute {name}")
        _check(self._finalize(handle), f"finalizing the {_KINDS.get(kind, f'descriptor of type {kind}')}")
        return handle

    def _fill(self, handle: ctypes.c_void_p, name: int, into: Sequence[ctypes.c_void_p]) -> int:
        """Let cuDNN fill descriptors created by the caller; return how many it filled."""
        array = (ctypes.c_void_p * len(into))(*into)
        return self._read(handle, name, cg.TYPE_DESCRIPTOR, len(into), array)

    def _int64(self, handle: ctypes.c_void_p, name: int) -> int:
        value = ctypes.c_int64(-1)
        self._read(handle, name, cg.TYPE_INT64, 1, ctypes.byref(value))
        return value.value

    def _notes(self, engine: ctypes.c_void_p, name: int, ctype: int) -> tuple[int, ...]:
        array = (ctypes.c_int * _MAX_NOTES)()
        return tuple(array[: self._read(engine, name, ctype, _MAX_NOTES, array)])

    def _read(self, handle: ctypes.c_void_p, name: int, ctype: int, wanted: int, into: object) -> int:
        count = ctypes.c_int64(0)
        status = self._get(handle, name, ctype, wanted, ctypes.byref(count), into)
        _check(status, f"reading attribute {name}")
        return count.value


def _laid_out(name: int, ctype: int, values: _Values) -> tuple[int, object]:
    """Return the number of an attribute's values, and their bytes in cuDNN's layout."""
    if ctype == cg.TYPE_DESCRIPTOR:
        return len(values), (ctypes.c_void_p * len(values))(*values)
    numbers = cast("Sequence[int]", values)
    if ctype == cg.TYPE_DATA_TYPE and not all(0 <= value < _DATA_TYPES for value in numbers):
        raise cg.GraphError(f"Attribute {name} is {numbers}, expected data types below {_DATA_TYPES}.")
    size = _ELEMENT_BYTES.get(ctype, _ENUM_BYTES)
    try:
        raw = b"".join(value.to_bytes(size, "little", signed=value < 0) for value in numbers)
    except OverflowError:
        raise cg.GraphError(f"Attribute {name} of type {ctype} has a value of more than {size} bytes.") from None
    return len(numbers) // 2 if ctype == cg.TYPE_FRACTION else len(numbers), raw


def _device_version(record: str) -> int:
    return int(json.loads(record).get("deviceVer", 0))


def _check(status: int, what: str) -> None:
    if status != 0:
        raise CudnnFailure(status, what)
