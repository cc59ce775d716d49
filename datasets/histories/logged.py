"""Logs of training scripts: the peaks of torch's allocator, settings and versions; one run per log.

A log may begin with the source of its script and a line of `=` signs (llm.c, modded-nanogpt and parameter-golf write such
logs). `peak_lines.py` recognizes the lines with a peak. Of several peaks the largest counts; a value in no line is None.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from vramcast.core.errors import DatasetError
from vramcast.core.units import GIB, MIB
from vramcast.datasets.histories.peak_lines import NUMBER, Base, LoggedPeak, base_of, peak_of
from vramcast.datasets.histories.reader import Tally, near_capacity, whole_bytes
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload

RULE: Final = "=" * 100  # spec: the line that the scripts of the three projects print between source and log
_IMPORT: Final = re.compile(r"^(?:import \w|from [\w.]+ import )", re.MULTILINE)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST: Final = 10_000  # arbitrary: characters; no line with a peak or a setting has more

# Settings -----------------------------------------------------------------------------------------------------------
_SETTING: Final = re.compile(r"(?<![\w/\\])([A-Za-z_]\w+)[:=](\[[\d., ]*\]|[^\s:=,;|()]+)(?=[\s,;|)]|$)")
_STEP: Final = re.compile(r"(warmup_)?step:\d")
_MOST_SETTINGS: Final = 300  # arbitrary: the known logs have at most 140
_LARGEST: Final = 1e15  # arbitrary: above any count of parameters or tokens; a larger number is an address
_BATCH_SIZES: Final = ("batch_size", "local_batch_size", "per_device_train_batch_size", "micro_batch_size")
_PARAMETERS: Final = ("model_params", "total_params", "num_params", "n_params")

# Software and hardware ----------------------------------------------------------------------------------------------
_TORCH: Final = re.compile(r"\b(?:py)?torch(?:[ _.]?version)?[_ ]*[:= ]{1,3}v?(\d+\.\d+\.\d+[\w.+]*)", re.IGNORECASE)
_PYTHON: Final = re.compile(r"\bpython(?:[ _]?version)?[:= ]{1,2}(\d+\.\d+\.\d+)", re.IGNORECASE)
_CUDA: Final = re.compile(r"compiled for CUDA (\d+\.\d+)|\bcu(\d\d)(\d)\b|torch\.version\.cuda[:= ]+(\d+\.\d+)")
_DRIVER: Final = re.compile(r"Driver Version: (\d[\d.]*)")
_SMI_CARD: Final = re.compile(r"^\|\s{1,9}\d{1,3}\s{1,4}(\S.{1,60}?)\s{1,40}(?:On|Off|WDDM|TCC|N/A)\s{0,9}\|", re.MULTILINE)
_SMI_TOTAL: Final = re.compile(r"\dMiB\s{0,9}/\s{0,9}(\d{1,9})MiB")
_TITAN_CARD: Final = re.compile(rf"CUDA capacity: (.{{1,80}}?) with {NUMBER} ?GiB")
_WORLD: Final = re.compile(r"\bworld[ _]size['\"]?\s*[:=]\s*(\d{1,7})\b", re.IGNORECASE)
_MESH: Final = re.compile(r"device mesh with \[[^\]]{0,200}\], \[([\d, ]{1,99})\]")
_TITAN_PARAMETERS: Final = re.compile(r"size: ([\d,]+) total parameters|Model initialized with ([\d,]+) parameters")
_TITAN_BATCH: Final = re.compile(r"local batch size:? (\d{1,9})\b")
_WINDOWS: Final = "MSC v."  # spec: the compiler in sys.version of Python for Windows


def read(path: str | os.PathLike[str], script: str | os.PathLike[str] | None = None) -> JournalContent:
    """Return one run per log, or one per batch size if the script tries several.

    Args:
        path: The log.
        script: The source of the script, if it is not in the log.
    Raises:
        DatasetError: A file cannot be read.
    """
    tally = Tally(path)
    blob = whole_bytes(path)
    source, text = split(blob)
    if not source and script is not None:
        source = whole_bytes(script)
    lines = _lines(text, tally)
    name = Path(script).name if script is not None else tally.path.stem
    facts = _Facts(hashlib.sha256(blob).hexdigest()[:16], name, source, lines)
    of_batch: dict[int | None, list[LoggedPeak]] = {}
    for peak in _peaks(lines, base_of(source.decode(errors="replace")), tally):
        if peak.allocated or peak.reserved or peak.process:
            of_batch.setdefault(peak.batch_size, []).append(peak)
        else:
            tally.skip("of peaks of 0 bytes")
    for peaks in of_batch.values():
        tally.run([(peak.place, peak.text) for peak in peaks], _run, peaks, facts)
    if not tally.rows:
        tally.rows = 1
        tally.reject("all", "No line has a peak of torch's allocator: docs/histories.md lists the known forms.", text[:200])
    tally.note("sizes are as printed: whole MiB are rounded down, decimals to the nearest")
    return tally.done()


def _peaks(lines: Sequence[str], base: Base | None, tally: Tally) -> Iterator[LoggedPeak]:
    """Yield the peaks in lines; reject those with an ambiguous unit."""
    for place, line in enumerate(lines, 1):
        try:
            peak = peak_of(place, line, base)
        except DatasetError as error:
            tally.rows += 1
            tally.reject(place, error, line)
            continue
        if peak is not None:
            tally.rows += 1
            yield peak


# The file -----------------------------------------------------------------------------------------------------------
def split(blob: bytes) -> tuple[bytes, str]:
    """Return the source at the beginning of a log, and the script's output; the source is empty if there is none."""
    rule = RULE.encode()
    source, _, rest = blob.removeprefix(rule).partition(rule)
    if not rest or not _IMPORT.search(source.decode(errors="replace")):
        return b"", blob.decode(errors="replace")
    return source, rest.decode(errors="replace")


def _lines(text: str, tally: Tally) -> list[str]:
    """Return the lines without colors, with each state of a progress bar as a line; overlong ones are empty, with a note."""
    lines = re.split(r"\r\n|\n|\r", text)
    if any(len(line) > _LONGEST for line in lines):
        tally.note(f"lines above {_LONGEST:,} characters are ignored")
    return [_COLOUR.sub("", line).replace("\0", "\ufffd").strip() if len(line) <= _LONGEST else "" for line in lines]


def settings_of(lines: Iterable[str]) -> dict[str, str]:
    """Return the settings written as `name:value` or `name=value` before the first step; the first of a name counts."""
    settings: dict[str, str] = {}
    for line in lines:
        if _STEP.match(line):
            break
        for name, value in _SETTING.findall(line):
            settings.setdefault(name, value)
    return settings


# The run ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Facts:
    """Facts in a log apart from its peaks."""

    digest: str
    name: str
    source: bytes
    lines: Sequence[str]

    @cached_property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def settings(self, place: int) -> dict[str, str]:
        """Return the settings of the run that printed a peak in this line: several runs may have written into one file."""
        start = next((i for i in range(place - 1, -1, -1) if RULE in self.lines[i]), 0)
        return settings_of(self.lines[start:place])

    def first(self, pattern: re.Pattern[str]) -> str | None:
        """Return the first group that the pattern matches, None without a match."""
        found = pattern.search(self.text)
        return next((group for group in found.groups() if group), None) if found else None

    def count(self, pattern: re.Pattern[str]) -> int | None:
        """Return the first count that the pattern matches."""
        found = (self.first(pattern) or "").replace(",", "")
        return int(found) if found.isdigit() and 0 < int(found) < _LARGEST else None

    @property
    def cuda(self) -> str | None:
        """The CUDA version of torch; nvidia-smi's is only the driver's maximum."""
        found = _CUDA.search(self.text)
        if found is None:
            return None
        return found[1] or found[4] or f"{found[2]}.{found[3]}"

    @property
    def total_bytes(self) -> int | None:
        """The card's memory, as printed by torch, else by nvidia-smi."""
        if (titan := _TITAN_CARD.search(self.text)) is not None:
            return round(float(titan[2].replace(",", "").replace("_", "")) * GIB) or None
        return (self.count(_SMI_TOTAL) or 0) * MIB or None

    @property
    def ranks(self) -> int | None:
        """The number of ranks."""
        if (mesh := self.first(_MESH)) is not None:
            sizes = [int(size) for size in mesh.split(",") if size.strip().isdigit()]
            return math.prod(sizes) if sizes and all(0 < size < _LARGEST for size in sizes) else None
        return self.count(_WORLD)


def _run(peaks: Sequence[LoggedPeak], facts: _Facts) -> Run:
    allocated = max((peak.allocated for peak in peaks if peak.allocated), default=None)
    reserved = max((peak.reserved for peak in peaks if peak.reserved), default=None)
    full = max((peak for peak in peaks if peak.is_full), key=lambda peak: peak.reserved or 0, default=None)
    total = (full.total if full is not None else None) or facts.total_bytes
    settings = facts.settings(peaks[0].place - 1)
    batch = peaks[0].batch_size or _setting(settings, _BATCH_SIZES) or facts.count(_TITAN_BATCH)
    torch = facts.first(_TORCH)
    return Run(
        id=f"logged-{facts.digest}" + (f"-batch-{peaks[0].batch_size}" if peaks[0].batch_size is not None else ""),
        workload=Workload(
            name=facts.name,
            family="script",
            script_sha256=hashlib.sha256(facts.source).hexdigest() if facts.source else None,
            features=_features(settings, facts),
            batch_size=batch,
            gpus=1,
        ),
        passport=Passport(
            measured_by="the script itself",
            how="torch.cuda.max_memory_allocated, max_memory_reserved",
            gpu=facts.first(_TITAN_CARD) or facts.first(_SMI_CARD),
            gpu_total_bytes=total,
            driver=facts.first(_DRIVER),
            cuda=facts.cuda,
            torch=torch,
            python=facts.first(_PYTHON),
            platform="Windows" if _WINDOWS in facts.text else None,
        ),
        measurement=Measurement(
            status="ok" if full is None else "oom",
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            process_bytes=full.process if full is not None else None,
            censored=full is not None or near_capacity(reserved or allocated, total),
            oom_requested_bytes=full.asked if full is not None else None,
        ),
    )


def _setting(settings: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Return the first of these settings that is a count."""
    found = (settings.get(name, "").replace(",", "") for name in names)
    return next((int(value) for value in found if value.isdecimal() and 0 < int(value) < _LARGEST), None)


def _features(settings: Mapping[str, str], facts: _Facts) -> dict[str, float]:
    """Return counts of the model, the ranks, and each numeric setting as `setting.NAME`."""
    known = {
        "parameters": _setting(settings, _PARAMETERS) or facts.count(_TITAN_PARAMETERS),
        "ranks": facts.ranks,
    }
    numbers = ((name, value) for name, value in settings.items() if re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", value))
    said = {f"setting.{name[:60]}": float(value) for name, value in list(numbers)[:_MOST_SETTINGS]}
    return {name: float(value) for name, value in known.items() if value is not None} | said
