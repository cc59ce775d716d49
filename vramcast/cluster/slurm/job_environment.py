"""Environment variables of a job that its script or its code names, as `sbatch` will pass them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from vramcast.core.text import encodable

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
# Variables that torch and its libraries read, whether or not the job's own code names them.
_READ_BY_TORCH: Final = re.compile(
    r"PYTORCH_\w*|TORCH_\w*|TORCHDYNAMO_\w*|CUBLAS_\w*|CUDNN_\w*|NVIDIA_TF32_OVERRIDE|ACCELERATE_\w*|HOME"
    r"|PET_\w*|NCCL_\w*|NVTE_\w*|XFORMERS_\w*|TRITON_\w*|(APPTAINER|SINGULARITY)ENV_\w*|UV_ENV_FILE|CUDA_MODULE_LOADING"
)
# Code that makes the names of the variables it reads, as with click, pydantic-settings and environs: each may be one.
_MAKES_NAMES: Final = re.compile(
    r"env_?var_prefix|env_prefix|BaseSettings|default_env|\b(environs|decouple|dynaconf)\b|\benviron\.(items|keys|copy)\("
    r"|(\bfor [\w, ]+ in |\*\*|dict\()(os\.)?environ\b|\b(environ\s*(\[|\.(get|pop)\()|getenv\()\s*(?![\"']\w+[\"']\s*[\]),])"
)
# Variables of a login and of the machine, which set no size.
_OF_A_LOGIN: Final = re.compile(
    r"(SSH|XDG|DBUS|LC|LMOD|CONDA)_\w*|LS_COLORS|\w*TERM\w*|DISPLAY|_.*|SHLVL|(OLD)?PWD|HIST\w*|LESS\w*|PS[1-4]|MAIL|(MAN)?PATH|SHELL"
    r"|USER|LOGNAME|LANG\w*|LOADEDMODULES|MODULE\w*|EDITOR|PAGER|TMPDIR|TMUX\w*|STY|WINDOW\w*|BASH_FUNC.*"
)
# Secrets of the job: only the fact that they are set is sent.
SECRET: Final = re.compile(r"(?i)(\w*_)?(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH|COOKIE)(_\w*)?")
_ALL_OR_NONE: Final = frozenset({"ALL", "NONE", "NIL"})
_SLURMS: Final = ("SLURM", "SBATCH_", "SRUN_")  # Slurm sets them anew


def job_environment(submitted: Mapping[str, str], export: str, texts: Iterable[str]) -> dict[str, str | None]:
    """Return the variables of a job by name; None: the value is secret or unknown.

    Args:
        submitted: The environment of the submission.
        export: The option `--export`; "": it was not given. # spec: sbatch(1)
        texts: The script and the code. Variables that none of them names are left out, unless they make names.
    """
    said = "\n".join(texts)
    mentioned = set(_WORD.findall(said))
    parts = [part for part in export.split(",") if part]
    words = {part.upper() for part in parts}
    found: dict[str, str | None] = {}
    if not parts or "ALL" in words:
        found |= submitted
    elif "NIL" not in words:  # the shell starts as after a login, which sets unknown variables
        found |= dict.fromkeys(submitted)
    for part in parts:
        name, equals, value = part.partition("=")
        if equals:
            found[name] = None if set(value) & {"'", '"'} else value
        elif name in submitted and part.upper() not in _ALL_OR_NONE:
            found[name] = submitted[name]
    if _MAKES_NAMES.search(said):
        mentioned |= {name for name in found if not _OF_A_LOGIN.fullmatch(name) and not SECRET.fullmatch(name)}
    return {
        name: None if value is None or SECRET.fullmatch(name) else encodable(value)
        for name, value in found.items()
        if (name in mentioned or _READ_BY_TORCH.fullmatch(name)) and not name.startswith(_SLURMS)
    }
