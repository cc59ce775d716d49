"""An estimate as a JSON object, described by `vramcast/schema/estimate.schema.json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from vramcast.estimates.phases import TrainingPhase
from vramcast.estimates.result import Estimate, Peaks
from vramcast.estimates.runs.other_plans import OtherPlans
from vramcast.hardware.cards import DEVICES
from vramcast.jobs.job import Job, Record, TensorSpec
from vramcast.jobs.sizes import SIZES
from vramcast.jobs.targets import as_typed
from vramcast.tracer.format.rank_facts import RankPeaks, beside_bytes
from vramcast.tracer.format.serving import servings_of

SCHEMA: Final = 1
_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)


def to_dict(estimate: Estimate) -> dict[str, Any]:
    """Return the estimate as a JSON object ("schema": 1); an unknown value is None, never 0."""
    return {
        "schema": SCHEMA,
        **_asked(estimate),
        **_sizes(estimate),
        "verdict": estimate.verdict.to_dict() if estimate.has_card else None,
        "doubts": list(estimate.doubts),
        "fits": {key: estimate.fits(key) for key in DEVICES},
        "probability_fits": {key: estimate.probability_fits(key) for key in DEVICES},
        "out_of_memory": estimate.out_of_memory,
        "serving": None if estimate.serving is None else estimate.serving.to_dict(),
        **_ranks(estimate),
        **_course(estimate),
        "growth": None if estimate.growth is None else estimate.growth.to_dict(),
        "seconds": {"simulate": None, "learn": None, **estimate.seconds},
        "artifact": estimate.bound.artifact,
        "out_of_distribution": estimate.bound.is_out_of_distribution,
        "unknown_calls": list(estimate.unknown),
        "open_calls": list(estimate.unbounded_calls),
        "traits": dict(estimate.traits),
        "plans": _plans(estimate),
        "ceiling_bytes": estimate.max_shape_reserved_bytes,
        "noop_calls": list(estimate.noop_calls),
        "host_reads": estimate.host_reads,
        "host_peak_bytes": estimate.max_resident_bytes,
        "host": {"peak_bytes": estimate.max_resident_bytes or None, "of_job_bytes": estimate.grown_bytes},
        "warnings": list(estimate.warnings),
    }


def _plans(estimate: Estimate) -> dict[str, Any] | None:
    larger = estimate.larger_plans
    if not estimate.cudnn:
        return None
    return {
        "cudnn": estimate.cudnn,
        "without_workspaces_bytes": estimate.without_workspaces,
        "larger": None if larger is None else {"cudnn": larger.cudnn, **_peaks(larger)},
    }


def _asked(estimate: Estimate) -> dict[str, Any]:
    job = estimate.job
    return {
        "target": as_typed(job.target) or (job.command.program if job.command else None),
        "device": job.device.key,
        "memory_bytes": job.total_bytes,
        "tracer": estimate.tracer,
        "torch": estimate.torch,
        "stack": estimate.stack.to_dict(),
        "alloc_conf": {"value": estimate.alloc_conf.value, "source": estimate.alloc_conf.source},
        "precision": job.training.precision if job.command is None else None,
        "optimizer": _optimizer(job),
        "adapter": estimate.adapted.to_dict() if estimate.adapted is not None else None,
        "steps": estimate.steps,
        "inputs": _inputs(job),
    }


def _inputs(job: Job) -> dict[str, Any] | None:
    if job.command is not None:
        return None
    sizes = job.sizes
    return {
        "tensors": {name: {"shape": list(one.shape), "dtype": one.dtype} for name, one in _named("", job.batch)},
        "labels": {name: {"shape": list(one.shape), "dtype": one.dtype} for name, one in _named("", job.labels)},
        "sizes": None if sizes is None else {name: getattr(sizes, name) for name in SIZES},
        "defaults": [] if sizes is None else list(sizes.defaults),
        "text": None if sizes is None else sizes.words,
    }


def _named(name: str, part: Any) -> Iterator[tuple[str, TensorSpec]]:
    """Yield the tensors of a batch with their places in it: `input_ids`, `0`, `labels.0.boxes`; a lone tensor is `0`."""
    if isinstance(part, TensorSpec):
        yield name or "0", part
        return
    inside = part.fields if isinstance(part, Record) else part
    parts = inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, tuple | list) else ()
    for key, one in parts:
        yield from _named(f"{name}.{key}" if name else str(key), one)


def _optimizer(job: Job) -> str | None:
    if job.command is not None or job.training.mode != "train":
        return None
    return job.training.optimizer if isinstance(job.training.optimizer, str) else "callable"


def _sizes(estimate: Estimate) -> dict[str, Any]:
    support = estimate.bound.support
    method, n_calibration = estimate.bound.method(estimate.level, estimate.job.device)
    return {
        "peaks": {**_peaks(estimate), "process": estimate.process, "min_feasible": estimate.min_feasible},
        "quantiles": {
            str(level): estimate.quantile(level) if level <= 0.5 else estimate.bound_at(level) for level in _QUANTILES
        },
        "upper_bound": {
            "level": estimate.level,
            "bytes": estimate.upper_bound,
            "method": method,
            "n_calibration": n_calibration,
            "supported_level": support.level,
            "models": support.models,
            "covers": "all" if estimate.course.is_whole else "what was reached",
            "margin": [asdict(part) for part in estimate.margin()],
        },
        "context_bytes": estimate.context.bytes - beside_bytes(estimate.trace),
        "workspace_bytes": estimate.workspace_bytes,
        "breakdown": estimate.breakdown,
        "peak_at": estimate.peak_at,
    }


def _ranks(estimate: Estimate) -> dict[str, Any]:
    job, streams, servings = estimate.job, estimate.streams, servings_of(estimate.trace)
    # Room for the rank's segments, without context and margin. The ranks of an engine start together, or none of them does.
    room_bytes = job.total_bytes - (estimate.upper_bound - estimate.reserved)
    is_engine = estimate.serving is not None and estimate.serving.starts is not None
    engine_fits = is_engine and estimate.has_card and estimate.verdict.value == "fits"
    return {
        "parallel": str(job.parallel) if job.parallel is not None else None,
        "world_size": estimate.world_size,
        "ranks": [
            {
                "rank": one.number,
                "peaks": _peaks(one),
                "fits": engine_fits if is_engine else not estimate.doubts and one.reserved <= room_bytes,
                "serving": None if (serving := servings.get(str(one.number))) is None else serving.to_dict(),
            }
            for one in estimate.ranks
        ],
        "processes": [asdict(one) for one in estimate.processes],
        "sharding": [asdict(held) for held in estimate.sharding],
        "communicators": [
            {"ranks": one.ranks, "calls": dict(one.calls), "bytes_assumed": one.bytes_assumed} for one in estimate.communicators
        ],
        "streams": {
            "speed_decides": streams.decides,
            "fast": _peaks(streams.fast),
            "slow": None if streams.slow is None else _peaks(streams.slow),
        },
    }


def _course(estimate: Estimate) -> dict[str, Any]:
    course = estimate.course
    return {
        "phases": [
            {"name": phase.name, "steps": phase.steps, "reached": phase.reached, "peaks": _peaks(phase)}
            for phase in course.phases
        ],
        "not_reached": list(course.not_reached),
        "seen": asdict(course.seen) if course.phases else None,
        "ended": course.ended or None,
    }


def _peaks(one: Estimate | OtherPlans | Peaks | RankPeaks | TrainingPhase) -> dict[str, int | None]:
    return {"allocated": one.allocated, "reserved": one.reserved}
