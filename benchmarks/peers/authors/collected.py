"""Rows of the first collector, the predecessor of `vramcast measure`: runs.jsonl, with passport.json in the same folder.

Peaks are torch's counters. Several workers shared the card at times that the file does not record: an out-of-memory error means
that the shared card was full, and rows with retries are distorted. The runs' messages note both.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import DatasetError
from vramcast.core.files import digest
from vramcast.core.plain import json_value
from vramcast.datasets.histories.reader import Tally, lines, near_capacity, whole_text
from vramcast.datasets.journal import JournalContent
from vramcast.datasets.run import Measurement, Passport, Run, Workload

_NETWORKS: Final = "benchmarks.peers.authors.networks"
_TV86_CLASSES: Final = ("v3", "mnas")  # spec: the collector, parts of the names of models with 10 classes
_TOKENS_BELOW: Final = 7000  # spec: the collector, token ids
# measured: timm 1.0.31, default_cfg; the collector's other models take 224 pixels
_TIMM_PIXELS: Final = {
    "ecaresnet26t": 256, "nfnet_f0": 192, "tf_efficientnetv2_b0": 192, "cspresnet50": 256, "xception41": 299,
    "edgenext_small": 256,
}  # fmt: skip
_CAPPED: Final = "the same job again under a limit; the collector kept only whether it fitted"


def read(path: str | os.PathLike[str]) -> JournalContent:
    """Return the runs; capped runs are runs of their own.

    Raises:
        DatasetError: the file cannot be read.
    """
    tally = Tally(path)
    passport, context_bytes = _passport(tally)
    limits = 0
    for place, text in lines(path):
        if not text.strip():
            continue
        tally.rows += 1
        try:
            row = _Row.parse(text)
            base = row.run(passport, context_bytes)
            capped = row.capped_runs(base)
        except (DatasetError, OverflowError) as error:
            tally.reject(place, str(error), text)
            continue
        tally.run([(place, text)], lambda base=base: base)
        for run in capped:
            limits += 1
            tally.run([(place, text)], lambda run=run: run, more=True)
    if limits:
        tally.note(f"{limits} further runs are rows' jobs under a limit of the allocator")
    tally.note("workers shared the card: rows out of memory say little about the card's size, rows with retries are distorted")
    return tally.done()


def _passport(tally: Tally) -> tuple[Passport, int | None]:
    """Return the passport and the context's bytes, as far as passport.json in the same folder has them."""
    plain = Passport(measured_by="collect.py", how="torch counters", host=None)
    path = Path(tally.path.parent / "passport.json")
    if not path.is_file():
        tally.note("no passport.json next to the file: the card and the libraries are unknown")
        return plain, None
    try:
        values = json_value(whole_text(path), f"'{path.name}'")
        card = values.get("properties") if isinstance(values, dict) else None
        if not isinstance(card, dict):
            raise DatasetError(f"'{path.name}' has no 'properties'.")
        context = values.get("context_bytes")
        driver = [part.strip() for part in str(values.get("driver") or "").split(",")]
        found = Passport(
            measured_by="collect.py",
            how="torch counters",
            date=_text(values.get("time")),
            gpu=_text(card.get("name")),
            gpu_total_bytes=_whole(card.get("total_memory")),
            driver=_text(driver[1]) if len(driver) > 2 else None,
            cuda=_text(values.get("cuda")),
            cudnn=_text(str(values["cudnn"])) if values.get("cudnn") else None,
            torch=_text(values.get("torch")),
            python=_text(values.get("python")),
            libraries={
                name: version
                for name in ("torchvision", "timm", "transformers", "numpy")
                if (version := _text(values.get(name)))
            },
        )
        return found, _whole(context.get("tensor")) if isinstance(context, dict) else None
    except DatasetError as error:
        tally.note(f"passport.json is left out: {error}")
        return plain, None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) < 1000 else None


def _whole(value: Any) -> int | None:
    """Return a positive whole number, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else None


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: the job and its result."""

    job: dict[str, Any]
    values: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> _Row:
        """Return the row in a line.

        Raises:
            DatasetError: the line is not a row.
        """
        values = json_value(text, "The row")
        job = values.get("job") if isinstance(values, dict) else None
        if not isinstance(job, dict) or values.get("status") not in ("ok", "oom", "error"):
            raise DatasetError("It has no 'job' or no 'status' of ok, oom, error: a row of collect.py is expected.")
        return cls(job, values)

    def count(self, name: str) -> int:
        """Return a whole number of the job, at least 1.

        Raises:
            DatasetError: the job has no such number.
        """
        value = _whole(self.job.get(name))
        if value is None or value > 10**9:
            raise DatasetError(f"job.{name} is {str(self.job.get(name))[:40]!r}: a whole number above 0 is expected.")
        return value

    def word(self, name: str) -> str:
        """Return a text of the job.

        Raises:
            DatasetError: the job has no such text.
        """
        value = _text(self.job.get(name))
        if value is None:
            raise DatasetError(f"job.{name} is {str(self.job.get(name))[:40]!r}: a text is expected.")
        return value

    def flag(self, name: str) -> bool:
        """Return whether the job has a feature."""
        return self.job.get(name) is True

    def run(self, passport: Passport, context_bytes: int | None) -> Run:
        """Return the run at the card's full size."""
        status = self.values["status"]
        messages = [_text(self.values.get("message")) or ""]
        if status == "oom":
            messages.append("the card was shared: it was full")
        retries = self.values.get("retries")
        if isinstance(retries, int) and retries > 0:
            messages.append("the allocator gave memory back and tried again: the peak is distorted")
        name = "collect-" + (_text(self.job.get("id")) or digest(json.dumps(self.job)))
        reserved = _whole(self.values.get("reserved"))
        return Run(
            # The collector's ids are seed and number: equal on every machine.
            id=f"{name}-{digest(str(passport.gpu), str(passport.date))[:8]}",
            workload=self.workload(),
            passport=passport,
            measurement=Measurement(
                status=status,
                allocated_bytes=_whole(self.values.get("allocated")),
                reserved_bytes=reserved,
                context_bytes=context_bytes,
                censored=status != "ok" or near_capacity(reserved, passport.gpu_total_bytes),
                retries=retries if isinstance(retries, int) and not isinstance(retries, bool) else None,
                ooms=_count_or_none(self.values.get("ooms")),
                segments=_count_or_none(self.values.get("segments")),
                seconds=_seconds(self.values.get("seconds")),
                message="; ".join(filter(None, messages)),
            ),
        )

    def capped_runs(self, base: Run) -> list[Run]:
        """Return the same job under each limit tried."""
        capped = self.values.get("capped") or []
        if not isinstance(capped, list) or not all(
            isinstance(entry, list) and len(entry) == 2 and _whole(entry[0]) and entry[1] in (0, 1) for entry in capped
        ):
            raise DatasetError(f"capped is {str(capped)[:60]!r}: a list of [bytes, 1 or 0] is expected.")
        return [
            Run(
                id=f"{base.id}-cap-{cap}",
                workload=replace(base.workload, cap_bytes=cap),
                passport=base.passport,
                measurement=Measurement(status="ok" if fits else "oom", censored=not fits, repeat_of=base.id, message=_CAPPED),
            )
            for cap, fits in capped
        ]

    def workload(self) -> Workload:
        """Return the job, rebuilt if its kind is known."""
        kind, batch = self.word("kind"), self.count("batch")
        parts = _KINDS.get(kind)
        if parts is None:
            raise DatasetError(f"job.kind is {kind[:40]!r}: one of {', '.join(_KINDS)} is expected.")
        family, make = parts
        target, inputs, labels, classes = make(self, batch)
        return Workload(
            name=target,
            family=family,
            target=target,
            features={} if (n := _whole(self.values.get("parameters"))) is None else {"parameters": float(n)},
            batch=inputs,
            labels=labels,
            batch_size=batch,
            num_classes=classes,
            optimizer=self.word("optimizer").lower(),
            precision=self.word("precision"),
            mode="train",
            steps=self.count("steps"),
            zero_grad=self.word("zero_grad"),
            overlap_inputs=True,
            checkpointing=self.flag("checkpoint"),
            channels_last=self.flag("channels_last"),
            cudnn_benchmark=self.flag("benchmark"),
            gpus=1,
        )


def _count_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9 else None


# Kinds of jobs: each gives target, inputs, labels, classes. ---------------------------------------------------------

_Parts = tuple[str, tuple[str, ...], str | None, int | None]


def _network(name: str, **options: object) -> str:
    return f"{_NETWORKS}:{name}?{json.dumps(options, separators=(',', ':'))}"


def _torchvision(row: _Row, batch: int) -> _Parts:
    size = row.count("size")
    return f"torchvision:{row.word('name')}", (f"{batch}x3x{size}x{size}",), f"{batch}:int64<1000", None


def _torchvision_86(row: _Row, batch: int) -> _Parts:
    target, inputs, _, _ = _torchvision(row, batch)
    classes = 10 if any(part in row.word("name") for part in _TV86_CLASSES) else 1000
    return target, inputs, f"{batch}:int64<{classes}", classes


def _timm(row: _Row, batch: int) -> _Parts:
    size = _TIMM_PIXELS.get(row.word("name"), 224)
    return f"timm:{row.word('name')}", (f"{batch}x3x{size}x{size}",), f"{batch}:int64<1000", None


def _hugging_face(row: _Row, batch: int) -> _Parts:
    name, width, layers, vocabulary = row.word("name"), row.count("width"), row.count("layers"), row.count("vocab")
    heads = max(2, width // 64)
    base = {"vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    gated = {**base, "intermediate_size": int(2.7 * width)}
    configs: dict[str, dict[str, object]] = {
        "bert": {**base, "intermediate_size": 4 * width, "max_position_embeddings": 1024},
        "roberta": {**base, "intermediate_size": 4 * width, "max_position_embeddings": 1030},
        "distilbert": {
            "vocab_size": vocabulary, "dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": 4 * width,
            "max_position_embeddings": 1024,
        },
        "gpt2": {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 1024},
        "opt": {**base, "ffn_dim": 4 * width, "word_embed_proj_dim": width},
        "gpt_neo": {
            "vocab_size": vocabulary, "hidden_size": width, "num_layers": layers, "num_heads": heads,
            "attention_types": [[["global", "local"], layers // 2]], "max_position_embeddings": 1024,
        },
        "t5": {
            "vocab_size": vocabulary, "d_model": width, "d_kv": 64, "d_ff": 4 * width, "num_layers": layers, "num_heads": heads,
        },
        "llama": {**gated, "num_key_value_heads": heads},
        "qwen2": {**gated, "num_key_value_heads": max(1, heads // 4)},
        "vit": {
            "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width,
            "num_labels": 1000,
        },
    }  # fmt: skip
    if name not in configs:
        raise DatasetError(f"job.name is {name[:40]!r}: one of {', '.join(configs)} is expected.")
    options = {**configs[name], "attn_implementation": "eager" if name == "t5" else row.word("attn")}
    target = f"hf:{name}?{json.dumps(options, separators=(',', ':'))}"
    if name == "vit":
        return target, (f"pixel_values={batch}x3x224x224", f"labels={batch}:int64<1000"), None, None
    tokens = f"{batch}x{row.count('seq')}:int64"
    ids = f"{tokens}<{_TOKENS_BELOW}"
    return target, (f"input_ids={ids}", f"attention_mask={tokens}=1", f"labels={ids}"), None, None


def _mlp(row: _Row, batch: int) -> _Parts:
    inputs, outputs = row.count("inp"), row.count("out")
    options = {"depth": row.count("depth"), "shape": row.word("shape"), "batch_norm": row.flag("bn")}
    target = _network("collected_mlp", inputs=inputs, outputs=outputs, **options, dropout=row.flag("dropout"))
    return target, (f"{batch}x{inputs}",), f"{batch}:int64<{outputs}", None


def _cnn(row: _Row, batch: int) -> _Parts:
    size = row.count("size")
    sizes = {"depth": row.count("depth"), "filters": row.count("filters"), "shape": row.word("shape")}
    flags = {"kernel": row.count("kernel"), "size": size, "batch_norm": row.flag("bn"), "dropout": row.flag("dropout")}
    return _network("collected_cnn", **sizes, **flags), (f"{batch}x3x{size}x{size}",), f"{batch}:int64<100", None


def _transformer(row: _Row, batch: int) -> _Parts:
    tokens, vocabulary = row.count("seq"), row.count("vocab")
    options = {"width": row.count("width"), "layers": row.count("layers"), "heads": row.count("heads")}
    target = _network("collected_transformer", **options, tokens=tokens, vocabulary=vocabulary)
    return target, (f"{batch}x{tokens}:int64<{vocabulary}",), f"{batch}:int64<10", None


_KINDS: Final = {
    "tv": ("torchvision", _torchvision), "tv86": ("torchvision", _torchvision_86), "timm": ("timm", _timm),
    "hf": ("hf", _hugging_face), "mlp": ("mlp", _mlp), "cnn": ("cnn", _cnn), "tf": ("transformer", _transformer),
}  # fmt: skip
