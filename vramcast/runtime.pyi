"""The public name of `vramcast.plans.runtime.follower`."""

from vramcast.plans.runtime.follower import *
