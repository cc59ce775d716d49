"""Explanations of error texts: every form since torch 1.12, in logs, and memory summaries."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.core.errors import UsageError
from vramcast.explanations import causes
from vramcast.explanations.answer import Explanation

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU {gpu} has a total capacity of {total} of which "
    "{free} is free. {more}Of the allocated memory {live} is allocated by PyTorch, and {holes} is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; {total} total capacity; {live} already allocated; "
    "{free} free; {more}{reserved} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
)
OWN = "Including non-PyTorch memory, this process has {} memory in use. "
GIB = 1 << 30


def new(**numbers: str) -> str:
    """Return a message of torch 2.1 or later."""
    usual = {"asked": "2.00 GiB", "gpu": "0", "total": "23.65 GiB", "free": "0.40 GiB", "more": OWN.format("23.20 GiB")}
    return NEW.format(**{**usual, "live": "22.10 GiB", "holes": "600.00 MiB", **numbers})


def explained(text: str) -> Explanation:
    """Return the explanation, whose text always fits on a screen."""
    found = vramcast.explain(text + "\n")
    lines = str(found).splitlines()
    assert len(lines) <= 7
    assert max(map(len, lines)) <= 100
    assert (found.exit_code == 0) == (found.cause is not None and found.is_certain)
    return found


@pytest.mark.parametrize(
    "text",
    ["max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (5.53 GiB). "
     "Based on the available memory, the estimated maximum model length is 45296. Try increasing",
     "max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (45296). Try increasing"],
)  # fmt: skip
def test_engine_names_the_length_that_fits(text: str) -> None:
    found = explained(f"ValueError: To serve at least one request with the model's {text} `gpu_memory_utilization`")
    assert (found.cause, [one.change for one in found.changes]) == (causes.TOO_LARGE, ["--max-model-len 45296"])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (new(), causes.TOO_LARGE),
        (new(holes="2.10 GiB", live="20.60 GiB"), causes.FRAGMENTATION),
        (new(asked="24.00 GiB"), causes.LARGER),
        ("OutOfMemoryError: " + new(), causes.TOO_LARGE),
        (f"MemoryError\n{new()}", causes.HOST),
        (new(more="Process 7 has 15.10 GiB memory in use. " + OWN.format("8.00 GiB"), live="7.00 GiB"), causes.OTHERS),
        (new(free="12.00 GiB", more=OWN.format("11.60 GiB") + "11.82 GiB allowed; ", live="10.90 GiB"), causes.LIMIT),
        (new(more=OWN.format("23.20 GiB"), live="9.00 GiB"), causes.OUTSIDE),  # 13.6 GiB of another library
        (OLD.format(asked="1.20 GiB", total="15.78 GiB", live="13.90 GiB", free="310.00 MiB", more="", reserved="14.20 GiB"),
         causes.TOO_LARGE),
        (OLD.format(asked="1.20 GiB", total="15.78 GiB", live="9.90 GiB", free="310.00 MiB", more="", reserved="14.20 GiB"),
         causes.FRAGMENTATION),
        (OLD.format(asked="1.20 GiB", total="15.78 GiB", live="2.90 GiB", free="3.25 MiB", more="", reserved="3.10 GiB"),
         causes.OTHERS),
        (OLD.format(asked="1.20 GiB", total="15.78 GiB", live="7.00 GiB", free="8.00 GiB", more="7.89 GiB allowed; ",
                    reserved="7.10 GiB"), causes.LIMIT),
        (new().replace("capacity", "capacty"), causes.TOO_LARGE),  # torch 2.1
        ("Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137", causes.HOST),
        ("This might be caused by insufficient shared memory (shm).", causes.HOST),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", causes.TOO_LARGE),
        ("ValueError: Free memory on device cuda:0 (20.1/23.64 GiB) on startup is less than desired GPU memory utilization "
         "(0.9, 21.28 GiB). Decrease", causes.OTHERS),
        ("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", causes.LARGER),
        ("CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. "
         "Requested size: 20.00 MiB", causes.LIMIT),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", causes.OUTSIDE),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", causes.OUTSIDE),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", causes.OUTSIDE),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.", causes.HOST),
        ("[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
         causes.HOST),
        ("/var/spool/job: line 9: 4242 Killed                  python train.py", causes.HOST),
    ],
)  # fmt: skip
def test_finds_the_cause(text: str, cause: str) -> None:
    assert explained(text).cause == cause
    assert explained("Epoch 1\n" * 50 + text + "\nwandb: synced").cause == cause


def test_a_message_gives_its_numbers_and_holders() -> None:
    found = explained(
        new(holes="2.10 GiB", live="20.60 GiB", more="Process 7 has 0.30 GiB memory in use. " + OWN.format("22.90 GiB"))
    )
    assert (found.card.request_bytes, found.card.total_bytes) == (2 * GIB, round(23.65 * GIB))
    held = {name: size for _, name, size in found.holders}
    assert held["allocated by PyTorch"] == round(20.6 * GIB)
    assert held["process 7"] == round(0.3 * GIB)
    assert held["context and libraries"] == pytest.approx(0.2 * GIB, abs=2)
    assert found.changes[0].change == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert {one.proof for one in found.changes} == {"numbers of the text"}
    assert "explain a snapshot or the command" in found.unknown


def test_a_larger_card_is_named_with_room_for_the_request() -> None:
    assert explained(new()).changes[-1].change == "at least a card of 25.25 GiB: rtx5090"


def test_a_container_hides_the_own_process_number() -> None:
    found = explained(new(more="Process 9 has 23.25 GiB memory in use. "))
    assert (found.cause, found.card.others_bytes) == (causes.TOO_LARGE, None)


def test_private_pools_are_held_apart() -> None:
    text = new().replace("by PyTorch, and", "by PyTorch, with 3.00 GiB allocated in private pools (e.g., CUDA Graphs), and")
    assert {name: size for _, name, size in explained(text).holders}["private pools (CUDA graphs)"] == 3 * GIB


def test_the_first_error_of_several_ranks_counts() -> None:
    log = "\n".join(f"[rank{n}]: {new(gpu=str(n), asked=f'{n + 2}.00 GiB')}" for n in (3, 0, 2))
    found = explained(f"{log}\nslurmstepd: error: Detected 1 oom_kill event in StepId=1.0.")
    assert (found.ranks, found.card.request_bytes) == (3, 5 * GIB)
    assert "3 ranks failed" in str(found)
    assert explained(f"0: {new()}\n1: {new(gpu='1')}").ranks == 2
    assert explained(f"{new()}\n{new(gpu='1')}").ranks == 2
    assert explained(new()).ranks == 1


@pytest.mark.parametrize(
    ("function", "cause"),
    [("validate", causes.EVALUATION), ("evaluation_loop", causes.EVALUATION), ("save_checkpoint", causes.CHECKPOINT),
     ("_save", causes.CHECKPOINT), ("training_step", causes.TOO_LARGE), ("interval", causes.TOO_LARGE)],
)  # fmt: skip
def test_a_traceback_gives_line_and_place(function: str, cause: str) -> None:
    frames = f'  File "/home/a/fit.py", line 41, in {function}\n  File "/opt/site-packages/torch/nn/m.py", line 9, in forward\n'
    found = explained(f"Traceback (most recent call last):\n{frames}{new()}")
    assert (found.cause, found.where) == (cause, "fit.py:41")


def test_progress_makes_growth_or_a_long_batch_possible() -> None:
    found = explained(f"step: 1200 loss 2.1\n 35%|###   | 350/1000 [00:10<00:20]\n{new()}")
    assert (found.cause, found.exit_code) == (causes.STEP, 4)
    assert "probably" in str(found)


def test_a_driver_error_is_uncertain() -> None:
    assert explained("RuntimeError: CUDA error: out of memory").exit_code == 4


def summary(live: int, reserved: int, holes: int, ooms: int = 1) -> str:
    """Return a memory summary with sizes in MiB."""
    rows = (
        ("Allocated memory", live),
        ("Active memory", live),
        ("GPU reserved memory", reserved),
        ("Non-releasable memory", holes),
    )
    table = "\n".join(f"| {name:<21} | {size:>6} MiB | {size + 9:>6} MiB |  12345 MiB |  12345 MiB |" for name, size in rows)
    return f"|            CUDA OOMs: {ooms}            |        cudaMalloc retries: 2         |\n{table}\n"


def test_summaries() -> None:
    assert (explained(summary(20_000, 20_500, 400)).cause, explained(summary(20_000, 20_500, 400)).exit_code) == (
        causes.TOO_LARGE,
        0,
    )
    holes = explained(summary(9_000, 20_500, 8_000))
    assert (holes.cause, holes.exit_code) == (causes.FRAGMENTATION, 4)
    assert ("category", "unused segments", 3_500 << 20) in holes.holders
    none = explained(summary(9_000, 20_500, 400, ooms=0))
    assert (none.cause, none.exit_code) == (None, 4)
    assert explained(summary(9_000, 20_500, 400) + new()).card.request_bytes == 2 * GIB


def test_an_exception_is_a_text() -> None:
    assert vramcast.explain(RuntimeError(new())).cause == causes.TOO_LARGE


@pytest.mark.parametrize("text", ["all went well\n", "ValueError: out of range\n", "we are out of memory tricks\n"])
def test_rejects_texts_without_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="no out-of-memory error"):
        vramcast.explain(text)
