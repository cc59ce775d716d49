"""The time that the callbacks of `vramcast.integrations` take of a step, measured inside one run: their events, timed.

    python -m benchmarks.speed.callbacks [STEPS]

Each event of the callback is timed by a wrapper, whose own time counts too. A small network on one CPU core makes the step.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# The checkout's folder `datasets` is not Hugging Face's package.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parents[2]]

import pytorch_lightning  # noqa: E402
import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402

from vramcast.integrations import lightning, transformers  # noqa: E402

NETWORK: Any = GPT2LMHeadModel
MODEL = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=2000, bos_token_id=0, eos_token_id=0)
ROWS: Any = [{"input_ids": row, "labels": row} for row in torch.randint(2000, (4096, 64))]


class Watch:
    """The summed time of a callback's events from the first step to the last."""

    def __init__(self, callback: Any, first: str) -> None:
        self.callback_s, self.began = 0.0, 0.0
        for name in dir(callback):
            if name.startswith("on_") and not name.endswith(("init_end", "train_end", "fit_end")):
                setattr(callback, name, self._timed(getattr(callback, name), is_first=name == first))

    def _timed(self, event: Any, *, is_first: bool) -> Any:
        def timed(*positional: Any, **named: Any) -> None:
            start = time.perf_counter()
            event(*positional, **named)
            self.callback_s += time.perf_counter() - start
            if is_first:
                self.callback_s, self.began = 0.0, time.perf_counter()

        return timed

    def row(self, name: str, steps: int) -> str:
        """Return a row of the table."""
        total_s = time.perf_counter() - self.began
        return (
            f"| {name} | {total_s / steps * 1e3:.1f} | {self.callback_s / steps * 1e6:.1f} | {self.callback_s / total_s:.4%} |"
        )


class _Module(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = NETWORK(MODEL)

    def training_step(self, batch: Any, index: int) -> Any:
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    """Print the table."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    torch.set_num_threads(1)
    print("| trainer | step, ms | callback, us a step | share |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as out:
        callback = transformers.VramcastCallback(out, when_too_large="record")
        watch = Watch(callback, "on_train_begin")
        plain: Any = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
        options = TrainingArguments(out, max_steps=steps, logging_steps=50, **plain)
        Trainer(NETWORK(MODEL), options, train_dataset=ROWS, callbacks=[callback]).train()
        print(watch.row("transformers", steps))
        other = lightning.VramcastCallback(out, when_too_large="record")
        watch = Watch(other, "on_train_start")
        usual: Any = {"accelerator": "cpu", "logger": pytorch_lightning.loggers.CSVLogger(out), "default_root_dir": out}
        trainer = pytorch_lightning.Trainer(max_steps=steps, callbacks=[other], **usual)
        trainer.fit(_Module(), torch.utils.data.DataLoader(ROWS, batch_size=8))
        print(watch.row("Lightning", steps))


if __name__ == "__main__":
    main()
