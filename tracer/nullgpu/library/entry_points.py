"""The list of entry points (csrc/entry_points.txt) and the stand-in libraries' generated C.

The list's own head defines the kinds of entry point: `body` is written by hand, `as` is another name of such a function, `noop`
and `handle` are generated and counted, `refuse` is generated and fails loudly. The symbols that a torch build needs are its own
undefined symbols, so a new build with a new symbol still loads, and a call of that symbol is refused.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vramcast.core.errors import NullGpuError

CSRC = Path(__file__).parents[1] / "csrc"
KINDS = ("body", "handle", "noop", "refuse", "as SYMBOL")
_KIND = re.compile("|".join(KINDS).replace("SYMBOL", r"\w+"))

# The status that each library documents for "not supported".
_NOT_SUPPORTED = {
    "libcuda": 801,  # spec: CUDA_ERROR_NOT_SUPPORTED
    "libcudart": 801,  # spec: cudaErrorNotSupported
    "libcublas": 15,  # spec: CUBLAS_STATUS_NOT_SUPPORTED
    "libcublasLt": 15,  # spec: CUBLAS_STATUS_NOT_SUPPORTED
    "libcudnn": 3000,  # spec: CUDNN_STATUS_NOT_SUPPORTED
    "libcufft": 16,  # spec: CUFFT_NOT_SUPPORTED
    "libcusparse": 10,  # spec: CUSPARSE_STATUS_NOT_SUPPORTED
    "libcusparseLt": 10,  # spec: cusparseLt uses cusparseStatus_t
    "libcusolver": 9,  # spec: CUSOLVER_STATUS_NOT_SUPPORTED
    "libnccl": 5,  # spec: ncclInvalidUsage
    "libnvrtc": 11,  # spec: NVRTC_ERROR_INTERNAL_ERROR
    "libnvidia-ml": 3,  # spec: NVML_ERROR_NOT_SUPPORTED
    "libcupti": 27,  # spec: CUPTI_ERROR_NOT_SUPPORTED
}
_OTHERWISE = 1  # spec: any non-zero status is an error in the remaining libraries (cuFile, NVSHMEM, cuRAND)


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol that a torch build needs: its name, its version node ("" for none) and the library's SONAME."""

    name: str
    version: str
    soname: str

    @property
    def library(self) -> str:
        """The library's name without version, as in the list: libcudart."""
        return self.soname.split(".so")[0]


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (number, section, line) of a list, without comments and empty lines."""
    section = ""
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = raw.split("#")[0].strip()
        if found := re.fullmatch(r"\[(.+)\]", line):
            section = found[1]
        elif line:
            yield number, section, line


def read_list(path: Path = CSRC / "entry_points.txt") -> dict[str, tuple[str, str]]:
    """Return {symbol: (library, kind)} from the list; raise ValueError for a malformed or duplicate line."""
    entries: dict[str, tuple[str, str]] = {}
    for number, library, line in _lines(path):
        name, _, kind = line.partition(" ")
        if not _KIND.fullmatch(kind) or not library or name in entries:
            raise ValueError(f"{path.name}:{number}: '{line}' is not 'symbol kind' with a kind of {KINDS}, or is a duplicate.")
        entries[name] = (library, kind)
    return entries


def read_wheels(path: Path = CSRC / "wheels.txt") -> dict[str, dict[str, str]]:
    """Return {wheel and version: {symbol: library}}: symbols looked up by other libraries (`benchmarks.hardware.looked_up`)."""
    wheels: dict[str, dict[str, str]] = {}
    for _, wheel, line in _lines(path):
        library, _, names = line.partition(": ")
        wheels.setdefault(wheel, {}).update(dict.fromkeys(names.split(), library))
    return wheels


def exported(needed: Iterable[Symbol], soname: str) -> list[Symbol]:
    """Return all symbols of the stand-in for one library: those that torch needs, and those in the list and in other wheels.

    A listed body that torch does not need is left out: only the C file shows whether this version of CUDA has it.
    """
    symbols = {symbol.name: symbol for symbol in needed}
    library = soname.split(".so")[0]
    # All symbols of a versioned library have its single node; PyTorch's build shows whether there is one.
    version = next((symbol.version for symbol in symbols.values() if symbol.version), "")
    listed = read_list()
    names = [name for name, (owner, kind) in listed.items() if owner == library and kind != "body"]
    for looked_up in read_wheels().values():
        names += [name for name, owner in looked_up.items() if owner == library and listed.get(name, ("", ""))[1] != "body"]
    for name in names:
        symbols.setdefault(name, Symbol(name, version, soname))
    return list(symbols.values())


def run_tool(*command: str) -> str:
    """Return the output of a program of binutils.

    Raises:
        NullGpuError: It is not installed.
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise NullGpuError(
            f"'{command[0]}' is not installed: the null GPU is compiled once for each torch build. "
            "Install a C compiler with binutils (Debian: apt-get install gcc)."
        ) from None


def needed_symbols(torch_lib: Path) -> dict[str, list[Symbol]]:
    """Return {SONAME: symbols} that the libraries in `torch_lib` need from NVIDIA's, from their own dynamic sections.

    A library may be needed without any symbol; it has an empty list.

    Source: ELF DT_NEEDED and the undefined dynamic symbols, by `readelf` and `nm` of binutils.
    """
    own = {path.name for path in torch_lib.iterdir()}
    sonames = {"libcuda.so.1"}
    undefined: dict[str, str] = {}
    for path in sorted(torch_lib.glob("lib*.so")):
        for soname in re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^]]*)\]", run_tool("readelf", "-d", str(path))):
            if soname not in own:
                sonames.add(soname)
        for line in run_tool("nm", "-D", "--undefined-only", "--with-symbol-versions", str(path)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            undefined.setdefault(name, version.lstrip("@"))
    by_library = {soname.split(".so")[0]: soname for soname in sonames}
    listed = read_list()
    needed: dict[str, list[Symbol]] = {soname: [] for soname in sorted(sonames)}
    for name, version in sorted(undefined.items()):
        library = listed[name][0] if name in listed else guess(name)
        soname = version if version in sonames else by_library.get(library)
        if library and soname:
            needed[soname].append(Symbol(name, version, soname))
    # Looked up by name, not linked: by cuGetProcAddress and the runtime's entry point query.
    linked = {symbol.name for symbol in needed["libcuda.so.1"]}
    needed["libcuda.so.1"] += [
        Symbol(n, "", "libcuda.so.1") for n, (lib, _) in listed.items() if lib == "libcuda" and n not in linked
    ]
    return needed


# Most libraries have the prefix of their functions as their name.
_PREFIX = re.compile("cusparseLt|cublasLt|cublas|cusparse|cusolver|cufft|curand|cudnn|cupti|nccl|nvrtc")
_OTHER_PREFIXES = {"cuFile": "cufile", "nvml": "nvidia-ml", "nvshmem": "nvshmem_host", "__cuda": "cudart", "cuda": "cudart"}


def guess(name: str) -> str:
    """Return the library of an unlisted symbol, by its prefix; "" if it is none of NVIDIA's."""
    if found := _PREFIX.match(name):
        return f"lib{found[0]}"
    by_prefix = (f"lib{library}" for prefix, library in _OTHER_PREFIXES.items() if name.startswith(prefix))
    return next(by_prefix, "libcuda" if re.match(r"cu[A-Z]", name) else "")


def other_names(symbols: Iterable[Symbol]) -> list[str]:
    """Return the linker options that give hand-written functions their other names."""
    listed = read_list()
    kinds = ((symbol.name, listed.get(symbol.name, ("", ""))[1]) for symbol in symbols)
    return [f"-Wl,--defsym={name}={kind.removeprefix('as ')}" for name, kind in kinds if kind.startswith("as ")]


def stub_source(symbols: Iterable[Symbol], written: set[str]) -> str:
    """Return C code for all `symbols` of one library, except hand-written ones (`written`) and their other names."""
    listed = read_list()
    lines = ["/* Generated by entry_points.py from entry_points.txt. */", '#include "nullgpu.h"', ""]
    for symbol in symbols:
        kind = listed.get(symbol.name, ("", "refuse"))[1]
        if symbol.name in written or kind.startswith("as "):
            continue
        status = _NOT_SUPPORTED.get(symbol.library, _OTHERWISE)
        ledger, value = ("NG_REFUSED", status) if kind == "refuse" else ("NG_NOOP", 0)
        arguments, body = "void", f'NG_HIT({ledger}, "{symbol.name}", 0); return {value};'
        if kind == "handle":
            arguments, body = "void **out", f'NG_HIT(NG_NOOP, "{symbol.name}", 0); *out = ng_new_handle(); return 0;'
        elif symbol.library == "libnvidia-ml":  # missing on a card; nothing in the job depends on it
            body = f"return {status};"
        head = f"int {symbol.name}({arguments})"
        lines.append(f"EXPORT {head};\n{head} {{ {body} }}")
    return "\n".join(lines) + "\n"


def driver_table_source(names: Iterable[str]) -> str:
    """Return the table for cuGetProcAddress: documented base name -> function."""
    unique = sorted(set(names))
    lines = ["/* Generated by entry_points.py from entry_points.txt. */", '#include "nullgpu.h"', ""]
    lines += ["struct ng_symbol { const char *name; void *function; };"]
    lines += [f"extern int {name}(void);" for name in unique]
    lines += ["extern const struct ng_symbol ng_driver_symbols[];", "const struct ng_symbol ng_driver_symbols[] = {"]
    for name in unique:
        base = re.sub(r"_v\d+$", "", name)
        lines += [f'    {{"{base}", (void *){name}}},'] + ([f'    {{"{name}", (void *){name}}},'] if base != name else [])
    lines += ["};", "extern const size_t ng_n_driver_symbols;"]
    lines += ["const size_t ng_n_driver_symbols = sizeof ng_driver_symbols / sizeof *ng_driver_symbols;"]
    return "\n".join(lines) + "\n"
