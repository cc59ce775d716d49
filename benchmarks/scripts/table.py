"""Table of public training scripts as people start them, for `benchmarks.scripts.survey`."""

from __future__ import annotations

from typing import Final

from benchmarks.scripts.entry import Entry
from benchmarks.scripts.hub import HUGGING_FACE
from benchmarks.scripts.libraries import LIBRARIES

_NANOGPT: Final = (("chars", "data/shakespeare_char"), ("gpt2-tokens", "data/openwebtext"))
_124M: Final = "train.py --dataset=openwebtext --batch_size=12 --block_size=1024 --gradient_accumulation_steps=40"
_DDP: Final = "distributed/ddp-tutorial-series"

ENTRIES: Final[tuple[Entry, ...]] = (
    Entry("nanoGPT char, compiled", "karpathy/nanoGPT", "train.py config/train_shakespeare_char.py", linked=_NANOGPT),
    Entry("nanoGPT 124M, eager", "karpathy/nanoGPT", f"{_124M} --compile=False", device="a100-40gb", linked=_NANOGPT),
    Entry("nanoGPT 124M, compiled", "karpathy/nanoGPT", _124M, device="a100-40gb", linked=_NANOGPT),
    Entry(
        "nanoGPT 124M, torchrun",
        "karpathy/nanoGPT",
        f"torchrun --standalone --nproc_per_node=1 {_124M} --compile=False",
        device="a100-40gb",
        linked=_NANOGPT,
    ),
    Entry("minGPT adder", "karpathy/minGPT", "projects/adder/adder.py", environment=("PYTHONPATH=.",)),
    Entry(
        "mnist",
        "pytorch/examples",
        "python main.py --epochs 1",
        "mnist",
        packages=("torchvision",),
        linked=(("mnist", "../data"),),
    ),
    Entry(
        "mnist rnn",
        "pytorch/examples",
        "python main.py --accel --epochs 1",
        "mnist_rnn",
        packages=("torchvision",),
        linked=(("mnist", "../data"),),
    ),
    Entry(
        "vae", "pytorch/examples", "python main.py --epochs 1", "vae", packages=("torchvision",), linked=(("mnist", "../data"),)
    ),
    Entry("dcgan fake", "pytorch/examples", "python main.py --dataset fake --accel", "dcgan", packages=("torchvision",)),
    Entry(
        "imagenet resnet50, dummy",
        "pytorch/examples",
        "main.py --dummy -a resnet50 -b 64 -j 2",
        "imagenet",
        packages=("torchvision",),
    ),
    Entry(
        "imagenet resnet50, folder",
        "pytorch/examples",
        "main.py -a resnet50 -b 64 -j 2 --epochs 1 {data:images}",
        "imagenet",
        packages=("torchvision", "PIL"),
    ),
    Entry(
        "word_language_model LSTM",
        "pytorch/examples",
        "main.py --accel --epochs 2 --data {data:wikitext}",
        "word_language_model",
    ),
    Entry(
        "word_language_model Transformer",
        "pytorch/examples",
        "main.py --accel --epochs 2 --model Transformer --data {data:wikitext}",
        "word_language_model",
    ),
    Entry("ddp single_gpu", "pytorch/examples", "single_gpu.py 5 1", _DDP),
    Entry(
        "ddp multigpu_torchrun, 1",
        "pytorch/examples",
        "torchrun --standalone --nproc_per_node=1 multigpu_torchrun.py 5 1",
        _DDP,
    ),
    Entry(
        "ddp multigpu_torchrun, 2",
        "pytorch/examples",
        "torchrun --standalone --nproc_per_node=2 multigpu_torchrun.py 5 1",
        _DDP,
    ),
    Entry("ddp multigpu (mp.spawn)", "pytorch/examples", "multigpu.py 5 1", _DDP),
    Entry(
        "FSDP2 example",
        "pytorch/examples",
        "torchrun --nproc_per_node=2 example.py",
        "distributed/FSDP2",
        device="a100-40gb",
    ),
    Entry(
        "tensor parallel example",
        "pytorch/examples",
        "torchrun --nproc_per_node=2 tensor_parallel_example.py",
        "distributed/tensor_parallelism",
        device="a100-40gb",
    ),
    *HUGGING_FACE,
    Entry(
        "open_clip ViT-B-32, synthetic",
        "mlfoundations/open_clip",
        "python -m open_clip_train.main --dataset-type synthetic --train-num-samples 4096 --batch-size 128 "
        "--precision amp_bf16 --model ViT-B-32 --workers 2 --epochs 1",
        "src",
        device="a100-40gb",
        environment=("PYTHONPATH=src",),
        packages=("ftfy", "torchvision", "timm"),
    ),
    Entry(
        "Pytorch-UNet Carvana",
        "milesial/Pytorch-UNet",
        "train.py --amp -b 2 -e 1",
        environment=("WANDB_MODE=offline",),
        packages=("wandb", "PIL", "torchvision"),
        linked=(("carvana", "data"),),
    ),
    Entry("cleanrl ppo", "vwxyzjn/cleanrl", "cleanrl/ppo.py", packages=("gymnasium", "tyro", "tensorboard")),
    Entry(
        "MAE ViT-L pretraining",
        "facebookresearch/mae",
        "main_pretrain.py --data_path {data:images} --batch_size 64 --epochs 1 --num_workers 2 --output_dir {out} "
        "--log_dir {out}",
        device="a100-40gb",
        packages=("timm", "torchvision", "tensorboard"),
        note="mended: its check for timm 0.3.2, and three names which torch and timm have renamed since",
    ),
    Entry(
        "DiT-XL/2",
        "facebookresearch/DiT",
        "torchrun --nnodes=1 --nproc_per_node=1 train.py --model DiT-XL/2 --data-path {data:images}/train "
        "--global-batch-size 8",
        device="a100-80gb",
        packages=("diffusers", "timm", "torchvision", "requests"),
        linked=(("sd-vae", "stabilityai/sd-vae-ft-ema"),),
    ),
    Entry(
        "nanochat base_train",
        "karpathy/nanochat",
        "python -m scripts.base_train --depth=6 --device-batch-size=16",
        device="h100",
        environment=("NANOCHAT_BASE_DIR={data:nanochat}",),
        options=("--timeout", "600"),  # the 1,280 batches of validation before the first step are not cut
        packages=("tiktoken", "rustbpe", "pyarrow"),
    ),
    Entry(
        "LitGPT pretrain",
        "Lightning-AI/litgpt",
        "python -m litgpt pretrain pythia-160m --tokenizer_dir {data:gpt2} --data TextFiles "
        "--data.train_data_path {data:wikitext} --train.global_batch_size 8 --out_dir {out}",
        device="a100-40gb",
        options=("--timeout", "600"),  # it compiles
        packages=("lightning", "jsonargparse", "litdata"),
    ),
    Entry(
        "torchtitan debug model",
        "pytorch/torchtitan",
        "torchrun --nproc_per_node=1 -m torchtitan.train "
        "--job.config_file torchtitan/models/llama3/train_configs/debug_model.toml",
        device="h100",
        environment=("PYTHONPATH=.",),
        packages=("torchtitan", "tyro"),
        linked=(("c4", "tests/assets/c4_test"),),
    ),
    Entry(
        "torchtitan Llama 3 8B",
        "pytorch/torchtitan",
        "torchrun --nproc_per_node=1 -m torchtitan.train "
        "--job.config_file torchtitan/models/llama3/train_configs/llama3_8b.toml --training.dataset c4_test "
        "--model.hf_assets_path tests/assets/tokenizer",
        device="h100",
        environment=("PYTHONPATH=.",),
        packages=("torchtitan", "tyro"),
        linked=(("c4", "tests/assets/c4_test"),),
        note="8.03 B x 16 bytes are 119.7 GiB: does not fit",
    ),
    *LIBRARIES,
)
