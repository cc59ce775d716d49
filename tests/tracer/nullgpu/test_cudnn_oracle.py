"""The cuDNN oracle: graph text, cache and protocol everywhere; cuDNN's own answers if cuDNN is installed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.core.errors import NullGpuError, WorkerError
from vramcast.tracer.nullgpu.cudnn import backend as cudnn_backend
from vramcast.tracer.nullgpu.cudnn import graph as cudnn_graph
from vramcast.tracer.nullgpu.cudnn.answer_cache import AnswerCache
from vramcast.tracer.nullgpu.cudnn.backend import EngineConfig, PlanSize
from vramcast.tracer.nullgpu.cudnn.client import CudnnOracle, OracleError, PlanDoesNotBuild
from vramcast.tracer.nullgpu.cudnn.graph import Attribute, Descriptor, GraphError, convolution_graph
from vramcast.tracer.nullgpu.cudnn.oracle import Oracle, Session
from vramcast.tracer.nullgpu.cudnn.stand_ins import LookedUp, looked_up, oracle_libraries

MIB = 2**20
INSTANT, MODE_B, FALLBACK, MODE_A = 0, 1, 2, 3
TENSOR_CORE, NONDETERMINISTIC = 0, 4
FLOAT, HALF = 0, 2

# The keys that cuDNN requires; the values are those of an A100, though so far only deviceVer affected any answer.
A100: dict[str, object] = {
    "cudaDeviceId": 0, "deviceVer": 800, "driverVer": 13000, "deviceName": "NVIDIA A100-SXM4-40GB",
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "warpSize": 32,
    "multiProcessorCount": 108, "smCountOrigin": 0, "regsPerBlock": 65536, "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 166912, "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024, "maxSharedMemoryPerSM": 167936, "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
    "smClockRateKHz": 1410000, "memClockRateKHz": 1215000, "memoryBusWidth": 5120, "l2CacheSize": 41943040,
    "totalGlobalMem": 42297786368,
}  # fmt: skip
RTX_3060 = {**A100, "deviceVer": 860, "deviceName": "NVIDIA GeForce RTX 3060", "multiProcessorCount": 28}
H200 = {**A100, "deviceVer": 900, "deviceName": "NVIDIA H200", "multiProcessorCount": 132}

GRAPH = convolution_graph("forward", (32, 64, 56, 56), (64, 64, 3, 3), padding=1)


# -- the graph text ------------------------------------------------------------------------------------------------

plain_attributes = st.builds(
    Attribute,
    st.integers(0, 3000),
    st.sampled_from([1, 2, 3, 4, 5, 14, 26]),
    st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4).map(tuple),
)
descriptors = st.recursive(
    st.builds(Descriptor, st.integers(0, 43), st.lists(plain_attributes, max_size=4).map(tuple)),
    lambda children: st.builds(
        Descriptor,
        st.integers(0, 43),
        st.lists(
            st.builds(Attribute, st.integers(0, 3000), st.just(15), st.just(()), st.lists(children).map(tuple)),
            max_size=3,
        ).map(tuple),
    ),
    max_leaves=8,
)


@given(descriptors)
def test_graph_round_trips(root: Descriptor) -> None:
    assert cudnn_graph.parse(cudnn_graph.write(root)) == root


def test_descriptor_text_matches_documentation() -> None:
    tensor = Descriptor(17, (Attribute(906, 3, (120,)), Attribute(902, 3, (1, -2))))
    root = Descriptor(15, (Attribute(801, 15, (), (tensor, tensor)),))
    assert cudnn_graph.write(root) == "15{801=15:[17{906=3:120;902=3:1,-2;},17{906=3:120;902=3:1,-2;}];}"


@pytest.mark.parametrize(
    "text",
    [
        "", "15", "15{", "15{801}", "15{801=15:[];", "15{}x", "15{}15{}", "15{801=15:[17{},];}", "15{801=15:17{};}",
        "15{801=15:[17{}]}", "15{902=3:1,,2;}", "15{902=3:1 2;}", "15{902=3:--1;}", "15{800=0:7;}", "15{1=6:7;}",
        "15{902=3:[17{}];}", "15{801=15:[]7;}", "{}", "15{902=3:" + "1," * 5000 + "1;}",
        "15{801=15:[" * 40 + "];}" * 40, "15{902=3:123456789012345678901;}", "15{902=3:é;}",
    ],
)  # fmt: skip
def test_rejects_text_outside_grammar(text: str) -> None:
    with pytest.raises(GraphError):
        cudnn_graph.parse(text)


def test_renumbering_ignores_tensor_ids() -> None:
    other = GRAPH.replace(f"906=3:{ord('x')};", "906=3:7;").replace(f"906=3:{ord('y')};", "906=3:99;")
    same, different = cudnn_graph.renumber(cudnn_graph.parse(GRAPH)), cudnn_graph.renumber(cudnn_graph.parse(other))
    assert other != GRAPH
    assert cudnn_graph.write(same) == cudnn_graph.write(different)


def test_renumbering_keeps_different_links_apart() -> None:
    linked = GRAPH.replace(f"906=3:{ord('w')};", f"906=3:{ord('x')};")
    assert cudnn_graph.renumber(cudnn_graph.parse(linked)) != cudnn_graph.renumber(cudnn_graph.parse(GRAPH))


def test_dense_strides_match_pytorch() -> None:
    assert cudnn_graph.strides_of((2, 3, 4, 5), channels_last=False) == (60, 20, 5, 1)
    assert cudnn_graph.strides_of((2, 3, 4, 5), channels_last=True) == (60, 1, 15, 3)


def test_strided_convolution_output_matches_pytorch() -> None:
    text = convolution_graph("forward", (1, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3)
    assert "902=3:1,64,112,112;" in text  # (224 + 2*3 - 7) // 2 + 1 = 112


# -- the cache -----------------------------------------------------------------------------------------------------


def test_cache_looks_up_by_three_keys(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "new" / "folder" / "cache")
    cache.keep_answer(91900, "d", "r", "OK 1")
    assert cache.answer(91900, "d", "r") == "OK 1"
    assert cache.answer(92000, "d", "r") is None
    assert cache.answer(91900, "e", "r") is None
    assert cache.answer(91900, "d", "s") is None


def test_caches_share_file(tmp_path: Path) -> None:
    one, two = AnswerCache(tmp_path / "c"), AnswerCache(tmp_path / "c")
    assert two.answer(1, "d", "r") is None
    one.keep_answer(1, "d", "r", "OK 2")
    assert two.answer(1, "d", "r") == "OK 2"


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    caches = [AnswerCache(tmp_path / "c") for _ in range(4)]

    def fill(number: int) -> None:
        for i in range(25):
            caches[number].keep_answer(1, "d", f"{number} {i}", "OK")

    threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(caches[0].answer(1, "d", f"{n} {i}") == "OK" for n in range(4) for i in range(25))


def test_replaces_damaged_cache(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"this is not a database" * 100)
    cache = AnswerCache(path)
    cache.keep_answer(1, "d", "r", "OK")
    assert cache.answer(1, "d", "r") == "OK"
    assert (tmp_path / "c.damaged").read_bytes().startswith(b"this is not")
    assert capfd.readouterr().err.count("set aside") == 1


def test_reports_unusable_cache_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    cache = AnswerCache(tmp_path / "file" / "cache")  # a folder cannot be made there
    for _ in range(3):
        cache.keep_answer(1, "d", "r", "OK")
        assert cache.answer(1, "d", "r") is None
    assert capfd.readouterr().err.count("continuing without") == 1


@pytest.mark.parametrize(
    ("code", "words"), [(sqlite3.SQLITE_READONLY, "only read"), (sqlite3.SQLITE_FULL, "continuing without")]
)
def test_reports_failed_writes_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    class Refusing(sqlite3.Connection):
        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:  # type: ignore[override]
            if statement.startswith("INSERT"):
                error = sqlite3.OperationalError("no room")
                error.sqlite_errorcode = code
                raise error
            return super().execute(statement, *values)  # type: ignore[arg-type]

    AnswerCache(tmp_path / "c").keep_answer(1, "d", "old", "OK")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Refusing, **k))
    cache = AnswerCache(tmp_path / "c")
    for i in range(3):
        cache.keep_answer(1, "d", f"new {i}", "OK")
    assert capfd.readouterr().err.count(words) == 1
    assert cache.answer(1, "d", "old") == ("OK" if code == sqlite3.SQLITE_READONLY else None)


# -- the protocol, with a substitute for cuDNN ----------------------------------------------------------------------


class PaperCudnn:
    """A substitute for cudnn_backend.Backend that counts its requests."""

    version = 91900
    has_nvrtc = True

    def __init__(self) -> None:
        self.asked = 0

    def heuristics(self, record: str, mode: int, graph: Descriptor) -> list[EngineConfig]:
        self.asked += 1
        if mode == 9:
            raise cudnn_backend.CudnnFailure(2000, "finalizing the heuristics query")
        return [EngineConfig(38, (0, 4), ()), EngineConfig(1, (), (0,))]

    def plan(self, record: str, mode: int, index: int, graph: Descriptor) -> PlanSize:
        self.asked += 1
        if index == 1:
            raise cudnn_backend.PlanFailure(3000, "finalizing the plan")
        if index == 2:
            raise cudnn_backend.PlanFailure(4003, "finalizing the plan")
        return PlanSize(4096, 1024, 2)

    def engine(self, record: str, engine: int, knobs: list[tuple[int, int]], graph: Descriptor) -> PlanSize:
        self.asked += 1
        return PlanSize(engine + sum(value for _, value in knobs))


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> PaperCudnn:
    cudnn = PaperCudnn()
    monkeypatch.setattr(cudnn_backend, "load", lambda *_: cudnn)
    monkeypatch.setattr(cudnn_backend, "find_library", lambda folder: folder / "libcudnn_graph.so.9")
    return cudnn


def paper_session(cache: Path | None = None) -> Session:
    session = Session(Oracle(Path("/nowhere"), Path("/nowhere"), AnswerCache(cache)))
    assert session.answer('DEVICE {"deviceVer": 800}') == "OK"
    return session


def test_heuristics_keep_cudnn_order(paper: PaperCudnn) -> None:
    assert paper_session().answer(f"HEUR 0 {GRAPH}") == "OK 2\n38 0,4 -\n1 - 0"


def test_plan_gives_workspace_or_status(paper: PaperCudnn) -> None:
    session = paper_session()
    assert session.answer(f"PLAN 0 0 {GRAPH}") == "OK 4096 1024 2"
    assert session.answer(f"PLAN 0 1 {GRAPH}") == "FAIL 3000"
    assert session.answer(f"ENGINE 5 12=2,13=3 {GRAPH}") == "OK 10 0 0"  # 5 + 2 + 3
    assert session.answer(f"ENGINE 5 - {GRAPH}") == "OK 5 0 0"


@pytest.mark.parametrize(
    "line",
    [
        "", "HELLO", "HEUR", "HEUR 0", f"HEUR -1 {GRAPH}", f"HEUR x {GRAPH}", f"HEUR 0 {GRAPH} more", "HEUR 0 17{}",
        "HEUR 0 15{", f"PLAN 0 {GRAPH}", f"PLAN 0 99999999999 {GRAPH}", f"ENGINE 1 a=b {GRAPH}", "VERSION 9",
        "DEVICE", "DEVICE [1]", "DEVICE {", 'DEVICE {"deviceVer": 806}', 'DEVICE {"deviceVer": "860"}',
        f"HEUR 9 {GRAPH}", "\x00", "DEVICE " + "[" * 100_000,
    ],
)  # fmt: skip
def test_wrong_request_gets_one_error_line(paper: PaperCudnn, line: str) -> None:
    answer = paper_session().answer(line)
    assert answer.startswith("ERROR ")
    assert "\n" not in answer


def test_request_without_device_record_fails(paper: PaperCudnn) -> None:
    session = Session(Oracle(Path("/nowhere"), Path("/nowhere"), AnswerCache(None)))
    assert session.answer(f"HEUR 0 {GRAPH}").startswith("ERROR No device record")


def test_reports_missing_cudnn(tmp_path: Path) -> None:
    session = Session(Oracle(tmp_path, tmp_path, AnswerCache(None)))
    assert session.answer("VERSION").startswith("ERROR No libcudnn_graph.so.9 in ")


@pytest.mark.integration
def test_process_imports_nothing_from_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("argparse", "json", "socket", "vramcast"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RUN')!r}, 'w')\nraise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    with CudnnOracle(tmp_path, tmp_path) as oracle:
        assert oracle.is_alive
    assert not (tmp_path / "RUN").exists()


def test_equal_requests_share_answer(paper: PaperCudnn, tmp_path: Path) -> None:
    renamed = GRAPH.replace(f"906=3:{ord('x')};", "906=3:7;")
    session = paper_session(tmp_path / "c")
    first = session.answer(f"HEUR 0 {GRAPH}")
    assert session.answer(f"HEUR 0 {renamed}") == first
    assert session.answer('DEVICE {  "deviceVer":800 }') == "OK"
    assert session.answer(f"HEUR 0 {GRAPH}") == first
    assert paper.asked == 1
    assert session.answer('DEVICE {"deviceVer": 900}') == "OK"
    session.answer(f"HEUR 0 {GRAPH}")
    assert paper.asked == 2


def test_warm_cache_answers_without_cudnn(paper: PaperCudnn, tmp_path: Path) -> None:
    first = paper_session(tmp_path / "c").answer(f"PLAN 0 0 {GRAPH}")
    oracle = Oracle(Path("/nowhere"), Path("/nowhere"), AnswerCache(tmp_path / "c"))
    session = Session(oracle)
    session.answer('DEVICE {"deviceVer": 800}')
    assert session.answer(f"PLAN 0 0 {GRAPH}") == first
    assert session.answer("VERSION") == "OK 91900"
    assert not oracle.loaded


@pytest.mark.parametrize(("index", "asked"), [(1, 1), (2, 2)])
def test_caches_only_permanent_failures(paper: PaperCudnn, tmp_path: Path, index: int, asked: int) -> None:
    session = paper_session(tmp_path / "c")
    answers = {session.answer(f"PLAN 0 {index} {GRAPH}") for _ in range(2)}
    assert len(answers) == 1
    assert paper.asked == asked  # 3000 NOT_SUPPORTED is permanent, 4003 out of host memory is not


def test_tf32_override_has_own_answers(paper: PaperCudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variable, which cuDNN reads itself, so that the same request has another answer."""
    for override, asked in (("", 1), ("0", 2), ("0", 2), ("", 2)):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
        paper_session(tmp_path / "c").answer(f"PLAN 0 0 {GRAPH}")
        assert paper.asked == asked


def test_caches_nothing_without_nvrtc(paper: PaperCudnn, tmp_path: Path) -> None:
    """Answer without NVRTC: cuDNN then leaves out engines, but the next process may have it."""
    paper.has_nvrtc = False
    sessions = [paper_session(tmp_path / "c") for _ in range(2)]  # of two processes
    assert [session.answer(f"PLAN 0 0 {GRAPH}") for session in sessions] == ["OK 4096 1024 2"] * 2
    assert paper.asked == 2


def test_repeated_request_line_is_answered_without_its_graph(paper: PaperCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    session = paper_session()
    first = session.answer(f"PLAN 0 0 {GRAPH}")
    monkeypatch.setattr(cudnn_graph, "parse", lambda text: pytest.fail("the graph was read again"))
    assert session.answer(f"PLAN 0 0 {GRAPH}") == first
    assert paper.asked == 1


def test_plan_answers_depend_on_heuristics_mode(paper: PaperCudnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An index counts within the list of one heuristic: the first plan of another one is another plan.
    monkeypatch.setattr(paper, "plan", lambda record, mode, index, graph: PlanSize(4096 if mode == MODE_A else 512))
    session = paper_session(tmp_path / "c")
    answers = [session.answer(f"PLAN {mode} 0 {GRAPH}") for mode in (MODE_A, FALLBACK, MODE_A)]
    assert answers == ["OK 4096 0 0", "OK 512 0 0", "OK 4096 0 0"]


# -- the installed cuDNN -------------------------------------------------------------------------------------------


def installed_cudnn() -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "cudnn" / "lib"
        if (folder / "libcudnn_graph.so.9").is_file():
            return folder
    return None


CUDNN = installed_cudnn()
needs_cudnn = pytest.mark.skipif(CUDNN is None, reason="cuDNN is not installed (torch's CUDA build brings it)")


def pretending_driver(folder: Path) -> Path:
    """Return a folder with a libcuda.so.1 in which every driver function that cuDNN knows by name reports success."""
    assert CUDNN is not None
    names = looked_up(CUDNN).driver | {"cuInit"}
    source = folder / "pretend.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(names)))
    path = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", path, source], check=True)
    return folder


@pytest.fixture(scope="module")
def libraries(clean_environment: None) -> Path:
    assert CUDNN is not None
    return oracle_libraries(CUDNN)


@pytest.fixture(scope="module")
def oracle(libraries: Path) -> Iterator[CudnnOracle]:
    assert CUDNN is not None
    with CudnnOracle(CUDNN, libraries, device=A100) as running:
        yield running


@pytest.fixture
def on_a100(oracle: CudnnOracle) -> CudnnOracle:
    oracle.set_device(A100)
    return oracle


def first_workspace(oracle: CudnnOracle, graph: str, wanted: Callable[[EngineConfig], bool]) -> int:
    for index, config in enumerate(oracle.heuristics(INSTANT, graph)):
        if wanted(config):
            return oracle.plan(INSTANT, index, graph).workspace_bytes
    raise AssertionError("no suggestion passes the filter")


@needs_cudnn
@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
@pytest.mark.parametrize(("dtype", "channels_last"), [(FLOAT, False), (HALF, True)])
@pytest.mark.parametrize("record", [A100, RTX_3060, H200], ids=["sm_80", "sm_86", "sm_90"])
def test_suggests_tensor_cores_for_resnet_convolution(
    on_a100: CudnnOracle, record: dict[str, object], dtype: int, channels_last: bool, operation: str
) -> None:
    graph = convolution_graph(
        operation, (32, 128, 28, 28), (128, 128, 3, 3), padding=1, dtype=dtype, channels_last=channels_last
    )
    on_a100.set_device(record)
    configs = on_a100.heuristics(INSTANT, graph)
    assert len(configs) >= 5
    assert TENSOR_CORE in configs[0].numerical_notes
    assert 0 <= on_a100.plan(INSTANT, 0, graph).workspace_bytes < 1024 * MIB


@needs_cudnn
def test_backward_without_tf32_needs_no_workspace(on_a100: CudnnOracle) -> None:
    """Compare the workspaces with and without PyTorch's allow_tf32, for the second 3x3 of VGG-16."""
    graph = convolution_graph("backward_data", (32, 64, 112, 112), (64, 64, 3, 3), padding=1)
    with_tf32 = first_workspace(on_a100, graph, lambda config: True)
    without = first_workspace(on_a100, graph, lambda config: TENSOR_CORE not in config.numerical_notes)
    assert without < MIB
    assert with_tf32 >= 32 * (64 + 64) * 112 * 112 * 4  # at least both tensors again, in another layout


@needs_cudnn
def test_fallback_list_differs(on_a100: CudnnOracle) -> None:
    instant, fallback = on_a100.heuristics(INSTANT, GRAPH), on_a100.heuristics(FALLBACK, GRAPH)
    assert len(fallback) < len(instant)
    assert TENSOR_CORE not in fallback[0].numerical_notes


@needs_cudnn
def test_hand_made_configuration_matches_fallback(on_a100: CudnnOracle) -> None:
    fallback = on_a100.heuristics(FALLBACK, GRAPH)
    index = [config.engine for config in fallback].index(1)
    assert on_a100.engine(1, GRAPH) == on_a100.plan(FALLBACK, index, GRAPH)


@needs_cudnn
def test_unknown_engine_fails_as_plan(on_a100: CudnnOracle) -> None:
    with pytest.raises(PlanDoesNotBuild) as failure:
        on_a100.engine(99999, GRAPH)
    assert 2000 <= failure.value.status < 5000


@needs_cudnn
def test_engine_compiled_at_run_time_has_workspace(on_a100: CudnnOracle) -> None:
    graph = convolution_graph("forward", (32, 96, 56, 56), (96, 1, 3, 3), padding=1)
    compiled = [i for i, c in enumerate(on_a100.heuristics(INSTANT, graph)) if 0 in c.behavior_notes]
    assert compiled
    assert on_a100.plan(INSTANT, compiled[0], graph).workspace_bytes >= 0  # compiling it would end in a refusal


@needs_cudnn
@pytest.mark.parametrize(
    "graph",
    [
        GRAPH.replace("902=3:32,64,56,56;", "902=3:32,64,56;"),  # sizes and strides of different length
        GRAPH.replace("903=3:", "903=3:-", 1),  # a negative stride
        GRAPH.replace("901=1:0;", "901=1:77;"),  # no such data type
        GRAPH.replace("10{", "9999{"),  # no such descriptor
        GRAPH.replace("902=3:32,", "902=3:99999999999999999999,"),  # more than 64 bits
        "15{}",
    ],
)
def test_answers_after_refused_request(on_a100: CudnnOracle, graph: str) -> None:
    with pytest.raises(OracleError, match=r"status \d+|more than 8 bytes|data types"):
        on_a100.heuristics(INSTANT, graph)
    assert on_a100.heuristics(INSTANT, GRAPH)


@needs_cudnn
def test_incomplete_record_fails(on_a100: CudnnOracle) -> None:
    on_a100.set_device({"deviceVer": 800})
    with pytest.raises(OracleError, match="device record"):
        on_a100.heuristics(INSTANT, GRAPH)


def attention_graph(batch: int, heads: int, length: int, width: int) -> str:
    """Return the graph of forward attention in PyTorch's cuDNN back end: two matmuls, scale, softmax with saved statistics."""
    full, row = (batch, heads, length, length), (batch, heads, length, 1)
    counter = iter(range(1, 100))

    def new(sizes: tuple[int, ...], dtype: int = FLOAT, *, virtual: bool = True, strides: tuple[int, ...] = ()) -> Descriptor:
        dense = strides or cudnn_graph.strides_of(sizes, channels_last=False)
        return cudnn_graph.tensor(next(counter), dtype, sizes, dense, virtual=virtual)

    def put(name: int, child: Descriptor) -> Attribute:
        return Attribute(name, 15, (), (child,))

    def pointwise(mode: int, y: Descriptor, x: Descriptor, b: Descriptor | None = None) -> Descriptor:
        parts = [put(750, Descriptor(0, (Attribute(0, 14, (mode,)), Attribute(1, 1, (FLOAT,))))), put(751, x)]
        return Descriptor(13, (*parts, *([put(752, b)] if b else []), put(753, y)))

    def reduction(operator: int, y: Descriptor, x: Descriptor) -> Descriptor:
        kind = Descriptor(21, (Attribute(1600, 18, (operator,)), Attribute(1601, 1, (FLOAT,))))
        return Descriptor(22, (put(1612, kind), put(1610, x), put(1611, y)))

    def matmul(c: Descriptor, a: Descriptor, b: Descriptor) -> Descriptor:
        kind = Descriptor(18, (Attribute(1500, 1, (FLOAT,)),))
        return Descriptor(19, (put(1523, kind), put(1520, a), put(1521, b), put(1522, c)))

    def by_value(dtype: int) -> Descriptor:
        scalar = cudnn_graph.tensor(next(counter), dtype, (1, 1, 1, 1), (1, 1, 1, 1))
        return Descriptor(17, (*scalar.attributes, Attribute(908, 2, (1,))))

    sizes = (batch, heads, length, width)
    q, v = new(sizes, HALF, virtual=False), new(sizes, HALF, virtual=False)
    k_transposed = (heads * length * width, length * width, 1, width)
    k = new((batch, heads, width, length), HALF, virtual=False, strides=k_transposed)
    out, statistics = new(sizes, HALF, virtual=False), new(row, virtual=False)
    scores, scaled, shifted, powers, weights = new(full), new(full), new(full), new(full), new(full, HALF)
    top, total, log_total = new(row), new(row), new(row)
    return cudnn_graph.write(
        cudnn_graph.graph(
            matmul(scores, q, k),
            pointwise(1, scaled, scores, by_value(FLOAT)),  # MUL
            reduction(3, top, scaled),  # MAX
            pointwise(9, shifted, scaled, top),  # SUB
            pointwise(13, powers, shifted),  # EXP
            reduction(0, total, powers),  # ADD
            pointwise(15, log_total, total),  # LOG
            pointwise(0, statistics, top, log_total),  # ADD
            pointwise(6, weights, powers, total),  # DIV
            matmul(out, weights, v),
        )
    )


@needs_cudnn
def test_answers_attention_graph(on_a100: CudnnOracle) -> None:
    graph = attention_graph(8, 12, 1024, 64)
    configs = on_a100.heuristics(MODE_A, graph)
    assert configs
    assert on_a100.plan(MODE_A, 0, graph).workspace_bytes >= 0


@needs_cudnn
def test_concurrent_connections_get_equal_answers(oracle: CudnnOracle, libraries: Path) -> None:
    graphs = [convolution_graph("forward", (8, 32 * n, 14, 14), (64, 32 * n, 3, 3), padding=1) for n in range(1, 9)]
    oracle.set_device(A100)
    expected = [oracle.plan(INSTANT, 0, graph) for graph in graphs]
    found: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw") as lines:
            connection.connect(str(oracle.socket_path))
            lines.write(f"DEVICE {json.dumps(A100)}\n" + "".join(f"PLAN 0 0 {graph}\n" for graph in graphs))
            lines.flush()
            found[number] = [lines.readline() for _ in range(9)]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(
        found[n] == ["OK\n", *(f"OK {size.workspace_bytes} {size.cublaslt_limit_bytes} 0\n" for size in expected)]
        for n in range(8)
    )


@pytest.mark.integration
@needs_cudnn
def test_rejects_driver_that_simulates_device(tmp_path: Path) -> None:
    assert CUDNN is not None
    with CudnnOracle(CUDNN, pretending_driver(tmp_path)) as oracle, pytest.raises(OracleError, match="does not refuse"):
        oracle.version()


# -- its stand-ins: functions that cuDNN looks up, and cuBLASLt -----------------------------------------------------


def make_cudnn(folder: Path, *names: str) -> Path:
    """Make a library that names these functions in its read-only data, as cuDNN's libraries do."""
    source = folder / "names.c"
    source.write_text("".join(f'const char *const name_{i} = "{name}";\n' for i, name in enumerate(names)))
    command = ["gcc", "-shared", "-fPIC", "-o", str(folder / "libcudnn_graph.so.9"), str(source)]
    subprocess.run(command, check=True)
    return folder


needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.mark.integration
@needs_gcc
def test_reads_lookups_from_library_names(tmp_path: Path) -> None:
    folder = make_cudnn(tmp_path, "cuLibraryLoadData", "cublasLtCreate", "libcublasLt.so.12", "not a name", "cudnnCreate")
    assert looked_up(folder) == LookedUp(frozenset({"cuLibraryLoadData"}), frozenset({"cublasLtCreate"}), 12)


@pytest.mark.integration
@needs_gcc
def test_names_cublaslt_function_missing_from_stand_in(tmp_path: Path) -> None:
    folder = make_cudnn(tmp_path, "cublasLtCreate", "cublasLtNewThing", "libcublasLt.so.13")
    with pytest.raises(NullGpuError, match=r"looks up cublasLtNewThing, which"):
        oracle_libraries(folder)


@pytest.mark.integration
@needs_gcc
def test_rejects_folder_without_cudnn(tmp_path: Path) -> None:
    with pytest.raises(NullGpuError, match="is this cuDNN"):
        oracle_libraries(make_cudnn(tmp_path, "cuLibraryLoadData"))


@pytest.mark.integration
@needs_cudnn
def test_stand_in_covers_installed_cudnn(libraries: Path) -> None:
    assert CUDNN is not None
    names = looked_up(CUDNN)
    assert {"cublasLtCreate", "cublasLtMatmulAlgoGetHeuristic"} <= names.cublaslt
    assert {"cuLibraryLoadData", "cuKernelGetFunction"} <= names.driver
    assert (libraries / f"libcublasLt.so.{names.cuda_major}").is_file()


def pointwise(operation: str, channels: int = 64, side: int = 56) -> str:
    return convolution_graph(operation, (32, channels, side, side), (256, channels, 1, 1))


@needs_cudnn
@pytest.mark.parametrize(
    ("operation", "engine", "size_bytes"),
    [("forward", 58, 0), ("backward_data", 63, 0), ("backward_filter", 62, 32 * 64 * 256 * 4)],
)
def test_pointwise_convolution_uses_cublaslt(on_a100: CudnnOracle, operation: str, engine: int, size_bytes: int) -> None:
    """Check ResNet-50's 1x1 convolutions, which real A100s run this way: docs/accuracy.md, kernels of a real card."""
    assert on_a100.heuristics(INSTANT, pointwise(operation))[0].engine == engine
    assert on_a100.plan(INSTANT, 0, pointwise(operation)).workspace_bytes == size_bytes


@needs_cudnn
def test_reports_cublaslt_limit(on_a100: CudnnOracle) -> None:
    limits = [on_a100.plan(INSTANT, index, pointwise("forward")).cublaslt_limit_bytes for index in range(3)]
    assert 128 * MIB in [limit // MIB * MIB for limit in limits]
    assert 0 in limits  # cuDNN's own plans
    assert on_a100.plan(INSTANT, 0, GRAPH).cublaslt_limit_bytes == 0


@needs_cudnn
def test_missing_stand_in_raises(tmp_path: Path, libraries: Path) -> None:
    """Query cuDNN without the stand-in: engines would silently drop out, so a folder without it must not answer."""
    assert CUDNN is not None
    (tmp_path / "libcuda.so.1").symlink_to(libraries / "libcuda.so.1")
    with CudnnOracle(CUDNN, tmp_path) as alone, pytest.raises(OracleError, match="cublasLt"):
        alone.version()


@needs_cudnn
def test_oracle_ends_and_removes_socket_with_stdin(libraries: Path) -> None:
    assert CUDNN is not None
    with CudnnOracle(CUDNN, libraries) as running:
        assert running.version() >= cudnn_backend.OLDEST_VERSION
        assert running.process.stdin is not None
        running.process.stdin.close()
        assert running.process.wait(timeout=60) == 0
        assert not running.socket_path.exists()


@needs_cudnn
def test_second_oracle_uses_cache_of_first(libraries: Path, tmp_path: Path) -> None:
    assert CUDNN is not None
    with CudnnOracle(CUDNN, libraries, cache=tmp_path / "c", device=A100) as first:
        configs, workspace = first.heuristics(INSTANT, GRAPH), first.plan(INSTANT, 0, GRAPH)
    with CudnnOracle(CUDNN, tmp_path / "no driver here", cache=tmp_path / "c", device=A100) as second:
        assert second.heuristics(INSTANT, GRAPH) == configs
        assert second.plan(INSTANT, 0, GRAPH) == workspace
        with pytest.raises(OracleError, match="cannot be loaded"):
            second.plan(INSTANT, 1, GRAPH)


@pytest.mark.integration
def test_oracle_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, vramcast.tracer.nullgpu.cudnn.oracle; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_cudnn
def test_client_reports_ended_oracle(libraries: Path) -> None:
    assert CUDNN is not None
    with CudnnOracle(CUDNN, libraries) as running:
        running.process.kill()
        running.process.wait()
        for _ in range(3):  # the end of the stream, then a broken pipe
            with pytest.raises(OracleError, match="ended without an answer"):
                running.version()


@pytest.mark.integration
def test_oracle_killed_at_start_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: CudnnOracle) -> Path:
        while not self._folder.exists():
            assert self.process.poll() is None
            time.sleep(0.01)
        self.process.kill()
        raise WorkerError("killed while it started")

    monkeypatch.setattr(CudnnOracle, "_await_socket", killed)
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path: a socket's path must be short
        monkeypatch.setattr("tempfile.tempdir", folder)
        place = Path(folder)
        with pytest.raises(WorkerError, match="while it started"), CudnnOracle(place, place):
            pass
        assert list(place.iterdir()) == []
