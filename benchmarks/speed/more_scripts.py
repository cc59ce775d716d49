"""Scripts of the survey's repositories that the survey leaves out, for `benchmarks.speed.limit`."""

from __future__ import annotations

from typing import Final

from benchmarks.accuracy.runner import ROOT
from benchmarks.scripts.entry import Entry

_GPT: Final = ROOT / "tests" / "golden" / "scripts" / "gpt.py"
_MNIST: Final = (("mnist", "../data"),)


def _imagenet(model: str, batch: int) -> Entry:
    return Entry(
        f"imagenet {model}, dummy", "pytorch/examples", f"main.py --dummy -a {model} -b {batch} -j 2", "imagenet",
        packages=("torchvision",),
    )  # fmt: skip


def _cleanrl(name: str, options: str) -> Entry:
    return Entry(
        f"cleanrl {name}", "vwxyzjn/cleanrl", f"cleanrl/{name}.py{options}", environment=("PYTHONPATH=.",),
        packages=("gymnasium", "tyro", "tensorboard"),
    )  # fmt: skip


def _timm(model: str, batch: int) -> Entry:
    words = (
        f"train.py --data-dir {{data:images}} --model {model} -b {batch} --amp --num-classes 8 --epochs 1 -j 2 --output {{out}}"
    )
    return Entry(f"timm train.py {model}", "huggingface/pytorch-image-models", words, packages=("timm", "PIL"))


MORE: Final[tuple[Entry, ...]] = (
    Entry("small GPT", "", f"{_GPT} --steps 200", device="a100-40gb"),
    Entry("GPT of 124M's size", "", f"{_GPT} --dim 768 --layers 12 --steps 20", device="a100-40gb"),
    Entry("siamese network", "pytorch/examples", "main.py --epochs 1", "siamese_network", linked=_MNIST),
    _imagenet("resnet18", 64), _imagenet("mobilenet_v2", 64), _imagenet("vit_b_16", 32), _imagenet("densenet121", 32),
    _timm("resnet50", 64), _timm("convnext_tiny", 32), _timm("swin_tiny_patch4_window7_224", 32), _timm("efficientnet_b0", 64),
    Entry("nanoGPT char, eager", "karpathy/nanoGPT", "train.py config/train_shakespeare_char.py --compile=False",
          linked=(("chars", "data/shakespeare_char"),)),
    _cleanrl("dqn", " --learning-starts 1000"), _cleanrl("c51", " --learning-starts 1000"), _cleanrl("pqn", ""),
    Entry(
        "open_clip RN50, synthetic", "mlfoundations/open_clip",
        "python -m open_clip_train.main --dataset-type synthetic --train-num-samples 2048 --batch-size 64 --precision amp_bf16 "
        "--model RN50 --workers 2 --epochs 1", "src", environment=("PYTHONPATH=src",), packages=("ftfy",),
    ),
    Entry(
        "TRL reward modeling, Qwen 0.5B", "huggingface/trl",
        "examples/scripts/reward_modeling.py --model_name_or_path {data:qwen05} --dataset_name {data:conversations}/dpo "
        "--per_device_train_batch_size 1 --report_to none --max_length 1024 --output_dir {out}", packages=("trl", "datasets"),
    ),
)  # fmt: skip
