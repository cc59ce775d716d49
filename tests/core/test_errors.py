"""The error tree: classes, exit codes, and the drawing in its docstring."""

from __future__ import annotations

import inspect
import traceback

import pytest

import vramcast
from vramcast.core import errors

TREE = {
    "VramcastError": ("Exception", 3),
    "UsageError": ("VramcastError", 2),
    "TraceFileError": ("VramcastError", 2),
    "DatasetError": ("VramcastError", 2),
    "ArtifactError": ("VramcastError", 2),
    "DownloadError": ("VramcastError", 3),
    "Overloaded": ("VramcastError", 3),
    "UnknownArgument": ("UsageError", 2),
    "NoAnswer": ("VramcastError", 3),
    "OutputError": ("VramcastError", 3),
    "RequestRefused": ("VramcastError", 1),
    "SimulatedOutOfMemory": ("VramcastError", 1),
    "CannotEstimate": ("VramcastError", 3),
    "CompilerError": ("CannotEstimate", 3),
    "CacheError": ("CannotEstimate", 3),
    "NullGpuError": ("CannotEstimate", 3),
    "OtherAllocator": ("CannotEstimate", 3),
    "IncompleteTrace": ("CannotEstimate", 3),
    "DoesNotFit": ("CannotEstimate", 1),
    "NothingAsked": ("CannotEstimate", 3),
    "MissingPeerValue": ("CannotEstimate", 3),
    "JobError": ("CannotEstimate", 3),
    "WorkerError": ("CannotEstimate", 3),
    "TimeLimit": ("WorkerError", 3),
}


def test_error_tree_matches_docstring() -> None:
    classes = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, Exception)}
    assert {name: (cls.__bases__[0].__name__, cls.exit_code) for name, cls in classes.items()} == TREE
    assert all(name in (errors.__doc__ or "") for name in TREE)


def test_errors_derive_from_builtin_errors() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.TraceFileError, ValueError)
    assert issubclass(errors.CannotEstimate, RuntimeError)


def test_job_error_carries_traceback() -> None:
    assert errors.JobError("text", "Traceback ...").job_traceback == "Traceback ..."
    assert errors.JobError("text").job_traceback == ""
    assert str(errors.JobError("text", "Traceback ...")) == "text"


def test_package_exports_all_names() -> None:
    assert vramcast.__all__ == sorted(vramcast.__all__)
    assert all(getattr(vramcast, name) is not None for name in vramcast.__all__)
    assert set(TREE) <= set(vramcast.__all__)
    assert dir(vramcast) == vramcast.__all__
    assert (vramcast.errors.UsageError, vramcast.devices.device("t4").key) == (vramcast.UsageError, "t4")
    with pytest.raises(AttributeError, match="no attribute 'estimat'"):
        _ = vramcast.estimat


@pytest.mark.integration
def test_package_imports_without_torch() -> None:
    import subprocess
    import sys

    code = "import sys, vramcast, vramcast.cli.main as m; m.parser(); vramcast.TensorSpec; assert 'torch' not in sys.modules, 1"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stderr == ""


def test_errors_print_the_name_that_catches_them() -> None:
    with pytest.raises(errors.UsageError) as found:
        raise errors.UsageError("it is wrong")
    assert "".join(traceback.format_exception_only(found.value)) == "vramcast.UsageError: it is wrong\n"
