"""What an installed Foretrace must have, whichever way it was installed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib import metadata, resources

import pytest

import foretrace

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
