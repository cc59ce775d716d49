#!/bin/bash
#SBATCH --job-name=vit-large --gres=gpu:1
#VRAMCAST target=torchvision:vit_l_16 batch=64x3x224x224 labels=64:int64:1000 optimizer=adamw
torchrun train_vit.py --batch 64
