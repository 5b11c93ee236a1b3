"""The documentation is true and complete: a thing that exists is described, and a page says what is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import foretrace
from foretrace import analyze, schema
from foretrace.commands import COMMANDS
from foretrace.errors import ForetraceError

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT_SUFFIXES = {".cpp", ".hpp", ".json", ".md", ".py", ".toml", ".ts", ".tsx", ".yaml", ".yml", ""}
# Somebody's home directory, a scratch or mounted folder, an internal package index.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:home|Users|root|work|opt|mnt)/[\w.-]+|(?:extra-)?index-url|file:///", re.IGNORECASE
)


def read(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def tracked_files() -> list[Path]:
    """Files of the project: what git knows or would add, and all text where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout")
    found = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in found if path.is_file() and path.suffix in TEXT_SUFFIXES]


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])


def test_reference_is_what_the_code_says() -> None:
    script = ROOT / "scripts" / "make_reference.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_table_and_column_is_documented() -> None:
    sections = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", read("docs", "reference", "tables.md"), re.M | re.S)
    )
    for table, columns in schema.TABLES.items():
        missing = [name for name in columns if f"| `{name}` |" not in sections.get(table, "")]
        assert not missing, f"{table}: {missing}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.__name__.rpartition(".")[2])
def test_every_command_is_in_the_readme(command: object) -> None:
    name = getattr(command, "__name__", "").rpartition(".")[2]
    assert re.search(rf"\bforetrace {name}\b", read("README.md"))


@pytest.mark.parametrize("chosen", analyze.ANALYSES, ids=lambda each: each.name)
def test_every_analysis_is_in_the_readme(chosen: analyze.Analysis) -> None:
    assert f"`{chosen.name}`" in read("README.md")
    assert chosen.help.endswith("."), "the docstring's first line is the help: a sentence"


@pytest.mark.parametrize("chosen", analyze.ANALYSES, ids=lambda each: each.name)
def test_every_analysis_has_its_page(chosen: analyze.Analysis) -> None:
    """One page each with formula, denominator and example; that it is current is tested above."""
    page = read("docs", "reference", "analyses", f"{chosen.name}.md")
    assert f"[{chosen.name}](analyses/{chosen.name}.md)" in read("docs", "reference", "analyses.md")
    body = (inspect.getdoc(chosen.function) or "").partition("\n")[2]
    assert len(body.split()) >= 40, (
        "the docstring is the manual page: it defines the columns and their shares"
    )
    assert "## Example" in page
    assert all(f"`--{name.replace('_', '-')}`" in page for name in chosen.options)


def test_the_reference_has_no_other_pages() -> None:
    found = {path.stem for path in (ROOT / "docs" / "reference" / "analyses").glob("*.md")}
    assert found == {each.name for each in analyze.ANALYSES}


def test_the_checklist_names_what_exists() -> None:
    """In its right column, code that begins with a word is an analysis or a command, and its options exist."""
    options: dict[str, set[str]] = {each.__name__.rpartition(".")[2]: set() for each in COMMANDS}
    options["show"] = {"--sort", "--limit", "--format"}
    for chosen in analyze.ANALYSES:
        options[chosen.name] = {f"--{name.replace('_', '-')}" for name in chosen.options}
    rows = re.findall(r"^\| (.+) \| (.+) \|$", read("docs", "checklist.md"), re.M)
    assert len(rows) > 50
    for what, answer in rows:
        named = [text.split() for text in re.findall(r"`([a-z][^`]*)`", answer)]
        known = [words for words in named if words[0] in options]
        assert [words for words in named if words not in known] in ([], [["copies"]]), what
        assert [words for words in known if not options[words[0]].issuperset(words[1:2])] == [], what
        assert known or "*later*" in answer or answer in ("given by", "every analysis"), what


def test_every_analysis_is_in_the_checklist() -> None:
    named = set(re.findall(r"`([a-z-]+)[^`]*`", read("docs", "checklist.md")))
    assert {each.name for each in analyze.ANALYSES} <= named


def test_every_exit_code_is_in_the_readme() -> None:
    def below(error: type[ForetraceError]) -> set[type[ForetraceError]]:
        return {error}.union(*(below(each) for each in error.__subclasses__()))

    documented = {int(code) for code in re.findall(r"^\| (\d) \|", read("README.md"), re.M)}
    assert {0} | {error.exit_code for error in below(ForetraceError)} == documented


def test_every_decision_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", read("docs", "decisions", "README.md")))
    assert listed == {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")} - {"README.md"}


def test_changelog_tells_this_version() -> None:
    assert re.search(rf"^## {re.escape(foretrace.__version__)}\b", read("CHANGELOG.md"), re.M)


def test_links_lead_somewhere() -> None:
    lost = []
    for page in pages():
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
        lost += [
            f"{page.relative_to(ROOT)}: {target}" for target in local if not (page.parent / target).exists()
        ]
    assert lost == []


def test_readme_names_the_command_that_ci_runs() -> None:
    assert "scripts/check" in read("README.md")
    assert "exec scripts/check" in read(".ci", "run")


def test_hooks_use_the_versions_of_the_dev_extra() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    hooks = read(".pre-commit-config.yaml")
    pinned = [each for each in project["optional-dependencies"]["dev"] if "==" in each]
    needed = [*pinned, *project["dependencies"]]
    named = set(re.findall(r'"((?:\w|-)+(?:==|>=)[\d.]+)"', hooks))
    assert named == set(needed)


def test_no_path_of_one_machine_in_the_tree() -> None:
    exempt = {Path(__file__), ROOT / "LICENSE"}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in tracked_files()
        if path not in exempt
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (match := MACHINE_PATH.search(line))
    ]
    assert found == []
