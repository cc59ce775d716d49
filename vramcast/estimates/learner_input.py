"""From an estimate to the learner's example: the same path for serving, training and evaluation."""

from __future__ import annotations

from vramcast.estimates.result import Estimate
from vramcast.estimates.run_on_card import cudnn_asked
from vramcast.learner.examples import Example
from vramcast.learner.features import Circumstances, features, parts_of


def observed(estimate: Estimate, *, with_features: bool = True) -> Example:
    """Return the example of an estimated job; a run adds its name, stack and measurements.

    The second round comes from the simulator: the smallest reserved memory in which the job would run.

    Args:
        estimate: An uncorrected estimate.
        with_features: Whether to compute features from the trace, which takes a moment; only artifacts with trees need them.
    """
    card = estimate.job.device.with_memory(estimate.job.total_bytes)
    circumstances = Circumstances.seen(
        estimate.trace, card, unknown=len(estimate.unknown), context_bytes=estimate.context.bytes
    )
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
        cudnn=cudnn_asked(estimate.job.stack) if "cudnn" in estimate.libraries else "",
    )
