"""The native extension. Everything else about the package is in pyproject.toml.

The extension is optional: where it cannot be compiled, the package installs without it and reads
recordings in Python. FORETRACE_PURE_PYTHON=1 skips it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src", "foretrace", "_native")
STABLE_ABI = "cp311"

FLAGS = {
    "msvc": (["/O2", "/std:c++17", "/EHsc", "/utf-8"], []),
    "unix": (["-O3", "-g0", "-std=c++17", "-fvisibility=hidden", "-pthread"], ["-pthread"]),
}


class BuildScanner(build_ext):
    """Compiles with the flags of the compiler at hand, and never ships the result of an earlier build."""

    def build_extension(self, ext: Extension) -> None:
        """Builds one extension anew."""
        kind = "msvc" if self.compiler.compiler_type == "msvc" else "unix"
        ext.extra_compile_args, ext.extra_link_args = FLAGS[kind]
        # Without this, a failed build would leave the last good one in the wheel.
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        self.force = True
        super().build_extension(ext)


def extensions() -> list[Extension]:
    """The scanner, where it was not declined and this Python has the stable ABI."""
    sources = sorted(path.as_posix() for path in NATIVE.glob("*.cpp"))
    has_stable_abi = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    if os.environ.get("FORETRACE_PURE_PYTHON", "0") not in ("", "0") or not sources or not has_stable_abi:
        return []
    scanner = Extension(
        "foretrace._scan",
        sources=sources,
        depends=sorted(path.as_posix() for path in NATIVE.glob("*.hpp")),
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        language="c++",
        py_limited_api=True,
        optional=True,
    )
    return [scanner]


modules = extensions()
setup(
    ext_modules=modules,
    cmdclass={"build_ext": BuildScanner},
    options={"bdist_wheel": {"py_limited_api": STABLE_ABI}} if modules else {},
)
