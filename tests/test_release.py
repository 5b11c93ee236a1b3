"""What a release needs: notes from the changelog, one required check, actions and a recipe that agree with the package."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

import foretrace

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
notes = runpy.run_path(str(ROOT / "scripts" / "release_notes.py"))["notes"]
SOURCE = '"""The version."""\n\n__version__ = "0.2.0"\n'
CHANGELOG = "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- New.\n\n## 0.1.0 (2026-11-01)\n\n- First.\n"


def test_notes_of_a_tag_are_its_part_of_the_changelog() -> None:
    assert notes("v0.2.0", source=SOURCE, changelog=CHANGELOG) == "- New.\n"
    with pytest.raises(SystemExit, match=r"the tag is v0\.3\.0, but the package is 0\.2\.0"):
        notes("v0.3.0", source=SOURCE, changelog=CHANGELOG)
    with pytest.raises(SystemExit, match=r"calls 0.2.0 unreleased"):
        notes("v0.2.0", source=SOURCE, changelog=CHANGELOG.replace("2026-12-01", "unreleased"))
    with pytest.raises(SystemExit, match=r"says nothing of 0.2.0"):
        notes("v0.2.0", source=SOURCE, changelog="# Changelog\n")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_hold_no_token(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"\./\S+|[\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40}", action) for action in used), used
    assert "secrets." not in text, "PyPI trusts the workflow itself"
    assert "\npermissions:\n  contents: read\n" in text


def test_the_required_check_waits_for_every_job() -> None:
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    jobs = re.findall(r"^  (\w+):$", text.partition("\njobs:\n")[2], re.MULTILINE)
    needed = re.search(r"^  required:.*?needs: \[(.*?)\]\n    if: always\(\)", text, re.MULTILINE | re.DOTALL)
    assert needed is not None
    assert set(needed[1].split(", ")) == set(jobs) - {"required"}


def test_the_recipe_has_the_version_and_the_dependencies_of_the_package() -> None:
    recipe = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f'version: "{foretrace.__version__}"' in recipe
    run = re.search(r"^  run:\n((?:    [ -] .*\n)+)", recipe, re.MULTILINE)
    assert run is not None
    lines = [line for line in run[1].splitlines() if " if: " not in line]
    found = [
        line.strip().removeprefix("- ").removeprefix("then: ").replace("python-isal", "isal")
        for line in lines
    ]
    wanted = [each.partition(";")[0].replace(">=", " >=") for each in project["dependencies"]]
    assert found == ["python >=${{ python_min }}", *wanted]
    assert project["requires-python"] == ">=3.11"
    assert 'python_min: "3.11"' in recipe


@pytest.mark.parametrize("name", ["bug.yml", "wrong_number.yml"])
def test_issue_forms_ask_for_what_doctor_prints(name: str) -> None:
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8")
    asked = form.partition("id: doctor")[2].partition("  - type:")[0]
    assert "foretrace doctor --format json" in asked
    assert "required: true" in asked
