"""The filter of system calls, interpreted as by the kernel."""

from __future__ import annotations

import errno
import struct

import pytest

from vramcast.cluster.service.system_calls import refusing

ALLOWED = 0x7FFF0000
REFUSED, ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Return the filter's result for a call. spec: Linux, the instructions of classic BPF that it uses."""
    said = struct.pack("=IIQ6Q", number, architecture or MACHINES[machine], 0, *(*arguments, *[0] * 6)[:6])
    program = list(struct.iter_unpack("=HBBI", refusing(machine)))
    at, value = 0, 0
    while True:
        code, yes, no, operand = program[at]
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", said, operand)
        elif code == 0x54:
            value &= operand
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += yes if holds else no


@pytest.mark.parametrize("machine", MACHINES)
def test_allows_calls_of_jobs(machine: str) -> None:
    clone, mmap, read = {"x86_64": (56, 9, 0), "aarch64": (220, 222, 63)}[machine]
    assert verdict(machine, read) == ALLOWED
    assert verdict(machine, clone, 0x01200011) == ALLOWED  # fork
    assert verdict(machine, clone, 0x003D0F00) == ALLOWED  # a thread
    for flags in (0x22, 0x01, 0x20022, 0x02):  # private and anonymous, a shared file, a stack, a private file
        assert verdict(machine, mmap, 0, 4096, 3, flags) == ALLOWED


@pytest.mark.parametrize(
    ("machine", "refused", "absent"),
    [
        ("x86_64", (101, 310, 311, 438, 272, 308, 165, 29, 161, 425), (319, 435)),
        ("aarch64", (117, 270, 271, 438, 97, 268, 40, 194, 51, 425), (279, 435)),
    ],
)
def test_forbids_inspection_and_uncounted_memory(machine: str, refused: tuple[int, ...], absent: tuple[int, ...]) -> None:
    assert {verdict(machine, number) for number in refused} == {REFUSED}
    assert {verdict(machine, number) for number in absent} == {ABSENT}
    clone, mmap = {"x86_64": (56, 9), "aarch64": (220, 222)}[machine]
    assert verdict(machine, clone, 0x10000000 | 17) == REFUSED
    for flags in (0x21, 0x23, 0x40021, 0x8021):
        assert verdict(machine, mmap, 0, 4096, 3, flags) == REFUSED


def test_forbids_other_call_tables() -> None:
    assert verdict("x86_64", 40 | 0x40000000) == REFUSED
    assert verdict("x86_64", 0, architecture=0x40000003) == REFUSED  # of 32 bits
    assert verdict("x86_64", 0xFFFFFFFF) == REFUSED


def test_kernel_accepts_program() -> None:
    for machine in MACHINES:
        assert len(refusing(machine)) // 8 <= 4096  # spec: Linux, BPF_MAXINSNS
