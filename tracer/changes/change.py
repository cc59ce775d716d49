"""Changes of a command's program that are applied while it runs, without an edit of its files.

Each is one `CHANGE` in a file of this folder, which `registry.py` lists. A change notes what it found and did in a dict that
becomes an `AppliedChange` (`tracer/format/applied_change.py`):

    value       the program's own value, where the change sets a number
    way         the setting or line with which a user makes the change; absent: the change was not applied
    most, limit the largest possible value, and what limits it
    obstacle    the reason why the change cannot be applied
    owner       the library with the setting
    search      the function with which the program searches for the value itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vramcast.tracer.hooks.replacement import replace_when_imported

Facts: TypeAlias = dict[str, Any]
# spec: the classes that hold a training library's settings, and the method that receives them; each release that we trace
_SETTINGS: Final = {
    "transformers": (("transformers.training_args", "TrainingArguments.__post_init__"),),
    "lightning": (
        ("pytorch_lightning.trainer.trainer", "Trainer.__init__"),
        ("lightning.pytorch.trainer.trainer", "Trainer.__init__"),
    ),
    "accelerate": (("accelerate.accelerator", "Accelerator.__init__"),),
    "ultralytics": (("ultralytics.engine.trainer", "BaseTrainer.__init__"),),
    "peft": (("peft.tuners.lora.config", "LoraConfig.__post_init__"),),
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a running program.

    Attributes:
        name: Its name in `RunOptions.changes`.
        install: Returns a context that applies the change; its arguments are the change's value, or None to observe, and the
            dict of facts.
        is_observed: Whether it is installed in each command, to find the program's own value.
    """

    name: str
    install: Callable[[Any, Facts], AbstractContextManager[None]]
    is_observed: bool = False


def set_argument(stack: ExitStack, library: str, name: str, new: Callable[[Any], Any], facts: Facts) -> None:
    """Set an argument of a library's settings whenever a program makes them.

    Args:
        stack: Puts the original back.
        library: A key of the table of libraries.
        name: The argument.
        new: Returns its new value, given the program's own (None: not given); None leaves it.
        facts: Gets the setting as the way.
    """

    def note(value: Any) -> None:
        owner = _SETTINGS[library][0][1].partition(".")[0]
        facts["way"] = f"{name}={value}" if library == "ultralytics" else f"{owner}({name}={value!r})"

    def of_fields(run: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(settings: Any, /, *args: Any, **kwargs: Any) -> Any:
            value = new(getattr(settings, name, None))
            if value is not None and hasattr(settings, name):
                setattr(settings, name, value)
                note(value)
            return run(settings, *args, **kwargs)

        return initialize

    def of_arguments(run: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            by_place = library == "ultralytics" and len(args) > 1  # spec: BaseTrainer.__init__(self, cfg, overrides, ...)
            given = args[1] if by_place else kwargs.get("overrides") if library == "ultralytics" else kwargs
            value = new((given or {}).get(name))
            if value is not None:
                given = {**(given or {}), name: value}
                if by_place:
                    args = (args[0], given, *args[2:])
                else:
                    kwargs = {**kwargs, "overrides": given} if library == "ultralytics" else given
                note(value)
            return run(owner, *args, **kwargs)

        return initialize

    for module, method in _SETTINGS[library]:
        replace_when_imported(stack, module, method, of_fields if method.endswith("__post_init__") else of_arguments)


def set_arguments(stack: ExitStack, settings: Mapping[str, tuple[str, Callable[[Any], Any]]], facts: Facts) -> None:
    """Set one argument of each library: its name and the function of `set_argument` by library."""
    for library, (name, new) in settings.items():
        set_argument(stack, library, name, new, facts)
