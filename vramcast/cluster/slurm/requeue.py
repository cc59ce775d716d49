"""Hooks that follow a job's end and call Slurm: they record its peak for sacct, or requeue it after it ran out of memory."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from typing import Final

from vramcast.cluster.answer import grown
from vramcast.cluster.slurm.comment_field import Ticket
from vramcast.cluster.slurm.decision import shards_of
from vramcast.cluster.slurm.programs import absolute
from vramcast.cluster.slurm.site_settings import SiteSettings

_TRIES: Final = 60  # arbitrary
_PAUSE_S: Final = 2.0  # arbitrary: two minutes in all, in which the epilogs of all of a job's nodes end
_CALL_S: Final = 30.0  # arbitrary


def come_back(job: str, ticket: Ticket, settings: SiteSettings) -> bool:
    """Requeue a job with a larger request; return whether it is queued.

    The request grows by half, up to the whole card. A job that had the whole card is not requeued, and neither is a job
    submitted with --no-requeue: Slurm refuses it.
    """
    larger_bytes = grown(ticket.request_bytes, ticket.capacity_bytes)
    if larger_bytes is None:
        return False
    shards, most = shards_of(larger_bytes, settings), ticket.capacity_bytes // settings.shard_bytes
    is_whole = shards >= most
    gres = "gpu:1" if is_whole else f"shard:{shards}"
    request_bytes = ticket.capacity_bytes if is_whole else shards * settings.shard_bytes
    if not call_slurm(["scontrol", "requeuehold", job])[0]:
        return False
    for _ in range(_TRIES):
        found, shown = call_slurm(["scontrol", "--oneliner", "show", "job", job])
        if found and "JobState=PENDING" in shown:
            break
        time.sleep(_PAUSE_S)
    else:
        return False
    comment = replace(ticket, request_bytes=request_bytes).added_to(_before(ticket, shown))
    updated = call_slurm(["scontrol", "update", f"JobId={job}", f"Gres={gres}", f"Comment={comment}"])[0]
    released = call_slurm(["scontrol", "release", job])[0]  # also if it is unchanged: a held job would wait forever
    return updated and released


def note_peak(job: str, noted: str) -> bool:
    """Write a job's peak into its AdminComment, for sacct; return whether that succeeded."""
    order = ["sacctmgr", "--immediate", "modify", "job", "where", f"jobid={job}", "set", f"AdminComment={noted}"]
    for _ in range(_TRIES):
        done, shown = call_slurm(order)
        if done and job in shown:
            return True
        time.sleep(_PAUSE_S)  # the database has the job only after all epilogs have ended
    return False


def _before(ticket: Ticket, shown: str) -> str:
    """Return a job's comment up to its ticket, its last word, from the output of `scontrol --oneliner show job`."""
    comment, found, _ = shown.partition(" Comment=")[2].partition(str(ticket))
    return comment.strip() if found else ""


def call_slurm(words: list[str]) -> tuple[bool, str]:
    """Run one of Slurm's commands; return whether it succeeded, and its output."""
    try:
        command = [absolute(words[0]), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CALL_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout
