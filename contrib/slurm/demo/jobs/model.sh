#!/bin/bash
#SBATCH --job-name=MODEL --partition=small --gres=gpu:1
#VRAMCAST target=torchvision:MODEL batch=32x3x224x224 labels=32:int64:1000 optimizer=sgdm
torchrun train_images.py --model MODEL
