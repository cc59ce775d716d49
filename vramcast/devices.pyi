"""The public name of `vramcast.hardware.cards`."""

from vramcast.hardware.cards import *
