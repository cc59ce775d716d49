"""Hugging Face's example scripts as people start them: transformers, TRL, timm, diffusers."""

from __future__ import annotations

from typing import Final

from benchmarks.scripts.entry import Entry

_EXAMPLES: Final = "examples/pytorch"
_SFT: Final = "--dataset_name {data:conversations}/sft --per_device_train_batch_size 1 --report_to none --max_length 1024"
_LORA: Final = "--use_peft --lora_r 32 --lora_alpha 16"
_TEXT: Final = "--train_file {data:wikitext}/train.txt --validation_file {data:wikitext}/valid.txt --block_size 1024"
_CLM: Final = f"run_clm.py --model_name_or_path {{data:qwen05}} {_TEXT} --bf16 --do_train --do_eval --output_dir {{out}}"
_CLM_2: Final = f"{_CLM} --report_to none --per_device_train_batch_size 2 --per_device_eval_batch_size 2"
_SD: Final = "--pretrained_model_name_or_path {data:sd15} --train_data_dir {data:captions} --resolution 512 --random_flip"
_LONG: Final = ("--timeout", "900")  # arbitrary: compilation time of 24 layers on two busy cores
_CLM_PACKAGES: Final = ("transformers", "datasets", "evaluate", "accelerate")
_T2I_PACKAGES: Final = ("diffusers", "transformers", "datasets", "accelerate", "torchvision", "requests")


def _clm(
    name: str,
    command: str,
    *,
    device: str = "rtx4090",
    packages: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    note: str = "",
) -> Entry:
    """Return a run of transformers' run_clm.py."""
    return Entry(
        f"HF run_clm, {name}",
        "huggingface/transformers",
        command,
        f"{_EXAMPLES}/language-modeling",
        device=device,
        packages=(*_CLM_PACKAGES, *packages),
        linked=(("accuracy", "accuracy"),),
        options=options,
        note=note,
    )


HUGGING_FACE: Final[tuple[Entry, ...]] = (
    _clm(
        "GPT-2",
        f"run_clm.py --model_name_or_path {{data:gpt2}} {_TEXT} --per_device_train_batch_size 4 --bf16 --do_train --do_eval "
        "--gradient_accumulation_steps 4 --report_to none --output_dir {out}",
    ),
    _clm("Qwen 0.5B", _CLM_2, note="weights, gradients and Adam's state of 494 M in bf16: 3.68 GiB"),
    _clm("Qwen 0.5B, checkpointing", f"{_CLM_2} --gradient_checkpointing"),
    _clm("Qwen 0.5B, Liger", f"{_CLM_2} --use_liger_kernel True", packages=("liger_kernel",)),
    _clm("Qwen 0.5B, adamw_bnb_8bit", f"{_CLM_2} --optim adamw_bnb_8bit", packages=("bitsandbytes",)),
    _clm("Qwen 0.5B, adamw_torch_8bit", f"{_CLM_2} --optim adamw_torch_8bit", packages=("torchao",)),
    _clm("Qwen 0.5B, compiled", f"{_CLM_2} --torch_compile", options=_LONG),
    _clm(
        "Qwen 0.5B, ZeRO-2",
        f"deepspeed --num_gpus 1 {_CLM_2} --deepspeed {{data:deepspeed}}/zero2.json",
        device="a100-40gb",
        packages=("deepspeed",),
    ),
    _clm(
        "Qwen 0.5B, ZeRO-3",
        f"deepspeed --num_gpus 1 {_CLM_2} --deepspeed {{data:deepspeed}}/zero3.json",
        device="a100-40gb",
        packages=("deepspeed",),
    ),
    _clm(
        "Qwen 0.5B, FSDP",
        f"torchrun --nproc_per_node 1 {_CLM_2} --fsdp full_shard",
        device="a100-40gb",
    ),
    Entry(
        "HF run_clm_no_trainer",
        "huggingface/transformers",
        f"accelerate launch run_clm_no_trainer.py --model_name_or_path {{data:gpt2}} {_TEXT} --per_device_train_batch_size 2 "
        "--output_dir {out}",
        f"{_EXAMPLES}/language-modeling",
        packages=_CLM_PACKAGES,
        own="AttributeError: TPU",
    ),
    Entry(
        "HF run_glue BERT-base",
        "huggingface/transformers",
        "run_glue.py --model_name_or_path {data:bert} --train_file {data:pairs}/train.csv "
        "--validation_file {data:pairs}/validation.csv --do_train --do_eval --max_seq_length 128 "
        "--per_device_train_batch_size 32 --report_to none --output_dir {out}",
        f"{_EXAMPLES}/text-classification",
        packages=_CLM_PACKAGES,
        linked=(("accuracy", "accuracy"),),
        note="mended: its label2id has numbers for keys, which transformers 5.17 refuses",
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
        f"trl/scripts/sft.py --model_name_or_path {{data:llama8b}} {_SFT} {_LORA} --load_in_4bit --dtype bfloat16 "
        "--output_dir {out}",
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
        "train.py --data-dir {data:images} --model vit_base_patch16_224 -b 64 --amp --num-classes 8 --epochs 1 -j 2 "
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
        "diffusers SD 1.5",
        "huggingface/diffusers",
        f"accelerate launch --mixed_precision=fp16 train_text_to_image.py {_SD} --use_ema --center_crop --train_batch_size=1 "
        "--gradient_accumulation_steps=4 --gradient_checkpointing --max_train_steps=15000 --max_grad_norm=1 "
        "--output_dir {out}",
        "examples/text_to_image",
        packages=_T2I_PACKAGES,
        note="diffusers' README: a GPU of 24 GB",
    ),
    Entry(
        "diffusers SD 1.5 LoRA",
        "huggingface/diffusers",
        f"accelerate launch train_text_to_image_lora.py {_SD} --mixed_precision=fp16 --train_batch_size=1 "
        "--num_train_epochs=100 --validation_prompt=cat --output_dir {out}",
        "examples/text_to_image",
        packages=(*_T2I_PACKAGES, "peft"),
        note="--mixed_precision to the launcher alone ends with 'Attempting to unscale FP16 gradients', as on a card",
    ),
)
