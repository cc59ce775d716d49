"""The release, in a module of its own that every other one may import."""

__version__ = "0.2.0"
