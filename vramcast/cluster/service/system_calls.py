"""System calls forbidden in the sandbox: a seccomp program, which bubblewrap loads.

It forbids memory that belongs to no process and no file (memfd, SysV, shared and anonymous), which only a control group
counts; user namespaces, in which a job could mount memory of its own; and access to other processes.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final

# spec: Linux, asm/unistd.h; name -> number on x86_64, on aarch64
_REFUSED: Final = {
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438)},
    **{"kcmp": (312, 272), "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282)},
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"chroot": (161, 51), "fsopen": (430, 430), "fsmount": (432, 432), "move_mount": (429, 429), "open_tree": (428, 428)},
    **{"mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "io_uring_setup": (425, 425)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"shmget": (29, 194), "msgget": (68, 186), "mq_open": (240, 180), "memfd_secret": (447, 447)},
}
# reported as absent, as on an older kernel: libraries have fallbacks
_ABSENT: Final = {"clone3": (435, 435), "memfd_create": (319, 279)}
_CLONE, _MMAP = (56, 220), (9, 222)
_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # spec: linux/audit.h
_X32: Final = 0x40000000  # spec: x86_64, the numbers of the x32 table start here
_CLONE_NEWUSER: Final = 0x10000000
_SHARED_ANONYMOUS: Final = 0x21  # spec: MAP_SHARED | MAP_ANONYMOUS; MAP_SHARED_VALIDATE has the bit of MAP_SHARED too
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06  # spec: linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8  # spec: struct seccomp_data
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000  # spec: linux/seccomp.h


def missing() -> str:
    """Return the reason why there is no program for this machine; "": there is one."""
    machine = platform.machine()
    return "" if machine in _AUDIT else f"a list of system calls for {machine}"


def refusing(machine: str | None = None) -> bytes:
    """Return the program for a machine; default: this one."""
    machine = machine or platform.machine()
    column = list(_AUDIT).index(machine)
    refused = _ERROR | errno.EPERM
    program = [
        *_unless(_ARCHITECTURE, _EQUAL, _AUDIT[machine], refused),
        (_LOAD, 0, 0, _NUMBER),
        *([(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, refused)] if machine == "x86_64" else []),
    ]
    for calls, answer in ((_REFUSED, refused), (_ABSENT, _ERROR | errno.ENOSYS)):
        for numbers in calls.values():
            program += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, answer)]
    flags = _FIRST_ARGUMENT
    program += [
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, flags),
        (_ANY_BIT, 0, 1, _CLONE_NEWUSER),
        (_RETURN, 0, 0, refused),
    ]
    flags = _FIRST_ARGUMENT + 3 * _ARGUMENT_BYTES
    program += [
        *((_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, 4, _MMAP[column]), (_LOAD, 0, 0, flags)),
        *((_AND, 0, 0, _SHARED_ANONYMOUS), (_EQUAL, 0, 1, _SHARED_ANONYMOUS), (_RETURN, 0, 0, refused)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def _unless(offset: int, test: int, value: int, answer: int) -> list[tuple[int, int, int, int]]:
    return [(_LOAD, 0, 0, offset), (test, 1, 0, value), (_RETURN, 0, 0, answer)]
