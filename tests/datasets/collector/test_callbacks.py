from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramcast.datasets import journal
from vramcast.tracer.processes.job_process import python_path

ROOT = Path(__file__).parents[3]
Probe = Callable[..., tuple[dict[str, Any], Any]]

HUGGING_FACE = """
import torch, warnings
warnings.simplefilter("ignore")
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from vramcast.datasets.collector.callbacks import hugging_face

config = BertConfig(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
row = dict(input_ids=[1] * 16, labels=1)
arguments = TrainingArguments(OUT + "/trainer", max_steps=3, per_device_train_batch_size=4, report_to=[], save_strategy="no",
                              logging_strategy="no", disable_tqdm=True, use_cpu=USE_CPU, dataloader_pin_memory=False)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=[row] * 64,
                  callbacks=[hugging_face(OUT, "my job")])
"""
LIGHTNING = """
import torch, warnings
warnings.simplefilter("ignore")
import pytorch_lightning as pl
from vramcast.datasets.collector.callbacks import lightning

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
    def training_step(self, batch, index):
        if RAISES and index == 1: raise KeyError("broken")
        return self.layer(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(64, 16)), batch_size=8)
trainer = pl.Trainer(max_steps=3, accelerator=ACCELERATOR, devices=1, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False, callbacks=[lightning(OUT)])
"""


def run_python(source: str, tmp_path: Path) -> int:
    path = tmp_path / "job.py"
    # A torchvision of another build may be installed with this torch; transformers and Lightning import it.
    path.write_text(
        "from vramcast.tracer.program.imports import define_torchvision_operators as d; d()\n" + textwrap.dedent(source)
    )
    return subprocess.run([sys.executable, str(path)], env={"PYTHONPATH": python_path()}, cwd=tmp_path, timeout=300).returncode


def test_hugging_face_trainer_writes_one_row(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("transformers")
    need("accelerate")
    assert run_python(f"OUT = {str(tmp_path)!r}; USE_CPU = True" + HUGGING_FACE + "trainer.train()", tmp_path) == 0
    (run,) = journal.read_runs(tmp_path / "runs.jsonl").runs
    assert (run.workload.name, run.workload.batch_size, run.workload.precision) == ("my job", 4, None)
    assert (run.measurement.status, run.measurement.steps, run.measurement.reserved_bytes) == ("ok", 3, None)
    assert run.workload.features["layers.Embedding"] == 3
    assert "transformers" in run.passport.libraries


@pytest.mark.release
def test_exiting_training_writes_its_row(need: Callable[[str], Any], tmp_path: Path) -> None:
    need("transformers")
    need("accelerate")
    source = HUGGING_FACE + "trainer.training_step = lambda *a, **k: 1 / 0\ntrainer.train()"
    assert run_python(f"OUT = {str(tmp_path)!r}; USE_CPU = True" + source, tmp_path) == 1
    (run,) = journal.read_runs(tmp_path / "runs.jsonl").runs
    assert (run.measurement.status, run.measurement.censored) == ("unknown", True)


def test_trainer_on_card_writes_peaks(probe: Probe, tmp_path: Path) -> None:
    source = f"OUT = {str(tmp_path)!r}; USE_CPU = False" + HUGGING_FACE
    # Without the checkout's root, whose folder `datasets` would shadow Hugging Face's package.
    path = tuple(entry for entry in sys.path if entry not in ("", str(ROOT)))
    noted, _ = probe(
        source
        + "torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"  # a peak before training is not the job's
        + "torch.cuda.empty_cache()\ntrainer.train()\n"
        + "note(allocated=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())",
        search_path=path,
    )
    (run,) = journal.read_runs(tmp_path / "runs.jsonl").runs
    assert run.measurement.allocated_bytes == noted["allocated"] < 1 << 30
    assert run.measurement.reserved_bytes == noted["reserved"] < 1 << 30
    assert run.passport.gpu == "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize("raises", [pytest.param(False, marks=pytest.mark.release), True])
def test_lightning_writes_row_of_failed_fit(need: Callable[[str], Any], tmp_path: Path, raises: bool) -> None:
    need("pytorch_lightning")
    source = f"OUT = {str(tmp_path)!r}; ACCELERATOR = 'cpu'; RAISES = {raises}" + LIGHTNING + "trainer.fit(Net(), data)"
    assert run_python(source, tmp_path) == (1 if raises else 0)
    (run,) = journal.read_runs(tmp_path / "runs.jsonl").runs
    expected = ("error", "KeyError: 'broken'") if raises else ("ok", "")
    assert (run.measurement.status, run.measurement.message) == expected
    assert (run.workload.features["layers.Linear"], run.workload.optimizer) == (1, "AdamW")
