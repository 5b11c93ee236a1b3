"""The walks through a new rule and a new analysis in CONTRIBUTING.md work as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RULES = Path("src", "foretrace", "diagnose", "__init__.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the walk touches and of what checks it."""
    for name in ("src", "tests", "scripts", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "images"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(checkout: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_a_rule_and_an_analysis_from_nothing(checkout: Path) -> None:
    """Both in one copy, whose pages are generated once and whose checks run once."""
    guide = (checkout / "CONTRIBUTING.md").read_text(encoding="utf-8")
    write_rule(checkout, guide.partition("## A rule from nothing")[2])
    write_analysis(checkout, guide.partition("## An analysis from nothing")[2])

    run(checkout, "scripts/make_reference.py")
    assert "## When not" in (checkout / "docs/rules/zero-fill.md").read_text(encoding="utf-8")
    page = checkout / "docs/reference/analyses/stream-overlap.md"
    assert "## Example" in page.read_text(encoding="utf-8")
    checks = (
        "tests/diagnose/test_rules.py",
        "tests/test_architecture.py",
        "tests/diagnose/rules/device/test_zero_fill.py",
        "tests/analyze/test_stream_overlap.py",
    )
    printed = run(checkout, "-m", "pytest", "-q", "-p", "no:cacheprovider", *checks)
    assert "failed" not in printed
    explained = run(checkout, "-m", "foretrace", "diagnose", "--explain", "zero-fill")
    assert "at least 2 % of GPU time" in explained
    assert "stream-overlap " in run(checkout, "-m", "foretrace", "show", "--list")


def write_rule(checkout: Path, walk: str) -> None:
    rule, line, test = re.findall(r"```python\n(.*?)```", walk, re.S)[:3]
    assert len(rule.splitlines()) <= 80, "the model rule can be read at a glance"
    (checkout / "src/foretrace/diagnose/rules/device/zero_fill.py").write_text(rule, encoding="utf-8")
    (checkout / "tests/diagnose/rules/device/test_zero_fill.py").write_text(test, encoding="utf-8")
    registry = (checkout / RULES).read_text(encoding="utf-8")
    last = registry.rindex("from foretrace.diagnose.rules.")
    (checkout / RULES).write_text(registry[:last] + line + registry[last:], encoding="utf-8")


def write_analysis(checkout: Path, walk: str) -> None:
    source, test = re.findall(r"```python\n(.*?)```", walk, re.S)[:2]
    (checkout / "src/foretrace/analyze/stream_overlap.py").write_text(source, encoding="utf-8")
    (checkout / "tests/analyze/test_stream_overlap.py").write_text(test, encoding="utf-8")
