"""Serving engines: no weights, no tokenizer that is absent, and an end when the engine is ready.

Modules of a few lines stand for vLLM, with its names of classes and functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from vramcast.core import cache
from vramcast.core.errors import CannotEstimate, UsageError
from vramcast.hardware.cards import DEVICES
from vramcast.hardware.engine_memory import engine_memory, stack_bytes
from vramcast.jobs import hub
from vramcast.jobs.ranks import ALONE, World
from vramcast.jobs.text import JobText
from vramcast.tracer.engines.vllm import accounts as vllm_accounts
from vramcast.tracer.engines.vllm import engine, models, ranks, starts
from vramcast.tracer.format.trace import SERVING
from vramcast.tracer.hooks.replacement import replace_when_imported
from vramcast.tracer.nullgpu.client import NullGpuTracer
from vramcast.tracer.program.training_loop import Course, LoopLimits, StopJob

FILES = {
    "vllm/__init__.py": "__version__ = '0.22.1'",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
class EngineArgs:
    distributed_executor_backend, tensor_parallel_size, pipeline_parallel_size, data_parallel_size = None, 1, 1, 1
    served_model_name = None
    def __init__(self, model, load_format="auto", tokenizer=None, **parallel):
        self.model, self.load_format, self.tokenizer, self.skip_tokenizer_init = model, load_format, tokenizer, False
        vars(self).update(parallel)
        self.__post_init__()
    def __post_init__(self):
        if self.model == "no/such-model": raise FileNotFoundError("no snapshot folder")
    def create_engine_config(self, usage=None):
        return self.load_format, self.skip_tokenizer_init
""",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/device_communicators/__init__.py": "",
    "vllm/distributed/device_communicators/shm_broadcast.py": """
class MessageQueue:
    @staticmethod
    def create_from_process_group(*arguments): raise TimeoutError("no reader came")
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/llm.py": "class LLM:\n    def __init__(self, model): self.model = model\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/core/__init__.py": "",
    "vllm/v1/core/kv_cache_utils.py": """
def get_max_concurrency_for_kv_cache_config(config, cache): return cache.num_blocks / 4
""",
    "vllm/entrypoints/openai/__init__.py": "",
    "vllm/entrypoints/openai/models/__init__.py": "",
    "vllm/entrypoints/openai/models/serving.py": """
class OpenAIServingModels:
    async def init_static_loras(self):
        if self.path == "absent": raise ValueError("No adapter found for absent. Look again.")
        self.is_loaded = True
""",
    "vllm/v1/engine/__init__.py": "",
    "vllm/v1/engine/async_llm.py": """
class AsyncLLM:
    def __init__(self, config): self.vllm_config = config
""",
    "vllm/v1/engine/core.py": """
from types import SimpleNamespace as Some
from vllm.v1.core import kv_cache_utils
sizes = 40, 24
def get_kv_cache_configs(config, specs, available):
    if available[0] < max(1, sum(min(config.model_config.max_model_len, most) // 2 for most in specs[0].values())):
        raise ValueError("No available memory for the cache blocks.")
    return [Some(num_blocks=10, kv_cache_tensors=[Some(size=size) for size in sizes])]
""",
    "vllm/v1/sample/__init__.py": "",
    "vllm/v1/sample/ops/__init__.py": "",
    "vllm/v1/sample/ops/topk_topp_sampler.py": """
def apply_top_k_top_p_triton(logits, k, p): return logits
def apply_top_k_top_p(logits, k, p): return apply_top_k_top_p_triton(logits, k, p)
""",
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/worker/gpu_worker.py": """
from types import SimpleNamespace as Some
def request_memory(snapshot, cache, held_elsewhere=0):
    if snapshot.free_memory < 92: raise ValueError("Free memory is less than desired.")
    return 92
class Runner:
    model_memory_usage = 500
    def capture_model(self): return 7
class Worker:
    outside = 2
    def __init__(self, eager=False):
        self.model_runner, self.eager = Runner(), eager
        parallel = Some(tensor_parallel_size=1, pipeline_parallel_size=1, enable_expert_parallel=False)
        cache = Some(kv_cache_memory_bytes=None, num_gpu_blocks_override=None, gpu_memory_utilization=0.92)
        model = Some(original_max_model_len=100, is_moe=False)
        self.vllm_config = Some(parallel_config=parallel, cache_config=cache, model_config=model)
    def determine_available_memory(self):
        self.peak_activation_memory, self.non_torch_memory = 30, self.outside
        return 64
    def initialize_from_config(self, config): ...
    def compile_or_warm_up_model(self): return "warm" if self.eager else self.model_runner.capture_model()
""",
}
Import = Callable[[str], Any]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Return a function that imports one of the modules above; they are gone after the test."""
    for name, text in FILES.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "packages")

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            monkeypatch.delitem(sys.modules, name)

    forget()
    monkeypatch.setattr(hub, "config_file", lambda name: (tmp_path, "cache", ""))
    yield importlib.import_module
    forget()


def course(*, is_command: bool = True) -> Course:
    return Course(LoopLimits(3, "steps", None) if is_command else None, lambda: 0)


@pytest.mark.parametrize(("given", "used"), [("auto", "dummy"), ("safetensors", "dummy"), ("dummy", "dummy"), ("gguf", "gguf")])
def test_engine_loads_no_weights(given: str, used: str, imported: Import) -> None:
    with starts.until_ready(course(), lambda: None):
        arguments = imported("vllm.engine.arg_utils").EngineArgs("org/name", load_format=given)
        assert arguments.create_engine_config() == (used, False)
    assert arguments.load_format == used


@pytest.mark.parametrize(("files", "is_skipped"), [(["config.json"], True), (["config.json", "tokenizer.json"], False)])
def test_folder_without_tokenizer_needs_none(files: list[str], is_skipped: bool, imported: Import, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    with starts.until_ready(course(), lambda: None):
        arguments = imported("vllm.engine.arg_utils").EngineArgs(str(tmp_path))
        assert arguments.create_engine_config(usage=None) == ("dummy", is_skipped)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError("no config.json"), "The model 'org/name' has no configuration on this machine: give a folder"),
        (ValueError("max_model_len (99) is greater than 40.0 of the model. To allow it, set X."), "than 40.0 of the model: ch"),
    ],
)
def test_model_or_option_that_engine_rejects_is_wrong_usage(
    error: Exception, said: str, imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_engine_config(arguments: Any) -> None:
        raise error

    module = imported("vllm.engine.arg_utils")
    monkeypatch.setattr(module.EngineArgs, "create_engine_config", create_engine_config)
    with starts.until_ready(course(), lambda: None), pytest.raises(UsageError, match=re.escape(said)):
        module.EngineArgs("org/name").create_engine_config()


@pytest.mark.integration  # imports transformers
def test_model_of_the_built_in_table_needs_no_network(
    imported: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "config_file", lambda name: (None, "", "it is offline"))
    with starts.until_ready(course(), lambda: None):
        arguments = imported("vllm.engine.arg_utils").EngineArgs("Qwen/Qwen3-8B")
        assert arguments.create_engine_config() == ("dummy", True)
        known = json.loads((Path(arguments.model) / "config.json").read_text())
        assert (known["architectures"], known["torch_dtype"], known["hidden_size"]) == (["Qwen3ForCausalLM"], "bfloat16", 4096)
        assert arguments.served_model_name == "Qwen/Qwen3-8B"
        with pytest.raises(UsageError, match=r"mean Qwen/Qwen3-8B or .* Else give a folder with its config\.json"):
            imported("vllm.engine.arg_utils").EngineArgs("somebody/Qwen3-8B")


def test_model_in_the_hubs_cache_stays_as_named(imported: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "config_file", lambda name: (tmp_path, "cache", ""))
    with starts.until_ready(course(), lambda: None):
        assert imported("vllm.engine.arg_utils").EngineArgs("Qwen/Qwen3-8B").model == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("name", "form"), [("RedHatAI/Qwen3-8B-FP8-dynamic", "float-quantized"), ("org/qwen3-8b-quantized.w8a8", "int-quantized")]
)
def test_name_of_a_quantized_model_tells_its_scheme(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    scheme = SimpleNamespace(model_dump=lambda **_: {"targets": ["Linear"]})
    made = SimpleNamespace(preset_name_to_scheme=lambda scheme_name, targets: scheme)
    monkeypatch.setitem(sys.modules, "compressed_tensors", SimpleNamespace(quantization=made))
    monkeypatch.setitem(sys.modules, "compressed_tensors.quantization", made)
    values = models.config(name)
    assert values is not None
    assert values["hidden_size"] == 4096
    assert values["quantization_config"]["format"] == form
    assert values["quantization_config"]["config_groups"] == {"group_0": {"targets": ["Linear"]}}


@pytest.mark.integration  # imports transformers
def test_model_is_served_as_it_is_published() -> None:
    pytest.importorskip("transformers")
    values = models.config("openai/gpt-oss-20b")
    assert values is not None
    assert (values["num_hidden_layers"], values["quantization_config"]["quant_method"]) == (24, "mxfp4")


def test_unknown_model_is_wrong_usage(imported: Import) -> None:
    with starts.until_ready(course(), lambda: None), pytest.raises(UsageError, match="'no/such-model' has no configuration"):
        imported("vllm.engine.arg_utils").EngineArgs("no/such-model")


def test_first_error_of_pydantic_is_said(imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    pydantic = pytest.importorskip("pydantic")

    def create_engine_config(arguments: Any) -> None:
        pydantic.TypeAdapter(int).validate_python("many")

    module = imported("vllm.engine.arg_utils")
    monkeypatch.setattr(module.EngineArgs, "create_engine_config", create_engine_config)
    with (
        starts.until_ready(course(), lambda: None),
        pytest.raises(UsageError, match="options: Input should be a valid integer"),
    ):
        module.EngineArgs("org/name").create_engine_config()


def test_job_ends_when_engine_is_ready(imported: Import) -> None:
    ends, one = [], course()
    with starts.until_ready(one, lambda: ends.append(one.is_stopped)), pytest.raises(StopJob):
        imported("vllm.entrypoints.llm").LLM("org/name")
    assert ends == [False]  # the other processes report first
    assert one.is_stopped
    assert not one.stopped_by  # enough was seen: the command did not end early


def test_server_with_adapters_ends_when_they_are_loaded(imported: Import) -> None:
    with starts.until_ready(course(), lambda: None):
        models = imported("vllm.entrypoints.openai.models.serving").OpenAIServingModels()
        engine = imported("vllm.v1.engine.async_llm").AsyncLLM
        engine(SimpleNamespace(lora_config="an adapter's"))
        models.path = "folder"
        with pytest.raises(StopJob):
            asyncio.run(models.init_static_loras())
        assert models.is_loaded
        models.path = "absent"
        with pytest.raises(UsageError, match="an adapter: No adapter found for absent: give a folder"):
            asyncio.run(models.init_static_loras())
        with pytest.raises(StopJob):
            engine(SimpleNamespace(lora_config=None))


@pytest.mark.parametrize("other", ["a trainer", "blocks on the card", "an end of its own"])
def test_engine_of_job_with_other_work_does_not_end_it(other: str, imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if other == "a trainer":
        monkeypatch.setitem(sys.modules, "transformers.trainer", sys)
    else:
        monkeypatch.delitem(sys.modules, "transformers.trainer", raising=False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 512 * (other == "blocks on the card"))
    one = course(is_command=other != "an end of its own")
    with starts.until_ready(one, lambda: None):
        assert imported("vllm.entrypoints.llm").LLM("org/name").model == "org/name"
    assert not one.is_stopped


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 4}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}])
def test_engine_is_one_rank_without_workers(sizes: dict[str, int], imported: Import) -> None:
    with ranks.one_rank(World(4)):
        arguments = imported("vllm.engine.arg_utils").EngineArgs("org/name", **sizes)
        arguments.create_engine_config()
        queues = imported("vllm.distributed.device_communicators.shm_broadcast").MessageQueue
        queue = queues.create_from_process_group("group", 1)
        queue.wait_until_ready()
        assert queue.broadcast_object("said") == "said"
    assert arguments.distributed_executor_backend == "external_launcher"
    with pytest.raises(TimeoutError):
        queues.create_from_process_group()


@pytest.mark.parametrize(
    ("sizes", "error", "reason"),
    [
        ({"tensor_parallel_size": 2}, UsageError, "add --world-size 2"),
        ({"data_parallel_size": 2}, CannotEstimate, "without --data-parallel-size"),
    ],
)
def test_engine_with_other_ranks_is_refused(
    sizes: dict[str, int], error: type[Exception], reason: str, imported: Import
) -> None:
    with ranks.one_rank(ALONE), pytest.raises(error, match=reason):
        imported("vllm.engine.arg_utils").EngineArgs("org/name", **sizes).create_engine_config()


def test_engine_alone_is_left_alone(imported: Import) -> None:
    with ranks.one_rank(ALONE):
        arguments = imported("vllm.engine.arg_utils").EngineArgs("org/name")
        arguments.create_engine_config()
    assert arguments.distributed_executor_backend is None


CARD = DEVICES["h100"]
UNLIMITED = 1 << 40
FULL = {"a layer": UNLIMITED}  # the stand-in takes half a byte for each token, up to that many tokens
CONFIG = SimpleNamespace(model_config=SimpleNamespace(max_model_len=100, original_max_model_len=100))


@pytest.mark.parametrize(("eager", "graphs_bytes"), [(False, 7), (True, 0)])
def test_notes_accounts_of_engine(eager: bool, graphs_bytes: int, imported: Import) -> None:
    accounts: dict[str, Any] = {}
    driver: list[tuple[int, ...]] = []
    known = engine_memory("0.22.1", CARD.name)
    with vllm_accounts.noted(accounts, CARD, lambda *sizes: driver.append(sizes)):
        worker = imported("vllm.v1.worker.gpu_worker").Worker(eager)
        available = worker.determine_available_memory()
        imported("vllm.v1.engine.core").get_kv_cache_configs(CONFIG, [FULL], [available])
        assert "starts" not in accounts
        assert worker.compile_or_warm_up_model() == ("warm" if eager else 7)
    assert accounts == {
        "engine": "vllm", "version": "0.22.1", "weights_bytes": 500, "activation_bytes": 30, "non_torch_bytes": 2,
        "kv_cache_bytes": 64, "kv_cache_tokens": 250, "max_concurrency": 2.5, "graphs_bytes": graphs_bytes, "starts": True,
        "outside_less_bytes": known.less_bytes, "outside_more_bytes": known.more_bytes,
        "ranks_alike": True, "available_bytes": 64, "request_bytes": 26, "context_tokens": 100, "max_context": 129,
        "tensor_parallel": 1, "pipeline_parallel": 1, "utilization": 0.92,
    }  # fmt: skip
    assert driver == [(known.non_torch_bytes, known.graph_bytes, known.node_bytes)]


@pytest.mark.parametrize(("block_stride", "cache_bytes"), [(8, 64), (0, 128)])  # parts of one block, or blocks
def test_notes_accounts_of_later_engine(
    block_stride: int, cache_bytes: int, imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None):
        worker = imported("vllm.v1.worker.gpu_worker").Worker()
        worker.total_consumed = 503  # weights and all outside torch
        core = imported("vllm.v1.engine.core")
        monkeypatch.setattr(core, "sizes", (64, 64))
        monkeypatch.setattr(core, "Some", type("View", (SimpleNamespace,), {"block_stride": block_stride}))
        core.get_kv_cache_configs(CONFIG, [FULL], [worker.determine_available_memory()])
    assert (accounts["non_torch_bytes"], accounts["utilization"]) == (3, 0.92)
    assert accounts["kv_cache_bytes"] == cache_bytes


def test_sampler_of_odd_vocabulary_grows_the_stack_once(imported: Import) -> None:
    driver: list[tuple[int, ...]] = []
    known = engine_memory("0.22.1", CARD.name)
    graphs = (known.graph_bytes, known.node_bytes)
    sampler = imported("vllm.v1.sample.ops.topk_topp_sampler")  # before the engine's process touches the card
    with vllm_accounts.noted({}, CARD, lambda *sizes: driver.append(sizes)):
        imported("vllm.v1.worker.gpu_worker").Worker().determine_available_memory()
        for rows, vocabulary, k in (
            (1024, 128_256, 9),
            (7, 49_155, 9),
            (1024, 49_155, None),
            (1024, 49_155, 9),
            (512, 49_155, 9),
        ):
            logits = SimpleNamespace(shape=(rows, vocabulary))
            assert sampler.apply_top_k_top_p(logits, k, None) is logits
        assert driver == [(known.non_torch_bytes, *graphs), (stack_bytes(CARD, 49_155), *graphs)]
        del sampler.apply_top_k_top_p_triton  # vLLM before 0.18
        driver.clear()
    with vllm_accounts.noted({}, CARD, lambda *sizes: driver.append(sizes)), pytest.raises(NameError):
        sampler.apply_top_k_top_p(SimpleNamespace(shape=(1024, 49_155)), 9, None)
    assert driver == []


def test_size_of_graphs_is_unknown_until_they_are_captured(imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None):
        worker = imported("vllm.v1.worker.gpu_worker")
        monkeypatch.setattr(worker.Runner, "capture_model", lambda runner: 1 // 0)  # as if time were up
        with pytest.raises(ZeroDivisionError):
            worker.Worker().compile_or_warm_up_model()
    assert not {"graphs_bytes", "starts"} & set(accounts)


@pytest.mark.parametrize(
    ("available", "least"),
    [(40, {"missing_bytes": 10, "max_context": 81}), (0, {"missing_bytes": 50}), (-9, {"missing_bytes": 50})],
)
def test_notes_failed_check_of_engine(available: int, least: dict[str, int], imported: Import) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None), pytest.raises(ValueError, match="No available memory"):
        imported("vllm.v1.engine.core").get_kv_cache_configs(CONFIG, [FULL], [available])
    assert accounts == {
        "starts": False, "reason": "No available memory for the cache blocks.", "request_bytes": 50, "context_tokens": 100,
        **least,
    }  # fmt: skip
    assert CONFIG.model_config.max_model_len == 100


def test_sliding_window_has_no_longest_context(imported: Import) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None):
        imported("vllm.v1.engine.core").get_kv_cache_configs(CONFIG, [{"a layer": 20}], [64])
    assert accounts["kv_cache_bytes"] == 64
    assert "max_context" not in accounts


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("cache_config", "kv_cache_memory_bytes", 2**30), ("cache_config", "num_gpu_blocks_override", 9),
        ("model_config", "original_max_model_len", -1), ("model_config", "is_moe", True),
    ],
)  # fmt: skip
def test_division_that_other_parts_decide_tells_no_share(part: str, name: str, value: int, imported: Import) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None):
        worker = imported("vllm.v1.worker.gpu_worker").Worker()
        setattr(getattr(worker.vllm_config, part), name, value)
        worker.determine_available_memory()
    assert "utilization" not in accounts


def test_share_above_free_memory_is_refused_once_the_peak_is_seen(imported: Import) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None):
        worker = imported("vllm.v1.worker.gpu_worker")
        assert worker.request_memory(SimpleNamespace(free_memory=93), None) == 92
        assert worker.request_memory(SimpleNamespace(free_memory=91), None, held_elsewhere=0) == 91
        available = worker.Worker().determine_available_memory()
        with pytest.raises(ValueError, match="less than desired"):
            imported("vllm.v1.engine.core").get_kv_cache_configs(CONFIG, [FULL], [available])
    assert (accounts["starts"], accounts["reason"]) == (False, "Free memory is less than desired.")
    assert not {"utilization", "missing_bytes", "max_context"} & set(accounts)


def test_profile_on_a_full_card_tells_nothing_outside_torch(imported: Import) -> None:
    accounts: dict[str, Any] = {}
    with vllm_accounts.noted(accounts, CARD, lambda *_: None):
        worker = imported("vllm.v1.worker.gpu_worker").Worker()
        worker.outside = -5
        worker.determine_available_memory()
    assert not {"non_torch_bytes", "utilization"} & set(accounts)


# vLLM 0.11 touches the card while the module of its worker is imported.
STARTS = """
import multiprocessing

def main():
    import torch
    from vllm.v1.worker.gpu_worker import Worker
    model = torch.nn.Linear(8, 8, device="cuda")
    Worker().determine_available_memory()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=main)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""


@pytest.mark.integration
def test_card_touched_by_import_of_worker_changes_nothing(
    tracer: Callable[[], NullGpuTracer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = "import torch; torch.zeros(1, device='cuda')\n"
    for name, text in {**FILES, "serve.py": STARTS}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(touch + text if name.endswith("gpu_worker.py") else text)
    monkeypatch.chdir(tmp_path)
    found = tracer().trace(JobText(command=("serve.py",)).job(CARD))
    assert found.status == "ok", found.message
    assert found.trace is not None
    assert found.trace.header[SERVING]["weights_bytes"] == 500


def test_part_that_some_releases_lack_is_not_replaced(imported: Import) -> None:
    with contextlib.ExitStack() as stack:
        replace_when_imported(stack, "vllm.v1.worker.gpu_worker", "absent", lambda absent: 1 // 0, if_there=True)
        imported("vllm.v1.worker.gpu_worker")


def test_own_folder_ends_with_job_and_shares_model_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    lent = tmp_path / "lent"
    for _ in range(2):  # in each process of the job
        assert engine.own_folder(str(lent)) == str(lent / "vllm")
    assert (lent / "vllm" / "modelinfos").resolve() == tmp_path / "cache" / "vllm-modelinfos"
