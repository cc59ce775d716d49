#!/bin/bash
#SBATCH --job-name=resnet50 --partition=small --gres=gpu:1
#VRAMCAST target=torchvision:resnet50 batch=32x3x224x224 labels=32:int64:1000 optimizer=sgdm
torchrun train_resnet.py --batch 32
