"""The software of the card's machine (torch, CUDA, cuDNN), where it differs from this machine.

    parse("torch==2.8.0")          from `--stack`, completed from the table of torch's own wheels
    of_passport("2.6.0+cu124")     from a measured run's record of its machine

An unknown part is None, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from vramcast.core.errors import UsageError
from vramcast.core.releases import REFERENCE

INSTALLED: Final = "installed"
WHEEL: Final = "torch's wheel metadata"
GIVEN: Final = "given"
PASSPORT: Final = "passport"


@dataclass(frozen=True, slots=True)
class Release:
    """The CUDA, cuDNN and cuBLAS versions of one release of torch; None if its wheel allows a range."""

    cuda: str
    cudnn: str
    cublas: str | None


# By CUDA, cuDNN and cuBLAS; since 2.11 cuBLAS comes from cuda-toolkit, and may be 13.1.0.3 to 13.1.1.3 with 2.12.
# spec: Requires-Dist of the wheels torch-VERSION-cp311 without a local version for Linux x86_64 on PyPI, read 2026-11
_WHEELS: Final[dict[tuple[str, str, str | None], str]] = {
    ("11.7", "8.5.0.96", "11.10.3.66"): "2.0.0 2.0.1",
    ("12.1", "8.9.2.26", "12.1.3.1"): "2.1.0 2.1.1 2.1.2 2.2.0 2.2.1 2.2.2 2.3.0 2.3.1",
    ("12.1", "9.1.0.70", "12.1.3.1"): "2.4.0 2.4.1",
    ("12.4", "9.1.0.70", "12.4.5.8"): "2.5.0 2.5.1 2.6.0",
    ("12.6", "9.5.1.17", "12.6.4.1"): "2.7.0 2.7.1",
    ("12.8", "9.10.2.21", "12.8.4.1"): "2.8.0 2.9.0 2.9.1 2.10.0",
    ("13.0", "9.19.0.56", "13.1.0.3"): "2.11.0",
    ("13.0", "9.20.0.48", None): "2.12.0 2.12.1",
    ("13.0", "9.24.0.43", "13.1.1.3"): "2.14.0 2.14.1",
    ("13.2", "9.26.0.51", "13.4.1.3"): "2.15.0",
}
RELEASES: Final = {torch: Release(*built_with) for built_with, of in _WHEELS.items() for torch in of.split()}
# 2.9.0 compares the cuDNN that it was built with, 9.10 or 9.13; 2.9.1 the loaded one; 2.8.0, 2.10.0 and 2.11.0 compare none.
_AVOIDS_IN_3D: Final = (2, 9)  # spec: `use_cudnn` in ATen/native/Convolution.cpp of torch 2.9
_AVOIDED_IN_3D: Final = ((9, 8), (9, 15))  # spec: the same: the first cuDNN, and the first after
_CASTS_ANEW: Final = (2, 11)  # spec: `cached_cast` in libtorch_cpu.so asks for inference mode in 2.11.0, and not in 2.10.0
_AVOIDS_ON_SM_120: Final = (2, 14)  # spec: pytorch#190112; measured: in libtorch_cuda.so of 2.14.1 and 2.15.0, not of 2.11.0
_PREFERS_CUDNN: Final = (2, 10), (9, 15, 1)  # spec: `check_prefer_cudnn_attention` in sdp_utils.cpp of 2.10; pytorch#169849
_FUSES_UNBATCHED: Final = (2, 14)  # measured: `torch._fused_sdp_choice` of three dimensions, 2.9.1 to 2.15.0; pytorch#187266
_WIDENS_ATTENTION: Final = (2, 5)  # spec: pytorch#128922, merged after 2.4 was cut; a switch since 2.6, pytorch#135964
_OLDEST_CUDA, _NEWEST_CUDA = 9, 19  # arbitrary: torch was built for 11 to 13; 128 is a typing error for 12.8
_KNOWN: Final = ("torch", "cudnn", "cuda", "transformers")
_EXAMPLE: Final = "write --stack torch==2.8.0, or --stack cudnn==9.10.2,cuda==12.8"


@dataclass(frozen=True, slots=True)
class Stack:
    """Versions of torch, CUDA and cuDNN as text; None: unknown.

    Attributes:
        torch: Version of torch, `2.8.0`, with a local version if given: `2.8.0+cu126`.
        cuda: Version of CUDA for which torch is built: `12.8`, or the major version alone.
        cudnn: Version of cuDNN: `9.10.2.21`, or `9.10.2`.
        source: Source of the versions: `installed`, `torch's wheel metadata`, `given` or `passport`.
        notes: Uncertain values from the table, for the result's warnings.
        transformers: Version of transformers, `4.51.3`, if it was named.
    """

    torch: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    source: str = INSTALLED
    notes: tuple[str, ...] = ()
    transformers: str | None = None

    @property
    def cuda_major(self) -> int | None:
        """CUDA's major version; None: unknown."""
        return int(self.cuda.partition(".")[0]) if self.cuda is not None else None

    @property
    def _series(self) -> tuple[int, ...]:
        """Torch's major and minor version; an unknown one, as beside a CPU-only torch, counts as the reference."""
        return _numbers(self.torch or REFERENCE)[:2]

    @property
    def avoids_cudnn_in_3d(self) -> bool:
        """The choice of torch 2.9 to compute 16-bit 3-D convolutions itself, in columns that take several times the memory."""
        first, after = _AVOIDED_IN_3D
        of_cudnn = _numbers(self.torch)[2:] == (0,) or first <= _numbers(self.cudnn) < after
        return self._series == _AVOIDS_IN_3D and of_cudnn

    @property
    def avoids_engines_on_sm_120(self) -> bool:
        """The choice of torch since 2.14 to pass over those of cuDNN's engines that call cuBLASLt, on sm_120."""
        return self._series >= _AVOIDS_ON_SM_120

    @property
    def keeps_casts_in_inference_mode(self) -> bool:
        """The habit of torch before 2.11 to keep autocast's casts of weights in inference mode too, until autocast ends."""
        return self._series < _CASTS_ANEW

    @property
    def prefers_cudnn_attention(self) -> bool:
        """The choice of torch since 2.10, with cuDNN since 9.15.1, to take cuDNN's attention first on sm_90 and sm_100."""
        torch, cudnn = _PREFERS_CUDNN
        return self._series >= torch and (_numbers(self.cudnn) or cudnn) >= cudnn

    @property
    def keeps_attention_narrow(self) -> bool:
        """The habit of torch before 2.5 to compute attention without a fused kernel in 16 bits, where later ones take 32."""
        return self._series < _WIDENS_ATTENTION

    @property
    def fuses_unbatched_attention(self) -> bool:
        """The choice of torch since 2.14 to take a fused kernel also for attention without a batch dimension."""
        return self._series >= _FUSES_UNBATCHED

    def over(self, installed: Stack) -> Stack:
        """Return this stack completed from this machine, with a corresponding `source`."""
        filled = replace(
            self, torch=self.torch or installed.torch, cuda=self.cuda or installed.cuda, cudnn=self.cudnn or installed.cudnn
        )
        same = (filled.torch, filled.cuda, filled.cudnn) == (self.torch, self.cuda, self.cudnn)
        return self if same else replace(filled, source=f"{self.source}; the rest {installed.source}")

    def to_dict(self) -> dict[str, str | None]:
        """Return the stack as JSON."""
        return {"torch": self.torch, "cuda": self.cuda, "cudnn": self.cudnn, "source": self.source}


def parse(text: str) -> Stack:
    """Parse `torch==2.8.0,cudnn==9.10.2,cuda==12,transformers==4.51.3` or any of them; a known torch release fills in the rest.

    Raises:
        UsageError: A name or a version is not understood, or the torch is not in the table and the rest is missing.
    """
    said: dict[str, str] = {}
    for part in text.split(","):
        name, equals, version = (word.strip() for word in part.partition("=="))
        if not equals or name not in _KNOWN:
            raise UsageError(f"--stack '{part.strip()}' is not understood: {', '.join(_KNOWN)} are known; {_EXAMPLE}.")
        if name in said:
            raise UsageError(f"--stack has {name} twice ({said[name]} and {version}): give it once.")
        said[name] = version
    torch, cuda, cudnn = said.get("torch"), None, None
    if "cuda" in said and (cuda := _cuda(said["cuda"])) is None:
        raise UsageError(f"--stack has cuda=={said['cuda']}: a version such as 12 or 12.8 is expected; {_EXAMPLE}.")
    if "cudnn" in said and (cudnn := cudnn_version(said["cudnn"])) is None:
        raise UsageError(f"--stack has cudnn=={said['cudnn']}: a version such as 9.10.2 or 91002 is expected; {_EXAMPLE}.")
    transformers = said.get("transformers")
    if transformers is not None and not re.fullmatch(r"\d+\.\d+\.\d+", transformers):
        raise UsageError(f"--stack has transformers=={transformers}: a release such as 4.51.3 is expected; {_EXAMPLE}.")
    if torch is None:
        return Stack(None, cuda, cudnn, GIVEN, transformers=transformers)
    release, local = _split(torch)
    if release is None or not _is_cuda(local):
        raise UsageError(f"--stack has torch=={torch}: a CUDA build such as 2.8.0 or 2.8.0+cu126 is expected; {_EXAMPLE}.")
    named = _local_cuda(local)
    if named is not None and cuda is not None and not _agree(named, cuda):
        raise UsageError(f"--stack has CUDA twice ({torch} is built for {named}, and cuda=={cuda}): omit cuda.")
    cuda = cuda or named
    found = _filled(Stack(release + (f"+{local}" if local else ""), cuda, cudnn, GIVEN, transformers=transformers))
    if found.cuda is None or found.cudnn is None:
        raise UsageError(
            f"--stack has torch=={torch}: its CUDA and cuDNN are unknown here ({_spans()} are known): add them, "
            f"--stack torch=={torch},cudnn==9.10.2,cuda==12.8."
        )
    return found if found.cuda == cuda and found.cudnn == cudnn else replace(found, source=WHEEL)


def of_passport(torch: str | None = None, cuda: str | None = None, cudnn: str | None = None) -> Stack | None:
    """Return the stack of a measured run, as far as its record is understood; None if nothing is known.

    Args:
        torch: Value of `torch.__version__`; a build that is not in the table fills in nothing.
        cuda: Value of `torch.version.cuda`.
        cudnn: `9.10.2`, or the number of `torch.backends.cudnn.version()`.
    """
    release, local = _split(torch or "")
    known = torch if release is not None and _is_cuda(local) else None
    stack = Stack(known, _cuda(cuda or ""), cudnn_version(cudnn or ""), PASSPORT)
    return _filled(stack) if stack != Stack(source=PASSPORT) else None


def cudnn_version(text: str) -> str | None:
    """Return cuDNN's version as `9.10.2` or `9.10.2.21`, from that or from the library's own number (91002, 8902).

    Returns:
        The version; None if the text is neither.
    """
    text = text.strip()
    if re.fullmatch(r"[89]\.\d{1,2}\.\d{1,2}(\.\d+)?", text):
        return text
    if match := re.fullmatch(r"(8)(\d)(\d\d)|(9)(\d\d)(\d\d)", text):  # spec: cudnn_version.h, CUDNN_VERSION of cuDNN 8 and 9
        return ".".join(str(int(part)) for part in match.groups() if part is not None)
    return None


def release_of(torch: str) -> tuple[int, int] | None:
    """Return the first two numbers of `2.8.0+cu126` or `2.15.0.dev20261101`; None if the text is not a version."""
    match = re.match(r"(\d+)\.(\d+)\b", torch.strip())
    return (int(match[1]), int(match[2])) if match else None


def same_minor(a: str, b: str) -> bool:
    """Return whether two versions share their first two numbers."""
    return a.split(".")[:2] == b.split(".")[:2]


def _agree(a: str, b: str) -> bool:
    """Return whether two versions of CUDA agree in the parts that both have, as 12 and 12.8 do."""
    return all(x == y for x, y in zip(a.split(".")[:2], b.split(".")[:2], strict=False))


def _filled(stack: Stack) -> Stack:
    """Return the stack with missing versions from the table entry of its torch."""
    if stack.torch is None:
        return stack
    release, local = _split(stack.torch)
    cuda = stack.cuda or _local_cuda(local)
    default = RELEASES.get(release or "")
    if default is None:
        return replace(stack, cuda=cuda)
    notes: tuple[str, ...] = ()
    cuda = cuda or default.cuda
    if stack.cudnn is None and not _agree(cuda, default.cuda):
        notes = (
            f"cuDNN {default.cudnn} is that of torch {release}'s default wheel, for CUDA {default.cuda}; the one for CUDA "
            f"{cuda} may have another: give it (--stack torch=={stack.torch},cudnn==VERSION)",
        )
    return replace(stack, cuda=cuda, cudnn=stack.cudnn or default.cudnn, notes=notes)


def _numbers(version: str | None) -> tuple[int, ...]:
    """Return the numbers of `9.10.2.21` or `2.8.0+cu126` or `2.15.0.dev20261101`; () of None."""
    match = re.match(r"\d+(\.\d+)*", version or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _split(torch: str) -> tuple[str | None, str]:
    """Return the release and the local version of `2.8.0+cu126`; None if it is not a release."""
    match = re.fullmatch(r"(\d+\.\d+\.\d+)(?:\+([\w.]+))?", torch.strip())
    return (match[1], match[2] or "") if match else (None, "")


def _is_cuda(local: str) -> bool:
    return not local or _local_cuda(local) is not None


def _local_cuda(local: str) -> str | None:
    """Return the CUDA version of a wheel's local version: `cu126` is 12.6."""
    match = re.fullmatch(r"cu(\d\d)(\d)", local)
    return f"{match[1]}.{match[2]}" if match else None


def _cuda(text: str) -> str | None:
    """Return the version if it is a version of CUDA."""
    match = re.fullmatch(r"(\d+)(\.\d+){0,2}", text.strip())
    return text.strip() if match and _OLDEST_CUDA <= int(match[1]) <= _NEWEST_CUDA else None


def _spans() -> str:
    names = list(RELEASES)
    return f"the {len(names)} releases from {names[0]} to {names[-1]}"
