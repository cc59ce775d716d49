"""Training with libraries that have their own loop or command line: Lightning, torchvision, PyG, MONAI, Ultralytics, ..."""

from __future__ import annotations

from typing import Final

from benchmarks.scripts.entry import Entry

# The call in the library's README, with the card named.
_SB3: Final = (
    "import gymnasium as gym; from stable_baselines3 import PPO; "
    "PPO('MlpPolicy', gym.make('CartPole-v1'), verbose=1, device='cuda').learn(total_timesteps=10_000)"
)
# The README's model and its loss, in a minimal loop.
_SMP: Final = """
import torch, segmentation_models_pytorch as smp
model = smp.Unet('resnet34', encoder_weights=None, in_channels=3, classes=3).cuda()
loss, optimizer = smp.losses.DiceLoss('multiclass'), torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(20):
    images, masks = torch.rand(16, 3, 256, 256).cuda(), torch.randint(0, 3, (16, 256, 256)).cuda()
    optimizer.zero_grad()
    loss(model(images), masks).backward()
    optimizer.step()
"""

# The README's calls.
_UNSLOTH: Final = """
from unsloth import FastLanguageModel
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer
model, tokenizer = FastLanguageModel.from_pretrained('{data:llama1b}', max_seq_length=2048, load_in_4bit=True)
names = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=names, lora_alpha=16,
                                         use_gradient_checkpointing='unsloth', max_seq_length=2048)
rows = load_dataset('json', data_files='{data:alpaca}/train.jsonl', split='train')
rows = rows.map(lambda row: {'text': row['instruction'] + row['output'] + tokenizer.eos_token})
args = SFTConfig(max_length=2048, per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=60,
                 output_dir='{out}', optim='adamw_8bit', report_to='none')
SFTTrainer(model=model, train_dataset=rows, processing_class=tokenizer, args=args).train()
"""

LIBRARIES: Final[tuple[Entry, ...]] = (
    Entry(
        "torchvision Faster R-CNN",
        "pytorch/vision",
        "train.py --dataset coco --data-path {data:coco} --model fasterrcnn_resnet50_fpn -b 2 --epochs 1 --workers 2 "
        "--aspect-ratio-group-factor 3 --weights-backbone ResNet50_Weights.IMAGENET1K_V1 --output-dir {out}",
        "references/detection",
        environment=("TORCH_HOME={data:hub}",),
        packages=("torchvision", "pycocotools"),
    ),
    Entry(
        "torchvision ResNet-50, AMP",
        "pytorch/vision",
        "train.py --data-path {data:images} --model resnet50 --batch-size 64 --epochs 1 --workers 2 --amp --output-dir {out}",
        "references/classification",
        packages=("torchvision",),
    ),
    Entry(
        "Lightning bug_report_model",
        "Lightning-AI/pytorch-lightning",
        "bug_report_model.py",
        "examples/pytorch/bug_report",
        packages=("lightning",),
    ),
    Entry(
        "Lightning backbone classifier",
        "Lightning-AI/pytorch-lightning",
        "backbone_image_classifier.py --trainer.max_epochs 1 --data.batch_size 32",
        "examples/pytorch/basics",
        packages=("lightning", "torchvision", "jsonargparse"),
        linked=(("mnist", "../../Datasets"), ("mnist", "data")),
    ),
    Entry(
        "Lightning Fabric classifier",
        "Lightning-AI/pytorch-lightning",
        "fabric run --accelerator=cuda --devices=1 train_fabric.py --epochs 1",
        "examples/fabric/image_classifier",
        packages=("lightning", "torchvision", "torchmetrics"),
        linked=(("mnist", "../../../Datasets"),),
    ),
    Entry(
        "PyG gcn.py",
        "pyg-team/pytorch_geometric",
        "gcn.py",
        "examples",
        packages=("torch_geometric", "scipy"),
        linked=(("cora", "../data/Planetoid"),),
    ),
    Entry(
        "MONAI unet_training_array",
        "Project-MONAI/tutorials",
        "unet_training_array.py",
        "3d_segmentation/torch",
        packages=("monai", "nibabel", "tensorboard"),
    ),
    Entry(
        "Ultralytics YOLO11n",
        "",
        "yolo detect train data={data:yolo}/data.yaml model=yolo11n.yaml epochs=1 imgsz=640 batch=16 workers=2 project={out}",
        packages=("ultralytics", "cv2"),
        note="its own column GPU_mem in the first survey: 2.42 to 2.45G",
    ),
    Entry("Stable-Baselines3 PPO", "", f'python -c "{_SB3}"', packages=("stable_baselines3", "gymnasium")),
    Entry("smp Unet resnet34", "", f'python -c "{_SMP}"', packages=("segmentation_models_pytorch",)),
    Entry(
        "torchtune LoRA, Llama 3.2 1B",
        "pytorch/torchtune",
        "tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device "
        "checkpointer.checkpoint_dir={data:llama1b} "
        "tokenizer.path={data:llama-tokens}/tokenizer.model "
        "dataset.source=json dataset.data_files={data:alpaca}/alpaca.json output_dir={out}",
        environment=("PYTHONPATH=.",),
        packages=("torchtune", "omegaconf"),
    ),
    Entry(
        "LLaMA-Factory LoRA, Qwen3 0.6B",
        "hiyouga/LLaMA-Factory",
        "llamafactory-cli train examples/train_lora/qwen3_lora_sft.yaml model_name_or_path={data:qwen3} dataset=alpaca "
        "dataset_dir={data:alpaca} preprocessing_num_workers=1 output_dir={out}",
        packages=("llamafactory",),
    ),
    Entry("Unsloth QLoRA, Llama 3.2 1B", "", f'python -c "{_UNSLOTH}"', packages=("unsloth", "bitsandbytes")),
    Entry(
        "axolotl LoRA, Llama 3.2 1B",
        "axolotl-ai-cloud/axolotl",
        "accelerate launch -m axolotl.cli.train {data:axolotl}/lora-1b.yml --base-model={data:llama1b}",
        packages=("axolotl",),
    ),
)
