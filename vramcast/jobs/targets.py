"""TARGET: the name of the model that a job trains.

    torchvision:NAME  timm:NAME  hf:ORG/NAME  hf:TYPE  hf:CONFIG.json   from a registry
    diffusers:ORG/NAME  diffusers:CLASS  diffusers:CONFIG.json          from diffusers: the denoiser of a pipeline
    package.module:factory  file.py:factory                             code, which is run

Each may end with ?{...}, keyword arguments in JSON. A user's own TARGET may be any of these. A row of a data set is
untrusted: `refusal` gives the reason why it is not built unless the user trusts it. Heavy imports wait until a model is built.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vramcast.core import progress
from vramcast.core.errors import UsageError
from vramcast.core.text import shorten
from vramcast.jobs import hub, registry_names

TRUST: Final = "pass --trust-targets"
CODE: Final = f"its target is code: {TRUST}"

# Networks of this package, named by its own data sets: they build modules from numbers and words.
_OWN: Final = {"vramcast.datasets.workloads.networks": ("cnn", "mlp", "transformer")}
# Arguments that make a library fetch or open something. init_weights means random weights.
_LOADING: Final = re.compile(r"pretrained|checkpoint|(?<!init_)weights|cache_dir|backbone$|auto_map|remote_code|quantiz|hub")
_WORD: Final = re.compile(r"[\w .,+-]*")  # cannot name a file elsewhere: no slash, no colon
_NAME: Final = re.compile(r"[\w.+-]+")  # a registry's name; timm also accepts hf-hub:USER/MODEL and local-dir:PATH
# Keys of a Hugging Face config with free text.
_FREE_TEXT: Final = frozenset({"id2label", "label2id", "task_specific_params", "_name_or_path"})
# An option of a resolved hub id: the TARGET as it was typed. An untrusted target with it is rejected.
_TYPED: Final = "typed_hub_target"
_LIBRARIES: Final = {library.scheme: library for library in (hub.TRANSFORMERS, hub.DIFFUSERS)}


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed TARGET: `scheme:name?{options}`."""

    scheme: str
    name: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a TARGET.

        Raises:
            UsageError: The text is not a TARGET.
        """
        scheme, separator, place = text.partition(":")
        name, _, options = place.partition("?")
        if not separator or not name:
            raise UsageError(
                f"TARGET '{shorten(text)}' is not understood: {_meant(text)}write torchvision:resnet50, timm:NAME, "
                "hf:ORG/NAME, hf:MODEL_TYPE, hf:CONFIG.json, diffusers:ORG/NAME, package.module:factory or file.py:factory, "
                "optionally with ?{...} for keyword arguments."
            )
        return cls(scheme, name, _options(options))


def _meant(text: str) -> str:
    """Return a question for a text without a registry; "" if it resembles no model."""
    if text.endswith(".py"):
        return (
            f"did you mean a factory in it, {text}:factory, or the script itself, vramcast run -- {text} (or check --)? Else "
        )
    meant = registry_names.meant_targets(text)
    return f"did you mean {', '.join(meant)}? Else " if meant else ""


def _options(text: str) -> dict[str, Any]:
    """Return the keyword arguments after a TARGET's `?`."""
    if not text:
        return {}
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise UsageError(f"TARGET's arguments '{text[:80]}' are not a JSON object: write, for example, ?{{\"depth\": 3}}.")
    return options


def build(text: str, num_classes: int | None = None) -> Any:
    """Return the model of a TARGET, or a callable that makes it.

    Args:
        text: The TARGET; code that it names is run.
        num_classes: Number of classes, for the libraries with such an argument.
    Raises:
        UsageError: The model does not exist, or does not accept the arguments.
    """
    target = Target.parse(text)
    options = target.options
    scheme = _SCHEMES.get(target.scheme)
    if scheme is None:
        factory = _factory(target.scheme, target.name)
        return functools.partial(factory, **options) if options else factory
    if num_classes is not None:
        options = {**options, scheme.classes: num_classes}
    return scheme.build(target.name, options)


def imports(text: str | None) -> tuple[str, ...]:
    """Return the modules that a TARGET's registry imports for each model; none for a job of another kind."""
    scheme = _SCHEMES.get((text or "").partition(":")[0])
    return scheme.imports if scheme is not None else ()


# ------------------------------------------------------------------------------------------------ trust
def refusal(text: str) -> str:
    """Return the reason why a TARGET from untrusted data is not built; "" if it only names a model.

    A name of a registry is looked up there when the model is built, and nowhere else.
    """
    if ":" not in text and (several := registry_names.exact_targets(text)):
        return _several(text, several)
    try:
        target = Target.parse(text)
    except UsageError as error:
        return str(error)
    if target.scheme in _OWN:
        return "" if target.name in _OWN[target.scheme] else CODE
    if target.scheme not in _SCHEMES:
        return CODE
    library = _LIBRARIES.get(target.scheme)
    if library is not None and hub.is_hub_id(target.name):
        if hub.table_config(target.name, library) is None:  # with trust too: the hub is asked about a user's own TARGET only
            missing = hub.not_in_table(target.name, library)
            return f"its model '{target.name}' is not found: the hub is not asked for it, and {missing}"
    elif library is not None and _is_file(target.name):
        return f"its config is not in the data set's folder: {TRUST}"
    elif _NAME.fullmatch(target.name) is None and target.scheme != "hf":
        return f"its name is a download location: {TRUST}"
    loading = _loading(target.options)
    return f"its argument '{loading[:60]}' may open a file: {TRUST}" if loading else ""


def _loading(options: Any) -> str:
    """Return the argument that could make a library open or fetch something; "" if there is none."""
    if not isinstance(options, dict):
        return ""
    for name, value in options.items():
        if _LOADING.search(name) and value not in (None, False):
            return str(name)
        if name in _FREE_TEXT:
            continue
        values = value if isinstance(value, list) else [value]
        if any(isinstance(one, str) and (_WORD.fullmatch(one) is None or ".." in one) for one in values):
            return str(name)
        if found := next(filter(None, map(_loading, values)), ""):
            return found
    return ""


def inlined(text: str, folder: Path) -> str:
    """Return a TARGET with the text of its config, if it names one in its data set's folder; others are unchanged.

    Args:
        text: A row's TARGET.
        folder: Folder of the data set. A config outside of it stays a name.
    """
    scheme, _, place = text.partition(":")
    name, _, options = place.partition("?")
    library = _LIBRARIES.get(scheme)
    if library is None or not _is_file(name):
        return text
    try:
        path, real = (folder / name).resolve(strict=True), folder.resolve(strict=True)
        if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_relative_to(real):
            return text
        model_type, values = _config(path, library)
        return _written(library, model_type, {**values, **_options(options)})
    except (OSError, ValueError):  # includes UsageError, which the build reports later
        return text


def resolved(text: str) -> str:
    """Return a user's own TARGET with a hub id replaced by its configuration; other TARGETs, and ids of the table, as they are.

    Building a model asks no network, and a worker may have none: only this function does.

    Raises:
        UsageError: the id is found nowhere; see `hub.hub_config`.
    """
    typed, text = text, _named(text)
    if text != typed:
        progress.listener.output(f"vramcast: takes {shorten(typed)} for {shorten(text)}\n".encode())
    target = Target.parse(text)
    name, options = target.name, target.options
    library = _LIBRARIES.get(target.scheme)
    if library is None or not hub.is_hub_id(name):
        return text
    found = hub.hub_config(name, library)
    return text if found.is_from_table else _written(library, found.model_type, {**found.values, **options, _TYPED: text})


def _named(text: str) -> str:
    """Return the TARGET of a bare name that only one model has, or of a folder with a configuration; others are unchanged.

    Raises:
        UsageError: Several models have the name.
    """
    if ":" in text:
        return text
    config = Path(text) / "config.json"
    if config.is_file():
        library = hub.DIFFUSERS if f'"{hub.DIFFUSERS.type_key}"' in config.read_text(errors="replace") else hub.TRANSFORMERS
        return f"{library.scheme}:{config}"
    found = registry_names.exact_targets(text)
    if len(found) > 1:
        raise UsageError(_several(text, found))
    return found[0] if found else text


def _several(text: str, found: Sequence[str]) -> str:
    return f"several models are named {text}: write {' or '.join(found)}"


def require_name(text: str) -> None:
    """Raise if the files of a library, or of the user, do not have a name at all; to build the model would take seconds.

    Raises:
        UsageError: They do not.
    """
    place, _, name = text.partition("?")[0].partition(":")
    if (
        place in _SCHEMES
        and _NAME.fullmatch(name)
        and not _is_file(name)
        and not registry_names.may_have(place, name.partition(".")[0])
    ):
        what = "transformers has no model type" if place == "hf" else f"{place} has no model"
        raise UsageError(f"{what} '{name}': {_close_type(name, _SCHEMES[place].known())}")
    if place.endswith(".py") and Path(place).is_file():
        source = Path(place).read_text(encoding="utf-8", errors="replace")
        if not re.search(rf"\b{re.escape(name)}\b|import \*|globals\(|setattr", source):
            names = re.findall(r"^(?:def|class) +(\w+)|^(\w+) *=", source, re.MULTILINE)
            raise UsageError(f"'{place}' has no '{name}': write {place}:factory; {_close(name, map(''.join, names))}")


def as_typed(text: str | None) -> str | None:
    """Return a TARGET as its user typed it, before `resolved`."""
    return text if text is None or _TYPED not in text else str(Target.parse(text).options.get(_TYPED, text))


def _written(library: hub.HubLibrary, model_type: str, values: dict[str, Any]) -> str:
    return f"{library.scheme}:{model_type}?{json.dumps(values, sort_keys=True, separators=(',', ':'))}"


def _is_file(name: str) -> bool:
    """Return whether the part after `hf:` or `diffusers:` is a path or an id; a bare word is a type, even if a file has it."""
    return name.endswith(".json") or "/" in name or os.sep in name


# ------------------------------------------------------------------------------------------------ registries
def _built(what: str, make: Callable[..., Any], fixed: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return `make(**fixed, **options)`; an error with `options`, which come from the TARGET, is a UsageError."""
    if not options:
        return make(**fixed)
    try:
        return make(**{**fixed, **options})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} does not accept these arguments ({str(error).splitlines()[0][:200]}).") from None


def _need(module: str) -> Any:
    try:
        found = importlib.import_module(module)
        progress.tell(progress.Stage.MODEL)
        return found
    except ImportError as error:
        raise UsageError(
            f"Cannot import the package '{module}' ({error}): pip install {module}, in a version for this torch."
        ) from None


def _close(name: str, known: Iterable[str]) -> str:
    matches = registry_names.similar_names(name, known)
    return f"did you mean {', '.join(matches)}?" if matches else "see its documentation for the names."


def _torchvision(name: str, options: dict[str, Any]) -> Any:
    models = _need("torchvision").models
    if name not in models.list_models():
        raise UsageError(f"torchvision has no model '{name}': {_close(name, _SCHEMES['torchvision'].known())}")
    parameters = inspect.signature(models.get_model_builder(name)).parameters
    fixed: dict[str, Any] = {"weights": None, **({"weights_backbone": None} if "weights_backbone" in parameters else {})}
    return _built(f"torchvision's {name}", functools.partial(models.get_model, name), fixed, options)


def _timm(name: str, options: dict[str, Any]) -> Any:
    timm = _need("timm")
    if not timm.is_model(name):
        raise UsageError(f"timm has no model '{name}': {_close(name, _SCHEMES['timm'].known())}")
    return _built(f"timm's {name}", functools.partial(timm.create_model, name), {"pretrained": False}, options)


def _config(path: Path, library: hub.HubLibrary) -> tuple[str, dict[str, Any]]:
    """Return the type that a config names, given as a file or a folder, and its other values."""
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"The config '{path}' cannot be read ({error}): give a Hugging Face config.json.") from None
    model_type = values.pop(library.type_key, None) if isinstance(values, dict) else None
    if not isinstance(model_type, str):
        raise UsageError(f"The config '{path}' has no {library.type_key}: give a Hugging Face config.json.")
    return model_type, values


def _described(name: str, library: hub.HubLibrary) -> tuple[str, dict[str, Any]]:
    """Return the type of the model that a hub id, a config or a type's own name stands for, and its values."""
    if hub.is_hub_id(name):
        if (found := hub.table_config(name, library)) is None:
            missing = hub.not_in_table(name, library)
            raise UsageError(f"The model '{name}' is not found: the hub is not asked here, and {missing}")
        return found.model_type, found.values
    return _config(Path(name), library) if _is_file(name) else (name, {})


def _diffusers(name: str, options: dict[str, Any]) -> Any:
    diffusers = _need("diffusers")
    named, values = _described(name, hub.DIFFUSERS)
    named = named.removeprefix("Flax")
    made: Any = getattr(diffusers, named, None)
    is_model = isinstance(made, type) and issubclass(made, diffusers.ModelMixin)
    if not is_model:
        raise UsageError(f"diffusers has no model '{named}': {_close_type(named, _diffusers_models())}")
    accepted = inspect.signature(made).parameters
    wrong = [key for key in options if key not in accepted]
    if wrong and _TYPED not in options:  # with it, the options are also the hub's, and diffusers omits what it does not know
        raise UsageError(f"diffusers' {named} does not accept the argument '{wrong[0]}': {_close(wrong[0], accepted)}")
    values = {key: value for key, value in {**values, **options}.items() if key in accepted}
    try:
        return made.from_config(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"diffusers' {named} does not accept these arguments ({str(error).splitlines()[0][:200]}).") from None


def _diffusers_models() -> list[str]:
    return [name for name in dir(_need("diffusers").models) if name[0].isupper()]


def is_denoiser(text: str | None) -> bool:
    """Return whether a TARGET names the denoiser of a pipeline, which is trained without the pipeline's other parts."""
    if text is None or not text.startswith(f"{hub.DIFFUSERS.scheme}:"):
        return False
    return "Autoencoder" not in _described(Target.parse(text).name, hub.DIFFUSERS)[0]


def _hugging_face(name: str, options: dict[str, Any]) -> Any:
    import torch

    transformers = _need("transformers")
    model_type, values = _described(name, hub.TRANSFORMERS)
    values = {key: value for key, value in {**values, **options}.items() if key != _TYPED}
    is_code = values.pop("auto_map", None) is not None
    if is_code and model_type not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"The model type '{model_type}' is code on the hub (auto_map), which is not run: give a factory that builds it, "
            "package.module:factory or file.py:factory."
        )
    if values.get("num_labels") not in (None, len(values.get("id2label") or ())):  # transformers would take the names' number
        values = {key: value for key, value in values.items() if key not in ("id2label", "label2id")}
    try:
        config = transformers.AutoConfig.for_model(model_type, **values)
    except (ValueError, KeyError) as error:
        folder = f" (for the folder, write hf:./{name})" if Path(name).is_dir() else ""
        hint = (
            _close_type(model_type, transformers.CONFIG_MAPPING)
            if model_type not in transformers.CONFIG_MAPPING
            else str(error).splitlines()[0][:200]
        )
        raise UsageError(f"transformers has no model type '{model_type}'{folder}: {hint}") from None
    named = (getattr(config, "architectures", None) or [None])[0]
    own = getattr(transformers, named, None) if isinstance(named, str) else None
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise UsageError("The config's dtype is not a dtype of torch: write, for example, float32 or bfloat16.")
    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        make = own if isinstance(own, type) and issubclass(own, torch.nn.Module) else _auto_class(transformers, config)
        if make is not None:
            return _untied(make(config)) if values.get("tie_word_embeddings") is False else make(config)
    finally:
        torch.set_default_dtype(before)
    raise UsageError(
        f"transformers has no trainable class for model type '{model_type}': name one in the config's architectures."
    )


def _auto_class(transformers: Any, config: Any) -> Callable[[Any], Any] | None:
    for auto in _AUTO_CLASSES:
        mapping = getattr(transformers, auto, None)
        if mapping is not None and type(config) in mapping._model_mapping:
            return mapping.from_config  # type: ignore[no-any-return]
    return None


def _untied(model: Any) -> Any:
    """Return a model with a separate weight in its head, as its config requires.

    T5's class ties head and embedding in any case; only loading a checkpoint with both unties them.
    """
    import torch

    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(torch.empty_like(head.weight))
    return model


def _close_type(model_type: str, known: Iterable[str]) -> str:
    """Return what may be meant by an unknown model type: an id of the hub without its organization, or a type."""
    ids = [one for one in registry_names.meant_targets(model_type) if "/" in one]
    return f"did you mean {', '.join(ids)}?" if ids else _close(model_type, known)


# Tasks in order of preference: the first with a class for the model type gives its usual loss. Causal language modelling comes
# after the tasks of encoders: BERT, BART and Whisper have a class for it too, which omits their mask or their encoder.
_AUTO_CLASSES = (
    "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForMaskedLM", "AutoModelForCausalLM",
    "AutoModelForImageClassification", "AutoModelForCTC", "AutoModelForAudioClassification", "AutoModelForSemanticSegmentation",
    "AutoModelForObjectDetection", "AutoModelForImageTextToText", "AutoModelForPreTraining", "AutoModel",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Scheme:
    """A registry: its build function, its argument for the number of classes, and its models by the library itself.

    Attributes:
        imports: A module that each of its models imports, or none.
    """

    name: str
    build: Callable[[str, dict[str, Any]], Any]
    classes: str
    listed: Callable[[], Iterable[str]]
    imports: tuple[str, ...] = ()

    def known(self) -> Iterable[str]:
        """Return the models' names, the most used ones first if they can be read without an import of the library.

        Raises:
            UsageError: Its package cannot be imported.
        """
        return registry_names.installed_names(self.name) or self.listed()


_SCHEMES: Final = {
    one.name: one
    for one in (
        _Scheme(
            "torchvision", _torchvision, "num_classes", lambda: _need("torchvision").models.list_models(), ("torchvision",)
        ),
        _Scheme("timm", _timm, "num_classes", lambda: _need("timm").list_models(), ("timm",)),
        _Scheme(
            "hf",
            _hugging_face,
            "num_labels",
            lambda: _need("transformers").CONFIG_MAPPING,
            ("transformers.models.auto.modeling_auto",),
        ),
        _Scheme("diffusers", _diffusers, "num_class_embeds", _diffusers_models),
    )
}
REGISTRIES: Final = tuple(_SCHEMES)


def names_of(registry: str, pattern: str = "*") -> list[str]:
    """Return the names of a registry's models, with the ids of its built-in table, that match a pattern (`*`, `?`, `[abc]`).

    Raises:
        UsageError: Its package cannot be imported.
    """
    import fnmatch

    ids = [one for library in (hub.TRANSFORMERS, hub.DIFFUSERS) if library.scheme == registry for one in hub.table_ids(library)]
    return sorted(name for name in (*ids, *_SCHEMES[registry].known()) if fnmatch.fnmatchcase(name, pattern))


# ------------------------------------------------------------------------------------------------ code
def _factory(place: str, name: str) -> Any:
    try:
        if place.endswith(".py"):
            path = Path(place)
            if not path.exists():
                raise UsageError(f"The file '{place}' does not exist: write TARGET as file.py:factory.")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            sys.path.insert(0, str(path.resolve().parent))
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        meant = registry_names.similar_names(place, REGISTRIES)
        hint = f"Did you mean {meant[0]}:{name}?" if meant else "Write package.module:factory or file.py:factory."
        raise UsageError(f"TARGET '{place}:{name}': {error}. {hint}") from None
    if not hasattr(module, name):
        raise UsageError(f"'{place}' has no '{name}': write {place}:factory; {_close(name, dir(module))}")
    return getattr(module, name)
