"""What a fork of this process must not share with it: helper processes, their connections, and locks.

A fork has a copy of every socket and lock. Were it to use them, it would take answers which its parent waits for, and a lock
which another thread held would stay locked for ever. So whoever owns such things forgets them in the fork, and starts anew.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol


class Owner(Protocol):
    """Whoever owns what a fork must not share."""

    def forget(self) -> None:
        """Drop it, in the fork, without a word to the processes which it belongs to."""


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def forget_in_forks(owner: Owner) -> None:
    """Call `owner.forget()` in each fork of this process, as long as the owner lives."""
    _owners.add(owner)


def _in_fork() -> None:
    for owner in list(_owners):
        owner.forget()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_fork)


class Lock:
    """A lock which a thread may take twice, and which is free in a fork, whoever held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        forget_in_forks(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(RuntimeError):  # forked while it was held: the fork's lock is another one
            self._lock.release()

    def forget(self) -> None:
        """See `Owner`."""
        self._lock = threading.RLock()
