"""The public name of `vramcast.core.errors`."""

from vramcast.core.errors import *
