"""Importers of tables that were read from logs and notebooks: each yields the measured runs of a table's rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from benchmarks.measured.cells import PAGE, Row, figure, mib, number, spdx, traits
from benchmarks.measured.measured_run import MeasuredRun
from vramcast.core.units import GIB

_QUALITIES: Final = {"yes": "repeatable", "partly": "partly", "no": "figure only"}
# What the screens ask of a log of Ultralytics, and what decides its memory; the other settings are in its `args`.
_YOLO_COLUMNS: Final = ("boxes_per_image", "n_images", "n_classes", "run_index", "flags", "completeness", "last_batch_size")
_TUNING_COLUMNS: Final = ("method", "parallelism", "gradient_checkpointing")


def golf_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the two figures of each log of parameter-golf."""
    for row in rows:
        ranks = number(row["world_size"])
        known = {"tokens": "train_batch_tokens", "accumulation": "grad_accum", "parameters": "model_params"}
        for name in ("allocated", "reserved"):
            yield MeasuredRun(
                repository=row["source"],
                commit="",
                path=row["log_path"],
                licence=spdx(row["license"]),
                job="train_gpt.py",
                script=row["script"],
                model=row["script"],
                figure=f"{name} peak",
                value_bytes=mib(row[f"{name}_mib"]),
                unit_rule="MiB, rounded down",
                quality="repeatable",
                sizes=row["seq"],
                options={name: row[column] for name, column in known.items()},
                traits=traits(compiled=row["compile"] == "compiled", ranks=ranks),
                cards=ranks,
                card=row["gpu"],
                torch=row["torch"],
            )


def yolo_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the figure of the first epoch, before the first validation, of each log of Ultralytics."""
    for row in rows:
        repository, _, path = row["source"].partition(":")
        cards = number(row["n_cards"])
        known: dict[str, Any] = {name: text for name in _YOLO_COLUMNS if (text := row.get(name))}
        known["epochs"] = row["quoted"].partition(" ")[0].rpartition("/")[2]  # 1/100 2.5G
        yield MeasuredRun(
            repository=repository,
            commit=row["commit"],
            path=path,
            licence=spdx(row["licence"]),
            job=f"{row['framework']} {row['task']}",
            model=row["model"],
            figure="reserved at print",
            value_bytes=mib(row["figure_first_MiB"]) if row["figure_first_MiB"] else None,
            unit_rule=f"G of {row['unit_bytes']} bytes, three digits",
            quality="repeatable" if row["completeness"] == "yes" else "partly",
            batch=number(row["batch"]),
            sizes=row["imgsz"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options={**known, "args": json.loads(row["args_of_note"] or "{}")},
            traits=traits(convolutions=True, ranks=cards),
            cards=cards,
            card=row["card"],
            card_bytes=mib(row["card_mib"]) if row["card_mib"] else None,
            torch=row["torch"],
            cuda=row["cuda"],
            cudnn=row["cudnn"],
            os=row["os"],
        )


def unsloth_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the reserved peak that each notebook of LoRA prints."""
    for row in rows:
        repository, _, path = row["source"].partition(":")
        yield MeasuredRun(
            repository=repository,
            commit=row["commit"],
            path=path,
            licence=spdx(row["licence"]),
            job=row["task"],
            model=row["model"],
            figure="reserved peak",
            value_bytes=mib(row["figure_MiB"]),
            unit_rule="GiB, three decimals",
            quality="partly",
            reason=row["completeness"],
            batch=number(row["batch"]),
            sizes=row["max_seq_length"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options={"lora_r": row["lora_r"], "full_finetuning": row["full_finetuning"], "packing": row["packing"]},
            traits=traits(varied=row["packing"] != "True"),
            cards=1,
            card=row["card"],
            card_bytes=round(float(row["card_GiB"]) * GIB) if row["card_GiB"] else None,
            torch=row["torch"],
            cuda=row["cuda"],
        )


def tuning_runs(rows: Iterable[Row]) -> Iterator[MeasuredRun]:
    """Yield the figures of finetune_logs.csv: fine-tuning and reinforcement learning."""
    for row in rows:
        page = PAGE.fullmatch(row["source_url"].partition("#")[0])
        cards = number(row["n_gpus"])
        yield MeasuredRun(
            repository=page[1] if page else "",
            commit=page[2] if page else "",
            path=(page[3] or "") if page else "",
            licence=spdx(row["licence"]),
            job=f"{row['framework']}: {row['command_or_config']}",
            model=row["model_id"],
            figure=figure(row["figure"]),
            value_bytes=round(float(row["value_gib"]) * GIB),
            unit_rule=row["unit_rule"],
            quality=_QUALITIES[row["repeatable"]],
            reason=row["completeness"],
            batch=number(row["micro_batch"]),
            sizes=row["seq_len"],
            precision=row["precision"],
            optimizer=row["optimizer"],
            options={name: row[name] for name in _TUNING_COLUMNS if row[name]},
            traits=traits(ranks=cards, varied=re.search("^(?!.*packed).*(padded|max )", row["seq_len"]) is not None),
            cards=cards,
            card=row["card"],
            torch="" if row["torch_version"].startswith("not printed") else row["torch_version"].partition(" (")[0],
        )
