"""Inputs of transformers' text models: token ids, and labels by the task of the class."""

from __future__ import annotations

from typing import Any, Final

from vramcast.jobs.job import TensorSpec
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program.task_inputs.hf_model import HfModel

TARGET_LENGTH: Final = 128  # spec: transformers, run_summarization.py: max_target_length
_CHOICES: Final = 4  # spec: SWAG, the data set of transformers' run_swag.py
_OF_TOKENS: Final = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")


def inputs(of: HfModel) -> Inputs:
    """Return the inputs of a model that reads text alone."""
    length = of.length(of.text)
    n = of.taken.batch_size
    shape = (n, _CHOICES, length) if of.is_for("MULTIPLE_CHOICE") else (n, length)
    batch = {"input_ids": of.tokens(*shape)}
    if of.is_training:
        batch |= _labels(of, n, length)
    return of.taken.inputs(batch, None, f"{n} x {length} tokens")


def sequence_to_sequence(of: HfModel) -> Inputs:
    """Return the inputs of an encoder and a decoder of text."""
    length = of.length(of.text)
    n = of.taken.batch_size
    batch, words = {"input_ids": of.tokens(n, length)}, f"{n} x {length} tokens"
    if of.is_training and of.takes("labels") and not of.is_for("SEQ_TO_SEQ_CAUSAL_LM"):
        return of.taken.inputs(batch | _labels(of, n, length), None, words)
    target = min(TARGET_LENGTH, length)
    batch[("labels" if of.labels_wanted else "decoder_input_ids")] = of.tokens(n, target)
    return of.taken.inputs(batch, None, f"{words}, and {target} of the answer")


def _labels(of: HfModel, n: int, length: int) -> dict[str, Any]:
    """Return the arguments that make a model's forward return its loss; none: it has no loss of its own."""
    if of.is_for("QUESTION_ANSWERING"):
        place = TensorSpec((n,), "int64", high=length)
        return {"start_positions": place, "end_positions": place}
    if not of.takes("labels"):
        return {}
    if of.is_for("SEQUENCE_CLASSIFICATION"):
        return {"labels": of.classes(n)}
    if of.is_for("TOKEN_CLASSIFICATION"):
        return {"labels": of.classes(n, length)}
    if of.is_for("MULTIPLE_CHOICE"):
        return {"labels": TensorSpec((n,), "int64", high=_CHOICES)}
    if of.is_for("NEXT_SENTENCE_PREDICTION"):
        return {"labels": TensorSpec((n,), "int64", high=2)}
    if of.is_for("PRETRAINING") and not of.is_for("CAUSAL_LM"):
        pairs = {name: TensorSpec((n,), "int64", high=2) for name in ("next_sentence_label", "sentence_order_label")}
        is_masked = of.model.get_output_embeddings() is not None  # ELECTRA's discriminator has no vocabulary
        labels = of.tokens(n, length) if is_masked else TensorSpec((n, length), "int64", high=2)
        return {"labels": labels} | {name: spec for name, spec in pairs.items() if of.takes(name)}
    if not of.is_for(*_OF_TOKENS):
        of.refuse("the labels of its task are unknown")
    return {"labels": of.tokens(n, length)}
