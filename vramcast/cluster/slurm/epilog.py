"""The epilog's hook: reports a job's result to the service. It always exits with 0: failure would drain the node.

An observation stays in the outbox until the service acknowledges it; an unreachable service gets it at the next job's end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from vramcast.cluster.slurm.client import ServiceClient
from vramcast.cluster.slurm.exit_status import EndedJob, Outcome, outcome_of, read_environment
from vramcast.cluster.slurm.peaks import CardPeak, read_peaks
from vramcast.cluster.slurm.programs import ISOLATED
from vramcast.cluster.slurm.site_settings import SiteSettings, read_settings
from vramcast.core.errors import NoAnswer, VramcastError
from vramcast.core.files import atomic_write
from vramcast.datasets.histories.noted_peak import NotedPeak

_NO_USE: Final = range(400, 500)  # the service no longer has the estimate, or will never accept the observation
_AGAIN: Final = (408, 429)


def main(settings_path: str, environment: Mapping[str, str] = os.environ) -> None:
    """Report to the service the result of the job that this epilog belongs to, and start the hooks that follow it.

    Args:
        settings_path: Path of the site's settings.
        environment: The epilog's environment, set by Slurm.
    """
    try:
        job = read_environment(environment)
        if job is None:
            return
        settings = read_settings(settings_path)
        seen = read_peaks(settings.peaks_folder, job.id)
        outcome = outcome_as_user(job) if job.ticket is not None else "unknown"
        observation = observation_of(job, outcome, [one.peak_bytes for one in seen])
        if observation is not None:
            keep(settings.outbox, job.attempt, observation)
        send_all(settings)
        fullest = max(seen, key=lambda one: one.peak_bytes, default=None)
        comes_back = outcome == "out_of_memory" and settings.requeues
        if comes_back or (fullest is not None and settings.writes_admin_comment):
            _start_afterwards(settings_path, job, fullest, comes_back=comes_back)
        (settings.peaks_folder / f"{job.id}.json").unlink(missing_ok=True)
    except (VramcastError, OSError) as error:
        print(f"vramcast: {error}", file=sys.stderr)


def outcome_as_user(job: EndedJob) -> Outcome:
    """Return the outcome of a job, reading its files with its user's rights: a link to a file of root's cannot be read."""
    if os.geteuid() != 0 or job.exit_code == 0:
        return outcome_of(job)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # skip Python's own cleanup, which would run twice
        try:
            os.setgroups([])
            os.setgid(job.gid)
            os.setuid(job.uid)
            os.write(writer, outcome_of(job).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return "out_of_memory" if said == b"out_of_memory" else "unknown"


def observation_of(job: EndedJob, outcome: Outcome, peaks_bytes: Sequence[int]) -> dict[str, Any] | None:
    """Return the observation to send; None: the job has no estimate, no sample, or failed for an unknown reason."""
    if job.ticket is None or outcome == "unknown" or (outcome == "finished" and not peaks_bytes):
        return None
    facts: dict[str, Any] = {
        "estimate_id": job.ticket.estimate_id,
        "outcome": outcome,
        "request_bytes": job.ticket.request_bytes,
        "job_id": job.attempt,
    }
    return {**facts, "process_bytes": max(peaks_bytes)} if peaks_bytes else facts


def keep(outbox: Path, name: str, observation: Mapping[str, Any]) -> None:
    """Store an observation until it is sent to the service.

    Raises:
        OutputError: It cannot be written.
    """
    outbox.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(outbox / f"{name}.json") as file:
        file.write(json.dumps(observation).encode())


def send_all(settings: SiteSettings) -> int:
    """Send stored observations, oldest first, until all are sent or time is up; return how many were acknowledged."""
    client, latest, sent = ServiceClient.of(settings), time.monotonic() + settings.timeout_s, 0
    for path in sorted(settings.outbox.glob("*.json"), key=_age):
        try:
            status, _ = client.post("/v1/observations", json.loads(path.read_bytes()), latest)
        except NoAnswer:
            break
        except (OSError, ValueError):
            continue
        if status in (200, 201) or (status in _NO_USE and status not in _AGAIN):
            path.unlink(missing_ok=True)
            sent += status in (200, 201)
    return sent


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _start_afterwards(settings_path: str, job: EndedJob, fullest: CardPeak | None, *, comes_back: bool) -> None:
    """Start the hooks that call Slurm in their own session: the controller waits for the epilog, which must not wait too."""
    noted = fullest and NotedPeak.of(fullest.peak_bytes, fullest.capacity_bytes, fullest.name)
    words = ["come-back", job.id, str(job.ticket)] if comes_back else ["note-peak", job.id, str(noted)]
    subprocess.Popen(
        [sys.executable, *ISOLATED, "-m", "vramcast.cluster.slurm", "--settings", settings_path, *words],
        cwd="/", start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
