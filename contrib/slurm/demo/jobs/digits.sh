#!/bin/bash
#SBATCH --job-name=digits --partition=small --gres=gpu:1
export OMP_NUM_THREADS=2
WIDTH=${WIDTH:-4096}
torchrun --nproc_per_node=1 train_digits.py --width $WIDTH \
    --batch 256
