"""Recording from inside a program: real programs on the CPU, and that nothing they do is changed by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.capture import api
from foretrace.capture.run_folder import Run, RunFolder
from foretrace.errors import UsageError
from tests.capture.planted import ISSUED, PEM
from tests.capture.programs import SHORT, SOURCES, TRAINING, needs_torch, python


def only_run(folder: Path) -> Run:
    """The single Run in a folder's foretrace-runs."""
    (path,) = (folder / "foretrace-runs").iterdir()
    return RunFolder.read(path)


def marks(path: Path) -> list[str]:
    """Names of what the program marked, in the order of a recording."""
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


@needs_torch
def test_a_block_with_steps(tmp_path: Path) -> None:
    code = f"""{TRAINING}
with foretrace.profile({SHORT}) as p:
    for number in range(12):
        with foretrace.region("part one"):
            loss = train()
        p.step()
assert p.finished
print(f"{{loss:.6f}}", p.read().problems)
"""
    done = python(tmp_path, code)
    plain = python(
        tmp_path, f"{TRAINING}\nfor number in range(12):\n    loss = train()\nprint(f'{{loss:.6f}}', ())"
    )
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert done.stderr.startswith("foretrace: recorded into ")
    run = only_run(tmp_path)
    assert run.path.name.startswith("program-20")
    assert run.facts["exit_code"] is None
    assert run.facts["ended_at"] >= run.facts["started_at"]
    assert run.facts["options"]["active"] == 2
    rank = run.ranks[0]
    assert rank.facts["status"] == "complete"
    assert rank.facts["step_source"] == "foretrace.step()"
    for kind in ("light", "rich"):
        path = rank.recording(kind)
        assert path is not None
        assert marks(path).count("part one") == 2


@needs_torch
def test_steps_are_found_where_none_is_marked_even_of_an_optimizer_made_before(tmp_path: Path) -> None:
    code = f"""{TRAINING}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
before = optimizer.__dict__["step"]
@foretrace.profile("run", {SHORT}, passes="light")
def fit(times):
    for number in range(times):
        train()
        scheduler.step()
    return times
print(fit(12), fit.__name__, fit(12))
assert optimizer.__dict__["step"] is before
"""
    done = python(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "12 fit 12\n"), done.stderr
    for name in ("run", "run-2"):  # a second Run never overwrites the first
        run = RunFolder.read(tmp_path / name)
        assert run.problems == ()
        assert run.ranks[0].facts["step_source"] == "optimizer.step() of SGD"
        assert run.ranks[0].recording("light") is not None
        assert run.ranks[0].recording("rich") is None


@needs_torch
def test_an_exception_passes_as_it_is_and_leaves_a_run(tmp_path: Path) -> None:
    code = f"""{TRAINING}
with foretrace.profile({SHORT}) as p:
    for number in range(12):
        train()
        p.step()
        if number == 4:
            raise ValueError("mine " + "hf_" + "abcdefghijABCDEFGHIJklmnopqrstKLMN")
"""
    done = python(tmp_path, code)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "api.py" not in done.stderr.partition("Traceback")[2]
    run = only_run(tmp_path)
    assert run.ranks[0].facts["status"] == "partial"
    assert "ValueError" in run.ranks[0].facts["reason"]
    assert run.facts["ended_at"] is not None


@needs_torch
def test_leaving_by_exit_inside_the_block_keeps_the_code_and_closes_the_run(tmp_path: Path) -> None:
    code = f"""{TRAINING}
p = foretrace.profile({SHORT}).__enter__()
for number in range(12):
    train()
    foretrace.step()
sys.exit(7)
"""
    done = python(tmp_path, code)
    assert done.returncode == 7, done.stderr
    run = only_run(tmp_path)
    assert run.problems == ()
    assert run.facts["ended_at"] is not None


@needs_torch
def test_a_fault_of_the_recording_is_one_line_and_the_program_goes_on(tmp_path: Path) -> None:
    code = f"""{TRAINING}
import shutil
with foretrace.profile("run", {SHORT}) as p:
    for number in range(12):
        train()
        p.step()
        if number == 1:
            shutil.rmtree("run")
            open("run", "w").close()
print("done")
"""
    done = python(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "Traceback" not in done.stderr
    assert "foretrace: " in done.stderr


@needs_torch
def test_capture_on_demand_by_file_and_by_signal(tmp_path: Path) -> None:
    code = f"""{TRAINING}
import os, signal, time
from pathlib import Path
with foretrace.profile("run", {SHORT}, passes="light", on_demand=True, trigger="go") as p:
    for number in range(60):
        if number == 5:
            os.kill(os.getpid(), signal.SIGUSR2)
        if number == 30:
            Path("go").touch()
            time.sleep(0.6)
        train()
        p.step()
"""
    done = python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert "waiting to record: kill -USR2 " in done.stderr
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == ["run", "run-2"]
    for name in ("run", "run-2"):
        run = RunFolder.read(tmp_path / name)
        assert run.problems == ()
        assert run.ranks[0].recording("light") is not None


@needs_torch
def test_a_profile_within_a_profile_and_in_a_forked_child(tmp_path: Path) -> None:
    code = f"""{TRAINING}
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork() in a process with threads
with foretrace.profile("run", {SHORT}) as p:
    with foretrace.profile("inner", {SHORT}) as q:
        for number in range(12):
            train()
            if number == 3:
                child = os.fork()
                if child == 0:
                    p.step(); p.close(); os._exit(0)
                os.waitpid(child, 0)
            q.step()
    assert q.path is None
"""
    done = python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert "there can be only one profiler" in done.stderr
    assert not (tmp_path / "inner").exists()
    assert RunFolder.read(tmp_path / "run").problems == ()


@needs_torch
def test_regions_compile_without_a_break(tmp_path: Path) -> None:
    code = """
import asyncio
import torch, foretrace
@foretrace.region("all")
def f(x):
    with foretrace.region("half"):
        return x + 1
compiled = torch.compile(f, backend="eager", fullgraph=True)
@foretrace.region("awaited")
async def g(x):
    return x
with torch.profiler.profile() as p:
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert asyncio.run(g(3)) == 3
names = [event.name for event in p.events()]
assert {"all", "half", "awaited"} <= set(names), names
print("fine")
"""
    done = python(tmp_path, code)
    assert done.stdout == "fine\n", done.stderr


def test_regions_and_steps_need_no_torch() -> None:
    code = """
import sys, foretrace
with foretrace.region("a"):
    foretrace.step()
assert foretrace.region("b")(len)([1]) == 1
print([name for name in ("torch", "polars", "numpy", "rich") if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == "[]\n"


def test_wrong_options_are_told_at_once() -> None:
    misspelt: dict[str, Any] = {"activ": 3}
    unknown: dict[str, Any] = {"zzz": 3}
    with pytest.raises(UsageError, match="did you mean active"):
        foretrace.profile(**misspelt)
    with pytest.raises(UsageError, match="no option 'zzz'; there are: active,"):
        foretrace.profile(**unknown)
    with pytest.raises(UsageError, match="before the program starts"):
        foretrace.profile(launch_blocking=True)


@pytest.mark.parametrize(
    "make", [foretrace.profile, foretrace.callbacks.lightning, foretrace.callbacks.hugging_face]
)
def test_some_ranks_cannot_stop_while_others_wait_for_them(make: Any) -> None:
    with pytest.raises(UsageError, match="the other ranks would wait for ever"):
        make(ranks=[0], stop_after_capture=True)


def test_options_reach_the_recorder() -> None:
    given = foretrace.profile(with_stack=False, ranks=[0, 7], passes="light")._options
    assert given.ranks == (0, 7)
    assert given.passes == ("light",)
    assert not given.rich.with_stack
    assert given.rich.record_shapes


def test_without_torch_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="pip install torch"), foretrace.profile():
        pass
    assert list(tmp_path.iterdir()) == []


def test_under_the_launcher_steps_are_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    stop = api.listen(lambda: heard.append(1))
    monkeypatch.setenv("FORETRACE_CAPTURE", "{}")
    with foretrace.profile() as p:
        p.step()
        foretrace.step()
    stop()
    foretrace.step()
    assert heard == [1, 1]
    assert p.path is None


RANKS = f"""{TRAINING}
import os
ranks = None if sys.argv[1] == "all" else [int(each) for each in sys.argv[1].split(",")]
with foretrace.profile(sys.argv[2] if len(sys.argv) > 2 else None, {SHORT}, passes="light", ranks=ranks) as p:
    for number in range(12):
        train()
        p.step()
        if os.environ["RANK"] == os.environ.get("DIES") and number == 4:
            os._exit(9)
"""


def ranks(folder: Path, *arguments: str, size: int, dies: str = "") -> list[int]:
    """Runs several ranks at once; their exit codes."""
    (folder / "program.py").write_text(RANKS)
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "WORLD_SIZE": str(size), "DIES": dies}
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        environment.pop(name, None)
    processes = [
        subprocess.Popen(
            [sys.executable, "program.py", *arguments], cwd=folder, env={**environment, "RANK": str(rank)}
        )
        for rank in range(size)
    ]
    return [process.wait(timeout=300) for process in processes]


@needs_torch
def test_ranks_write_into_one_run_and_one_of_them_may_die(tmp_path: Path) -> None:
    assert ranks(tmp_path, "all", size=3, dies="1") == [0, 9, 0]
    run = only_run(tmp_path)
    assert [rank.rank for rank in run.ranks] == [0, 1, 2]
    assert [rank.facts["status"] for rank in run.ranks] == ["complete", "partial", "complete"]
    assert len(run.problems) == 1
    assert run.problems[0].startswith("rank 1: partial")
    assert len({rank.facts["pid"] for rank in run.ranks}) == 3


@needs_torch
def test_chosen_ranks_only(tmp_path: Path) -> None:
    assert ranks(tmp_path, "1", "run", size=2) == [0, 0]
    run = RunFolder.read(tmp_path / "run")
    assert [rank.rank for rank in run.ranks] == [1]
    assert run.problems == ()
    assert run.facts["options"]["ranks"] == [1]


HIDDEN = {
    **{f"NOTE_{number}": value for number, value in enumerate(ISSUED.values())},
    **{f"CUDA_NOTE_{number}": value for number, value in enumerate(ISSUED.values())},
    "HF_TOKEN": "short-token-1",
    "DB_PASSWORD": "correct-horse-9",
    "NCCL_PROXY": "https://someone:Tr0ub4dor@proxy.example:3128/",
    "DEPLOY": PEM,
    "INNOCENT": "9f86d081884c7d659a2feaa0c55ad015",
    "TORCH_NOTE": "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ",
}
TYPED = [
    "--api-key=typed-key-11",
    "--token",
    "typed-token-12",
    "wandb.api_key=typed-key-13",
    "postgres://u:typed-pw-14@h/d",
]


def content_of(folder: Path) -> bytes:
    return b"\0".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def planted_in(folder: Path) -> list[str]:
    """The secrets found in any byte of any file, as they are or as JSON would write them."""
    content = content_of(folder)
    assert len(content) > 50_000
    planted = [*HIDDEN.values(), "Tr0ub4dor", "typed-key-11", "typed-token-12", "typed-key-13", "typed-pw-14"]
    planted += [line for line in PEM.splitlines() if "-" not in line]
    return [
        each
        for each in {*planted, *(json.dumps(value)[1:-1] for value in planted)}
        if each.encode() in content
    ]


@needs_torch
def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    code = f"""{TRAINING}
import os
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
with foretrace.profile("run", {SHORT}) as p:
    for number in range(12):
        # What a careless program does: secrets in names that the profiler records.
        with foretrace.region("fetch with " + os.environ["HF_TOKEN"]), foretrace.region(os.environ["NOTE_2"]):
            train()
            torch.distributed.all_reduce(torch.ones(4))
        p.step()
        if number == 10:
            raise RuntimeError("refused: " + os.environ["HF_TOKEN"] + " " + os.environ["NOTE_5"])
"""
    done = python(tmp_path, code, *TYPED, environ=HIDDEN)
    assert "RuntimeError: refused" in done.stderr
    run = RunFolder.read(tmp_path / "run")
    assert run.problems == ()
    assert {path.name for path in run.path.rglob("*") if path.is_file()} >= {
        "run.json",
        "rank.json",
        "light.json",
        "rich.json",
    }
    assert b"fetch with ***" in content_of(run.path)  # regions were recorded, so the search means something
    assert planted_in(run.path) == []
    assert set(run.facts["left_out"]) >= {
        "HF_TOKEN",
        "DB_PASSWORD",
        "INNOCENT",
        "DEPLOY",
        "CUDA_NOTE_0",
        "TORCH_NOTE",
    }
    assert run.facts["environment"]["NCCL_PROXY"] == "https://<left out>@proxy.example:3128/"
    assert run.facts["command"][2:] == [
        "--api-key=<left out>", "--token", "<left out>", "wandb.api_key=<left out>", "postgres://<left out>@h/d",
    ]  # fmt: skip


@needs_torch
def test_no_secret_reaches_the_disk_by_the_launcher_either(tmp_path: Path) -> None:
    code = f"""{TRAINING}
with foretrace.profile("own") as p:
    while not p.finished:
        train()
        p.step()
assert p.path is None  # the launcher's Run is the only one
"""
    (tmp_path / "train.py").write_text(code)
    schedule = ["--quiet", "--wait", "2", "--warmup", "1", "--active", "2", "-o", "run"]
    command = [sys.executable, "-m", "foretrace", "run", *schedule, "--", sys.executable, "train.py", *TYPED]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **HIDDEN}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = RunFolder.read(tmp_path / "run")
    assert run.problems == ()
    assert len(run.ranks[0].recordings()) == 2
    assert planted_in(run.path) == []
