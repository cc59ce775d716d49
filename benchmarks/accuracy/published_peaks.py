"""Peaks that projects published for their own training scripts, compared with `vramcast run` of the same scripts.

    python -m benchmarks.accuracy.published_peaks --nanovlm NANOVLM.git --packages build/transformers-4.51
    python -m benchmarks.accuracy.published_peaks --fsdp-qlora FSDP_QLORA.git --packages FOLDER
    python -m benchmarks.accuracy.published_peaks --ms-swift --packages FOLDER

The scripts come from git directories, at the commit that published the numbers, and run unchanged. Offline replacements for the
hub's files are a tokenizer of the same vocabulary, weights of the same shapes, and pictures of one colour. Nothing of the
projects is in this repository. ms-swift's table has no script; its rows of Yi 6B are rebuilt from the settings that it names.
For fsdp_qlora, FOLDER has transformers 4.40.2, tokenizers 0.19.1, huggingface_hub 0.23.4, peft 0.10.0, accelerate 0.30.1,
datasets 2.19.2 and fastcore 1.5.54.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.accuracy.figures import SUMMARY_COLUMNS, summarize
from benchmarks.accuracy.runner import BUILD, read_rows
from benchmarks.tables import table
from vramcast.core.units import MIB
from vramcast.jobs.stub_checkpoint import write_stub
from vramcast.jobs.stub_tokenizer import write_tokenizer

KEPT: Final = BUILD / "published_peaks.jsonl"
_TIMEOUT_S: Final = 900.0  # arbitrary: ten batch sizes in one process take two minutes on an idle core


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number and ours, in MiB. `note` is the reason why they cannot be equal, if known.

    `group` is the model and its training method; `said` the whole JSON of `vramcast run`, {} without one.
    """

    job: str
    metric: str
    published_mib: float
    here_mib: float | None
    note: str = ""
    group: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> list[object]:
        """Return the table cells."""
        if self.here_mib is None:
            return [self.job, self.metric, f"{self.published_mib:,.2f}", "-", "-", self.note]
        off = f"{100 * (self.here_mib / self.published_mib - 1):+.2f} %"
        return [self.job, self.metric, f"{self.published_mib:,.2f}", f"{self.here_mib:,.2f}", off, self.note]


def export(repository: Path, commit: str, paths: Sequence[str], folder: Path) -> None:
    """Write some paths of a commit to a folder.

    Raises:
        SystemExit: the repository does not have the paths.
    """
    done = subprocess.run(["git", "--git-dir", str(repository), "archive", commit, *paths], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"'{repository}' has no {commit[:8]} with {', '.join(paths)}: {done.stderr.decode().strip()[:200]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def text_of(repository: Path, commit: str, path: str) -> str:
    """Return a file of a commit; "" if it does not exist."""
    command = ["git", "--git-dir", str(repository), "show", f"{commit}:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def run(
    command: Sequence[str], folder: Path, packages: Path | None, *, device: str, steps: int | None = None, world_size: int = 1
) -> tuple[dict[str, Any], str]:
    """Return the JSON of `vramcast run` for a command, and the command's output."""
    paths = [str(Path.cwd()), *([str(packages.absolute())] if packages else []), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    far = ["--until", "end"] if steps is None else ["--until", "steps", "--steps", str(steps)]
    limits = ["--budget-s", str(_TIMEOUT_S), "--timeout", str(_TIMEOUT_S)]
    ranks = [] if world_size == 1 else ["--world-size", str(world_size), "--ranks", "0", "--no-bracket"]
    words = [sys.executable, "-m", "vramcast", "run", "--json", "--device", device, *far, *limits, *ranks, "--", *command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout), done.stderr
    except ValueError:
        return {"message": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}, done.stderr


# ---------------------------------------------------------------------------------------------------- nanoVLM
# spec: README.md of the two commits that published a table, made by their own measure_vram.py on an H100
_NANOVLM: Final = (
    ("1eed2578489c10cf7c74f631824d63b682d07a9b", "HuggingFaceTB/cosmo2-tokenizer"),
    ("91a3b9378fc19c43a12866832da1792928103d22", "HuggingFaceTB/SmolLM2-360M-Instruct"),
)
_BATCH: Final = re.compile(r"^Batch Size (\d+): *(OOM \(Peak before OOM: )?([\d.]+) MB", re.MULTILINE)
_LOADED: Final = re.compile(r"VRAM allocated after loading model to device: ([\d.]+) MB")
# The vocabulary of both tokenizers, and their one special token.
_SMOL_VOCABULARY: Final = SimpleNamespace(
    vocab_size=49152, bos_token_id=0, eos_token_id=0, pad_token_id=0, max_position_embeddings=8192
)
_ROWS: Final = '''"""In place of the hub's data set: as many rows as anybody asks for."""
from PIL import Image


class Rows:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def select(self, which):
        return Rows(len(which))

    def __getitem__(self, index):
        return {"images": [Image.new("RGB", (64, 64))], "texts": [{"user": "what is it ?", "assistant": "a picture"}]}


def load_dataset(path, name=None, split=None):
    return Rows(4096) if split else {"train": Rows(4096)}
'''


def batches(text: str) -> dict[str, float]:
    """Return {name: MiB} from the lines that the script prints: after loading, and the peak of each batch size.

    A batch size that ended out of memory has a name of its own: its peak is the memory held when the card was full.
    """
    loaded = _LOADED.search(text)
    found = {"the model on the card": float(loaded[1])} if loaded else {}
    for size, is_full, mib in _BATCH.findall(text):
        found[f"batch {size}{', out of memory' if is_full else ''}"] = float(mib)
    return found


def nanovlm(repository: Path, packages: Path | None) -> Iterator[Figure]:
    """Yield the figures of both tables in the README, and those that the same script prints here."""
    for commit, tokenizer in _NANOVLM:
        published = batches(text_of(repository, commit, "README.md"))
        sizes = [name.split()[1].rstrip(",") for name in published if name.startswith("batch ")]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            export(repository, commit, ["measure_vram.py", "models", "data"], folder)
            config = folder / "models" / "config.py"  # weights are not loaded: the shapes do not depend on them
            config.write_text(
                config.read_text().replace("load_backbone_weights: bool = True", "load_backbone_weights: bool = False")
            )
            (folder / "datasets.py").write_text(_ROWS)
            (folder / tokenizer).mkdir(parents=True)
            write_tokenizer(_SMOL_VOCABULARY, folder / tokenizer)
            said, printed = run(["measure_vram.py", "--batch_sizes", " ".join(sizes)], folder, packages, device="h100")
        here = batches(printed)
        for what, mib in published.items():
            job = f"nanoVLM {commit[:8]}, {what}"
            yield Figure(job, "allocated", mib, here.get(what), group=f"nanoVLM {commit[:8]}", said=said)


# ------------------------------------------------------------------------------------------------- fsdp_qlora
_FSDP_QLORA: Final = "05ed9f2a60f96a0795cb082bceab70a9b19fd213"
# spec: config.json of the models, the parts that decide shapes
_LLAMA: Final = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA2_7B: Final = {
    **_LLAMA, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
}  # fmt: skip
_MODELS: Final = {
    "Llama-2 7B": LLAMA2_7B,
    "Llama-2 70B": {
        **_LLAMA, "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    },
    "Yi 34B": {
        **_LLAMA, "vocab_size": 64000, "hidden_size": 7168, "intermediate_size": 20480, "num_hidden_layers": 60,
        "num_attention_heads": 56, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    },
    "Mistral 7B v0.2 Base": {
        **_LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "sliding_window": None,
    },
}  # fmt: skip
_TOKENS: Final = "output"  # spec: get_dataloader repeats this word, without spaces, as a text longer than the context


def fsdp_qlora(repository: Path, packages: Path | None, only: str = "") -> Iterator[Figure]:
    """Yield the published rows, each the command next to it, over the two cards that the script finds.

    Args:
        repository: The project's git directory.
        packages: Folder that comes first on the import path.
        only: Use only rows whose name contains this.
    """
    seen = set()
    for row in read_rows("public/fsdp_qlora.csv"):
        kind, layout = row["job"].split("--train_type ")[1].split()[0], row["parallelism"].removeprefix("FSDP 2 GPUs ")
        length = row["seq"].replace(",", "")
        name = f"{row['model']} {kind}, batch {row['batch']} x {length}, {layout}, {row['gpu']}"
        if name in seen or only not in name:
            continue
        seen.add(name)
        yield _fsdp_qlora(repository, packages, name, row, length)


def _fsdp_qlora(repository: Path, packages: Path | None, name: str, row: dict[str, str], length: str) -> Figure:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        export(repository, _FSDP_QLORA, ["train.py", "profiling_utils.py", "scripts"], folder)
        (folder / "config.json").write_text(json.dumps(_MODELS[row["model"]]))
        model = write_stub(str(folder / "config.json"), folder / "model", dtype="float16").folder
        split_at(_TOKENS, model / "tokenizer.json")
        words = row["job"].replace("1024", "64").split()[1:]  # samples: all steps are alike
        command = [
            *words, "--model_name", str(model), "--batch_size", row["batch"], "--context_length", length,
            "--log_to", "stdout", "--loading_workers", "1",
        ]  # fmt: skip
        card = row["gpu"].removeprefix("2x ").lower().replace(" ", "")
        answer, _ = run(command, folder, packages, device=card, steps=3, world_size=2)
    early = [said for said in answer.get("warnings", []) if "ended early" in said]
    peaks = None if early else answer.get("peaks")
    note = "" if peaks else "".join(early or answer.get("message", ""))[-80:]
    here = peaks["reserved"] / MIB if peaks else None
    group = f"fsdp_qlora {row['model']}"
    return Figure(f"fsdp_qlora, {name}", "reserved", float(row["value_mib"]), here, note, group, answer)


def split_at(word: str, path: Path) -> None:
    """Make a tokenizer of `write_tokenizer` see a token in each `word`, even without separators."""
    tokenizer = json.loads(path.read_text())
    tokenizer["pre_tokenizer"] = {"type": "Split", "pattern": {"String": word}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(tokenizer))


# --------------------------------------------------------------------------------------------------- ms-swift
# spec: config.json of Yi 6B, the parts that decide shapes
YI_6B: Final = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64000, "hidden_size": 4096,
    "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 4,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# spec: the table's own defaults: LoRA of rank 8, batch 1, checkpointing, bf16, on q, k and v, which gives the 4.7186 M
# trainable parameters that it prints for Llama 3 8B
_YI_SCRIPT: Final = """
import sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

length = int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], torch_dtype=torch.bfloat16, device_map={"": 0})
lora = LoraConfig(r=8, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj", "k_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(model, lora)
model.enable_input_require_grads()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(10, 1000, (length,))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


arguments = TrainingArguments(
    "out", bf16=True, gradient_checkpointing=True, per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=3,
    save_strategy="no", report_to=[], optim="adamw_torch",
)
Trainer(model, arguments, train_dataset=Texts()).train()
"""


def ms_swift(packages: Path | None) -> Iterator[Figure]:
    """Yield the rows of Yi 6B, whose architecture is Llama's; the model code of the others came from the hub."""
    rows = [row for row in read_rows("public/ms_swift.csv") if row["model"] == "yi-6b-chat"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(YI_6B))
        (folder / "train.py").write_text(_YI_SCRIPT)
        model = write_stub(str(folder / "config.json"), folder / "model", dtype="bfloat16").folder
        for row in rows:
            answer, _ = run(["train.py", str(model), row["seq"]], folder, packages, device="a100-80gb", steps=3)
            peaks = answer.get("peaks")
            note = "rebuilt from the settings named" if peaks else answer.get("message", "")[:80]
            job = f"ms-swift, Yi 6B LoRA, {row['seq']} tokens"
            here = peaks["reserved"] / MIB if peaks else None
            yield Figure(job, "reserved", float(row["value_mib"]), here, note, "ms-swift Yi 6B", answer)


def keep(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Yield the figures after writing each to disk."""
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        with KEPT.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(figure)) + "\n")
        yield figure


def kept_figures() -> list[Figure]:
    """Return the stored figures, the last of each job."""
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    return list({figure.job: figure for figure in (Figure(**json.loads(line)) for line in lines)}.values())


def report(figures: Iterable[Figure]) -> str:
    """Return the tables as Markdown."""
    figures = list(figures)
    columns = ["job", "metric", "published, MiB", "here, MiB", "error", "note"]
    pairs = [(figure.here_mib, figure.published_mib) for figure in figures if figure.here_mib is not None]
    rows = [["all", *summarize(pairs).cells()]]
    return f"{table(columns, [figure.cells for figure in figures])}\n\n{table(['rows', *SUMMARY_COLUMNS], rows)}"


def main() -> None:
    """Run the projects whose repositories are given, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nanovlm", type=Path, metavar="GITDIR", help="a clone of huggingface/nanoVLM")
    parser.add_argument("--fsdp-qlora", type=Path, metavar="GITDIR", help="a clone of AnswerDotAI/fsdp_qlora")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="first folder on the import path: older libraries")
    parser.add_argument("--ms-swift", action="store_true", help="run the rows of Yi 6B")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows of fsdp_qlora whose name contains TEXT")
    options = parser.parse_args()
    figures: list[Figure] = []
    if options.nanovlm:
        figures += keep(nanovlm(options.nanovlm, options.packages))
    if options.fsdp_qlora:
        figures += keep(fsdp_qlora(options.fsdp_qlora, options.packages, options.only))
    if options.ms_swift:
        figures += keep(ms_swift(options.packages))
    print(report(figures))


if __name__ == "__main__":
    main()
