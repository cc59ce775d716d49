"""Inputs of transformers' audio models: raw samples, or the features of a model's own extractor, and labels by task."""

from __future__ import annotations

from typing import Any, Final

from vramcast.jobs.job import TensorSpec
from vramcast.jobs.sizes import Inputs
from vramcast.tracer.program.task_inputs.hf_model import HfModel

_SAMPLES_PER_S: Final = 16_000  # spec: sampling_rate of transformers' feature extractors for speech
_SECONDS: Final = 20  # spec: transformers, run_speech_recognition_ctc.py: max_duration_in_seconds
_CHARACTERS: Final = 256  # arbitrary: of a transcript; 20 s of read English have about 300


def inputs(of: HfModel) -> Inputs:
    """Return the inputs of a model that reads audio alone."""
    batch, n, words = _audio(of)
    if of.is_training:
        batch |= _labels(of, n)
    return of.taken.inputs(batch, None, words)


def to_text(of: HfModel) -> Inputs:
    """Return the inputs of an encoder of audio and a decoder of text."""
    most = getattr(of.config, "max_target_positions", None)
    if of.takes("input_features"):  # --seq is the length of the text: that of the audio is fixed
        length = of.taken.take("seq", min(most or _CHARACTERS, 1024))
        batch, n, words = _audio(of)
        words += f" and {length} tokens"
    else:
        batch, n, words = _audio(of)
        length = min(most or _CHARACTERS, _CHARACTERS)
    batch["labels" if of.labels_wanted else "decoder_input_ids"] = of.tokens(n, length)
    return of.taken.inputs(batch, None, words)


def _audio(of: HfModel) -> tuple[dict[str, Any], int, str]:
    """Return the arguments with the audio, the batch size, and the audio in words."""
    config, n = of.config, of.taken.batch_size
    bins = getattr(config, "num_mel_bins", None)
    if of.takes("input_features"):
        frames = getattr(config, "max_source_positions", None)
        if not bins or not frames:
            of.refuse("its configuration names no size of its features (num_mel_bins, max_source_positions)")
        # spec: WhisperFeatureExtractor: always 30 s, of which the encoder's second convolution halves the frames
        return {"input_features": of.floats(n, bins, 2 * frames)}, n, f"{n} x {2 * frames} frames of audio"
    if bins:
        frames = config.max_length  # spec: ASTFeatureExtractor.max_length
        return {"input_values": of.floats(n, frames, bins)}, n, f"{n} x {frames} frames of audio"
    samples = of.taken.take("seq", _SECONDS * _SAMPLES_PER_S)
    return {"input_values": of.floats(n, samples)}, n, f"{n} x {samples} samples of audio ({samples / _SAMPLES_PER_S:g} s)"


def _labels(of: HfModel, n: int) -> dict[str, Any]:
    """Return the arguments that make a model's forward return its loss; none: it has no loss of its own."""
    if not of.takes("labels"):
        return {}
    if of.is_for("CTC"):
        return {"labels": TensorSpec((n, _CHARACTERS), "int64", high=of.config.vocab_size)}
    if of.is_for("AUDIO_CLASSIFICATION"):
        return {"labels": of.classes(n)}
    return of.refuse("the labels of its task are unknown")
