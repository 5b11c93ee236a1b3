"""Flame graphs: the stacks and weights of a trace with known answers, in both formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.present.export import flamegraph
from tests.analyze.training import training_step
from tests.builders import Recording

TRUNK = "main (train.py);nn.Module: Net_0;forward (train.py:10)"


def test_folded_device_time(tmp_path: Path) -> None:
    lines = flamegraph.to_folded(training_step().open(tmp_path), "device").splitlines()
    weights = {stack: int(weight) for stack, _, weight in (line.rpartition(" ") for line in lines)}
    assert weights == {
        f"{TRUNK};nn.Module: Linear_0;aten::linear kernel": 20_000,
        f"{TRUNK};nn.Module: Linear_0;[backward];LinearBackward0 kernel": 12_000,
        f"{TRUNK};nn.Module: ReLU_0;aten::relu kernel": 5_000,
        f"{TRUNK};nn.Module: ReLU_0;[backward];ReluBackward0 kernel": 8_000,
        f"{TRUNK};aten::add kernel": 2_000,
        "main (train.py);aten::mse_loss kernel": 1_000,
        "main (train.py);foreach kernel": 4_000,
        "(no Python stack);accumulate kernel": 1_000,
    }


def test_speedscope_host_time(tmp_path: Path) -> None:
    document = json.loads(flamegraph.to_speedscope(training_step().open(tmp_path), "host"))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    (profile,) = document["profiles"]
    assert profile["type"] == "sampled"
    assert profile["unit"] == "nanoseconds"
    # 100 us of main's thread and 16 us of backward that belong to its lines.
    assert profile["endValue"] - profile["startValue"] == sum(profile["weights"]) == 116_000
    assert len(profile["samples"]) == len(profile["weights"])
    assert all(0 <= number < len(frames) for sample in profile["samples"] for number in sample)
    assert {"name": "forward", "file": "train.py", "line": 10} in frames
    assert all(set(frame) <= {"name", "file", "line", "col"} for frame in frames)


def test_separators_in_names_do_not_split_frames(tmp_path: Path) -> None:
    recording = Recording().python("a;b c", 0, 10)
    assert flamegraph.to_folded(recording.open(tmp_path), "host") == "a,b c 10000\n"


@pytest.mark.parametrize("name", ["out.speedscope.json", "out.folded"])
def test_the_command_writes_a_file(name: str, tmp_path: Path) -> None:
    source = training_step().write(tmp_path)
    target = tmp_path / name
    assert main(["flame", str(source), "-o", str(target), "--no-cache"]) == 0
    assert target.stat().st_size > 100
    assert main(["flame", str(source), "-o", str(target), "--no-cache"]) == 2, "it does not overwrite"
    assert main(["flame", str(source), "-o", str(target), "--no-cache", "--force", "--metric", "host"]) == 0


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = Recording().op("aten::mm", 0, 10).write(tmp_path)
    assert main(["flame", str(bare), "-o", str(tmp_path / "x.folded"), "--no-cache"]) == 4
    assert "with_stack=True" in capsys.readouterr().err
    assert main(["flame", str(bare), "-o", str(tmp_path / "x.pdf"), "--no-cache"]) == 2
    assert (
        main(["flame", str(bare), "-o", str(tmp_path / "x.folded"), "--no-cache", "--metric", "device"]) == 4
    )
    assert main(["flame", str(bare), "-o", str(tmp_path / "no" / "x.folded"), "--no-cache"]) in (2, 4)
    assert not (tmp_path / "x.folded").exists()
