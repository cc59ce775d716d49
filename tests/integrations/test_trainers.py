from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.datasets import journal
from vramcast.estimates.estimator import Estimator
from vramcast.hardware.cards import device
from vramcast.jobs.job import Command, Job
from vramcast.tracer.processes.job_process import python_path

ROOT = Path(__file__).parents[2]
Probe = Callable[..., tuple[dict[str, Any], Any]]

# An engine that answers at once: a batch of two fits.
MADE_UP = """
from types import SimpleNamespace
from vramcast.estimates.verdict import Verdict
from vramcast.integrations import trainer_step

def estimate(self, estimator, size):
    verdict = Verdict("fits" if size <= 2 else "does not fit", f"a batch of {size}")
    return SimpleNamespace(verdict=verdict, allocated=1, reserved=2, process=3, upper_bound=4)

trainer_step.TrainerStep.estimate = estimate
"""
HUGGING_FACE = """
import torch, warnings
warnings.simplefilter("ignore")
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from vramcast.integrations.transformers import VramcastCallback

config = BertConfig(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
row = dict(input_ids=[1] * 16, labels=1)
arguments = TrainingArguments(OUT + "/trainer", max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no",
                              logging_steps=1, disable_tqdm=True, use_cpu=USE_CPU, dataloader_pin_memory=False)
callback = VramcastCallback(OUT, name="my job", on="a100-40gb", when_too_large=ACTION)
model = BertForSequenceClassification(config)
trainer = Trainer(model, arguments, train_dataset=[row] * 64, callbacks=[callback])
"""
LIGHTNING = """
import torch, warnings
warnings.simplefilter("ignore")
import pytorch_lightning as pl
from vramcast.integrations.lightning import VramcastCallback

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
    def training_step(self, batch, index):
        if ERROR is not None and index == 1: raise ERROR
        assert len(batch[0]) == SIZE
        return self.layer(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 16)), batch_size=8)
trainer = pl.Trainer(max_steps=3, accelerator="cpu", devices=1, logger=pl.loggers.CSVLogger(OUT), log_every_n_steps=1,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=OUT,
                     callbacks=[VramcastCallback(on="a100-40gb", when_too_large=ACTION)])
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
from vramcast.integrations.accelerate import watched

accelerator = Accelerator(cpu=True, project_dir=OUT)
model, data = torch.nn.Linear(16, 4), torch.utils.data.TensorDataset(torch.zeros(64, 16), torch.zeros(64, dtype=torch.long))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
logged, accelerator.log = [], lambda values, step: logged.append((step, *values))
with watched(accelerator, model, optimizer, loader, on="a100-40gb", when_too_large="resize", log_every=2):
    for x, y in loader:
        with accelerator.accumulate(model):
            assert len(x) == 2
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
assert accelerator.gradient_accumulation_steps == 4
assert [step for step, *names in logged] == [2, 4, 6, 8], logged
assert logged[0][1] == "vramcast/predicted_allocated_bytes"
"""
# By tracker, what reads its files back. For all three: pip install wandb mlflow; then pytest -k trackers.
TRACKERS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
(file,) = Path(OUT).rglob("events.out*")
events = EventAccumulator(str(file))
events.Reload()
values = [one.value for one in events.Scalars("train/vramcast/predicted_reserved_bytes")]
""",
    "mlflow": """
import mlflow
client = mlflow.MlflowClient()
(run,) = client.search_runs(["0"])
values = [one.value for one in client.get_metric_history(run.info.run_id, "vramcast/predicted_reserved_bytes")]
""",
    "wandb": """
import json, wandb
from wandb.proto.wandb_internal_pb2 import Record
wandb.finish()
(file,) = Path(OUT).rglob("run-*.wandb")
data, at, whole, values = file.read_bytes(), 7, b"", []
while at + 7 <= len(data):  # the format of LevelDB's log, after a header of seven bytes
    if (left := -at % 32768) and left < 7:
        at += left
        continue
    size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
    whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
    if kind in (1, 4):  # a whole record, or its last part
        items = {item.key or "/".join(item.nested_key): item.value_json for item in Record.FromString(whole).history.item}
        values += [json.loads(items[key]) for key in items if key.endswith("vramcast/predicted_reserved_bytes")]
        whole = b""
""",
}
OUT_OF_MEMORY = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")'


def run_python(source: str, tmp_path: Path) -> int:
    path = tmp_path / "job.py"
    # A torchvision of another build may be installed with this torch; transformers and Lightning import it.
    path.write_text(
        "from vramcast.tracer.program.imports import define_torchvision_operators as d; d()\n"
        + f"OUT = {str(tmp_path)!r}\n"
        + textwrap.dedent(source)
    )
    return subprocess.run([sys.executable, str(path)], env={"PYTHONPATH": python_path()}, cwd=tmp_path, timeout=300).returncode


def the_run(tmp_path: Path) -> Any:
    (run,) = journal.read_runs(tmp_path / "runs.jsonl").runs
    return run


def test_trainer_is_resized_logs_and_writes_one_row(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("transformers")
    need("accelerate")
    source = (
        "USE_CPU, ACTION = True, 'resize'"
        + MADE_UP
        + HUGGING_FACE
        + "sizes = []\n"
        + "model.register_forward_pre_hook(lambda m, a, k: sizes.append(len(k['input_ids'])), with_kwargs=True)\n"
        + "trainer.train()\n"
        + "assert (sizes, trainer.state.global_step) == ([2] * 6, 3), sizes\n"
        + "logged = [one for one in trainer.state.log_history if one.get('vramcast/predicted_reserved_bytes') == 2]\n"
        + "assert [one['step'] for one in logged] == [1, 2, 3], logged\n"
    )
    assert run_python(source, tmp_path) == 0
    run = the_run(tmp_path)
    assert (run.workload.name, run.workload.batch_size, run.workload.precision) == ("my job", 2, None)
    assert (run.measurement.status, run.measurement.steps, run.measurement.reserved_bytes) == ("ok", 3, None)
    assert run.workload.features["layers.Embedding"] == 3
    assert "transformers" in run.passport.libraries


@pytest.mark.release
@pytest.mark.parametrize("tracker", TRACKERS)
def test_trackers_files_have_the_peaks(need: Callable[[str], Any], tmp_path: Path, tracker: str) -> None:
    for name in ("transformers", "accelerate", tracker):
        need(name)
    source = f"""
import os
from pathlib import Path
os.environ.update(
    MLFLOW_TRACKING_URI=f"sqlite:///{{OUT}}/mlflow.db", WANDB_MODE="offline", WANDB_DIR=OUT, WANDB_SILENT="true",
    TENSORBOARD_LOGGING_DIR=OUT, DO_NOT_TRACK="1", PATH=os.defpath, HOME=OUT,
)
USE_CPU, ACTION = True, "warn"
{MADE_UP}{HUGGING_FACE.replace("report_to=[]", f"report_to=['{tracker}']")}
trainer.train()
{TRACKERS[tracker]}
assert values == [2, 2, 2], values
"""
    assert run_python(source, tmp_path) == 0


@pytest.mark.release
@pytest.mark.parametrize("late", [False, True])
def test_trainer_out_of_memory_leaves_report_by_checkpoints(need: Callable[[str], Any], tmp_path: Path, late: bool) -> None:
    need("transformers")
    need("accelerate")
    source = "USE_CPU, ACTION = True, 'warn'" + MADE_UP + HUGGING_FACE
    if late:  # the callback misses the end of the trainer's __init__
        source += (
            "trainer.pop_callback(callback); del trainer.train; callback._asked_of = None; trainer.add_callback(callback)\n"
        )
    source += f"def full(*_, **__): raise {OUT_OF_MEMORY}\ntrainer.training_step = full\ntrainer.train()"
    assert run_python(source, tmp_path) == 1
    assert (the_run(tmp_path).measurement.status, the_run(tmp_path).measurement.censored) == ("oom", True)
    text = (tmp_path / "trainer" / "vramcast-out-of-memory.txt").read_text()
    assert "Tried to allocate 2.00 MiB.\n\nBefore the first step: does not fit: a batch of 4\n" in text


@pytest.mark.release
def test_trainers_peaks_are_those_of_its_script_on_the_null_gpu(needs_null_gpu: None, need: Any, tmp_path: Path) -> None:
    """Test the largest batch, autocast, checkpointing, accumulation and clipping; and that losses stay as they are."""
    need("transformers")
    need("accelerate")
    before, after = HUGGING_FACE.split("callback = ")
    source = f"OUT = {str(tmp_path)!r}; ACTION = 'warn'; USE_CPU = not torch.cuda.is_available()\n" + before
    source = "import torch\n" + source.replace("hidden_size=64", "hidden_size=512").replace("[1] * 16", "[1] * 256")
    source = source.replace("USE_CPU,", "USE_CPU, bf16=True, gradient_checkpointing=True, gradient_accumulation_steps=2,")
    source += "callback = " + after + "trainer.train()\n"
    assert run_python(source + "import json; json.dump([callback.predicted.allocated, callback.predicted.reserved], "
                      "open(OUT + '/predicted.json', 'w'))", tmp_path) == 0  # fmt: skip
    (tmp_path / "train.py").write_text(source)
    job = Job(device("a100-40gb"), command=Command((str(tmp_path / "train.py"),)), search_path=tuple(search_path()))
    found = Estimator(tracer="nullgpu").estimate_job(job)
    allocated, reserved = json.loads((tmp_path / "predicted.json").read_text())
    assert allocated == pytest.approx(found.allocated, rel=0.01)
    assert reserved == pytest.approx(found.reserved, rel=0.02)


def test_trainer_on_card_writes_peaks(probe: Probe, tmp_path: Path) -> None:
    source = f"OUT = {str(tmp_path)!r}; USE_CPU = False; ACTION = 'raise'" + HUGGING_FACE
    noted, _ = probe(
        source
        + "torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"  # a peak before training is not the job's
        + "torch.cuda.empty_cache()\ntrainer.train()\n"
        + "note(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())",
        search_path=search_path(),
    )
    (run,) = journal.read_runs(tmp_path / "runs.jsonl").runs
    assert run.measurement.allocated_bytes == noted["allocated"] < 1 << 30
    assert run.measurement.reserved_bytes == noted["reserved"] < 1 << 30
    assert run.passport.gpu == "NVIDIA A100-SXM4-40GB"


def search_path() -> tuple[str, ...]:
    """Return the path without the checkout's root, whose folder `datasets` would shadow Hugging Face's package."""
    return tuple(entry for entry in sys.path if entry not in ("", str(ROOT)))


@pytest.mark.parametrize("error", [pytest.param("None", marks=pytest.mark.release), "KeyError('broken')", OUT_OF_MEMORY])
def test_lightning_writes_row_of_failed_fit(need: Callable[[str], Any], tmp_path: Path, error: str) -> None:
    need("pytorch_lightning")
    source = f"import torch\nERROR, SIZE, ACTION = {error}, 8, 'record'" + LIGHTNING + "trainer.fit(Net(), data)"
    assert run_python(source, tmp_path) == (error != "None")
    run = the_run(tmp_path)
    expected = {"None": ("ok", ""), OUT_OF_MEMORY: ("oom", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.")}
    assert (run.measurement.status, run.measurement.message) == expected.get(error, ("error", "KeyError: 'broken'"))
    assert (run.workload.features["layers.Linear"], run.workload.optimizer) == (1, "AdamW")
    assert (tmp_path / "vramcast-out-of-memory.txt").exists() == (error == OUT_OF_MEMORY)


@pytest.mark.release
def test_lightning_is_resized_and_logs(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("pytorch_lightning")
    source = "ERROR, SIZE, ACTION = None, 2, 'resize'" + MADE_UP + LIGHTNING + "trainer.fit(Net(), data)\n"
    source += "assert (trainer.accumulate_grad_batches, trainer.global_step) == (4, 3)"
    assert run_python(source, tmp_path) == 0
    (metrics,) = (tmp_path / "lightning_logs").glob("*/metrics.csv")
    assert "vramcast/predicted_upper_bound_bytes" in metrics.read_text()


@pytest.mark.release
def test_accelerates_loop_is_resized_and_logs(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("accelerate")
    assert run_python(MADE_UP + ACCELERATE, tmp_path) == 0
    assert (the_run(tmp_path).measurement.status, the_run(tmp_path).measurement.steps) == ("ok", 8)
