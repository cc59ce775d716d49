"""Public training scripts as people start them: the table which `benchmarks.scripts` runs.

Words may hold `{data:NAME}`, the folder of stub data of that name (`benchmarks/scripts_data.py`), and `{sources}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """One run.

    Attributes:
        name: As in the table of the first survey where it was there.
        repository: Owner and name; its folder below the sources is called as the repository is.
        folder: Below that, where the command is typed.
        command: What is typed after `--`.
        device: The card.
        environment: Variables of the shell, `NAME=value`; PYTHONPATH's parts are below the repository.
        packages: What must be importable, or the run is left out.
        linked: Stub data which the script wants below its own folder: name -> place.
        own: Part of the message with which the script ends for a reason of its own; empty: it should be answered.
    """

    name: str
    repository: str
    command: str
    folder: str = ""
    device: str = "rtx4090"
    environment: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    linked: tuple[tuple[str, str], ...] = ()
    own: str = ""


_NANOGPT: Final = (("chars", "data/shakespeare_char"), ("gpt2-tokens", "data/openwebtext"))
_124M: Final = "train.py --dataset=openwebtext --batch_size=12 --block_size=1024 --gradient_accumulation_steps=40"
_DDP: Final = "distributed/ddp-tutorial-series"
_TWO: Final = "asks for 2 ranks"  # of which one can be estimated now: it is refused, and said
_SFT: Final = "--dataset_name {data:conversations}/sft --per_device_train_batch_size 1 --report_to none --max_length 1024"
_T2I: Final = "--train_data_dir {data:captions} --resolution 512 --train_batch_size 1 --mixed_precision fp16"
_LORA: Final = "--use_peft --lora_r 32 --lora_alpha 16"

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
        own=_TWO,
    ),
    Entry("ddp multigpu (mp.spawn)", "pytorch/examples", "multigpu.py 5 1", _DDP),
    Entry(
        "FSDP2 example",
        "pytorch/examples",
        "torchrun --nproc_per_node=2 example.py",
        "distributed/FSDP2",
        device="a100-40gb",
        own=_TWO,
    ),
    Entry(
        "tensor parallel example",
        "pytorch/examples",
        "torchrun --nproc_per_node=2 tensor_parallel_example.py",
        "distributed/tensor_parallelism",
        device="a100-40gb",
        own=_TWO,
    ),
    Entry(
        "TRL sft, Qwen 0.5B",
        "huggingface/trl",
        f"trl/scripts/sft.py --model_name_or_path {{data:qwen05}} {_SFT} --output_dir {{out}}",
        packages=("trl", "datasets"),
    ),
    Entry(
        "TRL sft, accelerate launch",
        "huggingface/trl",
        f"accelerate launch trl/scripts/sft.py --model_name_or_path {{data:qwen05}} {_SFT} --output_dir {{out}}",
        packages=("trl", "datasets", "accelerate"),
    ),
    Entry(
        "TRL sft LoRA, Llama 8B",
        "huggingface/trl",
        f"trl/scripts/sft.py --model_name_or_path {{data:llama8b}} {_SFT} {_LORA} --dtype bfloat16 --output_dir {{out}}",
        packages=("trl", "datasets", "peft"),
    ),
    Entry(
        "TRL sft QLoRA, Llama 8B",
        "huggingface/trl",
        f"trl/scripts/sft.py --model_name_or_path {{data:llama8b}} {_SFT} {_LORA} --load_in_4bit --output_dir {{out}}",
        packages=("trl", "datasets", "peft", "bitsandbytes"),
    ),
    Entry(
        "TRL sft, adamw_bnb_8bit",
        "huggingface/trl",
        f"trl/scripts/sft.py --model_name_or_path {{data:qwen05}} {_SFT} --optim adamw_bnb_8bit --output_dir {{out}}",
        packages=("trl", "datasets", "bitsandbytes"),
    ),
    Entry(
        "TRL dpo, Qwen 0.5B",
        "huggingface/trl",
        "trl/scripts/dpo.py --model_name_or_path {data:qwen05} --dataset_name {data:conversations}/dpo "
        "--per_device_train_batch_size 1 --report_to none --max_length 1024 --output_dir {out}",
        packages=("trl", "datasets"),
    ),
    Entry(
        "timm train.py ViT-B/16",
        "huggingface/pytorch-image-models",
        "train.py --data-dir {data:images} --model vit_base_patch16_224 -b 64 --amp --num-classes 2 --epochs 1 -j 2 "
        "--output {out}",
        packages=("timm", "PIL"),
    ),
    Entry(
        "diffusers unconditional",
        "huggingface/diffusers",
        "train_unconditional.py --train_data_dir {data:captions}/train --resolution 64 --train_batch_size 16 --use_ema "
        "--output_dir {out}",
        "examples/unconditional_image_generation",
        packages=("diffusers", "datasets", "accelerate", "torchvision", "requests"),
    ),
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
    ),
    Entry(
        "DiT-XL/2",
        "facebookresearch/DiT",
        "torchrun --nnodes=1 --nproc_per_node=1 train.py --model DiT-XL/2 --data-path {data:images}/train "
        "--global-batch-size 8",
        device="a100-80gb",
        packages=("diffusers", "timm", "torchvision", "requests"),
        own="stabilityai/sd-vae-ft-ema",
    ),
    Entry(
        "nanochat base_train",
        "karpathy/nanochat",
        "python -m scripts.base_train --depth=6 --device-batch-size=16",
        device="h100",
        packages=("tiktoken", "rustbpe", "pyarrow"),
    ),
    Entry(
        "LitGPT pretrain",
        "Lightning-AI/litgpt",
        "python -m litgpt pretrain EleutherAI/pythia-160m",
        device="a100-40gb",
        packages=("lightning", "jsonargparse", "litdata"),
    ),
    Entry(
        "torchtitan debug model",
        "pytorch/torchtitan",
        "torchrun --nproc_per_node=1 -m torchtitan.train",
        device="h100",
        packages=("torchtitan", "tyro"),
    ),
)

# Of the first survey, with no sources at hand: their repositories are too big to fetch, or their files were calls in a README.
NOT_AT_HAND: Final[tuple[str, ...]] = (
    "HF run_clm.py: GPT-2; Qwen 0.5B; checkpointing; Liger; 8-bit optimizers; compiled; DeepSpeed ZeRO-2 and -3; FSDP",
    "HF run_glue.py, run_clm_no_trainer.py",
    "torchvision references/detection",
    "PyG gcn.py, MONAI unet_training_array.py, Lightning Fabric and bug_report_model.py, Stable-Baselines3, Ultralytics",
    "smp, torchtune, Unsloth, axolotl, LLaMA-Factory",
)
