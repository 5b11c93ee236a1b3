"""`foretrace run` on real programs: the Run folder, the exit code, and that the program's output is its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.capture.run_folder import RunFolder
from foretrace.errors import InputError
from foretrace.ingest.run import find_recorded
from tests import schemas

ROOT = Path(__file__).parents[2]
QUICK = ("--settle-s", "0.1", "--time-s", "0.3", "--warm-s", "0.05")  # the default takes seconds
MODEL = """
import sys, time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.001)
        if step % 200 == 0:
            print(step, round(loss.item(), 5))
"""


@dataclass
class Done:
    """A program that has ended, and its Run."""

    code: int
    out: str
    err: str
    path: Path

    @property
    def run(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        schemas.check(facts, "run")
        return facts

    def rank(self, number: int = 0) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.path / f"rank{number}" / "rank.json").read_text())
        schemas.check(facts, "rank")
        return facts


def needs_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install torch==2.13.0")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORETRACE")}
    # Coverage and the like are not the program's.
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Done]:
    """Runs a command under `foretrace run --quiet`."""
    needs_torch()

    def recorded(*command: str, options: tuple[str, ...] = QUICK, quiet: bool = True) -> Done:
        path = tmp_path / "run"
        shutil.rmtree(path, ignore_errors=True)
        words = [sys.executable, "-m", "foretrace", "run", "-o", str(path), *options]
        words += ["--quiet"] if quiet else []
        done = subprocess.run(
            [*words, "--", *command],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=tmp_path,
            timeout=240,
        )
        return Done(done.returncode, done.stdout, done.stderr, path)

    return recorded


def plain(*command: str, cwd: Path) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=cwd, timeout=240)
    return done.returncode, done.stdout, done.stderr


def write(folder: Path, name: str, *parts: str) -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(textwrap.dedent(each) for each in parts))
    return str(path)


def assert_same_output(done: Done, cwd: Path, *command: str) -> None:
    assert (done.code, done.out, done.err) == plain(*command, cwd=cwd)


def kinds(rank: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in rank["passes"]]


def step_names(path: Path) -> set[str]:
    events = json.loads(path.read_text())["traceEvents"]
    return {each["name"] for each in events if str(each.get("name")).startswith("ProfilerStep#")}


def test_a_script_is_timed_and_then_recorded_twice(tmp_path: Path, record: Callable[..., Done]) -> None:
    script = write(tmp_path, "train.py", MODEL, TRAIN, "train(1500)\nprint(sys.argv, sys.path[0])")
    done = record(sys.executable, script, "--epochs", "1")
    assert_same_output(done, tmp_path, sys.executable, script, "--epochs", "1")
    rank = done.rank()
    assert (rank["status"], rank["reason"], rank["step_source"]) == (
        "complete",
        "",
        "optimizer.step() of SGD",
    )
    assert kinds(rank) == ["light", "rich"]
    times = rank["unprofiled"]
    assert times["low_ns"] <= times["median_ns"] <= times["high_ns"]
    assert times["median_ns"] > 1_000_000
    assert times["stopped_because"]
    assert 0 < times["host_low_ns"] <= times["host_ns"] <= times["host_high_ns"]
    assert 1 <= times["host_blocks"] <= len(times["blocks_ns"])
    cores = times["cores"]
    assert cores["wall_ns"] > 0.9 * times["median_ns"] * len(times["blocks_ns"])
    if Path("/proc/self/schedstat").exists():
        assert 0 <= cores["thread_wait_ns"] <= cores["longest_wait_ns"]
        assert cores["own_cpu_ns"] > 0
        assert cores["involuntary_switches"] >= 0
    light, rich = rank["passes"]
    assert light["steps"] == len(step_names(done.path / "rank0" / "light.json")) == 10
    assert rich["steps"] == len(step_names(done.path / "rank0" / "rich.json")) == 3
    assert light["first_step"] > times["steps"], "timed before any profiler ran"
    assert not light["switches"]["with_stack"]
    assert rich["switches"]["with_stack"]
    assert all(each["file_bytes"] > 0 and each["peak_host_bytes"] > 0 for each in rank["passes"])
    assert (done.run["exit_code"], done.run["command"][1:]) == (0, [script, "--epochs", "1"])
    assert sorted(each.name for each in done.path.rglob("*") if each.is_file()) == [
        "light.json", "rank.json", "rich.json", "run.json",
    ]  # fmt: skip


def test_a_run_is_diagnosed_with_its_measured_step(tmp_path: Path, record: Callable[..., Done]) -> None:
    pytest.importorskip("polars")
    script = write(tmp_path, "train.py", MODEL, TRAIN, "train(100000)")
    done = record(sys.executable, script, options=(*QUICK, "--stop-after-capture"), quiet=False)
    assert done.code == 0, "the program was ended by us, not by a fault"
    said = [line for line in done.err.splitlines() if line.startswith("foretrace: ")]
    assert any("without a profiler" in line and "optimizer.step() of SGD" in line for line in said)
    assert any("cost" in line and "MiB on disk" in line and "host memory" in line for line in said)
    assert "10 steps" in done.out
    recorded = find_recorded(done.path)
    assert recorded is not None
    assert (recorded.path.name, recorded.rich and recorded.rich.name) == ("light.json", "rich.json")
    assert recorded.step_ns == done.rank()["unprofiled"]["median_ns"]
    assert done.rank()["timed_again"]["steps"] > 0, "it was ended after that"
    for path in (done.path / "rank0", done.path / "rank0" / "rich.json"):
        found = find_recorded(path)
        assert found is not None
        assert found.step_ns == recorded.step_ns


def test_a_module_and_a_schedule_in_steps(tmp_path: Path, record: Callable[..., Done]) -> None:
    write(tmp_path, "package/__init__.py")
    write(tmp_path, "package/train.py", MODEL, TRAIN, "train(20)")
    options = ("--wait", "4", "--warmup", "1", "--active", "2", "--repeat", "2", "--passes", "light")
    done = record(sys.executable, "-m", "package.train", options=options)
    assert_same_output(done, tmp_path, sys.executable, "-m", "package.train")
    rank = done.rank()
    assert rank["status"] == "complete"
    assert [(each["file"], each["steps"], each["first_step"]) for each in rank["passes"]] == [
        ("light.json", 2, 6),
        ("light-2.json", 2, 13),
    ]
    assert rank["unprofiled"]["steps"] == 2
    assert rank["unprofiled"]["host_ns"] is None


def test_workers_of_a_dataloader_are_not_recorded(tmp_path: Path, record: Callable[..., Done]) -> None:
    loop = """
    class Numbers(torch.utils.data.Dataset):
        def __init__(self): self.model = torch.nn.Linear(4, 4)
        def __len__(self): return 3000
        def __getitem__(self, index):
            with torch.no_grad():
                return self.model(torch.ones(4))
    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1])
        total = 0.0
        for batch in loader:
            total += batch.numel()
            time.sleep(0.002)
        print(total)
    """
    script = write(tmp_path, "load.py", MODEL, loop)
    for context in ("fork", "spawn"):
        done = record(sys.executable, script, context)
        assert (done.code, done.out, done.err) == (0, "12000.0\n", ""), (
            "3,000 items of 4 numbers, as without us"
        )
        rank = done.rank()
        assert rank["step_source"] == "the next batch of a DataLoader"
        assert (rank["status"], kinds(rank)) == ("complete", ["light", "rich"])
        assert [each.name for each in done.path.iterdir() if each.is_dir()] == ["rank0"]
        assert done.run["notes"] == []


def test_compiled_code_is_recorded_and_not_compiled_again(
    tmp_path: Path, record: Callable[..., Done]
) -> None:
    """By Dynamo, whose guards and hooks are what recording could disturb; inductor would compile C++ for half a minute."""
    loop = """
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(700):
        optimizer.zero_grad()
        compiled(torch.ones(8, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(0.001)
    print("compiled", counter.frame_count)
    """
    script = write(tmp_path, "compiled.py", MODEL, loop)
    done = record(sys.executable, script)
    assert (done.code, done.out) == (0, "compiled 1\n")
    rank = done.rank()
    assert rank["step_source"] == "optimizer.step() of Adam", (
        "made after dynamo, which turns torch's hooks off"
    )
    assert (rank["status"], kinds(rank)) == ("complete", ["light", "rich"])


def test_an_exception_is_the_programs_own(tmp_path: Path, record: Callable[..., Done]) -> None:
    loop = """
    class Faulty(torch.optim.SGD):
        calls = 0
        def step(self, closure=None):
            Faulty.calls += 1
            if Faulty.calls == 3:
                raise ValueError("step three")
            return super().step(closure)
    optimizer = Faulty(model.parameters(), lr=0.1)
    for step in range(5):
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
        print(step)
    """
    script = write(tmp_path, "faulty.py", MODEL, loop)
    done = record(sys.executable, script)
    assert done.code == 1
    assert_same_output(done, tmp_path, sys.executable, script)
    assert "ValueError: step three" in done.err
    rank = done.rank()
    assert rank["status"] == "partial"
    assert rank["reason"].startswith("the program ended with ValueError after 0 steps")
    assert done.run["exit_code"] == 1


def test_ctrl_c_ends_the_program_and_leaves_a_run(tmp_path: Path) -> None:
    needs_torch()
    script = write(tmp_path, "endless.py", MODEL, TRAIN, "print('ready', flush=True)\ntrain(10**9)")
    path = tmp_path / "run"
    words = [
        sys.executable,
        "-m",
        "foretrace",
        "run",
        "-q",
        "-o",
        str(path),
        "--time-s",
        "60",
        "--settle-s",
        "0.1",
    ]
    program = subprocess.Popen(
        [*words, "--", sys.executable, script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    wait_for(path / "rank0" / "rank.json")
    time.sleep(1.0)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "KeyboardInterrupt" in err
    run = RunFolder.read(path)
    assert run.facts["exit_code"] == 130
    assert run.ranks[0].facts["status"] == "partial"
    assert run.ranks[0].facts["reason"].startswith("interrupted")


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.05)


def test_no_step_is_one_line_and_the_exit_code_stays(tmp_path: Path, record: Callable[..., Done]) -> None:
    script = write(tmp_path, "other.py", "import torch, sys\nprint(torch.ones(2).sum().item())\nsys.exit(7)")
    done = record(sys.executable, script, quiet=False)
    assert (done.code, done.out) == (7, "2.0\n")
    said = [line for line in done.err.splitlines() if "so nothing was recorded" in line]
    assert len(said) == 1
    assert "foretrace.step()" in said[0]
    assert "--step-function" in said[0]
    assert not list(done.path.glob("rank*"))
    assert "no step was found" in done.run["notes"][0]


def test_a_program_without_torch(tmp_path: Path, record: Callable[..., Done]) -> None:
    done = record(sys.executable, "-c", "print('hello')", quiet=False)
    assert (done.code, done.out) == (4, "hello\n"), "it ended well, and nothing was recorded"
    assert "imported torch" in done.run["notes"][0]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_children_that_train_beside_the_parent(how: str, tmp_path: Path, record: Callable[..., Done]) -> None:
    """The parent takes the first step, so it is the one recorded; its children run as if nothing were there."""
    body = """
    import multiprocessing
    def child(number):
        train(5)
        print("child", number, flush=True)
    if __name__ == "__main__":
        train(10)
        context = multiprocessing.get_context(sys.argv[1])
        children = [context.Process(target=child, args=(number,)) for number in range(2)]
        for each in children:
            each.start()
            each.join()
        train(1000)
        print([each.exitcode for each in children])
    """
    script = write(tmp_path, "family.py", MODEL, TRAIN, body)
    done = record(sys.executable, script, how)
    assert_same_output(done, tmp_path, sys.executable, script, how)
    assert done.rank()["status"] == "complete"
    assert [each.name for each in done.path.glob("rank*")] == ["rank0"]
    expected = 2 if how == "spawn" else 0
    assert sum("was recorded already" in each for each in done.run["notes"]) == expected


def test_two_ranks_record_the_same_steps(tmp_path: Path, record: Callable[..., Done]) -> None:
    loop = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(10**6 if "forever" in sys.argv else 2000):
        optimizer.zero_grad()
        ddp(torch.ones(8, 16)).square().mean().backward()
        optimizer.step()
    print("rank", dist.get_rank(), flush=True)
    dist.destroy_process_group()
    """
    script = write(tmp_path, "ddp.py", MODEL, loop)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    options = (*QUICK, "--stop-after-capture")
    done = record(*launch, script, "forever", options=(*options, "--rich-ranks", "1"))
    assert done.code == 0, done.err
    ranks = [done.rank(number) for number in range(2)]
    assert [kinds(rank) for rank in ranks] == [["light"], ["light", "rich"]], (
        "all lightly, and one richly too"
    )
    assert [each["status"] for each in ranks] == ["complete", "complete"], ranks
    assert [each["world_size"] for each in ranks] == [2, 2]
    windows = [
        [(each["first_step"], each["steps"]) for each in rank["passes"] if each["kind"] == "light"]
        for rank in ranks
    ]
    late = [note for rank in ranks for note in rank["notes"] if "late" in note]
    assert windows[0] == windows[1] or late
    assert step_names(done.path / "rank0" / "light.json")

    for rank in ranks:  # all members, and how many collectives there were: torch.distributed's own tables
        (group,) = rank["groups"]
        assert (group["pg_name"], group["ranks"], group["pg_size"]) == ("0", [0, 1], 2)
        assert group["seq"] is None or group["seq"] > 0
        assert abs(rank["clock"]["epoch_ns"] - time.time_ns()) < 3_600 * 10**9
    assert ranks[0]["clock"]["boot"] == ranks[1]["clock"]["boot"]
    job = foretrace.ranks(done.path)
    assert (job.job.world, job.job.ranks.tolist()) == (2, [0, 1])
    assert {group.members for group in job.job.groups} == {(0, 1)}
    assert job.matches.whole[job.matches.number][job.job.group >= 0].mean() > 0.9

    done = record(*launch, script, "forever", options=(*options, "--ranks", "1"))
    assert done.code == 0, done.err
    assert [each.name for each in done.path.glob("rank*")] == ["rank1"]
    assert done.rank(1)["status"] == "complete"


def test_a_forward_only_loop(tmp_path: Path, record: Callable[..., Done]) -> None:
    loop = """
    big = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(20)])
    with torch.no_grad():
        for step in range(300):
            big(torch.ones(64, 256))
    print("done", "_compiled_call_impl" in big.__dict__)
    """
    script = write(tmp_path, "infer.py", MODEL, loop)
    done = record(sys.executable, script, options=("--wait", "20", "--warmup", "1", "--active", "10"))
    assert (done.code, done.out, done.err) == (0, "done False\n", ""), "what is not watched keeps no hook"
    rank = done.rank()
    assert rank["step_source"] == "calls of the outermost module Sequential"
    assert (rank["status"], kinds(rank)) == ("complete", ["light", "rich"])


def test_a_named_function_is_the_step(tmp_path: Path, record: Callable[..., Done]) -> None:
    loop = """
    class Work:
        @staticmethod
        def once():
            time.sleep(0.002)
            return torch.ones(4).sum()
    for _ in range(800):
        Work.once()
    """
    script = write(tmp_path, "work.py", MODEL, loop)
    done = record(sys.executable, script, options=(*QUICK, "--step-function", "__main__:Work.once"))
    rank = done.rank()
    assert (rank["step_source"], rank["status"]) == ("calls of __main__:Work.once", "complete")
    assert len(step_names(done.path / "rank0" / "light.json")) == 10


def test_steps_that_the_program_marks_win(tmp_path: Path, record: Callable[..., Done]) -> None:
    loop = """
    import foretrace
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(400):
        for part in range(2):
            model(torch.ones(2, 16)).sum().backward()
            optimizer.step()
        time.sleep(0.002)
        foretrace.step()
    """
    script = write(tmp_path, "marked.py", MODEL, loop)
    done = record(sys.executable, script)
    rank = done.rank()
    assert (rank["step_source"], rank["status"]) == ("foretrace.step()", "complete")
    light = json.loads((done.path / "rank0" / "light.json").read_text())["traceEvents"]
    # Two in each of ten steps, and in the one before them that is recorded but not marked.
    assert sum(each.get("name") == "Optimizer.step#SGD.step" for each in light) == 22


def test_the_programs_own_profiler_goes_first(tmp_path: Path, record: Callable[..., Done]) -> None:
    body = """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        train(300)
    print(len(prof.events()) > 100)
    train(600 if len(sys.argv) > 1 else 1)
    """
    script = write(tmp_path, "own.py", MODEL, TRAIN, body)
    done = record(sys.executable, script)
    assert (done.code, "True" in done.out) == (4, True), "nothing was recorded of a program that ended well"
    rank = done.rank()
    assert (rank["status"], rank["passes"]) == ("partial", [])
    assert "profiler" in rank["reason"]
    assert record(sys.executable, script, "longer").rank()["status"] == "complete"


def test_a_program_that_leaves_without_notice(tmp_path: Path, record: Callable[..., Done]) -> None:
    script = write(
        tmp_path, "leaves.py", MODEL, TRAIN, "import os\ntrain(60)\nsys.stdout.flush()\nos._exit(3)"
    )
    done = record(sys.executable, script, options=())
    assert_same_output(done, tmp_path, sys.executable, script)
    assert (done.code, done.rank()["status"]) == (3, "partial")
    assert "os._exit" in done.rank()["reason"]


def test_it_will_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    words = [sys.executable, "-m", "foretrace", "run", "-o", str(tmp_path), "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert (done.returncode, "will not overwrite" in done.stderr) == (2, True)


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    write(tmp_path, "sitecustomize.py", "import builtins\nbuiltins.other_ran = True")
    words = [sys.executable, "-m", "foretrace", "run", "-q", "-o", str(tmp_path / "run"), "--"]
    code = (
        "import sys, builtins; print(builtins.other_ran, [each for each in sys.path if 'bootstrap' in each])"
    )
    variables = environment(PYTHONPATH=os.pathsep.join((str(ROOT / "src"), str(tmp_path))))
    done = subprocess.run(
        [*words, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=variables,
        cwd=tmp_path.parent,
    )
    assert done.stdout == "True []\n", done.stderr


SAMPLE = ROOT / "src" / "foretrace" / "samples" / "naive_attention.json.gz"


@pytest.fixture
def recorded_run(tmp_path: Path) -> Path:
    """A Run whose light pass is the shipped sample of a GPU program."""
    folder = tmp_path / "run"
    (folder / "rank1").mkdir(parents=True)
    shutil.copy(SAMPLE, folder / "rank1" / "light.json.gz")
    passes = [{"kind": "light", "file": "light.json.gz", "steps": 3}]
    facts = {"unprofiled": {"median_ns": 50_500_000}, "passes": passes, "status": "complete", "reason": ""}
    RunFolder(folder).write_run({"notes": []})
    RunFolder(folder).write_rank(1, facts)
    RunFolder(folder).write_rank(
        0, {"unprofiled": None, "passes": [], "status": "partial", "reason": "it died"}
    )
    return folder


def test_commands_read_a_run_by_its_folder(recorded_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from foretrace.commands import main

    for path in (recorded_run, recorded_run / "rank1", recorded_run / "rank1" / "light.json.gz"):
        assert main([str(path), "--format", "json", "--no-cache"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["overview"]["unprofiled_step_ms"] == 50.5, "measured when it was recorded"
    assert main(["diagnose", str(recorded_run), "--format", "json", "--step-ms", "60", "--no-cache"]) == 0
    assert json.loads(capsys.readouterr().out)["overview"]["unprofiled_step_ms"] == 60, "what was said wins"


def test_a_run_without_a_recording_says_why(recorded_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from foretrace.commands import main

    (recorded_run / "rank1" / "light.json.gz").unlink()
    assert main([str(recorded_run)]) == 3
    assert "it died" in capsys.readouterr().err
    shutil.rmtree(recorded_run / "rank0")
    shutil.rmtree(recorded_run / "rank1")
    RunFolder(recorded_run).write_run({"notes": ["train.py: no step was found"]})
    assert main([str(recorded_run)]) == 3
    assert "no step was found" in capsys.readouterr().err


def test_a_run_points_to_nothing_outside_itself(recorded_run: Path, tmp_path: Path) -> None:
    shutil.copy(SAMPLE, tmp_path / "other.json.gz")
    passes = [{"kind": "light", "file": "../../other.json.gz", "steps": 3}]
    RunFolder(recorded_run).write_rank(1, {"passes": passes, "status": "complete"})
    found = find_recorded(recorded_run)
    assert found is not None
    assert found.path == recorded_run / "rank1" / "light.json.gz", "the one inside has the usual name"
    found.path.unlink()
    with pytest.raises(InputError, match="recorded nothing"):
        find_recorded(recorded_run)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "needs a program"),
        (["--ranks", "x", "--", "true"], "ranks are numbers"),
        (["--passes", "heavy", "--", "true"], "passes are"),
        (["--step-function", "train", "--", "true"], "MODULE:NAME"),
        (["--active", "0", "--", "true"], "at least 1"),
        (["--", "no-such-program-anywhere"], "cannot start"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from foretrace.commands import main

    monkeypatch.chdir(tmp_path)
    assert main(["run", "-q", *words]) == 2
    assert says in capsys.readouterr().err


def test_help_is_instant() -> None:
    code = "import sys; from foretrace.commands import main; main(['run', '--help']); "
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'polars', 'rich', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0
    assert "torch.profiler options" in done.stdout


SHORT = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
with torch.inference_mode():
    for _ in range({calls}):
        model(torch.ones(64, 256))
print("done")
"""


def test_120_forward_calls_record_something_by_default(tmp_path: Path, record: Callable[..., Done]) -> None:
    """Nothing calls an optimizer, and the program is over before its steps are settled and timed."""
    done = record(sys.executable, write(tmp_path, "short.py", SHORT.format(calls=400)))
    assert (done.code, done.out) == (0, "done\n")
    assert done.rank()["step_source"] == "calls of the outermost module Sequential"
    assert {kept["kind"] for kept in done.rank()["passes"]} == {"light", "rich"}
    assert done.rank()["unprofiled"]["median_ns"] > 0
    assert done.rank()["processor"]["torch_threads_count"] >= 1


def test_a_run_that_recorded_nothing_is_no_success(tmp_path: Path, record: Callable[..., Done]) -> None:
    done = record(sys.executable, write(tmp_path, "shorter.py", SHORT.format(calls=2)))
    assert (done.code, done.out) == (4, "done\n")
    assert "nothing was recorded" in done.err
    assert "--step-function" in done.err
