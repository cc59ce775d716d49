"""Configurations of models by their id on the Hugging Face hub: `meta-llama/Llama-3.1-8B`.

An id is looked up in the Hugging Face cache, then on the hub by an installed huggingface_hub, then in its library's table. Only
config.json is fetched: no weights, and no code.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core.errors import UsageError

_ID: Final = re.compile(r"\w[\w.-]*/[\w.-]+")
_TIMEOUT_S: Final = 3  # arbitrary: the hub answers within a second; HF_HUB_ETAG_TIMEOUT overrides it
_MOST_BYTES: Final = 2**24  # arbitrary: names of 20,000 classes take 2 MiB


@dataclass(frozen=True, slots=True)
class HubLibrary:
    """A library with models on the hub.

    Attributes:
        scheme: What a TARGET of it begins with.
        table: The name of the file with its table.
        files: The configuration's possible places in a model's repository, in the order in which they are looked for.
        type_key: The value of a configuration that names the model's type.
    """

    scheme: str
    table: str
    files: tuple[str, ...]
    type_key: str


TRANSFORMERS: Final = HubLibrary("hf", "hub_models.toml", ("config.json",), "model_type")
# Of a pipeline, the part that is trained: its denoiser.
DIFFUSERS: Final = HubLibrary(
    "diffusers", "diffusion_models.toml", ("transformer/config.json", "unet/config.json", "config.json"), "_class_name"
)


@dataclass(frozen=True, slots=True)
class HubConfig:
    """A model's configuration.

    Attributes:
        model_type: Its type in transformers, or its class in diffusers.
        values: The other values of config.json, or those of the table.
        source: `cache`, `hub`, or the address that the table's row was taken from.
        is_from_table: Whether it is a row of the table.
    """

    model_type: str
    values: dict[str, Any]
    source: str
    is_from_table: bool = False


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a hub id, ORG/NAME, and no such file or folder exists."""
    return _ID.fullmatch(name) is not None and not name.endswith(".json") and not Path(name).exists()


# ------------------------------------------------------------------------------------------------ the table
@functools.cache
def _tables(library: HubLibrary = TRANSFORMERS) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(library.table).read_text(encoding="utf-8"))


def table_ids(library: HubLibrary = TRANSFORMERS) -> tuple[str, ...]:
    """Return the ids of a library's table, in its order."""
    return tuple(_tables(library)["models"])


def table_config(name: str, library: HubLibrary = TRANSFORMERS) -> HubConfig | None:
    """Return a row of a library's table; None if it has none of this id."""
    models: Mapping[str, Any] = _tables(library)["models"]
    row = models.get(name)
    if row is None:
        return None
    own = row.get("config", {})
    if "like" in row:
        row = models[row["like"]]
    values = {**row["config"], **own}
    url = _tables(library)["sources"][row["source"]]["url"]
    return HubConfig(values.pop(library.type_key), values, url, is_from_table=True)


def similar_ids(name: str, library: HubLibrary = TRANSFORMERS) -> list[str]:
    """Return the table's ids that a person may have meant: the same model of another organization first, then close names."""
    by_lower = {one.lower(): one for one in table_ids(library)}
    wanted = name.lower()
    if wanted in by_lower:
        return [by_lower[wanted]]
    same = [one for lower, one in by_lower.items() if lower.rpartition("/")[2] == wanted.rpartition("/")[2]]
    close = [by_lower[lower] for lower in difflib.get_close_matches(wanted, by_lower, 3)]
    return list(dict.fromkeys([*same, *close]))[:3]


def not_in_table(name: str, library: HubLibrary = TRANSFORMERS) -> str:
    """Return the end of a message for an id that the table lacks: the closest ids, and the next step."""
    scheme, close = library.scheme, similar_ids(name, library)
    other = next((one for one in (TRANSFORMERS, DIFFUSERS) if one != library and name in table_ids(one)), None)
    if other is not None:
        return f"it is a model of {other.scheme}: write {other.scheme}:{name}."
    hint = f"Did you mean {' or '.join(f'{scheme}:{one}' for one in close)}? Else give" if close else "Give"
    return (
        f"the built-in table of {len(table_ids(library))} models lacks it. {hint} its config.json: {scheme}:PATH/config.json."
    )


# ------------------------------------------------------------------------------------------------ the cache and the hub
def hub_config(name: str, library: HubLibrary = TRANSFORMERS) -> HubConfig:
    """Return the configuration of a model by its hub id; may ask the hub.

    Args:
        name: The id.
        library: The library that builds the model.
    Raises:
        UsageError: it is found nowhere, or its configuration describes no model that can be built.
    """
    path, source, reason = config_file(name, library)
    if path is not None:
        return _read(name, path, source, library)
    if (found := table_config(name, library)) is not None:
        return found
    missing = not_in_table(name, library)
    raise UsageError(f"The model '{name}' is not found: the Hugging Face cache lacks it, {reason}, and {missing}")


def config_file(name: str, library: HubLibrary = TRANSFORMERS) -> tuple[Path | None, str, str]:
    """Return the config.json of a model by its hub id, and its source; or None, and why there is none. May ask the hub."""
    try:
        if (path := _cached(name, library.files)) is not None:
            return path, "cache", ""
        path, reason = _fetched(name, library.files)
    except ImportError:
        return None, "", "huggingface_hub is not installed, so the hub was not asked"
    return path, "hub", reason


def _cached(name: str, files: Iterable[str]) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = (try_to_load_from_cache(name, file) for file in files)
    return next((Path(path) for path in found if isinstance(path, str)), None)


def _fetched(name: str, files: Iterable[str]) -> tuple[Path | None, str]:
    """Return the path of a config.json fetched from the hub, or None and why there is none."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    timeout_s = constants.HF_HUB_ETAG_TIMEOUT if os.environ.get("HF_HUB_ETAG_TIMEOUT") else _TIMEOUT_S
    try:
        for file in files:
            try:
                # Alone, the download would try again for minutes where nothing answers.
                huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, file), timeout=timeout_s)
                with _without_progress_bars():
                    return Path(huggingface_hub.hf_hub_download(name, file, etag_timeout=timeout_s)), ""
            except errors.LocalEntryNotFoundError:  # what the download makes of a network error
                raise
            except errors.EntryNotFoundError:
                continue
        return None, f"it has no {' or '.join(files)} on the hub"
    except errors.GatedRepoError:
        return None, "its files on the hub are gated (accept the license on its page, then run: hf auth login)"
    except errors.RepositoryNotFoundError:
        return None, f"{constants.ENDPOINT} has no such model, or a private one (run: hf auth login)"
    except errors.LocalEntryNotFoundError as error:
        return None, f"{constants.ENDPOINT} could not be reached ({type(error.__cause__ or error).__name__})"
    except errors.OfflineModeIsEnabled:
        return None, "the hub was not asked (HF_HUB_OFFLINE is set)"
    except Exception as error:  # of the network: any of several libraries' own
        return None, f"{constants.ENDPOINT} could not be reached ({type(error).__name__})"


@contextlib.contextmanager
def _without_progress_bars() -> Iterator[None]:
    import huggingface_hub

    utils: Any = huggingface_hub.utils
    if utils.are_progress_bars_disabled():
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


def _read(name: str, path: Path, source: str, library: HubLibrary) -> HubConfig:
    values: Any
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"The config.json of '{name}' ('{path}') cannot be read ({error}): delete it and try again.") from None
    model_type = values.pop(library.type_key, None) if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise UsageError(
            f"The config.json of '{name}' has no {library.type_key}: {library.scheme}: does not build it. Give a factory."
        )
    if isinstance(quantized := values.get("quantization_config"), dict):
        method = quantized.get("quant_method", "method unknown")
        raise UsageError(
            f"The weights of '{name}' are quantized ({method}), which {library.scheme}: does not build: "
            "name the model that they were made from."
        )
    return HubConfig(model_type, values, source)
