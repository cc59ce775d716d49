"""Errors for missing packages."""

from __future__ import annotations

import importlib

import pytest

from vramcast.core.errors import DatasetError, UsageError
from vramcast.core.extras import needed


def test_names_missing_package_and_extra() -> None:
    said = r"^Training needs no_such_package: pip install '\.\[learn\]' in vramcast's checkout\.$"
    with pytest.raises(UsageError, match=said), needed("Training", "learn"):
        importlib.import_module("no_such_package")


def test_raises_given_error_class() -> None:
    with pytest.raises(DatasetError), needed("A file", "datasets", raises=DatasetError):
        raise ImportError("a library of it cannot be loaded")


def test_passes_other_errors() -> None:
    with pytest.raises(KeyError), needed("Training", "learn"):
        raise KeyError
