"""Small valid files of every format, invented here: the tests read them, and mutate them into malformed ones."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
from typing import Any

BASE = 0x7F0000000000

SACCT = b"""JobID|JobName|User|State|AllocTRES|TRESUsageInMax|Elapsed|End|NodeList
# two jobs of which one ran out of memory
11|train|ada|COMPLETED|cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G||1-02:00:03|2026-01-02T03:04:05|n1
11.batch|batch||COMPLETED|cpu=8,gres/gpu=2|cpu=00:10:00,gres/gpumem=1500M,gres/gpuutil=90||1-02:00:03|
11.0|python||COMPLETED|cpu=8,gres/gpu=2|cpu=00:10:00,gres/gpumem=2G,gres/gpuutil=90|||
11.extern|extern||COMPLETED||gres/gpumem=9T|||
12|big|ada|OUT_OF_MEMORY|cpu=8,gres/gpu=1||00:01:00|2026-01-02T03:04:05|n1
12.batch|batch||OUT_OF_MEMORY|cpu=8,gres/gpu=1|gres/gpumem=0,gres/gpuutil=0|||
13|cpu only|ada|COMPLETED|cpu=8,mem=1G||00:01:00|2026-01-02T03:04:05|n1
14|waits|ada|PENDING|gres/gpu=1||00:00:00|Unknown|
nonsense
"""
SACCT_BARE = b"""7||
7.batch|cpu=1,gres/gpumem=100M,gres/gpuutil=1|
7.extern|cpu=0,gres/gpumem=0|
"""


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def tres(name: str, count: int) -> dict[str, Any]:
    return {"type": "gres", "name": name, "id": 1002, "count": count}


SACCT_JSON = json.dumps(
    {
        "meta": {"plugin": {"data_parser": "data_parser/v0.0.41"}},
        "jobs": [
            {
                "job_id": 21,
                "name": "train",
                "user": "ada",
                "state": {"current": ["COMPLETED"], "reason": "None"},
                "array": {"job_id": 20, "task_id": number(3)},
                "time": {"elapsed": 60, "end": 1_767_000_000},
                "nodes": "n1",
                "tres": {"allocated": [tres("gpu", 2), tres("gpu:a100", 2), {"type": "cpu", "name": "", "count": 8}]},
                "steps": [
                    {"step": {"id": "21.batch", "name": "batch"}, "tres": {"requested": {"max": [tres("gpumem", 2**30)]}}},
                    {"step": {"id": "21.0", "name": "python"}, "tres": {"requested": {"max": [tres("gpumem", 2**31)]}}},
                    {"step": {"id": "21.extern", "name": "extern"}, "tres": {"requested": {"max": [tres("gpumem", 2**40)]}}},
                ],
            },
            {
                "job_id": number(22),
                "state": {"current": "TIMEOUT"},
                "tres": {"allocated": [tres("gpu", 1)]},
                "steps": [
                    {
                        "step": {"id": {"job_id": 22, "step_id": "batch"}},
                        "tres": {"requested": {"max": [{**tres("gpumem", 0), "count": number(2**64 - 1)}]}},
                    }
                ],
            },
            {"job_id": 23, "state": {"current": "COMPLETED"}, "tres": {"allocated": []}, "steps": []},
            {"name": "without an id"},
        ],
    }
).encode()


def js1(summary: object) -> bytes:
    return b"JS1:" + base64.b64encode(gzip.compress(json.dumps(summary).encode()))


JOBSTATS_SUMMARY = {
    "nodes": {
        "n1": {"gpu_total_memory": {"0": 40 * 2**30, "1": 40 * 2**30}, "gpu_used_memory": {"0": 2**30, "1": 39 * 2**30}},
        "n2": {"cpus": 4, "used_memory": 12},
    },
    "gpus": 2,
    "total_time": 60.5,
}
JOBSTATS = b"\n".join(
    [
        b"JobID|JobName|User|State|AdminComment",
        b"31|train|ada|COMPLETED|" + js1(JOBSTATS_SUMMARY),
        b"32|short|ada|COMPLETED|JS1:Short",
        b"33|step|ada|COMPLETED|",
        b"34|cpu|ada|COMPLETED|" + js1({"nodes": {"n1": {"cpus": 1}}}),
        b"35|broken|ada|COMPLETED|JS1:AAAA",
        b"",
    ]
)
SERIES = b"""timestamp, index, name, memory.used [MiB], memory.total [MiB]
2026/01/02 03:04:05.000, 0, NVIDIA A100-SXM4-40GB, 1000 MiB, 40960 MiB
2026/01/02 03:04:05.500, 0, NVIDIA A100-SXM4-40GB, 3000 MiB, 40960 MiB
2026/01/02 03:04:06.000, 0, NVIDIA A100-SXM4-40GB, 2000 MiB, 40960 MiB
2026/01/02 03:04:05.000, 1, NVIDIA A100-SXM4-40GB, 40000 MiB, 40960 MiB
2026/01/02 03:04:05.500, 1, NVIDIA A100-SXM4-40GB, [N/A], 40960 MiB
2026/01/02 03:04:05.500, 1, NVIDIA A100-SXM4-40GB, many, 40960 MiB
"""
SUPERCLOUD = b"""timestamp,gpu_index,utilization_gpu_pct,memory_free_MiB,memory_used_MiB,id_job
1600000000.0,0,10,31000,1510,5
1600000000.1,0,10,30000,2510,5
"""
PROMETHEUS = b"""# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
DCGM_FI_DEV_FB_USED{gpu="0",Hostname="n1",modelName="NVIDIA H100 80GB HBM3",hpc_job="41"} 100 1767000000000
DCGM_FI_DEV_FB_FREE{gpu="0",Hostname="n1",modelName="NVIDIA H100 80GB HBM3",hpc_job="41"} 900
DCGM_FI_DEV_FB_USED{gpu="0",Hostname="n1",modelName="NVIDIA H100 80GB HBM3",hpc_job="41"} 990 1767000030000
DCGM_FI_DEV_FB_FREE{gpu="0",Hostname="n1",modelName="NVIDIA H100 80GB HBM3",hpc_job="41"} 10
DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="n1"} 35
broken{
"""
PAI = b"""j1,worker,w1,i1,m1,/dev/nvidia0,140.1,16.0,1.4,2.3,1.2,2.5,1,1,1,1
j1,worker,w2,i1,m1,/dev/nvidia1,140.1,16.0,1.4,2.3,,0,1,1,1,1
j2,ps,w3,i2,m1,/dev/nvidia1,140.1,16.0,1.4,2.3,0.1,0.5,1,1,1,1
short,row
j3,ps,w4,i2,m1,/dev/nvidia1,140.1,16.0,1.4,2.3,0.1,much,1,1,1,1
"""
PAI_TASK = b"""j1,worker,2.0,Terminated,1.0,2.0,600.0,29.3,50.0,V100
j2,ps,1.0,Failed,1.0,2.0,600.0,29.3,250.0,T4
"""
PAI_INSTANCE = b"""j1,worker,n1,w1,i1,Failed,1.0,2.0,m1
"""


def entry(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], "time_us": 1, **more}


def snapshot() -> dict[str, Any]:
    block = {"address": BASE, "size": 2097152, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {
        "device": 0, "address": BASE, "total_size": 2097152, "allocated_size": 0, "active_size": 0, "requested_size": 0,
        "stream": 0, "segment_type": "small", "is_expandable": False, "frames": [], "blocks": [block],
    }  # fmt: skip
    history = [
        entry("segment_alloc", BASE, 2097152),
        entry("alloc", BASE, 1000),
        entry("free_requested", BASE, 1000),
        entry("free_completed", BASE, 1000),
        {"action": "oom", "size": 2**40, "device_free": 12345, "stream": 0, "frames": [], "time_us": 9},
    ]
    return {"segments": [segment], "device_traces": [history, []], "allocator_settings": {}}


SNAPSHOT = pickle.dumps(snapshot(), protocol=4)


CSV = b"""name,batch_size,optimizer,precision,gpu,gpu_total_bytes,reserved_mib,process_gib,status,target,batch,labels,parameters
one,32,sgdm,fp32,A100,42474471424,1000,2.5,ok,torchvision:resnet18,32x3x64x64,32:int64<1000,11689512
two,8,adam,fp32,A100,42474471424,,39,ok,hf:bert,input_ids=8x128:int64 attention_mask=8x128:int64=1,,
three,8,adam,fp33,A100,42474471424,,39,ok,,,,
four,8,adam,fp32,A100,42474471424,0,,unknown,,,,
"""
LOGGED = f"""import torch
print("peak memory allocated: 9 MiB")  # the source is no line of the log
{"=" * 100}
Running Python 3.12.3 (main) [GCC 13.3.0]
Running PyTorch 2.9.1+cu128
| NVIDIA-SMI 565.57.01              Driver Version: 565.57.01      CUDA Version: 12.7     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:87:00.0 Off |                    0 |
| N/A   52C    P0            142W /  700W |    1184MiB /  81559MiB |      8%      Default |
{"=" * 100}
model_params:17424332 world_size:8 batch_size:16 layers:[0, 1] rate:0.5
step:1/9 train_loss:6.9
peak memory allocated: 3208 MiB reserved: 3374 MiB
peak allocated: 3 GB
max_memory_reserved: 0 MiB
""".encode()
LOGGED_FULL = b"""\
[rank0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of \
which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.85 GiB memory in use. Of the allocated memory \
75.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated.
"""
RUNS = (
    json.dumps(
        {"schema": 1, "id": "a", "workload": {"name": "x"}, "passport": {"measured_by": "me"}, "measurement": {"status": "ok"}}
    ).encode()
    + b'\n{"schema": 99}\n{"torn'
)

# Format -> (file name, content) of valid files.
SAMPLES: dict[str, list[tuple[str, bytes]]] = {
    "sacct": [("jobs.txt", SACCT), ("bare.txt", SACCT_BARE)],
    "sacct-json": [("jobs.json", SACCT_JSON)],
    "jobstats": [("jobs.txt", JOBSTATS)],
    "series": [("99.csv", SERIES), ("job.csv", SUPERCLOUD), ("dcgm.prom", PROMETHEUS)],
    "pai": [("pai_sensor_table.csv", PAI)],
    "snapshot": [("snapshot.pickle", SNAPSHOT)],
    "logged": [("train.log", LOGGED), ("full.log", LOGGED_FULL)],
    "csv": [("table.csv", CSV)],
    "runs": [("runs.jsonl", RUNS)],
}
