"""vramcast: how much GPU memory will this PyTorch training job take?"""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "tracer").is_dir():
    # A checkout or an editable install: the rooms stand beside this folder and carry no __init__.py, so that none of
    # them shadows an installed package of the same name (Hugging Face's `datasets`, a user's `models`).
    # A wheel has them inside this folder (package-dir in pyproject.toml), and this branch is not taken.
    __path__.append(str(_ROOT))
