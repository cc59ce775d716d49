"""The step of a build that pyproject.toml cannot state: a wheel carries the C code compiled, if there is a compiler.

The simulator is compiled always, and the null GPU for each torch that the build finds: the one of the building Python, or those
in the folders of $VRAMCAST_PREBUILD, separated by colons. An editable install and an sdist carry nothing.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

INTERMEDIATE = {".c", ".map", ".o"}


class _Distribution(Distribution):
    def has_ext_modules(self) -> bool:
        """Return whether the wheel depends on the platform."""
        words = shlex.split(os.environ.get("CC", "")) or ["cc"]
        return sys.platform == "linux" and shutil.which(words[0]) is not None


class _Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag of a wheel for any Python 3: the libraries do not link it."""
        return "py3", "none", super().get_tag()[2]


class _BuildPy(build_py):
    def run(self) -> None:
        """Compile into the copy of the package that the wheel is made of."""
        super().run()
        if self.distribution.has_ext_modules() and not self.editable_mode:
            carry(Path(self.build_lib).resolve())


def carry(copy: Path) -> None:
    """Compile into the package in a folder, as the first use of an installation does into the cache."""
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True  # it would be packed
    from vramcast.core import cache, compiler, prebuilt
    from vramcast.core.errors import VramcastError
    from vramcast.tracer.nullgpu.cudnn.stand_ins import oracle_libraries
    from vramcast.tracer.nullgpu.library.build import build, find_torch

    def attempt(what: str, compile_it: Callable[[], object]) -> None:
        try:
            compile_it()
        except VramcastError as error:  # the installation compiles it, or says the same
            print(f"The wheel does not carry {what}: {error}", file=sys.stderr)

    def null_gpu() -> None:
        build(find_torch())
        oracle_libraries(find_torch().site / "nvidia" / "cudnn" / "lib")

    shutil.rmtree(prebuilt.FOLDER, ignore_errors=True)  # of an earlier build
    os.environ[cache.VARIABLE] = str(prebuilt.FOLDER)
    for source in sorted(copy.glob("vramcast/*/csrc/*.c")):
        attempt(source.name, functools.partial(compiler.shared_library, source))
    for site in (os.environ.get("VRAMCAST_PREBUILD") or sysconfig.get_path("purelib")).split(os.pathsep):
        sys.path.insert(1, site)
        importlib.invalidate_caches()
        attempt(f"the null GPU for the torch in {site}", null_gpu)
        sys.path.remove(site)
    needs = [0]
    for path in [path for path in prebuilt.FOLDER.rglob("*") if path.is_file()]:
        if path.suffix in INTERMEDIATE:
            path.unlink()
        else:
            needs += [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", path.read_bytes())]
    (prebuilt.FOLDER / prebuilt.NEEDS).write_text(json.dumps({"machine": platform.machine(), "glibc": f"2.{max(needs)}"}))


setup(distclass=_Distribution, cmdclass={"build_py": _BuildPy, "bdist_wheel": _Wheel})
