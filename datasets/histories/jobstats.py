"""Princeton Jobstats: summaries in sacct's column AdminComment, as `JS1:` + base64(gzip(JSON)).

    sacct -P --format=JobID,JobName,User,State,AdminComment

    {"nodes": {HOST: {"gpu_total_memory": {INDEX: bytes}, "gpu_used_memory": {INDEX: bytes}, ...}}, "gpus": 2, "total_time": 60}

There is one run per card: `gpu_used_memory` is the card's peak over the job, as sampled by the site's exporter.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import zlib
from typing import Any, Final

from vramcast.core.errors import DatasetError
from vramcast.core.plain import json_value
from vramcast.datasets.histories.reader import Tally, is_missing, near_capacity
from vramcast.datasets.histories.slurm import parsable_rows, split_id, state_of
from vramcast.datasets.histories.statuses import SLURM
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload

MAX_JSON_BYTES: Final = 2**24  # arbitrary: a summary of 1,000 nodes has about 500 kB
_SUMMARY: Final = re.compile(r"JS1:([A-Za-z0-9+/=]*)")
_GZIP: Final = 31  # spec: zlib, window bits for a gzip header


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return one run for each card of each job.

    Raises:
        DatasetError: The file cannot be read.
    """
    tally = Tally(path)
    cards = 0
    for number, text, header, cells in parsable_rows(path):
        tally.rows += 1
        match = _SUMMARY.search(text)
        if match is None:
            tally.skip("without a Jobstats summary")
            continue
        if match[1] in ("", "Short", "None"):
            tally.skip("whose job was too short for Jobstats")
            continue
        with tally.guarded(number, text):
            runs = _runs(_facts(header, cells), unpacked(match[1]))
            if not runs:
                tally.skip("of jobs without a GPU")
            for k, run in enumerate(runs):
                tally.run([(number, text)], lambda run=run: run, more=k > 0)
            cards += len(runs)
    tally.note(f"{cards} cards: one run per card; the sampling period is the site's, and not in this file")
    return tally.done()


def unpacked(text: str) -> Any:
    """Return the JSON in a summary.

    Raises:
        DatasetError: It is damaged, or unpacks to more than MAX_JSON_BYTES.
    """
    try:
        packed = base64.b64decode(text, validate=True)
        inflater = zlib.decompressobj(_GZIP)
        data = inflater.decompress(packed, MAX_JSON_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DatasetError(f"The Jobstats summary is damaged ({error}).", kind="the Jobstats summary is damaged") from None
    if inflater.unconsumed_tail:
        raise DatasetError(f"The Jobstats summary unpacks to more than {MAX_JSON_BYTES:,} bytes, the limit.")
    if not inflater.eof:
        raise DatasetError("The Jobstats summary is truncated.")
    return json_value(data.decode(errors="replace"), "The Jobstats summary")


def _facts(header: list[str] | None, cells: list[str]) -> dict[str, str]:
    if header is not None and len(header) == len(cells):
        facts = dict(zip(header, cells, strict=True))
        facts["jobid"] = facts.get("jobid") or facts.get("jobidraw", "")
        return facts
    words = [word for cell in cells for word in cell.split()]
    return {
        "jobid": next((word for word in words if split_id(word)), ""),
        "state": next((cell for cell in cells if state_of(cell)), ""),
    }


def _runs(facts: dict[str, str], summary: Any) -> list[Run]:
    identity = split_id(facts["jobid"])
    if identity is None:
        raise DatasetError("The row has a summary but no job id: add the column JobID to sacct -P.")
    nodes = summary.get("nodes") if isinstance(summary, dict) else None
    if not isinstance(nodes, dict):
        raise DatasetError("The Jobstats summary has no 'nodes'.")
    seconds = summary.get("total_time")
    runs = []
    for host, node in nodes.items():
        used = node.get("gpu_used_memory") if isinstance(node, dict) else None
        total = node.get("gpu_total_memory") if isinstance(node, dict) else None
        for index, value in (used if isinstance(used, dict) else {}).items():
            capacity = _bytes(total.get(index)) if isinstance(total, dict) else None
            runs.append(_run(facts, identity[0], host, index, _bytes(value), capacity, seconds))
    return runs


def _run(facts: dict[str, str], job: str, host: str, index: str, peak: int | None, capacity: int | None, seconds: Any) -> Run:
    name, user, state = facts.get("jobname", ""), facts.get("user", ""), state_of(facts.get("state", ""))
    status = SLURM.get(state or "", "unknown")
    known = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0
    return Run(
        id=f"jobstats-{job}-{host}-{index}",
        workload=Workload(name=f"job {job}" if is_missing(name) else name, user=None if is_missing(user) else user, gpus=1),
        passport=Passport(
            measured_by="jobstats", how="jobstats gpu_used_memory of the card", gpu_total_bytes=capacity, host=host
        ),
        measurement=Measurement(
            status=status,
            process_bytes=peak,
            device_bytes=peak,
            censored=(state is not None and status != "ok") or near_capacity(peak, capacity),
            seconds=float(seconds) if known else None,
        ),
    )


def _bytes(value: Any) -> int | None:
    """Return bytes; None if they are missing or 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value < 2**63:
        raise DatasetError(
            f"gpu memory is {value!r:.40}, but must be a number of bytes below 2^63.",
            kind="gpu memory is not a number of bytes",
        )
    return int(value) or None
