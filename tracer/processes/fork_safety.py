"""State that a fork of this process must not share with it: helper processes, their connections, and locks.

A fork has a copy of every socket and lock. If it used them, it would take answers meant for its parent, and a lock held by
another thread would stay locked forever. So owners of such state drop it in the fork and start again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol


class Owner(Protocol):
    """An owner of state that a fork must not share."""

    def forget(self) -> None:
        """Drop the state in the fork, without a message to the processes that it belongs to."""


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
    """A reentrant lock that is free in a fork, regardless of its holder."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        forget_in_forks(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(RuntimeError):  # forked while it was held: the fork has a new lock
            self._lock.release()

    def forget(self) -> None:
        """Release the lock in a fork; see `Owner`."""
        self._lock = threading.RLock()
