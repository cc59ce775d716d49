"""Code inside a job that follows a plan: `vramcast.runtime.follow("plan.json")`."""

from __future__ import annotations

from vramcast.runtime.follower import Counts, Follower, follow

__all__ = ["Counts", "Follower", "follow"]
