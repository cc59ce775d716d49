"""The training loop behind the timm rows, as a script for `vramcast run`.

    python timm_script.py '{"model": "resnet18", "batch": 8, "size": [3, 224, 224]}'

The parts of timm's train.py that decide memory, with its defaults: `torch.backends.cudnn.benchmark`; the prefetching loader,
which sends the next batch as bytes and converts it to floats on its own stream while the last one is in use; SGD with Nesterov
momentum and weight decay, which copies the gradients; gradients dropped after the step. Loader and optimizer are timm's own.
Source: huggingface/pytorch-image-models, train.py and timm/data/loader.py of September 2024 (44f1a343); rewritten.
"""

from __future__ import annotations

import json
import sys

import torch

STEPS = 4  # measured: the second step allocates the last new memory; later ones are equal


def main(job: dict[str, object]) -> None:
    """Train; the caller may stop earlier."""
    import timm  # type: ignore[import-untyped,unused-ignore]
    from timm.data.loader import PrefetchLoader  # type: ignore[import-untyped,unused-ignore]
    from timm.optim import create_optimizer_v2  # type: ignore[attr-defined,import-untyped,unused-ignore]

    batch, size = int(str(job["batch"])), job["size"]
    assert isinstance(size, list)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = timm.create_model(str(job["model"]), pretrained=False, num_classes=1000).to(device)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, weight_decay=2e-5, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    images = [(torch.zeros(batch, *size, dtype=torch.uint8), torch.zeros(batch, dtype=torch.int64)) for _ in range(STEPS)]
    model.train()
    optimizer.zero_grad()
    for inputs, labels in PrefetchLoader(images, device=device):  # type: ignore[arg-type,unused-ignore]
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
