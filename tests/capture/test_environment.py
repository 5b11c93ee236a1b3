"""The environment of a Run: what is told of machine and program, and that no secret is among it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretrace import nvidia
from foretrace.capture import environment


def test_only_variables_that_matter_are_written() -> None:
    written, left_out = environment.split_variables(
        {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NCCL_DEBUG": "INFO",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "OMP_NUM_THREADS": "8",
            "WORLD_SIZE": "2",
            "TOKENIZERS_PARALLELISM": "false",
            "HOME": "/somewhere",
            "HARMLESS": "yes",
            "FORETRACE_CAPTURE": "{}",
        }
    )
    assert written == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "8",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TOKENIZERS_PARALLELISM": "false",
        "WORLD_SIZE": "2",
    }
    assert left_out == ["HARMLESS", "HOME"]


def test_secrets_under_the_names_of_variables_that_matter() -> None:
    token = "hf_" + "abcdefghijABCDEFGHIJklmnopqrstKLMN"
    written, left_out = environment.split_variables(
        {
            "NVIDIA_API_KEY": "short",
            "TORCH_HUB_TOKEN": "short",
            "CUDA_NOTE": token,
            "NCCL_CONF": f"http://user:pw@host/{token}",
            "PYTHONPATH": "/a:/b",
        }
    )
    assert written == {"NCCL_CONF": "http://<left out>@host/<left out>", "PYTHONPATH": "/a:/b"}
    assert left_out == ["CUDA_NOTE", "NVIDIA_API_KEY", "TORCH_HUB_TOKEN"]


def test_a_description_is_json_and_says_what_was_run(tmp_path: Path) -> None:
    facts = environment.describe(
        ["python", "train.py", "--token", "abc"], cwd=tmp_path, environ={"RANK": "1"}
    )
    assert json.loads(json.dumps(facts)) == facts
    assert facts["command"] == ["python", "train.py", "--token", "<left out>"]
    assert facts["cwd"] == str(tmp_path)
    assert facts["git"] is None
    assert facts["versions"]["python"].count(".") == 2
    assert facts["environment"] == {"RANK": "1"}
    assert facts["limits"]["cpu_count"] == os.cpu_count()


def git(folder: Path, *arguments: str) -> str:
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.check_output(
        command, text=True, env={**os.environ, **author}, stderr=subprocess.DEVNULL
    ).strip()


def test_the_state_of_a_repository(tmp_path: Path) -> None:
    git(tmp_path, "init", "-b", "work")
    assert environment.git_state(tmp_path) is None  # no commit yet
    (tmp_path / "train.py").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "remote", "add", "origin", "https://user:password1234@host/repo.git")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert environment.git_state(tmp_path) == {"commit": commit, "branch": "work", "dirty": False}
    (tmp_path / "untracked").write_text("")
    (tmp_path / "train.py").write_text("b")
    git(tmp_path, "checkout", "--detach")
    assert environment.git_state(tmp_path) == {"commit": commit, "branch": None, "dirty": True}


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_devices_and_clocks_as_nvidia_smi_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "0, NVIDIA H200, GPU-4f3b1c2d-1111-2222-3333-444455556666, 570.86.15, 143771, 700.00, 31, 1980, 3201, 1980, [N/A], Enabled"
    tool(tmp_path, "nvidia-smi", f'echo "{row}"')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert environment.devices() == [
        {
            "index": 0,
            "name": "NVIDIA H200",
            "uuid": "GPU-4f3b1c2d-1111-2222-3333-444455556666",
            "driver": "570.86.15",
            "memory_mib": 143771,
            "power_limit_w": 700.0,
            "temperature_c": 31,
            "sm_mhz": 1980,
            "memory_mhz": 3201,
            "max_sm_mhz": 1980,
        }
    ]
    clocks = environment.clocks(0)
    assert clocks is not None
    assert clocks["sm_mhz"] == 1980
    assert "name" not in clocks


@pytest.mark.parametrize("script", ["exit 9", "echo nonsense", "echo", "sleep 5"])
def test_a_tool_that_fails_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    tool(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(nvidia, "_LIMIT_S", 0.3)
    began = time.monotonic()
    assert environment.devices() == []
    assert environment.clocks(0) is None
    assert time.monotonic() - began < 4


def test_without_any_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.devices() == []
    assert environment.git_state(tmp_path) is None


def test_tools_do_not_inherit_the_order_to_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "git", 'test -z "$FORETRACE_CAPTURE" && echo clean')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FORETRACE_CAPTURE", "{}")
    state = environment.git_state(tmp_path)
    assert state is not None
    assert state["branch"] == "clean"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, (5, 6)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 1)),
    ],
)
def test_the_rank_by_what_the_launcher_set(variables: dict[str, str], expected: tuple[int, int]) -> None:
    assert environment.rank_of_process(variables) == expected


def test_the_rank_by_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 4, get_world_size=lambda: 5
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert environment.rank_of_process({"RANK": "1", "WORLD_SIZE": "2"}) == (4, 5)


def test_a_device_that_cannot_be_described_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("driver too old")

    cuda = SimpleNamespace(is_available=broken)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __version__="9.9", version=None))
    assert environment.torch_device() == {"type": "unknown", "problem": "RuntimeError: driver too old"}
    facts = environment.describe_process()
    assert facts["versions"]["torch"] == "9.9"
    assert facts["clocks"] is None


def test_describing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from foretrace.capture import environment; environment.describe(['x']); "
        "environment.describe_process(); print([m for m in ('torch', 'polars', 'numpy', 'rich') if m in sys.modules])"
    )
    sources = str(Path(environment.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": sources},
    )
    assert done.stdout.strip() == "[]"
