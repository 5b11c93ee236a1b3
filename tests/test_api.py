"""The package as a notebook sees it: its names, and the questions that are asked of a recording."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import polars as pl
import pytest

import foretrace
from foretrace.capture.options import CaptureOptions, Switches
from foretrace.capture.profile_options import ProfileOptions
from foretrace.commands import main
from foretrace.commands.demo import SAMPLE
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.errors import InputError, MissingDataError, UsageError
from foretrace.predict.prediction import to_dict
from tests.builders import Recording

PUBLIC = [
    "Trace", "__version__", "analyze", "bench", "callbacks", "compare", "diagnose", "errors", "memory", "open", "predict", "profile", "ranks", "region", "sql", "step",
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = Recording()
    for number in range(3):
        at = number * 100
        made.step(number, at, at + 100).op("aten::add", at + 5, at + 20).launch(
            at + 10, "add", at + 30, at + 90
        )
    return made.write(tmp_path)


def test_dir_names_what_is_public_and_nothing_else() -> None:
    import foretrace.hardware  # what was imported does not show

    assert dir(foretrace) == PUBLIC == sorted(foretrace.__all__)
    for name in set(PUBLIC) - {"callbacks"}:  # those need a framework
        assert hasattr(foretrace, name)
    for name in ("compare", "diagnose", "memory", "predict", "sql", "open", "profile", "region", "step"):
        assert callable(getattr(foretrace, name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["import foretrace", "import foretrace.predict.replay, foretrace.diagnose.rules"]
)
def test_folders_of_the_package_are_called_whoever_imported_them_first(first: str) -> None:
    code = (
        f"{first}; import foretrace, inspect; "
        "print(callable(foretrace.diagnose), callable(foretrace.predict), *inspect.signature(foretrace.predict).parameters); "
        "from foretrace.diagnose import RULES; print(len(foretrace.diagnose.RULES) == len(RULES) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    called, same = done.stdout.splitlines()
    assert called == "True True recording changes step_ms rich step pid ncu cache"
    assert same == "True"


@pytest.mark.slow
def test_diagnose_is_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    made = foretrace.diagnose(SAMPLE)
    assert isinstance(made, Diagnosis)
    assert main(["diagnose", str(SAMPLE), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = [finding for finding in said["findings"] if finding["severity"] != "unchecked"]
    assert found
    for mine, its in zip(made.findings, found, strict=True):
        assert mine.predicted
        assert (mine.rule, mine.says, to_dict(mine.predicted)) == (its["rule"], its["says"], its["predicted"])
    assert made.combined
    assert to_dict(made.combined)["after_ms"] == said["combined"]["after_ms"]
    slower = foretrace.diagnose(foretrace.open(SAMPLE), step_ms=60)
    assert {finding.predicted.step_ns for finding in slower.findings if finding.predicted} == {60e6}


@pytest.mark.slow
def test_predict_replays_changes_together(path: Path) -> None:
    host = foretrace.predict(path, "scale host 0.1")  # then the kernels are the limit
    both = foretrace.predict(foretrace.open(path), "scale host 0.1", "scale kernel:add 0.5")
    assert both.after_ns.point < host.after_ns.point < host.step_ns
    assert foretrace.predict(str(path), "scale kernel:add 1", step_ms=0.2).step_ns == pytest.approx(200e3)


@pytest.mark.slow
def test_compare_is_what_the_command_says(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    for recordings in ((SAMPLE, path), (foretrace.open(SAMPLE), foretrace.open(path))):
        made = foretrace.compare(*recordings)
        assert main(["compare", str(SAMPLE), str(path), "--format", "json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (made.steps.verdict, made.steps.before_ns / 1e6) == (said["verdict"], said["before_ms"])
        assert [(cause.what, cause.delta_ns / 1e6) for cause in made.steps.causes] == [
            (cause["what"], cause["delta_ms"]) for cause in said["causes"]
        ]
    assert foretrace.compare(SAMPLE, SAMPLE).steps.verdict == "same"
    assert made.operators.height > 0


@pytest.mark.slow
def test_sql_yields_a_frame(path: Path) -> None:
    query = "select name, count(*) as calls_count, sum(dur_ns) as total_ns from kernels group by name"
    expected = pl.DataFrame({"name": ["add"], "calls_count": [3], "total_ns": [180_000]})
    for recording in (path, str(path), foretrace.open(path)):
        assert foretrace.sql(recording, query).cast(expected.schema).equals(expected)
    assert "kernels" in foretrace.sql(path, "show tables")["table"]
    with pytest.warns(UserWarning, match="cut at 1 rows"):
        assert foretrace.sql(path, "select id from spans", most_rows=1).height == 1


def test_what_is_wrong_is_told_as_by_the_commands(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="refused: a query reads the tables"):
        foretrace.sql("absent.json", "select * from read_csv('/etc/passwd')")
    with pytest.raises(InputError, match="No such file"):
        foretrace.diagnose(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="predict needs a change"):
        foretrace.predict(path)
    with pytest.raises(UsageError, match="did you mean unfused-attention"):
        foretrace.predict(path, "fix unfused-atention")
    with pytest.raises(UsageError, match="above 0"):
        foretrace.diagnose(path, step_ms=-1)
    with pytest.raises(UsageError, match="step and pid are for a path"):
        foretrace.sql(foretrace.open(path), "show tables", pid=1)
    host_only = Recording().op("aten::add", 0, 10).write(tmp_path, "host.json")
    with pytest.raises(MissingDataError, match="nothing to replay"):
        foretrace.diagnose(host_only)


def test_options_of_profile_are_typed() -> None:
    """Each option that it takes has a type, no other, and a recorder takes what the type lets through."""
    typed = get_type_hints(ProfileOptions)
    kept = get_type_hints(CaptureOptions) | get_type_hints(Switches)
    kept.pop("output")
    assert set(typed) == set(kept)
    # A list, or one alone, becomes the tuple that is kept.
    looser = {"passes", "ranks", "rich_ranks"}
    assert {name: typed[name] for name in typed if name not in looser} == {
        name: kept[name] for name in kept if name not in looser
    }
    options = inspect.signature(foretrace.profile).parameters["options"]
    assert "ProfileOptions" in str(options.annotation)
    foretrace.profile(passes="light", ranks=[0, 1], rich_ranks=0, active=3, with_stack=False)
