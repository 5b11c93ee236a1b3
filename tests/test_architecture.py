"""The rules of ARCHITECTURE.md, enforced: who may import what, the registries, the unit suffixes."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze, ingest
from foretrace.analyze.result import Analysis, Result
from foretrace.commands import COMMANDS
from foretrace.errors import MissingDataError
from foretrace.units import SUFFIXES
from tests.analyze.test_lines import MAIN_12, recorded, ticks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "foretrace"

# Bottom first. A part may import parts of lower layers, never of its own or a higher one.
LAYERS = (
    (
        "errors",
        "_version",
        "_scan",
        "word_shapes",
        "secret_names",
        "deflate",
        "zstd",
        "nvidia",
        "whole_files",
        "source_calls",
        "user_files",
    ),
    ("units", "secret_formats", "own_files", "scratch_folders"),
    ("remote",),
    ("urls",),
    (
        "schema",
        "intervals",
        "hardware",
        "sourced",
        "statistics",
        "pandas_frames",
        "runtime_names",
        "kernel_profile",
    ),
    ("trace", "snapshot", "measured", "line_samples"),
    ("cache",),
    ("ingest", "capture", "bench"),
    ("analyze",),
    ("predict", "ranks"),
    ("diagnose",),
    ("compare",),
    ("trial",),
    ("present",),
    ("commands",),
    ("api",),
    ("__main__",),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "core", "manager", "misc", "constants"}
# package -> the parts, or files, that may import it
CONFINED = {
    "torch": ("capture/", "bench/"),
    "rich": ("present/text/terminal.py",),
    "starlette": ("present/web/server.py",),
    "ray": ("ranks/engines/on_ray.py",),
    "fsspec": ("remote/systems.py",),
    "aiohttp": ("remote/systems.py",),
    "uvicorn": ("present/web/server.py", "present/web/connections.py"),
    "mcp": ("commands/agent/server.py",),
    "shtab": ("commands/completion.py",),
    "pynvml": ("nvidia.py",),
    "foretrace._scan": ("ingest/", "predict/"),
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part_of(path: Path) -> str:
    """`trace` of trace.py, `ingest` of ingest/kineto.py."""
    return relative(path).partition("/")[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports, inside functions, for types only and by name too."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                yield str(node.args[0].value)


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in sources()} - {"__init__"}
    assert parts <= set(RANK), "add the new part to LAYERS, and to ARCHITECTURE.md"


@pytest.mark.slow
def test_imports_point_down_only() -> None:
    upward = []
    for path in (path for path in sources() if part_of(path) != "__init__"):
        part = part_of(path)
        for name in imports(path):
            if name != "foretrace" and not name.startswith("foretrace."):
                continue
            target = name.partition(".")[2].partition(".")[0]
            if target not in RANK:
                upward.append(f"{relative(path)} imports {name}: import the module that defines it")
            elif target != part and RANK[target] >= RANK[part]:
                upward.append(f"{relative(path)}: {part} must not import {target}")
    assert upward == []


@pytest.mark.slow
def test_confined_packages_stay_where_they_belong() -> None:
    escaped = [
        f"{relative(path)} imports {name}: {package} belongs to {', '.join(places)}"
        for path in sources()
        for name in imports(path)
        for package, places in CONFINED.items()
        if name == package or name.startswith(package + ".")
        if not relative(path).startswith(places)
    ]
    assert escaped == []


@pytest.mark.slow
def test_only_commands_print() -> None:
    printing = [
        f"{relative(path)}:{node.lineno}"
        for path in sources()
        if part_of(path) != "commands"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_names_say_what_is_in_them() -> None:
    vague = [relative(path) for path in sources() if VAGUE_NAMES & set(relative(path)[:-3].split("/"))]
    assert not vague


def test_import_foretrace_is_light() -> None:
    heavy = ("torch", "rich", "starlette", "uvicorn", "polars", "numpy", "fsspec", "aiohttp", "ray")
    code = f"import sys, foretrace; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def defines(path: Path, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree(path).body)


def analysis_functions(path: Path) -> list[str]:
    """Names of the functions that a file marks with @analysis(...)."""
    return [
        node.name
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark).startswith("analysis(") for mark in node.decorator_list)
    ]


def test_every_analysis_is_registered() -> None:
    written = {
        f"{path.stem}.{name}": getattr(importlib.import_module(f"foretrace.analyze.{path.stem}"), name)
        for path in sorted((PACKAGE / "analyze").glob("*.py"))
        for name in analysis_functions(path)
    }
    assert written
    assert [name for name, function in written.items() if function not in analyze.ANALYSES] == []
    names = [each.name for each in analyze.ANALYSES]
    assert len(names) == len(set(names)) == len(written)


def test_every_reader_is_registered() -> None:
    written = [path.stem for path in (PACKAGE / "ingest").glob("*.py") if defines(path, "accepts")]
    assert sorted(reader.__name__.rpartition(".")[2] for reader in ingest.READERS) == sorted(written)
    assert all(callable(reader.read) for reader in ingest.READERS)


def test_every_command_is_registered() -> None:
    written = [path.stem for path in (PACKAGE / "commands").glob("*.py") if defines(path, "configure")]
    assert written
    assert sorted(command.file for command in COMMANDS) == sorted(written)
    assert all(callable(command.module.run) for command in COMMANDS)
    first_lines = [command.module.__doc__.strip().splitlines()[0] for command in COMMANDS]
    assert [command.says for command in COMMANDS] == first_lines


# A number that is no measure needs no unit: it says which one.
IDENTITIES = {"id", "step", "rank", "device", "stream", "thread", "process", "line", "depth"}
IDENTITY_SUFFIXES = ("_id", "_step", "_rank", "_device", "_stream", "_line")
IDENTITY_PREFIXES = ("grid_", "block_")


def without_unit(result: Result) -> list[str]:
    """Names of numbers in a Result that say neither their unit nor that they are an identity."""
    numbers = [name for name, dtype in result.table.schema.items() if dtype.is_numeric()]
    numbers += [
        name
        for name, value in result.values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return [
        name
        for name in numbers
        if not name.endswith((*SUFFIXES, *IDENTITY_SUFFIXES))
        and not name.startswith(IDENTITY_PREFIXES)
        and name not in IDENTITIES
    ]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[foretrace.Trace]:
    folder = resources.files("foretrace").joinpath("samples")
    found = [Path(str(each)) for each in folder.iterdir() if each.name.endswith(".json.gz")]
    # What the shipped samples do not show: memory, compiled code, graphs.
    found += [
        path
        for path in (ROOT / "tests").glob("traces/*/*.json.gz")
        if not path.name.endswith(".torch.json.gz")
    ]
    found += (ROOT / "tests" / "traces" / "ncu").glob("*.csv.gz")
    sampled = recorded(tmp_path_factory.mktemp("run"), ticks(1_000, 100, MAIN_12))
    return [*(ingest.open_trace(path, cache=False) for path in sorted(found)), sampled]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", analyze.ANALYSES, ids=lambda each: each.name)
def test_every_measure_has_its_unit(chosen: Analysis, samples: list[foretrace.Trace]) -> None:
    ran, columns = 0, set[str]()
    for trace in samples:
        try:
            result = chosen(trace)
        except MissingDataError:
            continue
        ran += 1
        columns |= set(result.table.columns)
        assert without_unit(result) == []
        assert set(result.denominators) <= set(result.table.columns) | set(result.values)
        shares = [name for name in (*result.table.columns, *result.values) if name.endswith("_pct")]
        assert [name for name in shares if name not in result.denominators] == [], "a share of what?"
    assert ran, "no sample holds what this analysis needs: its units are unchecked"
    # Only a server's steps have a kind.
    assert set(chosen.keep) - columns <= {"kind"}, "columns to keep that there are none of"


def test_a_measure_without_unit_is_found() -> None:
    table = pl.DataFrame({"name": ["a"], "dur_ns": [1], "duration": [2], "grid_x": [3], "stream": [7]})
    result = Result(
        says="", table=table, values={"busy_pct": 1.0, "speed": 2.0, "complete": True, "note": "text"}
    )
    assert without_unit(result) == ["duration", "speed"]


def test_every_rule_is_registered() -> None:
    from foretrace.diagnose import RULES

    registered = {rule.name.replace("-", "_") for rule in RULES}
    written = {
        path.stem: relative(path)
        for path in (PACKAGE / "diagnose" / "rules").rglob("*.py")
        if "\n@rule(" in path.read_text(encoding="utf-8")
    }
    missing = sorted(written[name] for name in set(written) - registered)
    assert missing == [], "import these in src/foretrace/diagnose/__init__.py"
    assert registered == set(written), "a rule's function and its file have one name"
