"""What decides an answer besides its question: versions, the artifact, the environment."""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from typing import Final

from vramcast import __version__
from vramcast.bounds.learned import SHIPPED, chosen, named

_PACKAGES: Final = ("torch", "torchvision", "timm", "transformers")
# spec: what torch's allocator, cuBLAS and cuDNN read themselves, and vramcast
_SETTINGS: Final = (
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    *("VRAMCAST_ARTIFACT", "VRAMCAST_SITE"),
)
_ARTIFACT: Final = "artifact.json"


def answered_by(artifact: str | None) -> str:
    """Return a digest of all that, for the keys of kept answers.

    Raises:
        UsageError, ArtifactError: the artifact is none.
    """
    versions = {name: _version(name) for name in _PACKAGES}
    settings = {name: os.environ.get(name) for name in _SETTINGS}
    folder = chosen(artifact) or named(SHIPPED)
    path = folder / _ARTIFACT
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
    text = json.dumps([__version__, versions, settings, str(artifact), content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
