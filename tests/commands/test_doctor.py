from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace import nvidia
from foretrace.capture import machine
from foretrace.capture.machine import Check, Trial
from foretrace.commands import doctor, main
from foretrace.present.text import tables

GIB = 1 << 30


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts an nvidia-smi on PATH that answers from a file of field -> value; returns the file."""
    answers = tmp_path / "answers.json"
    script = tmp_path / "nvidia-smi"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\nknown = json.load(open({str(answers)!r}))\n"
        "fields = sys.argv[1].removeprefix('--query-gpu=').split(',')\n"
        "if not set(fields) <= set(known): sys.exit(2)\n"
        "print(', '.join(known[each] for each in fields))\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return answers


H200 = {
    "index": "0", "name": "NVIDIA H200", "uuid": "GPU-1", "driver_version": "580.65.06", "power.limit": "700.00",
    "temperature.gpu": "31", "clocks.mem": "3201", "clocks.max.mem": "3201", "memory.total": "143771", "persistence_mode": "Enabled",
    "clocks.sm": "1980", "clocks.max.sm": "1980", "clocks_event_reasons.active": "0x0000000000000001",
}  # fmt: skip

H200_NOW = nvidia.Gpu(by="nvidia-smi", name="NVIDIA H200", driver="580", memory_mib=143_771)


def trial(*, devices: int = 0, device_events: int = 0, cuda: str | None = None) -> Trial:
    return Trial("2.11.0", cuda, None, ["NVIDIA H200"] * devices, ["CPU", "CUDA"], 8, device_events)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_machine_with_a_gpu(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.write_text(json.dumps(H200))
    monkeypatch.setattr(machine, "_try_torch", lambda: trial(devices=1, device_events=2, cuda="13.0"))
    checks = {check.what: check for check in machine.checks()}
    assert checks["GPU"] == Check("GPU", "ok", "NVIDIA H200, 140 GiB")
    assert checks["driver"] == Check("driver", "ok", "580.65.06")
    assert checks["torch"] == Check("torch", "ok", "2.11.0, CUDA 13.0")
    assert checks["profiler"].found == "a trial recorded 8 host events and 2 of the GPU (CPU, CUDA)"
    assert checks["clocks"] == Check("clocks", "ok", "1980 of 1980 MHz, persistence enabled")
    assert checks["nsys"].status == "missing"
    assert all(bool(check.fix) == (check.status != "ok") for check in checks.values())


@pytest.mark.parametrize(
    ("changed", "status", "says"),
    [
        (
            {"clocks_event_reasons.active": "0x0000000000000024"},
            "broken",
            "slowed by heat (software), power cap",
        ),
        ({"persistence_mode": "Disabled"}, "missing", "persistence disabled"),
        ({"clocks_event_reasons.active": "[N/A]"}, "ok", "1980 of 1980 MHz"),
    ],
)
def test_clocks(smi: Path, changed: dict[str, str], status: str, says: str) -> None:
    smi.write_text(json.dumps(H200 | changed))
    check = machine.clocks_check(nvidia.gpus(reasons=True))
    assert check.status == status
    assert says in check.found


def test_an_older_driver_knows_the_older_name(smi: Path) -> None:
    older = {name: value for name, value in H200.items() if name != "clocks_event_reasons.active"}
    smi.write_text(json.dumps(older | {"clocks_throttle_reasons.active": "0x0000000000000040"}))
    assert "heat (hardware)" in machine.clocks_check(nvidia.gpus(reasons=True)).found


@pytest.mark.parametrize(
    ("params", "capabilities", "status"),
    [
        ("RmProfilingAdminOnly: 0\n", "0", "ok"),
        ("RmProfilingAdminOnly: 1\n", f"{1 << 21:x}", "ok"),
        ("RmProfilingAdminOnly: 1\n", f"{1 << 38:x}", "ok"),
        ("RmProfilingAdminOnly: 1\n", "00000000a80425fb", "missing"),
        (None, "0", "missing"),
    ],
)
def test_counters(params: str | None, capabilities: str, status: str, tmp_path: Path) -> None:
    if params:
        write(tmp_path, "proc/driver/nvidia/params", f"EnableMSI: 1\n{params}")
    write(tmp_path, "proc/self/status", f"Name:\tpython\nCapEff:\t{capabilities}\n")
    check = machine.counters_check(tmp_path)
    assert check.status == status
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in check.fix) == (status == "missing")


@pytest.mark.parametrize(
    ("answer", "has_nvidia", "statuses", "says"),
    [
        (trial(), False, ["ok", "ok"], "CPU only"),
        (trial(), True, ["broken", "ok"], "though there is a GPU"),
        (trial(cuda="12.8"), True, ["broken", "ok"], "it sees no GPU"),
        (trial(devices=1, cuda="12.8"), True, ["ok", "broken"], "CUPTI gives nothing"),
        (None, False, ["missing"], ""),
        ("cannot be used: ImportError: libc10.so", False, ["broken"], "libc10.so"),
    ],
)
def test_torch(answer: Trial | str | None, has_nvidia: bool, statuses: list[str], says: str) -> None:
    checks = list(machine.torch_checks(answer, has_nvidia=has_nvidia))
    assert [check.status for check in checks] == statuses
    assert says in " ".join(check.found for check in checks)


def test_several_gpus_are_one_line_and_amd_is_told_by_torch() -> None:
    assert [check.found for check in machine._gpu_checks([H200_NOW] * 8, None)] == [
        "8 × NVIDIA H200, 140 GiB",
        "580",
    ]
    amd = Trial("2.11.0", None, "6.4", ["AMD Instinct MI300X"], ["CPU", "CUDA"], 8, 2)
    assert list(machine._gpu_checks([], amd)) == [Check("GPU", "ok", "AMD Instinct MI300X")]
    assert "ROCm 6.4" in next(machine.torch_checks(amd, has_nvidia=False)).found


def test_a_torch_that_cannot_be_imported_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken, says in (
        ("raise ImportError('libcudart.so.13')", "libcudart"),
        ("import os; os._exit(9)", "9"),
    ):
        (tmp_path / "torch.py").write_text(broken)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(machine, "find_spec", lambda _: object())
        answer = machine._try_torch()
        assert isinstance(answer, str)
        assert says in answer


@pytest.mark.slow
def test_the_torch_of_this_machine_records() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    answer = machine._try_torch()
    assert isinstance(answer, Trial), answer
    assert answer.host_events > 0


@pytest.mark.parametrize(
    ("limits", "status", "says"),
    [
        ({}, "ok", "30.0 GiB free of 32.0 GiB of the machine"),
        ({"memory.max": "max\n"}, "ok", "of the machine"),
        (
            {"memory.max": f"{8 * GIB}\n", "memory.current": f"{7 * GIB}\n"},
            "missing",
            "1.00 GiB free of 8.00 GiB of this container",
        ),
        (
            {"memory/memory.limit_in_bytes": str(16 * GIB), "memory/memory.usage_in_bytes": str(GIB)},
            "ok",
            "15.0 GiB free of 16.0 GiB of this container",
        ),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "ok", "of the machine"),
    ],
)
def test_memory(limits: dict[str, str], status: str, says: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", f"MemTotal: {32 << 20} kB\nMemFree: 1 kB\nMemAvailable: {30 << 20} kB\n")
    for name, text in limits.items():
        write(tmp_path, f"sys/fs/cgroup/{name}", text)
    check = machine.memory_check(tmp_path)
    assert (check.status, says in check.found) == (status, True), check


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ({}, "ok"),
        ({"cpu.max": "max 100000\n"}, "ok"),
        ({"cpu.max": "250000 100000\n"}, "missing"),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, "missing"),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "ok"),
    ],
)
def test_cores(limits: dict[str, str], status: str, tmp_path: Path) -> None:
    for name, text in limits.items():
        write(tmp_path, f"sys/fs/cgroup/{name}", text)
    check = machine.cores_check(tmp_path, visible=16)
    assert check.status == status
    assert ("at most 2 workers" in check.fix) == (status == "missing")


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: (64 << 20, 0, 64 << 20))
    check = machine.shared_memory_check(tmp_path)
    assert (check.status, "64.0 MiB" in check.found, "--shm-size" in check.fix) == ("missing", True, True)
    monkeypatch.undo()
    assert machine.shared_memory_check(tmp_path / "absent").status == "missing"


@pytest.mark.slow
def test_doctor_needs_none_of_the_packages_that_it_looks_for(tmp_path: Path) -> None:
    """As on a machine with torch alone: nothing but the standard library is found."""
    (tmp_path / "foretrace").symlink_to(Path(machine.__file__).parents[1])  # without what lies beside it
    for form in ("table", "json"):
        done = subprocess.run(
            [sys.executable, "-S", "-c", "from foretrace.commands import main; raise SystemExit(main())", "doctor",
             "--format", form],
            env={"PYTHONPATH": str(tmp_path), "PATH": ""}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "pip install polars" in done.stdout
    document = json.loads(done.stdout)
    assert document["schema"] == tables.JSON_SCHEMA
    assert {row["what"]: row["status"] for row in document["rows"]}["rich"] == "missing"


def test_plain_and_packaged_json_have_one_shape(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_try_torch", lambda: None)
    assert main(["doctor", "--format", "json"]) == 0
    packaged = json.loads(capsys.readouterr().out)
    doctor._print_plainly(list(doctor._checks()), "json")
    plain = json.loads(capsys.readouterr().out)
    assert plain.keys() == packaged.keys()
    assert plain["columns"] == packaged["columns"]


def test_what_doctor_prints_may_be_shown_to_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue forms ask for it: no value of the environment, no name of the user, no secret that a path holds."""
    secret = "ghp_" + "k3J9x2Lq7Rt5Vw8Zb1Nc4Md6Pf0Hs9Ya2Ue7"[:36]
    home = tmp_path / "home" / "alice-example"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("FORETRACE_CACHE", str(home / f"cache-{secret}"))
    monkeypatch.setenv("HF_TOKEN", "hf_secretvaluethatnobodyshouldsee")
    monkeypatch.setattr(
        machine, "_try_torch", lambda: f"ImportError: {home}/lib: https://bob:hunter2@host/simple"
    )
    for form in ("json", "table"):
        assert main(["doctor", "--format", form]) == 0
        printed = capsys.readouterr().out
        for hidden in (secret, "alice-example", "hf_secretvalue", "hunter2"):
            assert hidden not in printed
        assert "~/cache-" in printed.replace("\n", "")
