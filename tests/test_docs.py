"""The documentation is true and complete: a thing that exists is described, and a page says what is."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import analyze, api, ingest, schema, units
from foretrace.analyze.result import Analysis
from foretrace.commands import COMMANDS
from foretrace.diagnose import RULES
from foretrace.errors import ForetraceError
from tests import claims

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TEXT_SUFFIXES = {".cpp", ".hpp", ".json", ".md", ".py", ".toml", ".ts", ".tsx", ".yaml", ".yml", ""}
# Somebody's home directory, a scratch or mounted folder, an internal package index.
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:home|Users|root|work|opt|mnt)/[\w.-]+|index-url\W+(?:https?|file):|file:///",
    re.IGNORECASE,
)
# What a page names and the repository does not hold: a user's own folders, those beside a checkout, built files, and the
# rule and the analysis that the reader of CONTRIBUTING.md adds.
NOT_IN_THE_REPOSITORY = (
    "rank0/lines-PID.jsonl.gz",
    "foretrace.bench",
    "foretrace.compare",
    "foretrace.gate",
    "foretraceFinding",
    "actions/upload-artifact",
    "comment.md",
    "foretrace.error",
    "foretrace.NAME",
    "foretrace.predict",
    "runs",
    "foretrace-runs",
    ".foretrace",
    "traces",
    "N/A",
    "src/foretrace/present/web/static",
    "zero_fill.py",
    "docs/reference/analyses/stream-overlap.md",
    "src/foretrace/analyze/stream_overlap.py",
    "tests/analyze/test_stream_overlap.py",
    "build/docs",
    "build/check",
    # In the history: docs/accuracy.md.
    *(f"benchmarks/{name}" for name in ("cpu", "memory", "pairs", "real")),
)
# Options of other programs that the guide explains: scripts/check, the notebook's magic, torchrun, nsys, ncu, examples
# of secrets.
OTHER_PROGRAMS_OPTIONS = {
    "--all", "--depth", "--loop", "--rdzv-id", "--cuda-graph-trace", "--clock-control", "--token", "--api-key", "--pytorch", "--type",
    "--import", "--page", "--pmc", "--kernel-trace", "--stats", "--output-format", "--sys-trace", "--csv", "--export", "--print-kernel-base",
    "--trace", "--from", "--spec",
}  # fmt: skip


def read(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def repository_files() -> list[Path]:
    """Files of the project: what git knows or would add."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def packages() -> set[str]:
    return {path.parent.name for path in (ROOT / "src" / "foretrace").glob("*/__init__.py")}


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])


def by_page(check: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """What a check finds wrong, by the page; pages without a fault are left out."""
    faults = {page.relative_to(ROOT).as_posix(): check(page.read_text(encoding="utf-8")) for page in pages()}
    return {page: wrong for page, wrong in faults.items() if wrong}


@pytest.mark.slow
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


def test_every_command_is_in_the_readme() -> None:
    names = [command.name for command in COMMANDS]
    readme = read("README.md")
    assert [name for name in names if not re.search(rf"\bforetrace {name}\b", readme)] == []


def test_the_help_of_an_analysis_is_a_sentence() -> None:
    assert [chosen.name for chosen in analyze.ANALYSES if not chosen.help.endswith(".")] == []


@pytest.mark.parametrize("chosen", analyze.ANALYSES, ids=lambda each: each.name)
def test_every_analysis_has_its_page(chosen: Analysis) -> None:
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


def test_every_exit_code_is_in_the_readme() -> None:
    def below(error: type[ForetraceError]) -> set[type[ForetraceError]]:
        return {error}.union(*(below(each) for each in error.__subclasses__()))

    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", read("README.md"), re.M)}
    assert {0} | {error.exit_code for error in below(ForetraceError)} == documented


def test_every_decision_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", read("docs", "decisions", "README.md")))
    assert listed == {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")} - {"README.md"}


def test_changelog_tells_this_version() -> None:
    assert re.search(rf"^## {re.escape(foretrace.__version__)}\b", read("CHANGELOG.md"), re.M)


def test_links_lead_somewhere() -> None:
    broken = []
    for page in pages():
        targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
        broken += [f"{page.name}: {target}" for target in local if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.slow
def test_every_path_that_a_page_names_exists() -> None:
    tree = claims.repository(path.relative_to(ROOT).as_posix() for path in repository_files())
    assert by_page(lambda text: claims.missing_paths(text, tree, elsewhere=NOT_IN_THE_REPOSITORY)) == {}


@pytest.mark.slow
def test_nothing_that_exists_is_called_planned() -> None:
    names = claims.existing_names()
    assert by_page(lambda text: claims.planned_but_existing(text, names=names, packages=packages())) == {}


@pytest.mark.slow
def test_every_command_line_on_a_page_would_run() -> None:
    def faults(text: str) -> list[str]:
        lines = claims.command_lines(text)
        return [f"{' '.join(line.words)}: {fault}" for line in lines if (fault := claims.fault(line))]

    assert by_page(faults) == {}


@pytest.mark.slow
def test_every_option_in_the_readme_and_guide_exists() -> None:
    known = claims.all_flags() | OTHER_PROGRAMS_OPTIONS
    for page in [README, *(ROOT / "docs" / "guide").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        planned = claims.planned_code(text)
        codes = [code for code in claims.inline_code(text) if code not in planned]
        named = {option for code in codes for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", code)}
        assert named <= known, page.name


def test_every_script_on_a_page_has_the_options_shown() -> None:
    checked = 0
    for page in pages():
        for script, options in claims.script_calls(page.read_text(encoding="utf-8")):
            if not (ROOT / script).is_file():  # a user's own train.py
                continue
            source = read(script)
            assert [option for option in options if f'"{option}"' not in source] == [], (
                f"{page.name}: {script}"
            )
            checked += 1
    assert checked > 10


LIES = """# A page
It reads recordings. Recording, and checking whether a change paid, are planned; their places are marked below.

```
src/demo/
  capture/      records a program
  golden.py     expected output
```

Expected output lies in `tests/golden/`; the rule is `diagnose/rules.py`. See `foretrace diagnoze PATH`,
`foretrace show kernels --grouped-by op PATH` and:

```
foretrace predict trace.json.gz --changes 'scale host 0.5'
python tests/golden/update.py
```

| what | given by |
|---|---|
| peak | `memory`; snapshots *later*: `memory-snapshot` |
| flame graph | *later*: `flame` |

## Planned
- `foretrace compare`, `foretrace report`
"""


def test_a_missing_path_would_be_noticed() -> None:
    """`tests/golden` was named when it did not exist; so were modules after they had moved."""
    tree = claims.repository(
        ["src/demo/capture/run.py", "src/demo/diagnose/rules/host.py", "tests/test_docs.py"]
    )
    assert claims.missing_paths(LIES, tree, elsewhere=()) == [
        "diagnose/rules.py",
        "src/demo/golden.py",
        "tests/golden/",
        "tests/golden/update.py",
    ]
    assert (
        claims.missing_paths(
            "`golden/x.py`, `views/NAME.tsx` and `src/demo/capture/`", tree, elsewhere=("golden",)
        )
        == []
    )


def test_an_existing_thing_called_planned_would_be_noticed() -> None:
    """ARCHITECTURE.md called recording planned while `foretrace run` recorded."""
    found = claims.planned_but_existing(LIES, names={"flame", "memory", "report"}, packages={"capture"})
    assert found == ["Recording", "flame", "foretrace report"]
    assert claims.planned_but_existing("Planned: `bench/`.", names=(), packages={"bench"}) == ["bench/"]
    assert claims.planned_but_existing("Planned: `--fail-on`.", names={"--fail-on"}, packages=()) == [
        "--fail-on"
    ]
    assert claims.planned_but_existing("A recording is planned.", names=(), packages={"capture"}) == []


def test_a_wrong_command_line_would_be_noticed() -> None:
    faults = [fault for line in claims.command_lines(LIES) if (fault := claims.fault(line))]
    assert faults == ["no command diagnoze", "no option --grouped-by", "no option --changes"]
    incomplete = claims.CommandLine(("foretrace", "flame", "--metric", "host"), complete=True)
    assert "required" in (claims.fault(incomplete) or "")


def test_every_activity_is_of_a_package() -> None:
    assert set(claims.ACTIVITIES.values()) <= packages()


def test_readme_names_the_command_that_ci_runs() -> None:
    assert "scripts/check" in read("README.md")
    assert "exec scripts/check" in read(".ci", "run")


def test_hooks_use_the_versions_of_the_dev_extra() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    hooks = read(".pre-commit-config.yaml")
    dev = project["optional-dependencies"]["dev"]
    pinned = [each for each in dev if "==" in each]
    needed = {each.partition(";")[0] for each in (*pinned, *project["dependencies"])}
    named = set(re.findall(r'"([\w.-]+(?:==|>=)[\d.]+)(?:;[^"]*)?"', hooks))
    assert needed <= named <= needed | set(dev)


def test_hooks_run_for_all_that_pages_are_made_from() -> None:
    """What a page shows is written in these files: a commit that changes one must make the page again."""
    patterns = dict(
        re.findall(r"- id: (reference|pages)\n(?:.*\n)*?\s+files: (.*)", read(".pre-commit-config.yaml"))
    )
    shown: list[Any] = [*analyze.ANALYSES, *RULES]
    code = {inspect.getfile(inspect.unwrap(getattr(each, "function", each))) for each in shown}
    code |= {inspect.getfile(reader) for reader in (*ingest.READERS, schema, units, api)}
    package = Path(inspect.getfile(api)).parent  # of an installed wheel, or of this tree
    files = {f"src/foretrace/{Path(file).relative_to(package).as_posix()}" for file in code}
    recordings = {"tests/traces/operators/cold.json.gz", "src/foretrace/samples/naive_attention.json.gz"}
    for hook, own in (
        ("reference", {"src/foretrace/capture/api.py", "scripts/make_reference.py", "docs/rules/README.md"}),
        (
            "pages",
            {
                "src/foretrace/commands/show.py",
                "scripts/fill_pages.py",
                "docs/index.md",
                "docs/benchmarks.md",
            },
        ),
    ):
        assert [file for file in files | recordings | own if not re.search(patterns[hook], file)] == []


@pytest.mark.slow
def test_no_path_of_one_machine_in_the_tree() -> None:
    exempt = {Path(__file__), ROOT / "LICENSE"}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in repository_files()
        if path.suffix in TEXT_SUFFIXES and path not in exempt
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (match := MACHINE_PATH.search(line))
    ]
    assert found == []
