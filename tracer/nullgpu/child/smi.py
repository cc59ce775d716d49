"""nvidia-smi for jobs on the null GPU: name and memory are the card's; load, temperature and power are arbitrary.

A separate program that imports nothing of ours: a job finds it on its PATH and may call it each second. It reads the card from
NULLGPU_DEVICE, and the memory that the job's processes hold from the file named by NULLGPU_ACCOUNT.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence

_MIB = 1 << 20
DRIVER, CUDA = "580.65.06", "13.0"  # as in NVML's stand-in (csrc/nvml.c)
_WATTS, _LIMIT_WATTS, _CELSIUS, _PERCENT = 200, 400, 50, 100  # arbitrary: as in NVML's stand-in
_USAGE = """\
nvidia-smi of vramcast's null GPU. It supports: no option, -L, -q, topo -m, -i N, -l SECONDS,
--query-gpu=FIELD,... and --query-compute-apps=FIELD,... with --format=csv[,noheader][,nounits]
"""


class SmiCard:
    """The null GPU, as its job's environment describes it."""

    def __init__(self, environment: dict[str, str]) -> None:
        facts = dict(pair.partition("=")[::2] for pair in environment["NULLGPU_DEVICE"].split(";"))
        self.name = facts["name"]
        self.total_mib = int(facts["total_bytes"]) // _MIB
        self.count = int(facts.get("device_count", "1"))
        self.capability = f"{facts['major']}.{facts['minor']}"
        self.sm_mhz, self.memory_mhz = (int(facts.get(name, "0")) // 1000 for name in ("clock_khz", "memory_clock_khz"))
        account = environment.get("NULLGPU_ACCOUNT", "")
        self.pid = next(iter(re.findall(r"/proc/(\d+)/", account)), "0")
        try:
            with open(account, "rb") as file:
                self._used_mib = -(-int.from_bytes(file.read(8), sys.byteorder) // _MIB)
        except OSError:
            self._used_mib = 0

    def used_mib(self, index: int) -> int:
        """Return the memory that the job holds; all of it is on the job's first card."""
        return 0 if index else self._used_mib

    def uuid(self, index: int) -> str:
        """Return the card's UUID, as in the runtime's stand-in."""
        return f"GPU-11111111-1111-1111-1111-1111111111{index:02x}"

    def bus_id(self, index: int) -> str:
        """Return the card's bus id."""
        return f"00000000:{1 + index:02X}:00.0"


# A field's value and unit, by its name in --query-gpu. Other fields are "[N/A]", as on cards that lack them.
_Field = Callable[[SmiCard, int], tuple[object, str]]
_FIELDS: dict[str, _Field] = {
    "timestamp": lambda card, i: (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
    "driver_version": lambda card, i: (DRIVER, ""),
    "count": lambda card, i: (card.count, ""),
    "name": lambda card, i: (card.name, ""),
    "index": lambda card, i: (i, ""),
    "uuid": lambda card, i: (card.uuid(i), ""),
    "pci.bus_id": lambda card, i: (card.bus_id(i), ""),
    "compute_cap": lambda card, i: (card.capability, ""),
    "memory.total": lambda card, i: (card.total_mib, "MiB"),
    "memory.reserved": lambda card, i: (0, "MiB"),
    "memory.used": lambda card, i: (card.used_mib(i), "MiB"),
    "memory.free": lambda card, i: (max(card.total_mib - card.used_mib(i), 0), "MiB"),
    "utilization.gpu": lambda card, i: (_PERCENT, "%"),
    "utilization.memory": lambda card, i: (_PERCENT // 2, "%"),
    "temperature.gpu": lambda card, i: (_CELSIUS, ""),
    "power.draw": lambda card, i: (f"{_WATTS:.2f}", "W"),
    "power.limit": lambda card, i: (f"{_LIMIT_WATTS:.2f}", "W"),
    "enforced.power.limit": lambda card, i: (f"{_LIMIT_WATTS:.2f}", "W"),
    "clocks.sm": lambda card, i: (card.sm_mhz, "MHz"),
    "clocks.mem": lambda card, i: (card.memory_mhz, "MHz"),
    "clocks.max.sm": lambda card, i: (card.sm_mhz, "MHz"),
    "clocks.max.mem": lambda card, i: (card.memory_mhz, "MHz"),
    "pstate": lambda card, i: ("P0", ""),
    "persistence_mode": lambda card, i: ("Enabled", ""),
    "compute_mode": lambda card, i: ("Default", ""),
}
_OTHER_NAMES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.sm",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.memory": "clocks.mem",
    "power.draw.instant": "power.draw",
    "power.draw.average": "power.draw",
}
_OF_A_PROCESS: dict[str, _Field] = {
    "pid": lambda card, i: (card.pid, ""),
    "process_name": lambda card, i: ("python", ""),
    "name": lambda card, i: ("python", ""),
    "used_memory": lambda card, i: (card.used_mib(i), "MiB"),
    "used_gpu_memory": lambda card, i: (card.used_mib(i), "MiB"),
    "gpu_name": lambda card, i: (card.name, ""),
    "gpu_uuid": lambda card, i: (card.uuid(i), ""),
    "gpu_bus_id": lambda card, i: (card.bus_id(i), ""),
}


def table(card: SmiCard, names: Sequence[str], fields: dict[str, _Field], cards: Sequence[int], style: str) -> list[str]:
    """Return CSV in the format of `--format=csv`."""
    found = [fields.get(_OTHER_NAMES.get(name, name) if fields is _FIELDS else name) for name in names]
    has_units = "nounits" not in style
    first = cards[0] if cards else 0
    lines = []
    if "noheader" not in style:
        units = [field(card, first)[1] if field else "" for field in found]
        lines.append(
            ", ".join(f"{name} [{unit}]" if unit and has_units else name for name, unit in zip(names, units, strict=True))
        )
    for index in cards:
        values = [field(card, index) if field else ("[N/A]", "") for field in found]
        lines.append(", ".join(f"{value} {unit}" if unit and has_units else str(value) for value, unit in values))
    return lines


def summary(card: SmiCard, cards: Sequence[int]) -> list[str]:
    """Return the table of a call without options."""
    rule = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    lines = [
        time.strftime("%a %b %d %H:%M:%S %Y"), "+" + "-" * 89 + "+",
        f"| {f'NVIDIA-SMI {DRIVER}':<30}Driver Version: {DRIVER:<18}CUDA Version: {CUDA:<9}|", rule,
        f"| {'GPU  Name                 Persistence-M':<40}| {'Bus-Id          Disp.A':<23}| {'Volatile Uncorr. ECC':<21}|",
        f"| {'Fan  Temp   Perf          Pwr:Usage/Cap':<40}| {'          Memory-Usage':<23}| {'GPU-Util  Compute M.':<21}|",
        rule.replace("-", "="),
    ]  # fmt: skip
    for index in cards:
        memory, power = f"{card.used_mib(index)}MiB / {card.total_mib}MiB", f"{_WATTS}W / {_LIMIT_WATTS}W"
        lines += [
            f"| {index:>3}  {card.name[:28]:<28} {'On':>5} | {card.bus_id(index)} Off    | {'N/A':>20} |",
            f"| N/A {_CELSIUS:>4}C    P0 {power:>23} | {memory:>22} | {_PERCENT:>6}% {'Default':>12} |",
            rule,
        ]
    lines += ["", "| Processes:                                            GPU    PID   Type   Process name    GPU Memory |"]
    lines += [f"| {i:>3} {card.pid:>8}      C   python  {card.used_mib(i):>8}MiB |" for i in cards if card.used_mib(i)]
    return lines


def details(card: SmiCard, cards: Sequence[int]) -> list[str]:
    """Return the output of -q, as far as it is known."""
    lines = ["", "==============NVSMI LOG==============", "", _pair("Timestamp", time.strftime("%a %b %d %H:%M:%S %Y"))]
    lines += [_pair("Driver Version", DRIVER), _pair("CUDA Version", CUDA), "", _pair("Attached GPUs", len(cards))]
    for index in cards:
        used = card.used_mib(index)
        lines += [f"GPU {card.bus_id(index)}", _pair("Product Name", card.name, 4), _pair("GPU UUID", card.uuid(index), 4)]
        lines += ["    FB Memory Usage", _pair("Total", f"{card.total_mib} MiB", 8), _pair("Reserved", "0 MiB", 8)]
        lines += [_pair("Used", f"{used} MiB", 8), _pair("Free", f"{max(card.total_mib - used, 0)} MiB", 8)]
        lines += ["    Utilization", _pair("Gpu", f"{_PERCENT} %", 8), _pair("Memory", f"{_PERCENT // 2} %", 8)]
        lines += ["    Temperature", _pair("GPU Current Temp", f"{_CELSIUS} C", 8)]
    return lines


def _pair(name: str, value: object, indent: int = 0) -> str:
    return f"{' ' * indent + name:<50}: {value}"


def topology(cards: Sequence[int]) -> list[str]:
    """Return the output of `topo -m`: cards are linked only through the host."""
    lines = ["\t" + "\t".join(f"GPU{i}" for i in cards)]
    return lines + [f"GPU{i}\t" + "\t".join(" X " if i == j else "SYS" for j in cards) for i in cards]


_KNOWN = frozenset([
    "--id", "--loop", "--loop-ms", "--query-gpu", "--query-compute-apps", "--format", "-L", "--list-gpus", "-q", "--query",
    "topo", "-m", "--matrix", "-d", "--display", "MEMORY", "UTILIZATION",
])  # fmt: skip


def said(words: Sequence[str], card: SmiCard) -> tuple[list[str], float]:
    """Return the lines that a call prints, and the seconds until it prints them again (0: never).

    Raises:
        ValueError: An option is unknown, or its value is wrong.
    """
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        short = {"-i": "--id", "-l": "--loop", "-f": "--filename", "-lms": "--loop-ms"}
        if name in short or (name in (*short.values(), "--query-gpu", "--query-compute-apps", "--format") and not has_value):
            value = rest.pop(0) if rest else ""
        options[short.get(name, name)] = value
    if unknown := options.keys() - _KNOWN:
        raise ValueError(f"Invalid option: {', '.join(sorted(unknown))}")
    cards = list(range(card.count))
    if "--id" in options:
        wanted = options["--id"].split(",")
        cards = [i for i in cards if {str(i), card.uuid(i), card.bus_id(i)} & set(wanted)]
        if not cards:
            raise ValueError(f"No devices were found: {options['--id']}")
    again_s = float(options.get("--loop") or 0) + float(options.get("--loop-ms") or 0) / 1000
    style = options.get("--format", "")
    if "--query-gpu" in options:
        return table(card, _names(options["--query-gpu"]), _FIELDS, cards, style), again_s
    if "--query-compute-apps" in options:
        busy = [i for i in cards if card.used_mib(i)]
        return table(card, _names(options["--query-compute-apps"]), _OF_A_PROCESS, busy, style), again_s
    if options.keys() & {"-L", "--list-gpus"}:
        return [f"GPU {i}: {card.name} (UUID: {card.uuid(i)})" for i in cards], again_s
    if "topo" in options:
        return topology(cards), again_s
    return (details if options.keys() & {"-q", "--query"} else summary)(card, cards), again_s


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def main(words: Sequence[str]) -> int:
    """Run it; return 0, or 2 for unsupported options, as nvidia-smi does."""
    if "-h" in words or "--help" in words:
        print(_USAGE)
        return 0
    parent = os.getppid()
    while True:
        try:
            lines, again_s = said(words, SmiCard(dict(os.environ)))
        except (ValueError, KeyError) as error:
            print(f"{error}\n{_USAGE}")
            return 2
        print("\n".join(lines), flush=True)
        if not again_s or os.getppid() != parent:
            return 0
        time.sleep(again_s)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
