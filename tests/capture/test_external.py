"""Command lines for nsys and ncu. Neither is installed here: the options are those that NVIDIA documents, and a
stand-in on PATH writes down how it was called."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from foretrace.capture import external
from foretrace.capture.external import WINDOW, Kernel
from foretrace.capture.options import VARIABLE, CaptureOptions
from foretrace.commands import main
from foretrace.errors import InputError, MissingDataError, UsageError

PROGRAM = ("python", "train.py", "--lr", "1e-3")
# `nsys profile --help` (2024.5 and later for --pytorch) and `ncu --help` (2023.1 and later).
NSYS_OPTIONS = {
    "--trace", "--pytorch", "--sample", "--cpuctxsw", "--cuda-graph-trace", "--capture-range", "--nvtx-capture",
    "--capture-range-end", "--kill", "--export", "--output",
}  # fmt: skip
NCU_OPTIONS = {
    "--target-processes", "--nvtx", "--nvtx-include", "--kernel-name-base", "--kernel-name", "--filter-mode",
    "--launch-count", "--graph-profiling", "--set", "--clock-control", "--export",
}  # fmt: skip
RECORDS_ITS_CALL = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    print(json.dumps([sys.argv[1:], os.environ.get("NSYS_NVTX_PROFILER_REGISTER_ONLY")]), file=log)
start = sys.argv.index({program!r})
sys.exit(__import__("subprocess").run(sys.argv[start:]).returncode)
"""


def kernel(name: str, dur_us: float) -> dict[str, object]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 0, "dur": dur_us}


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """A recording in which two kernels matter, one of them in two template instances."""
    events = [
        kernel("void at::native::(anonymous namespace)::softmax<float, 7>(float*, int)", 30),
        kernel("void at::native::(anonymous namespace)::softmax<half, 7>(half*, int)", 25),
        kernel("nvjet_sm90_tst_128x128_64x6_2x4_h_bz_NTT", 30),
        kernel("void at::native::vectorized_elementwise_kernel<4, std::array<char*, 2ul> >(int)", 15),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 900),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5000},
    ]
    path = tmp_path / "light.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts an nsys and an ncu on PATH that log their calls and run the program; returns the log."""
    folder, log = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    for tool in external.TOOLS:
        script = folder / tool
        script.write_text(
            RECORDS_ITS_CALL.format(python=sys.executable, log=str(log), program=sys.executable)
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


def test_kernels_that_matter(light: Path) -> None:
    found = external.important_kernels(light)
    assert found == (
        Kernel("softmax", "function", 0.55, 2),
        Kernel("nvjet_sm90_tst_128x128_64x6_2x4_h_bz_NTT", "function", 0.3, 1),
    ), "by function, without communication, up to four fifths of the time"
    assert external.important_kernels(light, limit=1) == found[:1]
    assert len(external.important_kernels(light, share=1)) == 3


def test_a_mangled_name_is_compared_as_such(tmp_path: Path) -> None:
    path = tmp_path / "light.json"
    path.write_text(json.dumps({"traceEvents": [kernel("_ZN17cutlass__5x_cudnn6KernelINS_4convE", 3)]}))
    assert external.important_kernels(path)[0].name_base == "mangled"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"other": 1}'])
def test_a_light_pass_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "light.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(path))):
        external.important_kernels(path)


def test_a_light_pass_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "light.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(MissingDataError, match="no kernel in it"):
        external.important_kernels(path)


def test_nsys_command_line(tmp_path: Path) -> None:
    run = external.nsys_run(PROGRAM, tmp_path, executable="nsys")
    assert run.command == (
        "nsys", "profile", "--trace=cuda,nvtx,cublas,cudnn", "--sample=none", "--cpuctxsw=none",
        "--cuda-graph-trace=node", "--capture-range=nvtx", f"--nvtx-capture={WINDOW}",
        "--capture-range-end=stop", "--kill=none", "--export=sqlite", f"--output={tmp_path}/nsys", *PROGRAM,
    )  # fmt: skip
    assert run.environment == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert run.report == tmp_path / "nsys.nsys-rep"
    labelled = external.nsys_run(PROGRAM, tmp_path, executable="nsys", operators=True)
    assert "--pytorch=autograd-shapes-nvtx" in labelled.command
    options = {each.partition("=")[0] for each in labelled.command[2:] if each not in PROGRAM}
    assert options == NSYS_OPTIONS


def test_ncu_command_line(tmp_path: Path) -> None:
    chosen = Kernel("void_(odd)", "function", 0.5, 12)
    run = external.ncu_run(PROGRAM, tmp_path, kernel=chosen, executable="ncu", number=2)
    own = run.command[: -len(PROGRAM)]
    assert run.command[-len(PROGRAM) :] == PROGRAM
    assert {each for each in own if each.startswith("--")} == NCU_OPTIONS
    value = dict(itertools.pairwise(own))
    assert re.fullmatch(value["--kernel-name"].removeprefix("regex:"), "void_(odd)")
    assert value["--nvtx-include"] == WINDOW, "a slash would ask for a range of one thread"
    assert value["--export"] == str(tmp_path / "ncu-2.ncu-rep")
    assert run.afterwards[0] == (
        "ncu", "--import", str(run.report), "--page", "raw", "--csv", "--print-units", "base",
        "--log-file", str(tmp_path / "ncu-2.raw.csv"),
    )  # fmt: skip
    assert run.says == "void_(odd): 50% of kernel time, 12 launches in the light pass"


def test_the_program_runs_under_each_tool(stand_in: Path, light: Path, tmp_path: Path) -> None:
    program = (sys.executable, "-c", "raise SystemExit(7)")
    runs = external.plan("nsys", program, tmp_path) + external.plan("ncu", program, tmp_path, light=light)
    for run in runs:
        assert subprocess.run(run.command, env={**os.environ, **run.environment}).returncode == 7
    calls = [json.loads(line) for line in stand_in.read_text().splitlines()]
    assert [set_to for _, set_to in calls] == ["0", None, None]
    assert [arguments[0] for arguments, _ in calls] == ["profile", "--target-processes", "--target-processes"]
    assert all(tuple(arguments[-3:]) == program for arguments, _ in calls)


def test_run_starts_the_program_again_under_the_tool(
    stand_in: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    program = tmp_path / "program.py"
    program.write_text(
        "import time, torch, foretrace\nbegan = time.time()\n"
        "while time.time() < began + 8:\n    torch.ones(8, 8) @ torch.ones(8, 8)\n    foretrace.step()\n"
    )
    limits = ("--settle-s", "0.05", "--time-s", "0.3", "--warm-s", "0.05", "--stop-after-capture")
    for tool in external.TOOLS:
        asked = ("run", "-o", str(tmp_path / tool), *limits, "--with", tool)
        command = (*asked, "--", sys.executable, str(program))
        assert main(command) == 0
        said = capfd.readouterr().err
        assert ("nsys left no report" if tool == "nsys" else "no kernel in it") in said
    (call,) = [json.loads(line) for line in stand_in.read_text().splitlines()]
    assert call[0][0] == "profile", "nsys alone: ncu has nothing to look at without a kernel"
    assert call[0][-2:] == [sys.executable, str(program)]
    assert call[1] == "0"


@pytest.mark.parametrize("tool", external.TOOLS)
def test_the_program_opens_the_window_of_a_tool(tool: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    program = "import torch, foretrace\nfor _ in range(200_000):\n    torch.ones(2)\n    foretrace.step()\n"
    options = CaptureOptions(
        str(tmp_path), passes=(tool,), settle_s=0.05, time_s=0.3, warm_s=0.05, stop_after_capture=True
    )
    folder = Path(external.__file__).parent
    paths = os.pathsep.join((str(folder / "bootstrap"), str(folder.parents[1])))
    environment = {**os.environ, "PYTHONPATH": paths, VARIABLE: options.to_json()}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    facts = json.loads((tmp_path / "rank0" / "rank.json").read_text())
    assert [each["kind"] for each in facts["passes"]] == [tool], facts["reason"]
    assert facts["steps_seen"] < 200_000, "it ends when the window has closed"


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Path, light: Path
) -> None:
    with pytest.raises(UsageError, match="--with vtune; there are: nsys, ncu"):
        external.plan("vtune", PROGRAM, tmp_path)
    with pytest.raises(UsageError, match="no program"):
        external.plan("nsys", (), tmp_path)
    with pytest.raises(MissingDataError, match="no light pass"):
        external.plan("ncu", PROGRAM, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for tool, name in (("nsys", "Nsight Systems"), ("ncu", "Nsight Compute")):
        with pytest.raises(MissingDataError, match=f"--with {tool}: {name} is not installed: https://"):
            external.find(tool, root=tmp_path)


def test_the_newest_installation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for version in ("2025.3.1", "2025.10.0"):
        folder = tmp_path / "opt" / "nvidia" / "nsight-compute" / version
        folder.mkdir(parents=True)
        (folder / "ncu").touch()
    assert "2025.10.0" in external.find("ncu", root=tmp_path)


def test_a_window_on_a_machine_without_gpu_does_nothing() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    for tool in external.TOOLS:
        window = external.NvtxRange(tool)
        window.open()
        window.close()


def test_a_window_is_a_range_around_finished_work(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))

    def begin(name: str, text: str) -> int:
        calls.append(f"{name} {text}")
        return 5

    for name in ("range_push", "range_start"):
        monkeypatch.setattr(torch.cuda.nvtx, name, partial(begin, name))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("range_pop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda handle: calls.append(f"range_end {handle}"))
    for tool in external.TOOLS:
        window = external.NvtxRange(tool)
        window.open()
        window.close()
        window.close()
    assert calls == [
        "synchronize", f"range_push {WINDOW}", "synchronize", "range_pop",
        "synchronize", f"range_start {WINDOW}", "synchronize", "range_end 5",
    ]  # fmt: skip
