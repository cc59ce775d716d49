"""Inputs of transformers' models, by what each model says of itself: its class's task, its forward, its configuration."""

from __future__ import annotations

import inspect

import torch

from vramcast.jobs.job import Job
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program.task_inputs import hf_audio, hf_image_text, hf_text, hf_vision
from vramcast.tracer.program.task_inputs.hf_model import HfModel

_OTHERS: tuple[str, ...] = ("pixel_values", "input_features", "input_values", "bbox")


def inputs(model: torch.nn.Module, job: Job) -> Inputs:
    """Return the inputs.

    Raises:
        UsageError: They do not follow from the model; the message shows how to give them.
    """
    of = HfModel.of(model, job)
    found = _by_modality(of)
    required = [
        name
        for name, one in of.parameters.items()
        if one.default is one.empty and one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and name not in found.batch
    ]
    if required:
        of.refuse(f"it also needs {', '.join(required)}")
    return found


def _by_modality(of: HfModel) -> Inputs:
    has_decoder = of.takes("decoder_input_ids")
    if of.takes("input_ids", "pixel_values"):
        if any(getattr(of.config, name, None) is not None for name in hf_image_text.IMAGE_TOKEN):
            return hf_image_text.language_model(of)
        if of.takes("return_loss"):
            return hf_image_text.two_encoders(of)
        of.refuse("the place of its images is unknown")
    if of.takes("input_ids"):
        if others := [name for name in _OTHERS if of.takes(name)]:
            of.refuse(f"it reads {', '.join(others)} together with text")
        return hf_text.sequence_to_sequence(of) if has_decoder else hf_text.inputs(of)
    if of.takes("input_features") or of.takes("input_values"):
        return hf_audio.to_text(of) if has_decoder else hf_audio.inputs(of)
    if of.takes("pixel_values") and not has_decoder:
        return hf_vision.inputs(of)
    return of.refuse("its kind of input is unknown")
