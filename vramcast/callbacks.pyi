"""The public name of `vramcast.datasets.collector.callbacks`."""

from vramcast.datasets.collector.callbacks import *
