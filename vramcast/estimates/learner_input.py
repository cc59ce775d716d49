"""From an estimate to the learner's example: the same path for serving, training and evaluation."""

from __future__ import annotations

from dataclasses import replace

from vramcast.estimates.result import Estimate
from vramcast.learner.examples import Example
from vramcast.learner.features import Circumstances, features, parts_of
from vramcast.learner.traits import of_plans
from vramcast.learner.workspaces import settled_reserved, without_workspaces


def observed(estimate: Estimate, *, with_features: bool = True, settled: bool = False) -> Example:
    """Return the example of an estimated job; a run adds its name, stack and measurements.

    The second round comes from the simulator: the smallest reserved memory in which the job would run.

    Args:
        estimate: An uncorrected estimate.
        with_features: Whether to compute features from the trace, which takes a moment; only artifacts with trees need them.
        settled: Whether the reserved peaks are those from the second step on, as in `vramcast.learner.workspaces`.
    """
    if settled:
        estimate = _settled(estimate)
    card = estimate.job.device.with_memory(estimate.job.total_bytes)
    circumstances = Circumstances.seen(
        estimate.trace, card, unknown=len(estimate.unknown), context_bytes=estimate.context.bytes, settled=settled
    )
    larger = estimate.larger_plans
    smallest = None if estimate.min_feasible is None else max(estimate.min_feasible - estimate.context.bytes, 1)
    seen = {}
    if with_features:
        seen = features(estimate.trace, circumstances, allocated=estimate.allocated, reserved=estimate.reserved)
    return Example(
        "",
        group="",
        family="",
        gpu=card.key,
        stack="",
        features=seen,
        allocated=estimate.allocated,
        reserved=estimate.reserved,
        context=estimate.context.bytes,
        libraries=parts_of(estimate.trace, estimate.libraries),
        ran_at=smallest,
        died_at=None if smallest is None else smallest - 1,
        is_emulated=smallest is not None,
        tracer=estimate.tracer,
        torch=estimate.torch,
        traits=dict(estimate.traits),
        unknown=len(estimate.unknown),
        card_bytes=card.total_bytes,
        cudnn=estimate.cudnn,
        larger=larger.reserved if larger is not None else None,
        larger_allocated=larger.allocated if larger is not None else None,
        other_cudnn=larger.cudnn if larger is not None else "",
        without_workspaces=estimate.without_workspaces,
    )


def _settled(estimate: Estimate) -> Estimate:
    """Return an estimate with its reserved peaks from the second step on; the smaller one may be that of the other cuDNN."""
    larger = estimate.larger_plans
    reserved = settled_reserved(estimate.trace)
    if larger is not None:
        other = settled_reserved(larger.trace)
        if other < reserved:
            swapped = replace(larger, cudnn=estimate.cudnn, trace=estimate.trace)
            estimate = replace(estimate, trace=larger.trace, cudnn=larger.cudnn)
            larger, reserved, other = swapped, other, reserved
        larger = replace(larger, reserved=other)
    bare = without_workspaces(estimate.trace, settled=True)
    traits = {**estimate.traits, **of_plans(reserved, bare, larger.reserved if larger is not None else None)}
    return replace(estimate, reserved=reserved, larger_plans=larger, without_workspaces=bare, traits=traits)
