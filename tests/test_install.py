"""What an installed Foretrace must have, whichever way it was installed."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import sysconfig
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

import foretrace
from tests.ingest.comparison import needs_native

pytestmark = pytest.mark.slow


def test_reader_is_the_one_that_this_run_is_about() -> None:
    expected = os.environ.get("FORETRACE_EXPECT_READER")
    if expected is None:
        pytest.skip("FORETRACE_EXPECT_READER is not set; scripts/check sets it")
    try:
        importlib.import_module("foretrace._scan")
        found = "native"
    except ImportError:
        found = "python"
    assert found == expected
    # `doctor` is what tells the user.
    doctor = [sys.executable, "-m", "foretrace", "doctor", "--format", "json"]
    checks = json.loads(subprocess.run(doctor, capture_output=True, text=True, check=True).stdout)
    status = {each["what"]: each["status"] for each in checks["rows"]}["reader"]
    assert status == ("ok" if expected == "native" else "missing")


def test_page_was_built() -> None:
    if not os.environ.get("FORETRACE_EXPECT_PAGE"):
        pytest.skip("FORETRACE_EXPECT_PAGE is not set; scripts/check sets it")
    from foretrace.present.web import static_files

    assert static_files.built()
    assert "<title>Foretrace</title>" in static_files.text("index.html")


def test_version_is_the_package_metadata() -> None:
    try:
        installed = metadata.version("foretrace")
    except metadata.PackageNotFoundError:
        pytest.skip("runs from the source tree, not installed")
    assert installed == foretrace.__version__


@pytest.mark.parametrize(
    "command", [["-m", "foretrace"], ["-c", "from foretrace.commands import main; main()"]]
)
def test_version_is_printed(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert foretrace.__version__ in done.stdout


def test_package_data_is_there() -> None:
    package = resources.files("foretrace")
    assert package.joinpath("py.typed").is_file()
    samples = [each.name for each in package.joinpath("samples").iterdir() if each.name.endswith(".json.gz")]
    assert samples, "no sample recording: `foretrace demo` has nothing to show"


def without(module: str, *arguments: str, cache: Path, prepare: str = "pass") -> str:
    """What a command prints where a module cannot be imported."""
    code = f"import sys; sys.modules[{module!r}] = None; {prepare}; from foretrace.commands import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FORETRACE_CACHE": str(cache)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAMPLE = next(Path(foretrace.__file__).parent.joinpath("samples").glob("*.json.gz"))


@needs_native  # or there is nothing to take away
def test_what_isal_and_the_extension_do_works_without_them(tmp_path: Path) -> None:
    """Windows on ARM has no isal, free-threaded Python no extension: both print what the others print."""
    diagnose = ("diagnose", str(SAMPLE), "--format", "json")
    expected = without("nothing", *diagnose, cache=tmp_path / "with")
    assert json.loads(expected)["findings"]
    assert without("isal", *diagnose, cache=tmp_path / "isal") == expected
    assert without("foretrace._scan", *diagnose, cache=tmp_path / "scan") == expected
    # What zlib has put into the cache is read from there, and the report is packed by it.
    assert without("isal", *diagnose, cache=tmp_path / "isal") == expected
    report = tmp_path / "report.html"
    without("isal", "report", str(SAMPLE), "-o", str(report), cache=tmp_path / "isal")
    assert "<title>" in report.read_text(encoding="utf-8")[:2000]


def test_doctor_says_what_a_free_threaded_python_lacks(tmp_path: Path) -> None:
    prepare = (
        "import sysconfig; known = sysconfig.get_config_var; "
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else known(name)"
    )
    printed = without("foretrace._scan", "doctor", "--format", "json", cache=tmp_path, prepare=prepare)
    reader = {check["what"]: check for check in json.loads(printed)["rows"]}["reader"]
    assert reader["status"] == "missing"
    assert reader["found"].startswith(
        "native extension, which free-threaded Python cannot load; the pure-Python"
    )


@pytest.mark.parametrize(("free_threaded", "extensions"), [(0, 1), (1, 0)])
def test_free_threaded_python_builds_no_extension(
    free_threaded: int, extensions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no stable ABI: its wheel is the one of pure Python."""
    setup = Path(__file__).parents[1] / "setup.py"
    setuptools = pytest.importorskip("setuptools", reason="only needed to build")
    asked: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: asked.update(options))
    known = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: free_threaded if name == "Py_GIL_DISABLED" else known(name)
    )
    monkeypatch.chdir(setup.parent)
    monkeypatch.delenv("FORETRACE_PURE_PYTHON", raising=False)
    runpy.run_path(str(setup))
    assert (len(asked["ext_modules"]), len(asked["options"])) == (extensions, extensions)
