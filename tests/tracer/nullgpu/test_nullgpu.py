"""Results of the null GPU's memory accounts, and of PyTorch on them: known facts, byte by byte.

Numbers come from docs/null-gpu.md and the allocator's rules: 512 B blocks, 2 MiB segments below 1 MiB, 20 MiB below 10 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lanes import sampled
from vramcast.core.errors import UsageError
from vramcast.hardware.cards import DEVICES, device
from vramcast.hardware.stack import release_of
from vramcast.tracer.format.trace import Action, Category
from vramcast.tracer.nullgpu.child import program

MIB = 1024**2
MARK_BYTES = 100_003  # as in conftest.PRELUDE
Probe = Callable[..., Any]
Need = Callable[[str], Any]


def requests(result: Any) -> list[int]:
    """Return the sizes of all requests, in order."""
    return [int(n) for n in result.trace.size_bytes[result.trace.action == Action.ALLOC]]


def between_marks(result: Any) -> list[list[int]]:
    """Return the requests between each two marks."""
    parts: list[list[int]] = [[]]
    for size in requests(result):
        if size == MARK_BYTES:
            parts.append([])
        else:
            parts[-1].append(size)
    return parts[1:-1]


# ------------------------------------------------------------------------------------------------ allocator and card
def test_rounds_segments_like_allocator(probe: Probe) -> None:
    said, _ = probe(
        """
        sizes = [1, 512, 513, 2**20, 2**20 + 1, 10 * 2**20 - 512, 10 * 2**20, 10 * 2**20 + 1]
        found = []
        for size in sizes:
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            x = torch.empty(size, dtype=torch.uint8, device="cuda")
            found.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved() - before])
            del x
        note(found=found)
        """
    )
    small, large = 2 * MIB, 20 * MIB
    assert said["found"] == [
        [512, small],
        [512, small],
        [1024, small],
        [MIB, small],
        [MIB + 512, large],
        [10 * MIB - 512, large],
        [10 * MIB, 10 * MIB],
        [10 * MIB + 512, 12 * MIB],
    ]


def test_splits_remainders_above_one_mib(probe: Probe) -> None:
    said, _ = probe(
        """
        def allocated(size):
            torch.cuda.empty_cache()
            whole = torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda"); del whole  # a free segment of 20 MiB
            x = torch.empty(size, dtype=torch.uint8, device="cuda")
            return torch.cuda.memory_allocated()
        note(kept=[allocated(n) for n in (9 * 2**20, 19 * 2**20, 19 * 2**20 - 512)])
        """
    )
    assert said["kept"] == [9 * MIB, 20 * MIB, 19 * MIB - 512]


def test_does_not_reuse_blocks_across_streams(probe: Probe) -> None:
    said, _ = probe(
        """
        x = torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda"); del x
        with torch.cuda.stream(torch.cuda.Stream()):
            y = torch.empty(5 * 2**20, dtype=torch.uint8, device="cuda")
        note(reserved=torch.cuda.memory_reserved())
        """
    )
    assert said["reserved"] == 40 * MIB


def test_card_reports_free_memory(probe: Probe) -> None:
    said, _ = probe(
        """
        torch.cuda.init()
        before = torch.cuda.mem_get_info()
        x = torch.empty(1, device="cuda")
        note(before=before, after=torch.cuda.mem_get_info(), total=torch.cuda.get_device_properties(0).total_memory)
        """,
        memory_bytes=1000 * MIB,
        context_bytes=400 * MIB,
    )
    assert said == {"before": [600 * MIB, 1000 * MIB], "after": [598 * MIB, 1000 * MIB], "total": 1000 * MIB}


def test_mapped_memory_lives_until_it_is_released_and_unmapped(probe: Probe) -> None:
    said, _ = probe(
        """
        import ctypes

        torch.zeros(1, device="cuda")
        driver, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64
        at, handle, size = number(), number(), number(64 * 2**20)
        kind = (ctypes.c_int * 8)(1, 0, 1, 0)  # pinned memory of device 0
        before, taken = torch.cuda.mem_get_info()[0], []
        steps = [
            lambda: driver.cuMemAddressReserve(ctypes.byref(at), size, number(0), number(0), number(0)),
            lambda: driver.cuMemCreate(ctypes.byref(handle), size, kind, number(0)),
            lambda: driver.cuMemMap(at, size, number(0), handle, number(0)),
            lambda: driver.cuMemRelease(handle),
            lambda: driver.cuMemUnmap(at, size),
        ]
        for step in steps:
            assert step() == 0
            taken.append((before - torch.cuda.mem_get_info()[0]) // 2**20)
        note(taken=taken)
        """
    )
    assert said["taken"] == [0, 64, 64, 64, 0]


def test_full_card_raises_torch_error(probe: Probe) -> None:
    said, result = probe(
        """
        x = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            note(message=str(error))
        stats = torch.cuda.memory_stats()
        note(ooms=stats["num_ooms"], retries=stats["num_alloc_retries"], reserved=torch.cuda.memory_reserved())
        """,
        memory_bytes=1024 * MIB,
        context_bytes=256 * MIB,
    )
    assert "Tried to allocate 512.00 MiB" in said["message"]
    assert "total capacity of 1024.00 MiB of which 256.00 MiB is free" in said["message"]
    assert (said["ooms"], said["retries"], said["reserved"]) == (1, 1, 512 * MIB)
    assert result.status == "ok"


def test_full_card_ends_job_with_oom(probe: Probe) -> None:
    _, result = probe('x = torch.empty(2**30, dtype=torch.uint8, device="cuda")', memory_bytes=512 * MIB)
    assert result.status == "oom"
    assert "Tried to allocate 1024.00 MiB" in result.message
    assert result.trace is not None


def test_unlimited_card_reports_own_size(probe: Probe) -> None:
    said, result = probe(
        """
        x = torch.empty(2**40, dtype=torch.uint8, device="cuda")
        note(total=torch.cuda.get_device_properties(0).total_memory, reserved=torch.cuda.memory_reserved())
        """,
        memory_bytes=512 * MIB,
        limited=False,
    )
    assert result.status == "ok"
    assert said == {"total": 512 * MIB, "reserved": 2**40}


def test_frees_cached_segments_and_retries(probe: Probe) -> None:
    said, _ = probe(
        """
        a = torch.empty(300 * 2**20, dtype=torch.uint8, device="cuda")
        b = torch.empty(300 * 2**20, dtype=torch.uint8, device="cuda")
        del a
        c = torch.empty(500 * 2**20, dtype=torch.uint8, device="cuda")
        stats = torch.cuda.memory_stats()
        note(retries=stats["num_alloc_retries"], ooms=stats["num_ooms"])
        note(reserved=torch.cuda.memory_reserved(), peak=torch.cuda.max_memory_reserved())
        """,
        memory_bytes=1000 * MIB,
    )
    assert said == {"retries": 1, "ooms": 0, "reserved": 800 * MIB, "peak": 800 * MIB}


def test_memory_fraction_limits_segments(probe: Probe) -> None:
    said, _ = probe(
        """
        torch.cuda.set_per_process_memory_fraction(0.5)
        x = torch.empty(500 * 2**20, dtype=torch.uint8, device="cuda")
        try:
            y = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            note(message=str(error))
        """,
        memory_bytes=1000 * MIB,
    )
    assert "Tried to allocate" in said["message"]


@pytest.mark.parametrize(("sizes", "reserved"), [((3, 9, 15), 40), ((3, 30), 40)])
def test_expandable_segment_grows_by_20_mib(probe: Probe, sizes: tuple[int, ...], reserved: int) -> None:
    said, result = probe(
        f"""
        blocks = [torch.empty(n * 2**20, dtype=torch.uint8, device="cuda") for n in {sizes}]
        note(reserved=torch.cuda.memory_reserved(), free=torch.cuda.mem_get_info()[0])
        """,
        alloc_conf="expandable_segments:True",
        memory_bytes=1000 * MIB,
    )
    assert said == {"reserved": reserved * MIB, "free": (1000 - reserved) * MIB}
    assert {Action.SEGMENT_MAP} <= {Action(a) for a in np.unique(result.trace.action)}
    assert Action.SEGMENT_ALLOC not in result.trace.action


@pytest.mark.parametrize(
    ("conf", "source", "expected"),
    [
        (
            "roundup_power2_divisions:4",
            "size(1200 * 1024), size(70 * 2**20), size(700), size(3000)",
            [1310720, 80 * MIB, 1024, 3072],
        ),
        ("max_split_size_mb:200", "reuse(300, 290), reuse(300, 279), reuse(300, 100)", [300 * MIB, 580 * MIB, 400 * MIB]),
        ("large_segment_size_mb:40", "reuse(3, 3),", [40 * MIB]),
    ],
)
def test_applies_allocator_settings(probe: Probe, conf: str, source: str, expected: list[int]) -> None:
    said, _ = probe(
        f"""
        def size(n):
            torch.cuda.empty_cache()
            x = torch.empty(n, dtype=torch.uint8, device="cuda")
            return torch.cuda.memory_allocated()
        def reuse(first, second):  # MiB reserved when the second block comes after the first is free
            torch.cuda.empty_cache()
            x = torch.empty(first * 2**20, dtype=torch.uint8, device="cuda"); del x
            y = torch.empty(second * 2**20, dtype=torch.uint8, device="cuda")
            return torch.cuda.memory_reserved()
        note(found=[{source}])
        """,
        alloc_conf=conf,
    )
    assert said["found"] == expected


@pytest.mark.parametrize("key", sampled(sorted(DEVICES), every=3))
def test_torch_sees_devices_of_table(probe: Probe, key: str) -> None:
    card = device(key)
    try:
        said, _ = probe(
            """
            p = torch.cuda.get_device_properties(0)
            note(name=p.name, total=p.total_memory, capability=[p.major, p.minor], multiprocessors=p.multi_processor_count)
            """,
            device=key,
        )
    except UsageError as error:
        if "has no kernels for compute capability" not in str(error):
            raise
        pytest.skip(str(error))
    assert said["name"] == card.name
    assert said["total"] == card.total_bytes
    assert said["multiprocessors"] == card.sm_count
    assert f"major={said['capability'][0]};minor={said['capability'][1]};" in card.to_config() + ";"


# ------------------------------------------------------------------------------------------------ host and device
def test_host_reads_known_or_drawn_values(probe: Probe) -> None:
    said, result = probe(
        """
        x, large = torch.ones(3, device="cuda"), torch.ones(2000, 2000, device="cuda")
        note(values=x.tolist(), item=x.sum().item(), unknown=large.sum().item())
        """
    )
    assert 0 <= said.pop("unknown") < 1
    assert said == {"values": [1.0, 1.0, 1.0], "item": 3.0}
    assert {entry.name: entry.hits for entry in result.ledger if entry.kind == "drawn"} == {"single numbers": 1}


def test_reads_back_only_uploads_without_following(probe: Probe) -> None:
    said, result = probe(
        """
        with torch._C.DisableTorchFunction():
            x = torch.ones(3, device="cuda")
            note(values=x.tolist(), item=x.sum().item(), kept=torch.arange(4).cuda().cpu().tolist())
        """
    )
    assert said == {"values": [0.0, 0.0, 0.0], "item": 0.0, "kept": [0, 1, 2, 3]}
    reads = {entry.name: (entry.hits, entry.size_bytes) for entry in result.ledger if entry.kind == "read"}
    assert reads == {"device to host": (2, 12 + 4)}


def test_job_without_reads_has_no_entries(probe: Probe) -> None:
    _, result = probe('x = torch.zeros(8, device="cuda") + torch.ones(8).cuda()')
    assert [entry for entry in result.ledger if entry.kind == "read"] == []
    assert next(entry.hits for entry in result.ledger if entry.kind == "launches") >= 1  # torch < 2.15: also zeros


def test_pinned_memory_is_real_memory(probe: Probe) -> None:
    said, _ = probe(
        """
        x = torch.arange(1000).pin_memory()
        note(pinned=x.is_pinned(), total=int(x.sum()), plain=torch.arange(3).is_pinned())
        note(device=x.to("cuda", non_blocking=True).device.type)
        """
    )
    assert said == {"pinned": True, "total": 499500, "plain": False, "device": "cuda"}


def test_supports_streams_events_and_graphs(probe: Probe) -> None:
    said, _ = probe(
        """
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(); end.record(); torch.cuda.synchronize()
        graph, x = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
        with torch.cuda.graph(graph):
            y = x + 1
        graph.replay()
        note(done=end.query(), time=start.elapsed_time(end) >= 0)
        note(priorities=[torch.cuda.Stream(priority=n).priority for n in (0, -1)])
        """
    )
    assert said == {"done": True, "time": True, "priorities": [0, -1]}


# ------------------------------------------------------------------------------------------------ operators
WORKSPACE_BEFORE_HOPPER = 8_519_680
WORKSPACE_HOPPER = 33_554_432


@pytest.mark.usefixtures("keeps_workspaces")
@pytest.mark.parametrize(
    ("key", "size"),
    [
        ("t4", WORKSPACE_BEFORE_HOPPER),
        ("a100-40gb", WORKSPACE_BEFORE_HOPPER),
        ("rtx4090", WORKSPACE_BEFORE_HOPPER),
        ("h100", WORKSPACE_HOPPER),
        ("h200", WORKSPACE_HOPPER),
    ],
)
def test_training_holds_two_cublas_workspaces(trace: Probe, tiny_models: Any, key: str, size: int) -> None:
    result = trace(device=key, target=f"{tiny_models}:mlp", batch="8x16", labels="8:int64<4")
    assert requests(result).count(size) == 2
    assert size in [entry.size_bytes for entry in result.ledger if entry.kind == "workspace"] or size in requests(result)


@pytest.mark.usefixtures("keeps_workspaces")
def test_inference_holds_one_cublas_workspace(trace: Probe, tiny_models: Any) -> None:
    result = trace(target=f"{tiny_models}:mlp", batch="8x16", mode="infer")
    assert requests(result).count(WORKSPACE_BEFORE_HOPPER) == 1
    assert result.trace is not None
    assert set(result.trace.size_bytes[result.trace.category == Category.WORKSPACE]) >= {WORKSPACE_BEFORE_HOPPER}


def test_product_frees_its_workspace(trace: Probe, tiny_models: Any) -> None:
    result = trace(target=f"{tiny_models}:mlp", batch="8x16", labels="8:int64<4")
    if (release_of(result.torch) or (2, 15)) < (2, 15):
        pytest.skip("this torch keeps its workspaces")
    rows = result.trace
    taken = np.flatnonzero((rows.category == Category.WORKSPACE) & (rows.action == Action.ALLOC))
    assert len(taken) >= 3 * 5  # three steps of two forward and three backward products
    assert (rows.action[taken + 1] == Action.FREE_REQUESTED).all()


def test_operators_make_known_requests(probe: Probe) -> None:
    _, result = probe(
        """
        F = torch.nn.functional
        n = 1_000_000
        x = torch.zeros(1000, 1000, device="cuda", requires_grad=True)
        image = torch.zeros(2, 3, 64, 64, device="cuda", requires_grad=True)
        logits = torch.zeros(1000, 250, device="cuda", requires_grad=True)
        labels = torch.zeros(1000, dtype=torch.int64, device="cuda")
        mark(); a = F.dropout(x, 0.5)
        mark(); b = F.relu(x)
        mark(); c = F.layer_norm(x, (1000,))
        mark(); d = F.max_pool2d(image, 2)
        mark(); e = F.cross_entropy(logits, labels)
        mark(); e.backward()
        mark(); f = x[:, -1]
        mark()
        """
    )
    n = 1_000_000
    dropout, relu, layer_norm, pool, loss, backward, view = between_marks(result)
    assert dropout == [n, 4 * n]  # the mask of one byte per element comes first
    assert relu == [4 * n]
    assert layer_norm == [4 * n, 4000, 4000]  # mean and rstd in fp32 for each row
    assert pool == [4 * 2 * 3 * 32 * 32, 8 * 2 * 3 * 32 * 32]  # indices are int64
    assert loss == [10**6, 4, 4]  # log-softmax of 1000 x 250 floats, loss, total weight
    assert sorted(backward) == [4, 10**6, 10**6]  # the loss's own gradient, and two buffers of the logits' size
    assert view == []


@pytest.mark.usefixtures("keeps_workspaces")
def test_linear_layer_requests_in_known_order(probe: Probe) -> None:
    _, result = probe(
        """
        x = torch.zeros(100, 300, device="cuda", requires_grad=True)
        layer = torch.nn.Linear(300, 200, device="cuda")
        gradient = torch.zeros(100, 200, device="cuda")
        mark(); y = layer(x)
        mark(); y.backward(gradient)
        mark(); y = layer(x)
        mark(); y.backward(gradient)
        mark()
        """
    )
    forward, backward, again, backward_again = between_marks(result)
    out, grad_input, grad_weight, grad_bias = 4 * 100 * 200, 4 * 100 * 300, 4 * 200 * 300, 4 * 200
    assert forward[0] == out
    assert set(forward[1:]) <= {WORKSPACE_BEFORE_HOPPER, MIB}  # cuBLAS, and 1 MiB of cuBLASLt for the bias
    assert sorted(forward[1:] + backward).count(WORKSPACE_BEFORE_HOPPER) >= 1
    assert sorted(n for n in backward if n != WORKSPACE_BEFORE_HOPPER) == sorted([grad_input, grad_weight, grad_bias])
    assert again == [out]
    assert sorted(backward_again) == sorted([grad_input, grad_weight, grad_bias])


@pytest.mark.parametrize(
    ("options", "first_peak", "kept", "later_peak"),
    [
        ("torch.optim.SGD(p, lr=1)", 0, 0, 0),
        ("torch.optim.SGD(p, lr=1, momentum=0.9)", 1, 1, 0),
        ("torch.optim.SGD(p, lr=1, weight_decay=0.1)", 1, 0, 1),
        ("torch.optim.Adam(p)", 3, 2, 1),
        ("torch.optim.AdamW(p)", 3, 2, 1),
        ("torch.optim.AdamW(p, fused=True)", 2, 2, 0),
        # One of the four parameters at a time: two buffers, and the previous one's denominator until it is assigned again.
        ("torch.optim.AdamW(p, foreach=False)", 2.75, 2, 0.75),
        ("torch.optim.AdamW(p, amsgrad=True)", 4, 3, 1),
        ("torch.optim.RMSprop(p)", 2, 1, 1),
        ("torch.optim.Adagrad(p)", 2, 0, 2),
        ("torch.optim.Adadelta(p)", 4, 2, 2),
    ],
)
def test_optimizer_memory_in_units_of_parameters(
    probe: Probe, options: str, first_peak: float, kept: float, later_peak: float
) -> None:
    said, _ = probe(
        f"""
        p = [torch.nn.Parameter(torch.zeros(2**20, device="cuda")) for _ in range(4)]
        optimizer, found = {options}, []
        for q in p: q.grad = torch.zeros_like(q)
        for step in range(2):
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            optimizer.step()
            found.append([torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before])
        note(found=found)
        """
    )
    parameters = 16 * MIB
    (peak, stays), (peak_later, stays_later) = said["found"]
    # Scalars on the device (fused: 4 B per parameter) are 512 B blocks: far below half a percent.
    assert [round(n / parameters, 2) for n in (peak, stays, peak_later, stays_later)] == [first_peak, kept, later_peak, 0]


def test_only_math_attention_keeps_scores(probe: Probe) -> None:
    said, _ = probe(
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        def peak(backend):
            q = torch.zeros(2, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            before = torch.cuda.memory_allocated(); torch.cuda.reset_peak_memory_stats()
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            return torch.cuda.memory_allocated() - before
        note(flash=peak(SDPBackend.FLASH_ATTENTION), math=peak(SDPBackend.MATH))
        """
    )
    out, log_sum_exp = 2 * 8 * 512 * 64 * 2, 2 * 8 * 512 * 4
    assert said["flash"] == out + log_sum_exp + 2 * 512  # and 16 B + 8 B of random state
    assert said["math"] > out + 2 * 8 * 512 * 512 * 2  # at least one matrix of scores


# ------------------------------------------------------------------------------------------------ golden runs
RESNET50 = """
import torchvision
model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    torch.cuda.reset_peak_memory_stats()
    x, y = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (32,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    loss.item()
note(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
"""


def test_resnet50_matches_prototype(probe: Probe, need: Need) -> None:
    torchvision = need("torchvision")
    said, result = probe(RESNET50, device="h200")
    if not result.torch.startswith("2.11."):
        pytest.skip(f"the numbers are those of torch 2.11, this is {result.torch} with torchvision {torchvision.__version__}")
    # measured: the prototype of the null GPU, torch 2.11.0, H200 model, no cuDNN workspaces, steady step
    assert said == {"allocated": 3_075_799_040, "reserved": 3_495_952_384}
    assert result.foreign == []


def columns(result: Any) -> dict[str, list[int]]:
    trace = result.trace
    names = ("action", "address", "size_bytes", "stream", "block", "step", "phase", "category")
    return {name: getattr(trace, name).tolist() for name in names} | {"op": [trace.ops[i] if i >= 0 else "" for i in trace.op]}


def test_trace_is_independent_of_earlier_jobs(trace: Probe, tiny_models: Any) -> None:
    job = {"target": f"{tiny_models}:wide", "batch": "64x1024", "labels": "64x1024"}
    first = trace(fresh=True, **job)
    second = trace(fresh=True, **job)
    other = trace(fresh=True, target=f"{tiny_models}:mlp", batch="4096x16", labels="4096:int64<4", optimizer="sgd")
    third = trace(fresh=True, **job)
    assert columns(first) == columns(second) == columns(third)
    assert first.trace.header["peaks"] == third.trace.header["peaks"]
    assert columns(other) != columns(first)


def test_jobs_load_no_nvidia_library(trace: Probe, tiny_models: Any) -> None:
    for key in ("a100-40gb", "h200"):
        assert trace(device=key, target=f"{tiny_models}:mlp", batch="8x16", labels="8:int64<4").foreign == []


def test_recurrent_layers_have_reserve_space(probe: Probe) -> None:
    noted, _ = probe(
        """
        def reserve_bytes(layers):
            x = torch.randn(7, 3, 24, device="cuda")
            output, _ = torch.nn.LSTM(24, 24, layers).cuda()(x)
            return output.grad_fn._saved_result3.nbytes
        note(reserve_bytes=[reserve_bytes(layers) for layers in (1, 2, 3)])
        """
    )
    one, *more = noted["reserve_bytes"]
    assert one > 0
    assert more == [2 * one, 3 * one]


def test_a_warning_in_our_code_shows_the_jobs_own_line() -> None:
    shown: list[tuple[Any, ...]] = []
    ours = Path(program.__file__)
    show = program._at_its_own_line(lambda *said: shown.append(said))
    space: dict[str, Any] = {"show": show}
    exec(compile(f"def follow(): show('beta', UserWarning, {str(ours)!r}, 7)", str(ours), "exec"), space)
    exec(compile("\n\nfollow()", "/home/me/train.py", "exec"), space)
    show("old", UserWarning, "/home/me/data.py", 9)
    assert [said[2:4] for said in shown] == [("/home/me/train.py", 3), ("/home/me/data.py", 9)]
