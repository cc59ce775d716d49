"""A training script of milabench, as a script for `vramcast run`.

    python milabench_script.py FOLDER/main.py 64 --model resnet50 --batch-size 64 ...

The script is the project's own. Replaced are: what is read from disk or the network (samples, weights and configurations), the
clock that ends a run, and the start of processes, because each traced rank has its own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

_BATCHES: Final = 8  # arbitrary: more than the steps that the caller follows
# spec: model_index.json and the configurations of stabilityai/stable-diffusion-2, where they differ from the classes' defaults
_UNET: Final = {
    "sample_size": 96, "attention_head_dim": [5, 10, 20, 20], "cross_attention_dim": 1024, "use_linear_projection": True
}  # fmt: skip
_VAE: Final = {
    "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "sample_size": 768,
    "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
}  # fmt: skip
_TEXT: Final = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 23, "hidden_act": "gelu"
}  # fmt: skip
_JEPA_STEPS: Final = 65  # spec: benchmarks/vjepa/main.py, earlystop
_TOKENS: Final = 77  # spec: model_max_length of its tokenizer


def _module(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # libraries ask whether a package is here
    vars(module).update(contents)
    sys.modules[name] = module


class _Observer:
    """The project's clock, which passes the loader on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def loader(self, loader: Any) -> Any:
        return loader

    iterate = loader

    def record_loss(self, loss: Any) -> None:
        pass


class _Samples(list[Any]):
    """Samples of a data set, made before the job: its transforms are not needed."""

    def with_transform(self, transform: Any) -> _Samples:
        return self

    def set_epoch(self, epoch: int) -> None:
        pass


def _images(batch: int) -> None:
    """Replace the images of the scripts with networks of torchvision, and the start of their processes."""
    images, labels = torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64)
    batches: Any = _Samples([(images, labels)] * _BATCHES)
    loaders: Any = importlib.import_module("benchmate.dataloader")
    loaders.pytorch = lambda *args, **options: torch.utils.data.DataLoader(
        batches, batch_size=None, sampler=_Samples(range(_BATCHES))
    )
    start: Any = torch.multiprocessing
    start.spawn = lambda worker, args, **options: worker(int(os.environ["RANK"]), *args)


def _speech(batch: int) -> None:
    """Replace Whisper's configuration and features."""
    transformers: Any = importlib.import_module("transformers")
    features: Any = importlib.import_module("bench.synth")
    transformers.AutoConfig.from_pretrained = lambda name: (
        transformers.WhisperConfig()
    )  # the defaults are those of the tiny one
    features.generators["AutoModelForAudioClassification"] = lambda info: {
        "input_features": lambda: torch.empty(80, 3000),  # spec: 30 s of 80 mel bands, which the extractor pads to
        "labels": lambda: torch.zeros((), dtype=torch.int64),
    }


def _pictures(batch: int) -> None:
    """Replace the data set, the weights and the configurations of Stable Diffusion."""
    diffusers: Any = importlib.import_module("diffusers")
    transformers: Any = importlib.import_module("transformers")
    importlib.import_module("accelerate")
    models = (
        (transformers.CLIPTextModel, lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**_TEXT))),
        (diffusers.AutoencoderKL, lambda: diffusers.AutoencoderKL(**_VAE)),
        (diffusers.UNet2DConditionModel, lambda: diffusers.UNet2DConditionModel(**_UNET)),
    )
    for kind, made in models:
        kind.from_pretrained = lambda *args, made=made, **options: made().eval()
    diffusers.DDPMScheduler.from_pretrained = lambda *args, **options: diffusers.DDPMScheduler()
    transformers.CLIPTokenizer.from_pretrained = lambda *args, **options: None
    sample = {"pixel_values": torch.empty(3, 512, 512), "input_ids": torch.zeros(_TOKENS, dtype=torch.int64)}
    _module("datasets", load_dataset=lambda *args: {"train": _Samples([sample] * batch)})


def _videos(batch: int) -> None:
    """Replace V-JEPA's clips. Its own code draws the masks, and the batches with the most tokens of a run come first."""

    def init_data(*, collator: Any, clip_len: int, **options: Any) -> tuple[Any, Any]:
        clips = torch.empty(batch, 3, clip_len, 224, 224)
        drawn = [collator([clips[0, 0, 0, 0]] * batch)[1:] for _ in range(_JEPA_STEPS)]
        drawn.sort(key=lambda masks: sum(mask.shape[1] for mask in masks[0]), reverse=True)
        return _Samples([([[clips]], *masks) for masks in drawn]), _Samples()

    _module("src.datasets.data_manager", init_data=init_data)
    _module("app.vjepa.transforms", make_transforms=lambda **options: None)
    folder = tempfile.mkdtemp()
    videos = Path(folder, "videos.csv")
    videos.write_text("video.mp4 0\n", encoding="utf-8")
    sys.argv += ["--dataset", str(videos), "--output", folder]


REPLACED: Final[Mapping[str, Callable[[int], None]]] = {
    "diffusion": _pictures, "huggingface": _speech, "lightning": _images, "torchvision": _images, "torchvision_ddp": _images,
    "vjepa": _videos,
}  # fmt: skip


def main(script: Path, batch: int) -> None:
    """Run the script; the caller stops it after its steps."""
    stop = type("StopProgram", (Exception,), {})
    _module("voir")
    _module("voir.phase", StopProgram=stop)
    _module("benchmate.metrics", StopProgram=stop)
    _module("benchmate.observer", BenchObserver=_Observer)
    watch: Any = lambda *args, **options: contextlib.nullcontext()  # noqa: E731
    _module("benchmate.monitor", bench_monitor=watch, multigpu_monitor=watch)
    REPLACED[script.parent.name](batch)
    if script.with_name("bench").is_dir():
        runpy.run_module("bench", run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    _, path, size, *sys.argv[1:] = sys.argv
    main(Path(path), int(size))
