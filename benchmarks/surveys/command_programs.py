"""Training programs as people write them: plain loops, accelerate, Lightning, Trainer, TRL, Ultralytics, and timm's scripts.

Each takes its batch from where its kind of program has it: a constant, an option, a variable, a YAML or JSON file, or a search.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

# What a model gets, and how it is built: `Data` has `rows` samples, and a batch of it is (input, target).
_IMAGES: Final = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index): return torch.zeros(3, {size}, {size}), index % 10
"""
_TOKENS: Final = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index): return torch.zeros({size}, dtype=torch.long), index % 10
"""
_VECTORS: Final = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 22
    def __getitem__(self, index): return torch.zeros({size}), index % 10
"""
_LOGITS: Final = """
class Model(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x): return self.inner(x).logits
"""
MODELS: Final[Mapping[str, str]] = {
    "MLP": _VECTORS.format(size=512) + """
model = torch.nn.Sequential(
    torch.nn.Linear(512, 4096), *(torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(6)),
    torch.nn.Linear(4096, 10),
)
""",
    "ResNet-50": _IMAGES.format(size=224) + "from torchvision import models\nmodel = models.resnet50(num_classes=10)\n",
    "EfficientNet": _IMAGES.format(size=224) + "from torchvision import models\nmodel = models.efficientnet_b0()\n",
    "ViT (timm)": _IMAGES.format(size=224) + "import timm\nmodel = timm.create_model('vit_small_patch16_224')\n",
    "ConvNeXt (timm)": _IMAGES.format(size=224) + "import timm\nmodel = timm.create_model('convnext_tiny', num_classes=10)\n",
    "encoder": _TOKENS.format(size=256) + """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8000, 512)
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        self.encoder, self.head = torch.nn.TransformerEncoder(layer, 6), torch.nn.Linear(512, 10)
    def forward(self, x): return self.head(self.encoder(self.embedding(x)).mean(1))
model = Model()
""",
    "LSTM": _TOKENS.format(size=128) + """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = torch.nn.Embedding(8000, 512), torch.nn.LSTM(512, 1024, 2, batch_first=True)
        self.head = torch.nn.Linear(1024, 10)
    def forward(self, x): return self.head(self.lstm(self.embedding(x))[0][:, -1])
model = Model()
""",
    "BERT": _TOKENS.format(size=256) + _LOGITS + """
from transformers import BertConfig, BertForSequenceClassification
model = Model(BertForSequenceClassification(BertConfig(num_labels=10, num_hidden_layers=6)))
""",
    "segmenting CNN": _IMAGES.format(size=128) + """
def block(a, b): return torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.BatchNorm2d(b), torch.nn.ReLU())
model = torch.nn.Sequential(
    block(3, 64), block(64, 64), block(64, 64), block(64, 64),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10),
)
""",
}  # fmt: skip
_TEXT: Final = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        ids = torch.zeros(256, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

model = GPT2LMHeadModel(GPT2Config(n_layer=6, vocab_size=8000))
"""
_LABELLED: Final = """
import torch
from transformers import {config}, {model}, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index): return {{{sample}, "labels": index % 10}}

model = {model}({config}(num_labels=10, num_hidden_layers=6))
"""
TRAINED: Final[Mapping[str, str]] = {
    "GPT-2": _TEXT,
    "BERT": _LABELLED.format(
        config="BertConfig", model="BertForSequenceClassification", sample='"input_ids": torch.zeros(256, dtype=torch.long)'
    ),
    "ViT": _LABELLED.format(
        config="ViTConfig", model="ViTForImageClassification", sample='"pixel_values": torch.zeros(3, 224, 224)'
    ),
}
# Where a program has its batch: the lines that set BATCH, the words of its command, and its other files.
SOURCES: Final[Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "constant": ("BATCH = {batch}\n", "", {}),
    "option": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--bs', type=int, default={batch})\n"
        "BATCH = parser.parse_args().bs\n", " --bs {batch}", {},
    ),
    "option=": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--bs', type=int)\n"
        "BATCH = parser.parse_args().bs\n", " --bs={batch}", {},
    ),
    "variable": ("import os\nBATCH = int(os.environ['BS'])\n", "", {}),
    "YAML": (
        "import sys, yaml\nBATCH = yaml.safe_load(open(sys.argv[1]))['train']['batch_size']\n", " config.yaml",
        {"config.yaml": "train:\n  batch_size: {batch}\n  lr: 0.001\n"},
    ),
    "JSON": (
        "import sys, json\nBATCH = json.load(open(sys.argv[1]))['batch_size']\n", " config.json",
        {"config.json": '{{"batch_size": {batch}, "lr": 0.001}}\n'},
    ),
}  # fmt: skip
LOADERS: Final[Mapping[str, str]] = {
    "loader": "loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH, shuffle=True)\n",
    "positional": "loader = torch.utils.data.DataLoader(Data(), BATCH, drop_last=True)\n",
    "workers": "loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH, num_workers=2, pin_memory=True)\n",
    "sampler": "from torch.utils.data import BatchSampler, RandomSampler\nsource = Data()\n"
    "batches = BatchSampler(RandomSampler(source), batch_size=BATCH, drop_last=False)\n"
    "loader = torch.utils.data.DataLoader(source, batch_sampler=batches)\n",
    "stream": "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        source = Data()\n"
    "        return (source[index] for index in range(len(source)))\n"
    "loader = torch.utils.data.DataLoader(Stream(), batch_size=BATCH)\n",
    "by hand": "source = Data()\ndef batches():\n    while True:\n"
    "        rows = [source[index] for index in range(BATCH)]\n"
    "        yield torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])\nloader = batches()\n",
}
_PLAIN: Final = """
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, (x, y) in zip(range(6), loader):
    x, y = x.cuda(), y.cuda()
    output = model(x)
    loss = torch.nn.functional.cross_entropy(output.float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
_ACCELERATE: Final = """
from accelerate import Accelerator
accelerator = Accelerator({arguments})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for step, (x, y) in zip(range(6), loader):
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
_SEARCHED: Final = """
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size

@find_executable_batch_size(starting_batch_size=4096)
def train(batch_size):
    accelerator = Accelerator()
    accelerator.free_memory()
    loader = torch.utils.data.DataLoader(Data(), batch_size=batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, (x, y) in zip(range(4), loader):
        loss = torch.nn.functional.cross_entropy(prepared(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

train()
"""
_LIGHTNING: Final = """
import pytorch_lightning as pl

class Module(pl.LightningModule):
    def __init__(self, inner, batch_size=BATCH):
        super().__init__()
        self.inner, self.batch_size = inner, batch_size
    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.inner(x), y)
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), lr=1e-3)
    {inside}

{outside}
trainer = pl.Trainer(max_steps=6, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False{arguments})
"""
_OWN_LOADER: Final = "def train_dataloader(self): return torch.utils.data.DataLoader(Data(), batch_size=self.batch_size)"
_DATA_MODULE: Final = f"""class Rows(pl.LightningDataModule):
    batch_size = BATCH
    {_OWN_LOADER}
"""
_TRAINER: Final = """
arguments = TrainingArguments(
    "out", per_device_train_batch_size={batch}, max_steps=6, report_to="none", save_strategy="no", logging_steps=1,
    {arguments}
)
Trainer(model=model, args=arguments, train_dataset=Data()).train()
"""
_STUB: Final = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
words = {f"w{number}": number for number in range(200)} | {"<pad>": 200, "<eos>": 201}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
model = GPT2LMHeadModel(GPT2Config(n_layer=6, vocab_size=8000))
from datasets import Dataset
text = " ".join(f"w{number % 200}" for number in range(256))
"""
_SFT: Final = """
from trl import SFTConfig, SFTTrainer
rows = Dataset.from_dict({{"text": [text] * 2_000}})
arguments = SFTConfig(
    "out", per_device_train_batch_size={batch}, max_steps=6, report_to="none", save_strategy="no", max_length=256, {arguments}
)
SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer{more}).train()
"""
_DPO: Final = """
from trl import DPOConfig, DPOTrainer
rows = Dataset.from_dict({{"prompt": [text[:200]] * 2_000, "chosen": [text] * 2_000, "rejected": [text] * 2_000}})
arguments = DPOConfig("out", per_device_train_batch_size={batch}, max_steps=6, report_to="none", save_strategy="no")
DPOTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer).train()
"""
_YOLO: Final = """
import os
os.environ["YOLO_CONFIG_DIR"] = os.getcwd()
import cv2, numpy
from pathlib import Path
for part in ("train", "val"):
    for kind in ("images", "labels"):
        Path("data", kind, part).mkdir(parents=True, exist_ok=True)
    for n in range(200 if part == "train" else 4):
        cv2.imwrite(f"data/images/{{part}}/{{n}}.jpg", numpy.full((64, 64, 3), n % 255, numpy.uint8))
        Path(f"data/labels/{{part}}/{{n}}.txt").write_text("0 0.5 0.5 0.4 0.4\\n")
Path("data.yaml").write_text(f"path: {{os.getcwd()}}/data\\ntrain: images/train\\nval: images/val\\nnames: [a]\\n")
from ultralytics import YOLO
YOLO("yolov8n.yaml").train(data="data.yaml", epochs=1, imgsz=320, batch={batch}, workers=0, plots=False, val=False, amp=False)
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A training program.

    Attributes:
        name: Its name in tables.
        kind: What trains: plain, accelerate, Lightning, Trainer, TRL, Ultralytics, timm.
        files: The content of its files by name; the program is train.py.
        words: The words after train.py.
        options: The options of `vramcast largest` that it needs, such as --axis.
        environment: Variables of its shell.
        needs: The modules that it needs besides torch.
        card: The card. TRL's loss needs one with bfloat16.
        edits: By change of `run --advise`, the (old, new) texts with which a user makes it.
    """

    name: str
    kind: str
    files: Mapping[str, str]
    words: str = ""
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    card: str = "t4"
    edits: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


# By model, an expression for the blocks that `run --advise` checkpoints.
BLOCKS: Final[Mapping[str, str]] = {
    "MLP": "()",
    "ResNet-50": "[block for n in (1, 2, 3, 4) for block in getattr(model, f'layer{n}')]",
    "ViT (timm)": "model.blocks",
    "encoder": "model.encoder.layers",
    "BERT": "model.inner.bert.encoder.layer",
}
_OPTIMIZER: Final = re.compile(r"torch\.optim\.AdamW\((.*), lr=1e-3\)")
_SETTING: Final = 'report_to="none"'
_CHECKPOINTED: Final = """
import functools
from torch.utils.checkpoint import checkpoint
for block in {}:
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
"""
_OFFLOADED: Final = """
import functools
run = model.forward
@functools.wraps(run)
def forward(*args, **kwargs):
    with torch.autograd.graph.save_on_cpu(pin_memory=True): return run(*args, **kwargs)
model.forward = forward
"""
Edits: TypeAlias = Mapping[str, tuple[tuple[str, str], ...]]


def _edits_of_loop(program: str, place: str, blocks: str) -> Edits:
    """Return the edits of a program that constructs its optimizer, with a place after its model and before its loop."""
    found = _OPTIMIZER.search(program)
    assert found is not None
    own, parameters = found[0], found[1]
    return {
        "fused optimizer": ((own, f"{own[:-1]}, fused=True)"),),
        "8-bit optimizer": ((own, f"__import__('bitsandbytes').optim.AdamW8bit({parameters}, lr=1e-3)"),),
        "activation offload": ((place, _OFFLOADED + place),),
        "checkpointing": ((place, _CHECKPOINTED.format(blocks) + place),),
    }


def _plain(
    model: str, source: str = "constant", loader: str = "loader", *, batch: int = 64, axis: str = "", is_edited: bool = False
) -> Program:
    lines, words, files = SOURCES[source]
    program = "import torch\n" + lines.format(batch=batch) + MODELS[model] + LOADERS[loader] + _PLAIN
    forward = "    output = model(x)"
    edits = {
        **_edits_of_loop(program, "\nmodel = model.cuda()", BLOCKS.get(model, "()")),
        "autocast bf16": ((forward, f'    with torch.autocast("cuda", torch.bfloat16):\n    {forward}'),),
        "half the batch, accumulated twice": (
            ("batch_size=BATCH", "batch_size=BATCH // 2"),
            ("    optimizer.step()\n    optimizer.zero_grad(set_to_none=True)",
             "    if step % 2:\n        optimizer.step()\n        optimizer.zero_grad(set_to_none=True)"),
        ),
    }  # fmt: skip
    return Program(
        f"{model}, {source}, {loader}{', ' * bool(axis)}{axis}", "plain",
        {"train.py": program, **{name: text.format(batch=batch) for name, text in files.items()}}, words.format(batch=batch),
        ("--axis", axis) if axis else (), {"BS": str(batch)} if source == "variable" else {},
        ("timm",) * ("timm" in program) + ("transformers",) * ("transformers" in program),
        edits=edits if is_edited else {},
    )  # fmt: skip


def _accelerate(model: str, arguments: str = "", *, batch: int = 64, options: tuple[str, ...] = ()) -> Program:
    program = f"import torch\nBATCH = {batch}\n" + MODELS[model] + LOADERS["loader"] + _ACCELERATE.format(arguments=arguments)
    steps = "gradient_accumulation_steps="
    more = (f"{steps}2", f"{steps}4") if steps in arguments else ("Accelerator(", f"Accelerator({steps}2, ")
    edits = {
        **_edits_of_loop(program, "\nfrom accelerate", BLOCKS[model]),
        "autocast bf16": (("Accelerator(", 'Accelerator(mixed_precision="bf16", '),),
        "half the batch, accumulated twice": ((f"BATCH = {batch}", f"BATCH = {batch // 2}"), more),
    }
    name = f"{model}{', ' * bool(arguments)}{arguments}"
    return Program(name, "accelerate", {"train.py": program}, options=options, needs=("accelerate",), edits=edits)


def _lightning(
    model: str, arguments: str = "", *, batch: int = 64, in_module: bool = True, is_searched: bool = False
) -> Program:
    inside, outside = (_OWN_LOADER, "") if in_module else ("", _DATA_MODULE)
    program = f"import torch\nBATCH = {batch}\n" + MODELS[model]
    program += _LIGHTNING.format(inside=inside, outside=outside, arguments=f", {arguments}" * bool(arguments))
    if is_searched:
        program += "from pytorch_lightning.tuner import Tuner\nmodule = Module(model)\n"
        program += "Tuner(trainer).scale_batch_size(module, mode='power')\ntrainer.fit(module)\n"
    else:
        program += f"trainer.fit(Module(model){', Rows()' * (not in_module)})\n"
    steps = "accumulate_grad_batches="
    more = (f"{steps}2", f"{steps}4") if steps in arguments else ("max_steps=6", f"max_steps=6, {steps}2")
    edits = {
        **_edits_of_loop(program, "\nimport pytorch_lightning", BLOCKS[model]),
        "autocast bf16": (("max_steps=6", 'max_steps=6, precision="bf16-mixed"'),),
        "half the batch, accumulated twice": (
            (f"BATCH = {batch}", f"BATCH = {batch // 2}"), more,
        ),
    }  # fmt: skip
    place = "scale_batch_size" if is_searched else "loader of the module" if in_module else "data module"
    name = f"{model}, {place}{', ' * bool(arguments)}{arguments}"
    return Program(name, "Lightning", {"train.py": program}, needs=("pytorch_lightning",), edits=edits)


def _edits_of_trainer(batch: int, arguments: str) -> Edits:
    steps = "gradient_accumulation_steps="
    more = (f"{steps}2", f"{steps}4") if steps in arguments else (_SETTING, f"{_SETTING}, {steps}2")
    return {
        "activation offload": (("\narguments = ", _OFFLOADED + "arguments = "),),
        "fused optimizer": ((_SETTING, f'{_SETTING}, optim="adamw_torch_fused"'),),
        "8-bit optimizer": ((_SETTING, f'{_SETTING}, optim="adamw_bnb_8bit"'),),
        "autocast bf16": ((_SETTING, f"{_SETTING}, bf16=True"),),
        "checkpointing": ((_SETTING, f"{_SETTING}, gradient_checkpointing=True"),),
        "half the length": (("max_length=256", "max_length=128"),),
        "half the batch, accumulated twice": (
            (f"train_batch_size={batch}", f"train_batch_size={batch // 2}"), more,
        ),
        "FSDP2": ((_SETTING, f'{_SETTING}, fsdp="full_shard auto_wrap"'),),
    }  # fmt: skip


def _trainer(model: str, arguments: str = "", *, batch: int = 16, options: tuple[str, ...] = ()) -> Program:
    program = TRAINED[model] + _TRAINER.format(batch=batch, arguments=arguments)
    name = f"{model}{', ' * bool(arguments)}{arguments}{', ' * bool(options)}{' '.join(options)}"
    return Program(
        name,
        "Trainer",
        {"train.py": program},
        options=options,
        needs=("transformers",),
        edits=_edits_of_trainer(batch, arguments),
    )


def _trl(name: str, form: str, *, batch: int = 8, options: tuple[str, ...] = (), **parts: str) -> Program:
    program = _STUB + form.format(batch=batch, **{"arguments": "", "more": "", **parts})
    return Program(
        name,
        "TRL",
        {"train.py": program},
        options=options,
        needs=("trl", "datasets"),
        card="rtx3090",
        edits=_edits_of_trainer(batch, ""),
    )


def _ultralytics(batch: int) -> Program:
    return Program(f"YOLOv8n, batch={batch}", "Ultralytics", {"train.py": _YOLO.format(batch=batch)}, needs=("ultralytics",))


_LORA: Final = ', peft_config=__import__("peft").LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM")'
_BY_OPTION, _BY_VARIABLE = ("batch=--bs", "batch=env:BS")
PROGRAMS: Final = (
    _plain("MLP", batch=4096, is_edited=True),
    _plain("ResNet-50", "option", is_edited=True),
    _plain("EfficientNet", "YAML"),
    _plain("ViT (timm)", is_edited=True),
    _plain("ConvNeXt (timm)", "JSON", "workers"),
    _plain("encoder", is_edited=True),
    _plain("LSTM", "variable"),
    _plain("BERT", is_edited=True),
    _plain("segmenting CNN", "option="),
    _plain("MLP", "option", "positional", batch=4096),
    _plain("encoder", "YAML", "sampler"),
    _plain("ViT (timm)", "option", "stream"),
    _plain("ResNet-50", "constant", "workers"),
    _plain("MLP", "option", "by hand", batch=512, axis=_BY_OPTION),
    _plain("encoder", "option=", "by hand", axis=_BY_OPTION),
    _plain("segmenting CNN", "variable", "by hand", axis=_BY_VARIABLE),
    _plain("BERT", "YAML", "by hand", axis="batch=config.yaml:train.batch_size"),
    _plain("LSTM", "JSON", "by hand", axis="batch=config.json:batch_size"),
    _plain("encoder", "option", axis=_BY_OPTION),
    _plain("encoder", batch=512, axis="accumulate", is_edited=True),
    _accelerate("ResNet-50"),
    _accelerate("BERT", 'mixed_precision="bf16"'),
    _accelerate("encoder", "gradient_accumulation_steps=2"),
    _accelerate("MLP", batch=4096),
    Program(
        "encoder, find_executable_batch_size", "accelerate", {"train.py": "import torch\n" + MODELS["encoder"] + _SEARCHED},
        needs=("accelerate",),
    ),
    _lightning("ResNet-50"),
    _lightning("encoder", in_module=False),
    _lightning("BERT", 'precision="bf16-mixed"', in_module=False),
    _lightning("ViT (timm)", "accumulate_grad_batches=2"),
    _lightning("MLP", batch=256, is_searched=True),
    _trainer("GPT-2"),
    _trainer("BERT"),
    _trainer("ViT", "bf16=True,"),
    _trainer("GPT-2", "gradient_accumulation_steps=2,"),
    _trainer("GPT-2", "gradient_checkpointing=True,"),
    _trainer("GPT-2", batch=512, options=("--axis", "accumulate")),
    _trainer("GPT-2", "auto_find_batch_size=True,", batch=2048),
    _trl("GPT-2, SFT", _SFT),
    _trl("GPT-2, SFT, LoRA", _SFT, more=_LORA),
    _trl("GPT-2, SFT, LoRA, rank", _SFT, options=("--axis", "lora-rank"), more=_LORA),
    _trl("GPT-2, DPO", _DPO),
    _ultralytics(16),
    _ultralytics(-1),
)  # fmt: skip
