#!/bin/bash
#SBATCH --job-name=vit-512 --gres=gpu:1
#VRAMCAST target=torchvision:vit_l_16 batch=512x3x224x224 labels=512:int64:1000 optimizer=adamw
torchrun train_vit.py --batch 512
