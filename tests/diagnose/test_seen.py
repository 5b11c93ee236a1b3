"""What is there but not worth a finding is said, with its figure: "checked, no issue" hides no bad news."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.diagnose import RULES, rules
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rule import Rule
from foretrace.diagnose.rules.copies.layout_conversions import layout_conversions
from foretrace.diagnose.rules.device.low_occupancy import low_occupancy
from foretrace.diagnose.rules.host.host_stall import host_stall
from foretrace.diagnose.rules.host.launch_bound import launch_bound
from foretrace.diagnose.rules.precision.fp64_compute import fp64_compute
from foretrace.diagnose.rules.precision.no_tensor_cores import no_tensor_cores
from foretrace.diagnose.seen import too_little
from foretrace.sourced import JUDGEMENT, Share
from tests.builders import Recording
from tests.diagnose.kernels import ADD, Op, device_bound
from tests.diagnose.loops import H200, launches, loop

SIZE = [[4096, 4096], [4096, 4096]]


def waiting_for_the_host(kernel: str, dtype: str) -> Recording:
    """Steps of 10 ms of the host, in which the GPU multiplies for 1 ms."""
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        at = number * 10_000.0
        recording.step(number, at, at + 10_000)
        recording.op("aten::mm", at, at + 20, **{"Input Dims": SIZE, "Input type": [dtype, dtype]})
        recording.launch(at + 5, kernel, at + 10, at + 1_010, call=5)
        for place in range(400):
            recording.op("aten::view", at + 100 + 24 * place, at + 120 + 24 * place)
    return recording


@pytest.mark.parametrize(
    ("rule", "kernel", "dtype", "what"),
    [
        (no_tensor_cores, "ampere_sgemm_128x128_nn", "float", "products in fp32 on the CUDA cores"),
        (fp64_compute, "dgemm_128x64_NN", "double", "products in fp64"),
    ],
    ids=["fp32", "fp64"],
)
def test_slow_products_are_told_where_the_cpu_is_the_limit(
    tmp_path: Path, rule: Rule, kernel: str, dtype: str, what: str
) -> None:
    found = diagnose(Case(waiting_for_the_host(kernel, dtype).open(tmp_path)), (rule,))
    assert (found.findings, found.checked) == ((), ())
    (seen,) = found.seen
    assert seen.rule == rule.name
    assert seen.says.startswith(f"{what}: 100 % of GPU time, but the GPU works")
    assert seen.says.endswith("of the step: the CPU is the limit")


@pytest.mark.slow
def test_people_and_programs_read_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(waiting_for_the_host("ampere_sgemm_128x128_nn", "float").write(tmp_path))
    for form in ("table", "md"):
        assert main(["diagnose", path, "--format", form]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "een, not worth it here: no-tensor-cores: products in fp32 on the CUDA cores" in printed
        assert "no-tensor-cores" not in printed.lower().partition("checked, no issue: ")[2].partition(".")[0]
    assert main(["diagnose", path, "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "no-tensor-cores" in [seen["rule"] for seen in printed["seen"]]
    assert "no-tensor-cores" not in printed["checked"]


@pytest.mark.slow
def test_the_page_shows_it(tmp_path: Path) -> None:
    from foretrace.present.web.recording_view import RecordingView
    from foretrace.present.web.resources.overview import checked

    trace = waiting_for_the_host("ampere_sgemm_128x128_nn", "float").open(tmp_path)
    rows = {row["rule"]: row for row in checked(RecordingView(Case(trace)))}
    assert rows["no-tensor-cores"]["seen"]
    assert "the CPU is the limit" in rows["no-tensor-cores"]["says"]
    assert not rows["growing-cat"]["seen"]


def test_what_takes_less_than_a_limit_is_told_with_its_share(tmp_path: Path) -> None:
    """A kernel of few blocks takes 500 µs of a step of 10,000."""
    few = {"grid": [8, 1, 1], "block": [128, 1, 1], "blocks per SM": 0.06}
    ops = [Op("aten::add", ADD, 9_500, args={"blocks per SM": 8.0}), Op("aten::mul", ADD, 500, args=few)]
    found = diagnose(Case(device_bound(tmp_path, ops), step_ns=1e7), (low_occupancy,))
    (seen,) = found.seen
    assert seen.says == "kernels with too few blocks for this GPU: 5 % of GPU time, less than 10 %"
    assert found.checked == ()


def test_what_is_not_there_is_no_issue(tmp_path: Path) -> None:
    ops = [Op("aten::add", ADD, 1_000, args={"blocks per SM": 8.0})]
    found = diagnose(Case(device_bound(tmp_path, ops), step_ns=1e6), (layout_conversions, low_occupancy))
    assert found.seen == ()
    assert found.checked == ("layout-conversions", "low-occupancy")


def test_launching_that_the_gpu_hides_is_told(tmp_path: Path) -> None:
    """60 operators of 20 µs of the host, and as many kernels of 40 µs."""
    trace = device_bound(tmp_path, [Op("aten::add", ADD, 40)] * 60)
    found = diagnose(Case(trace, step_ns=2.4e6), (launch_bound,))
    (seen,) = found.seen
    assert seen.says.startswith("launching takes the host ")
    assert "but the GPU works 100 % of it" in seen.says


def test_work_of_the_host_that_comes_once_is_told(tmp_path: Path) -> None:
    """Of three steps of 2,000 µs one has 1,500 µs of nothing recorded: a hiccup is no program."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50 if at == 2_000 else 200)

    found = diagnose(Case(loop(tmp_path, 2_000, body)), (host_stall,))
    assert found.findings == ()
    (seen,) = found.seen
    assert "not in most steps" in seen.says


def test_a_trace_of_something_is_not_spoken_of(tmp_path: Path) -> None:
    case = Case(device_bound(tmp_path, [Op("aten::add", ADD, 40)]))
    limit = Share(0.05, "GPU time", JUDGEMENT)
    assert too_little(case, "casts", 0.0009, limit)
    assert case.seen == []
    assert too_little(case, "casts", 0.02, limit)
    assert not too_little(case, "casts", 0.05, limit)
    assert [seen.says for seen in case.seen] == ["casts: 2 % of GPU time, less than 5 %"]


# Comparisons with a limit that are about what must be there for the question to arise, not about what is wrong.
PRECONDITIONS = {("misaligned_gemm.py", "on_tensor_cores.gpu_share < LEAST_SHARE")}


def test_no_rule_drops_a_share_below_its_limit_without_a_word() -> None:
    """A rule compares a share with its limit by `too_little`, which keeps what is there."""
    bare = set()
    folder = Path(rules.__file__).parent
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE):
                text = ast.unparse(node)
                if "LEAST_S" in text and "STEPS" not in text:
                    bare.add((file.name, text))
    assert bare == PRECONDITIONS
    assert len(RULES) > 40
