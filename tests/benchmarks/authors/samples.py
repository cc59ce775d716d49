"""Small valid made-up files in the authors' formats, read by the tests and mutated into malformed ones."""

# ruff: noqa: E501 - table rows are long

from __future__ import annotations

import json
from typing import Any

GPUMEMNET_MLP = b"""Filename,Depth,Activations-Params,Activation Function,Total Activations,Total Parameters,Batch Size,Max GPU Memory (MiB)
input:8_output:3_depth:1_arch:pyramid_batch:7.out,2,"[('linear', 4, 36), ('ReLU', 4, 0), ('linear', 3, 15)]",ReLU,11,51,7,1445
input:8_output:1_depth:1_arch:uniform_batch:7.out,2,"[('linear', 8, 72), ('ReLU', 8, 0), ('linear', 1, 9)]",ReLU,17,81,7,1400
input:8_output:3_depth:1_arch:pyramid_batch:9.out,2,"[('linear', 5, 36), ('ReLU', 4, 0), ('linear', 3, 15)]",ReLU,11,51,7,1445
input:8_output:3_depth:1_arch:spiral_batch:7.out,2,[],ReLU,11,51,7,1445
input:8_output:3_depth:2_arch:pyramid_batch:7.out,2,__import__('os'),ReLU,11,51,7,1445
"""
GPUMEMNET_CNN = b"""Filename,Depth,Activations-Params,Activation Function,Max GPU Memory (MiB),Status
input_channels:3_num_classes:5_depth:1_arch:uniform_base_filters:4_batch:6_input_size:8_act:leaky_relu_dropout:0.25_dropout:True_batchnorm:True.out,1,"[('conv2d', 256, 112), ('batchnorm2d', 256, 8), ('LeakyReLU', 256, 0), ('dropout', 256, 0), ('adaptive_avg_pool2d', 4, 0), ('linear', 5, 25), ('softmax', 5, 0)]",LeakyReLU,1700,SUCCESSFUL
input_channels:3_num_classes:5_depth:1_arch:uniform_base_filters:4_batch:6_input_size:8_act:relu_dropout:0.25_dropout:False_batchnorm:False.out,1,"[('conv2d', 256, 112), ('ReLU', 256, 0), ('adaptive_avg_pool2d', 4, 0), ('linear', 5, 25), ('softmax', 5, 0)]",ReLU,39900,SUCCESSFUL
input_channels:3_num_classes:5_depth:1_arch:uniform_base_filters:8_batch:6_input_size:8_act:relu_dropout:0.25_dropout:False_batchnorm:False.out,1,"[('conv2d', 512, 224), ('ReLU', 512, 0), ('adaptive_avg_pool2d', 8, 0), ('linear', 5, 45), ('softmax', 5, 0)]",ReLU,9000,OOM_CRASH
input_channels:3_num_classes:5_depth:4_arch:dense_base_filters:4_batch:6_input_size:2_act:relu_dropout:0.25_dropout:False_batchnorm:False.out,0,[],None,0,SUCCESSFUL
"""
XMEM = b"""path,model,optimizer,batch,gpu,total_gpu_memory,zero_grad_mode,target_iteration,ground_bytes,real_oom
a/b/1,MobeNetV3Small,Adam,64,NVIDIA-GeForce-RTX-3060,12622168064,,3,1048576000,False
a/b/2,org/some-lm,Adafactor,8,NVIDIA-GeForce-RTX-3060,12622168064,2,3,10000000000,True
a/b/3,VGG16,SGD,8,NVIDIA-GeForce-RTX-3060,12622168064,9,3,10000000000,False
"""
XMEM_JSON = json.dumps(
    {
        "solution": {"ground": 2**30, "memory": 2**30, "oom": False, "real_oom": False},
        "train info": {
            "batch_size": 64,
            "gpu_name": "NVIDIA GeForce RTX 3060",
            "model": "VGG16",
            "optimiser": "SGD",
            "target_iteration": 3,
            "total_gpu_memory": 12622168064,
            "zero_grad_mode": 1,
        },
    }
).encode()


def collected(**job: Any) -> dict[str, Any]:
    base = {
        "id": "1-0", "kind": "mlp", "precision": "fp32", "optimizer": "SGDm", "zero_grad": "step-start", "steps": 4, "inp": 8,
        "out": 5, "depth": 2, "shape": "pyramid", "batch": 16, "bn": True, "dropout": False, "channels_last": False,
        "checkpoint": False, "benchmark": False, "capped": True,
    }  # fmt: skip
    return {"job": {**base, **job}, "status": "ok", "allocated": 1000, "reserved": 2097152, "retries": 0, "seconds": 1.5}


COLLECT = (
    b"\n".join(
        json.dumps(row).encode()
        for row in [
            {**collected(), "capped": [[2097152, 1], [2000000, 0]]},
            {
                **collected(id="1-1", kind="tv86", name="mobilenet_v3_small", size=86),
                "status": "oom",
                "message": "out of memory",
            },
            collected(id="1-2", kind="quantum"),
            {"status": "ok"},
        ]
    )
    + b'\n{"job": {'
)

# Format -> (file name, content) of valid files.
SAMPLES: dict[str, list[tuple[str, bytes]]] = {
    "gpumemnet": [("mlp.csv", GPUMEMNET_MLP), ("cnn.csv", GPUMEMNET_CNN)],
    "xmem": [("xmem.csv", XMEM), ("evaluation_result.json", XMEM_JSON)],
    "collect": [("runs.jsonl", COLLECT)],
}
