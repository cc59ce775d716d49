"""Columns of tables that people write, named as those of the plain table.

    Model,Batch Size,GPU,Max Memory (MiB),State      ->  name, batch_size, gpu, process_mib, status
    run_id,status,params.batch_size,metrics.vram_gb  ->  id, status, batch_size, process_gib      (MLflow's search_runs)

A column is recognized by its name and the unit in it. Where two columns could be the same peak, neither is taken, and
`--columns` decides.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.plain import json_value
from vramcast.core.units import MIB
from vramcast.datasets.histories.reader import is_missing, whole_text
from vramcast.datasets.histories.statuses import WORDS, word_of

PEAKS: Final = ("process", "reserved", "allocated", "device")
# By column of the plain table: names without unit, of which the first that a table has counts.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "id": ("id", "job_id", "jobid", "run_id", "job"),
    "name": (
        *("model", "model_name", "network", "architecture", "arch", "name"),
        *("job_name", "jobname", "run_name", "mlflow_runname"),
    ),
    "user": ("user", "username", "user_name", "owner", "mlflow_user"),
    "batch_size": ("batch_size", "batchsize", "bs"),
    "seq": ("seq", "seq_len", "seq_length", "sequence_length", "max_seq_length", "max_seq_len", "context_length"),
    "image_size": ("image_size", "img_size", "imgsz", "resolution"),
    "optimizer": ("optimizer", "optim"),
    "precision": ("precision", "dtype"),
    "gpu": ("gpu", "gpu_name", "gpu_type", "gpu_model", "card", "accelerator"),
    "gpus": ("gpus", "num_gpus", "n_gpus", "gpu_count", "ngpus"),
    "status": ("status", "state", "job_status", "job_state", "phase"),
    "seconds": ("seconds", "elapsed", "elapsed_time", "runtime", "duration", "walltime", "wall_time"),
    "date": ("date", "end", "end_time", "timestamp", "created"),
    "host": ("host", "hostname", "node", "nodelist"),
    "torch": ("torch", "torch_version", "pytorch", "pytorch_version"),
    "cuda": ("cuda", "cuda_version"),
    "cudnn": ("cudnn", "cudnn_version"),
    "driver": ("driver", "driver_version"),
}  # fmt: skip
_SIZE_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "reserved": ("reserved", "max_reserved", "max_memory_reserved", "peak_reserved", "peak_memory_reserved"),
    "allocated": ("allocated", "max_allocated", "max_memory_allocated", "peak_allocated", "peak_memory_allocated"),
    "process": (
        "process", "peak", "max_memory", "max_mem", "peak_memory", "peak_mem", "max_gpu_memory", "max_gpu_mem",
        "peak_gpu_memory", "peak_gpu_mem", "gpu_memory", "gpu_mem", "gpu_memory_used", "vram", "max_vram", "peak_vram",
    ),
    "device": ("device",),
    "context": ("context",),
    "gpu_total": ("gpu_total", "gpu_total_memory", "gpu_memory_total", "total_gpu_memory", "card_memory", "gpu_capacity"),
    "cap": ("cap",),
}  # fmt: skip
_UNIT: Final = re.compile(r"(?:[\s_\-]*[\[(]\s*|[\s_\-]+)(mib|mb|gib|gb|bytes|b|s|sec|seconds)\s*[\])]?$")
# MB and GB are those of nvidia-smi and of scripts that divide by 1024: the larger reading.
_SUFFIX: Final = {"mib": "mib", "mb": "mib", "gib": "gib", "gb": "gib", "bytes": "bytes", "b": "bytes"}
_PREFIXES: Final = ("params.", "metrics.", "tags.")  # spec: mlflow.search_runs
_CLOSE: Final = 0.6  # arbitrary: similarity of a column that is suggested
_MOSTLY: Final = 0.8  # arbitrary: share of the cells that decide what a column holds
_CARD: Final = re.compile(r"\b(?:nvidia|tesla|geforce|rtx|gtx|quadro|[ahvpblt]\d{1,3}s?)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Columns:
    """The content of a table's columns.

    Attributes:
        known: Column of the plain table by the table's own column.
        ignored: Columns that are not read.
        notes: Remarks about the choice.
    """

    known: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """The fields without which a table is useless."""
        held = {of_unit(name)[0] for name in self.known.values()}
        has_name = bool({"name", "target"} & held)
        return [*["name"][has_name:], *["peak"][bool(held & set(PEAKS)) :]]


def of_unit(column: str) -> tuple[str, str]:
    """Return a plain column without its unit, and the unit: `process`, `mib`; "" without one.

    Example:
        >>> of_unit("process_mib"), of_unit("name")
        (('process', 'mib'), ('name', ''))
    """
    stem, _, unit = column.rpartition("_")
    return (stem, unit) if stem in _SIZE_NAMES and unit in ("mib", "gib", "bytes") else (column, "")


def recognized(header: Sequence[str], plain: Iterable[str], chosen: Mapping[str, str] | None = None) -> Columns:
    """Return what the columns of a table hold.

    Args:
        header: The table's columns.
        plain: Columns of the plain table.
        chosen: The user's choice: the table's column by plain column, or by another name of it.
    Raises:
        UsageError: A chosen field is unknown, or the table has no such column.
    """
    plain = [*plain]
    found = Columns()
    taken: set[str] = set()
    for wanted, column in (chosen or {}).items():
        own = _column_of(column, header)
        name = _field_of(wanted, own, plain)
        found.known[own] = name
        taken.add(of_unit(name)[0])
    ranks: dict[str, list[tuple[int, str, str]]] = {}
    for own in header:
        if own in found.known:
            continue
        name, rank = (own, -1) if own in plain else _named(own)
        if name:
            ranks.setdefault(own if rank < 0 else of_unit(name)[0], []).append((rank, own, name))
    for stem, candidates in ranks.items():
        stem = of_unit(stem)[0]
        candidates.sort(key=lambda one: one[0])
        is_size = stem in _SIZE_NAMES
        if stem in taken and candidates[0][0] >= 0:
            continue
        if is_size and candidates[0][0] >= 0 and len(candidates) > 1:
            own_names = ", ".join(f"'{own}'" for _, own, _ in candidates)
            found.notes.append(f"{own_names} may each be the peak, so none is taken: choose one by --columns")
            continue
        rank, own, name = candidates[0]
        taken.add(stem)
        found.known[own] = name
        if stem == "process" and rank >= 0:
            found.notes.append(
                f"'{own}' is taken for the process's peak, as nvidia-smi shows it; if torch counted it, say "
                f"--columns 'reserved=...' or 'allocated=...'"
            )
        if re.search(r"(?i)[^a-z](?:mb|gb)\W*$", own):
            found.notes.append(f"the unit of '{own}' is read as a power of 1024")
    found.ignored.extend(own for own in header if own not in found.known)
    return found


def _named(own: str) -> tuple[str, int]:
    """Return the plain column that a name means, and its rank among the names for it; "" if it is none."""
    stem, unit = _stem(own)
    for name, aliases in _NAMES.items():
        if stem in aliases and (not unit or name == "seconds"):
            return name, aliases.index(stem)
    for name, aliases in _SIZE_NAMES.items():
        if stem in aliases and (unit in _SUFFIX or not unit):
            return f"{name}_{_SUFFIX[unit]}" if unit else name, aliases.index(stem)
    return "", 0


def _stem(own: str) -> tuple[str, str]:
    text = own.strip().lower()
    text = next((text.removeprefix(prefix) for prefix in _PREFIXES if text.startswith(prefix)), text)
    match = _UNIT.search(text)
    text, unit = (text[: match.start()], match[1]) if match else (text, "")
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_"), unit


def _column_of(column: str, header: Sequence[str]) -> str:
    same = [own for own in header if own == column] or [own for own in header if own.lower() == column.strip().lower()]
    if len(same) != 1:
        close = difflib.get_close_matches(column, header, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(header[:20])}."
        raise UsageError(f"--columns names the column '{column[:60]}', which the table does not have: {hint}")
    return same[0]


def _field_of(wanted: str, own: str, plain: Sequence[str]) -> str:
    """Return the plain column that a user's word means; the table's own unit counts if the word has none."""
    stem, unit = of_unit(wanted)
    stem, unit = ("process", unit) if stem == "peak" else (stem, unit)
    if wanted.startswith("peak_"):
        stem, unit = "process", _SUFFIX.get(wanted.removeprefix("peak_"), "")
    if stem not in plain and stem not in _SIZE_NAMES:
        stem, unit = of_unit(_named(wanted)[0])
    if stem in _SIZE_NAMES:
        unit = unit or _SUFFIX.get(_stem(own)[1], "")
        return f"{stem}_{unit}" if unit else stem
    if stem not in plain:
        close = difflib.get_close_matches(wanted, [*plain, "peak", "model"], n=1)
        hint = f"did you mean '{close[0]}'?" if close else "docs/histories.md lists all."
        raise UsageError(f"--columns gives the field '{wanted[:40]}', which is unknown: {hint}")
    return stem


def parsed(text: str) -> dict[str, str]:
    """Return the choice in `peak_mib=Max Mem,model=Model`, or in a JSON file of the same pairs.

    Raises:
        DatasetError: The file cannot be read.
        UsageError: The text is not of this form.

    Example:
        >>> parsed("peak_mib=Max Mem, model=Model")
        {'peak_mib': 'Max Mem', 'model': 'Model'}
    """
    if text.endswith(".json"):
        values = json_value(whole_text(os.fspath(text)), f"'{text}'")
        if not isinstance(values, dict) or not all(isinstance(one, str) for one in values.values()):
            raise DatasetError(f'\'{text}\' is not a JSON object of names: write {{"peak_mib": "Max Mem"}}.')
        return values
    pairs = [part.partition("=") for part in text.split(",")]
    if wrong := [field for field, equals, column in pairs if not (equals and field.strip() and column.strip())]:
        raise UsageError(
            f"--columns has '{wrong[0][:60]}', but must be FIELD=COLUMN,...: write 'peak_mib=Max Mem,model=Model'."
        )
    return {field.strip(): column.strip() for field, _, column in pairs}


def line_of(chosen: dict[str, str]) -> str:
    """Return the option that repeats a choice.

    Example:
        >>> line_of({"peak_mib": "Max Mem"})
        "--columns 'peak_mib=Max Mem'"
    """
    if any("," in column for column in chosen.values()):
        return f"--columns columns.json, a file with {json.dumps(chosen)}"
    text = ",".join(f"{field}={column}" for field, column in chosen.items())
    return "--columns '" + text.replace("'", "'\\''") + "'"


# Suggestions ----------------------------------------------------------------------------------------------------------


def suggested(columns: Columns, rows: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return a column for each missing field, by similarity of its name and by its cells; fields without one are left out.

    Args:
        columns: What is recognized.
        rows: The first rows, by the table's own columns.
    """
    cells = {own: [row[own] for row in rows if not is_missing(row.get(own, ""))] for own in columns.ignored}
    held = {of_unit(name)[0] for name in columns.known.values()}
    found: dict[str, str] = {}
    if "peak" in columns.missing and (own := _best(cells, _SIZE_NAMES["process"], _size_like)):
        unit = guessed_unit(own, cells[own])
        found[f"peak_{unit}" if unit else "peak"] = own
    if "status" not in held and (own := _best(cells, _NAMES["status"], _status_like, found.values())):
        found["status"] = own
    if "gpu" not in held and (own := _best(cells, _NAMES["gpu"], _card_like, found.values())):
        found["gpu"] = own
    if "name" in columns.missing and (own := _best(cells, _NAMES["name"], _text_like, found.values())):
        found["model"] = own
    return found


def _best(
    cells: Mapping[str, list[str]], names: Sequence[str], fits: Callable[[str, Sequence[str]], bool], taken: Iterable[str] = ()
) -> str:
    """Return the column of the fitting cells with the most similar name; "" if no column fits."""
    fitting = [own for own, held in cells.items() if own not in taken and held and fits(own, held)]
    return max(fitting, key=lambda own: _similarity(own, names), default="")


def _similarity(own: str, names: Sequence[str]) -> float:
    stem = _stem(own)[0]
    return max(difflib.SequenceMatcher(None, stem, name).ratio() for name in names)


def _size_like(own: str, cells: Sequence[str]) -> bool:
    numeric = [re.fullmatch(r"[0-9.]+\s*(?:[KMGT]i?B?|bytes)?", cell.strip(), re.IGNORECASE) for cell in cells]
    named = re.search(r"mem|ram|peak", own, re.IGNORECASE) or _similarity(own, _SIZE_NAMES["process"]) >= _CLOSE
    return bool(named) and sum(map(bool, numeric)) >= _MOSTLY * len(cells)


def _status_like(own: str, cells: Sequence[str]) -> bool:
    return sum(word_of(cell) in WORDS for cell in cells) >= _MOSTLY * len(cells)


def _card_like(own: str, cells: Sequence[str]) -> bool:
    return sum(bool(_CARD.search(cell)) for cell in cells) >= _MOSTLY * len(cells)


def _text_like(own: str, cells: Sequence[str]) -> bool:
    return sum(bool(re.search(r"[A-Za-z]{2}", cell)) for cell in cells) >= _MOSTLY * len(cells)


def guessed_unit(own: str, cells: Sequence[str]) -> str:
    """Return the unit that bare numbers of this size probably have; "" if the column's name or its cells have one.

    Example:
        >>> guessed_unit("Max Mem", ["4530", "8530"]), guessed_unit("Max Mem (GB)", ["4.5"]), guessed_unit("Mem", ["4530 MiB"])
        ('mib', '', '')
    """
    bare = [cell.strip() for cell in cells if not is_missing(cell)]
    if _stem(own)[1] in _SUFFIX or not all(re.fullmatch(r"[0-9.]+", cell) for cell in bare):
        return ""
    try:
        middle = statistics.median(float(cell) for cell in bare)
    except ValueError:  # no cells, or 1.2.3
        return "mib"
    return "bytes" if middle >= 16 * MIB else "gib" if middle < 192 else "mib"  # arbitrary: cards have 0.5 to 192 GiB
