"""Rules about programs without a GPU, on steps whose answer can be worked out on paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretrace.analyze.trust import judge
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.promises import CONTENDED
from foretrace.diagnose.rule import CPU
from foretrace.diagnose.rules.cpu.copied_tensors import copied_tensors
from foretrace.diagnose.rules.cpu.crowded_threads import crowded_threads
from foretrace.diagnose.rules.cpu.eager_operators import eager_operators
from foretrace.diagnose.rules.cpu.fp32_on_cpu import fp32_on_cpu
from foretrace.diagnose.rules.cpu.needless_autograd import needless_autograd
from foretrace.diagnose.rules.cpu.optimizer_loop import optimizer_loop
from foretrace.diagnose.rules.cpu.python_stretches import python_stretches
from foretrace.diagnose.step_times import step_times
from foretrace.ingest.core_use import CoreUse
from foretrace.ingest.timed import Timed
from foretrace.predict.costs import cpu_overheads, cpu_products
from foretrace.present.text.findings import headline
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.cpu_loops import FLOAT, ZEN4, cpu_case, cpu_loop, judged


def products(folder: Path, name: str = "aten::mm", **args: object) -> Trace:
    """Steps of 10 ms, 8 of which are one product."""

    def body(recording: Recording, at: float) -> None:
        recording.op(name, at + 500, at + 8_500, **(args or FLOAT))
        recording.op("aten::relu", at + 8_600, at + 8_650)

    return cpu_loop(folder, 10_000, body)


def test_a_step_of_a_cpu_program_is_what_its_host_does(tmp_path: Path) -> None:
    case = cpu_case(products(tmp_path), 10_000)
    case.require_replay()
    assert case.on_cpu
    assert case.predict(()).after_ns.point == pytest.approx(10e6, rel=0.01)
    assert case.calibration.representative
    assert case.calibration.host_bound


def test_products_in_bf16_are_predicted_by_the_rate_of_the_processor(tmp_path: Path) -> None:
    """8 ms of a product become 8 / 2.05 + 0.015 = 3.92 ms: of 10 ms, 5.92 are left."""
    (finding,) = judged(fp32_on_cpu, products(tmp_path), step_us=10_000).findings
    assert finding.predicted
    left = 2 + 8 / cpu_products.AVX512 + cpu_products.SET_UP_NS / 1e6
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(left, rel=0.01)
    assert finding.predicted.verdict == "gain"
    assert finding.evidence["products_pct"] == pytest.approx(80, abs=1)


def test_bf16_is_advised_only_where_the_flags_say_so(tmp_path: Path) -> None:
    plain = replace(ZEN4, flags=frozenset({"avx2"}))
    found = judged(fp32_on_cpu, products(tmp_path), step_us=10_000, processor=plain)
    assert found.findings == ()
    assert found.checked == ("fp32-on-cpu",)
    unknown = judged(fp32_on_cpu, products(tmp_path), step_us=10_000, processor=None)
    assert "record with foretrace run" in unknown.unchecked[0].why


def test_what_amx_brings_is_not_promised(tmp_path: Path) -> None:
    amx = replace(ZEN4, flags=frozenset({"amx_bf16"}))
    (finding,) = judged(fp32_on_cpu, products(tmp_path), step_us=10_000, processor=amx).findings
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"


def test_products_of_one_row_and_products_in_bf16_are_left_alone(tmp_path: Path) -> None:
    row: dict[str, Any] = {"Input Dims": [[1, 256], [256, 512]], "Input type": ["float", "float"]}
    assert judged(fp32_on_cpu, products(tmp_path, **row), step_us=10_000).findings == ()
    half: dict[str, Any] = {
        "Input Dims": [[512, 256], [256, 512]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    assert judged(fp32_on_cpu, products(tmp_path, **half), step_us=10_000).findings == ()


def test_backward_attention_on_short_sequences_is_slower_in_bf16(tmp_path: Path) -> None:
    """2 ms of a product become 0.99, and 1 ms of attention's backward pass 5: nothing is gained."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 2_000, **FLOAT)
        dims = {"Input Dims": [[12, 4, 64, 32]] * 3, "Input type": ["float"] * 3}
        recording.op(
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward", at + 2_100, at + 3_100, **dims
        )

    (finding,) = judged(fp32_on_cpu, cpu_loop(tmp_path, 4_000, body), step_us=4_000).findings
    assert finding.predicted
    assert finding.predicted.speedup.point < 1


def test_more_threads_than_cores_are_too_many(tmp_path: Path) -> None:
    """8 threads on one core: long operators, 8 of 10 ms, take 1 + 0.095 * 7 times as long as they should."""
    crowd = replace(ZEN4, threads=8)
    (finding,) = judged(crowded_threads, products(tmp_path), step_us=10_000, processor=crowd).findings
    assert finding.predicted
    left = 2 + 8 / (1 + 7 * cpu_overheads.CROWDED)
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(left, rel=0.01)
    assert "set_num_threads(1)" in finding.fix.code
    assert judged(crowded_threads, products(tmp_path), step_us=10_000).findings == ()


def test_idle_cores_are_found(tmp_path: Path) -> None:
    """One of four cores computes 8 of 10 ms: three others take over 0.8 of three quarters of it."""
    idle = replace(ZEN4, threads=1, cores=4.0)
    (finding,) = judged(crowded_threads, products(tmp_path), step_us=10_000, processor=idle).findings
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(10 - 8 * 0.75 * 0.8, rel=0.01)
    assert finding.predicted.verdict == "gain"


def test_more_threads_are_not_advised_on_cores_that_others_use(tmp_path: Path) -> None:
    """An older Run, which knows only the load of the machine, and a newer one, which counted: of four cores one is left."""
    idle = replace(ZEN4, threads=1, cores=4.0)
    found = judged(
        crowded_threads, products(tmp_path), step_us=10_000, processor=replace(idle, load_average=6.0)
    )
    assert found.findings == ()
    use = CoreUse(2e9, 4, own_ns=2e9, others_ns=6e9, waited_ns=0.1e9)
    found = diagnose(cpu_case(products(tmp_path), 10_000, idle, use), (crowded_threads,))
    assert found.findings == ()
    assert [seen.rule for seen in found.seen] == ["crowded-threads"]


def test_as_many_more_threads_as_others_leave_cores(tmp_path: Path) -> None:
    """Others use two of four cores, and nothing waits: two threads, of which one takes over 0.8 of half of 8 ms."""
    use = CoreUse(2e9, 4, own_ns=2e9, others_ns=4e9, waited_ns=0.0)
    idle = replace(ZEN4, threads=1, cores=4.0, load_average=8.0)
    (finding,) = diagnose(cpu_case(products(tmp_path), 10_000, idle, use), (crowded_threads,)).findings
    assert "set_num_threads(2)" in finding.fix.code
    assert finding.evidence["threads_wanted_count"] == 2
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(10 - 8 * 0.5 * 0.8, rel=0.01)


BESIDE_A_LOOP = CoreUse(2e9, 2, own_ns=2.7e9, others_ns=1.3e9, waited_ns=0.7e9)


def test_on_contended_cores_fewer_threads_are_named_and_nothing_is_promised(tmp_path: Path) -> None:
    """Two threads on two cores, of which a busy loop has 0.65: one is left."""
    two = replace(ZEN4, threads=2, cores=2.0)
    case = cpu_case(products(tmp_path), 10_000, two, BESIDE_A_LOOP)
    assert case.contended
    found = diagnose(case, RULES)
    assert {"crowded-threads", "fp32-on-cpu"} <= {finding.rule for finding in found.findings}
    assert found.promised == frozenset()
    assert found.combined is None
    threads = next(finding for finding in found.findings if finding.rule == "crowded-threads")
    assert "set_num_threads(1)" in threads.fix.code
    assert threads.predicted is None
    bf16 = next(finding for finding in found.findings if finding.rule == "fp32-on-cpu")
    assert bf16.predicted
    assert (bf16.predicted.verdict, bf16.predicted.not_promised) == ("uncertain", CONTENDED)


@pytest.mark.slow
def test_contention_is_the_first_thing_that_is_said(tmp_path: Path) -> None:
    two = replace(ZEN4, threads=2, cores=2.0)
    case = cpu_case(products(tmp_path), 10_000, two, BESIDE_A_LOOP)
    first = headline(diagnose(case, RULES), step_times(case))
    assert first.startswith(
        "Other programs used 0.7 of 2 cores while steps were timed; this one waited for a core 35 %"
    )
    assert "no gain is promised" in first
    report = judge(case.whole)
    assert (report.verdict, report.notes[0].code) == ("with care", "contended-cores")
    alone = cpu_case(products(tmp_path), 10_000, two, replace(BESIDE_A_LOOP, others_ns=0.02e9))
    assert not alone.contended
    assert "Other programs" not in headline(diagnose(alone, RULES), step_times(alone))
    assert "contended-cores" not in {note.code for note in judge(alone.whole).notes}


GATHERED = {"Input Dims": [[512, 256], [512], [512, 256]], "Input type": ["float", "long int", "float"]}


@pytest.mark.parametrize(
    ("name", "arguments", "promised"),
    [
        ("aten::index_add_", GATHERED, False),
        ("aten::lerp_", {"Input Dims": [[256], [256]], "Input type": ["float", "float"]}, False),
        (
            "aten::scatter_",
            {"Input Dims": [[256], [256]], "Input type": ["float", "long int"]},
            True,
        ),  # of a number
        ("aten::scatter_add_", {"Input Dims": [[256], [256]], "Input type": ["long int", "long int"]}, True),
        ("aten::complex", {"Input Dims": [[256], [256]], "Input type": ["float", "float"]}, False),
        ("aten::add_", {"Input Dims": [[256], [256]], "Input type": ["float", "float"]}, True),
    ],
)
def test_bf16_is_not_promised_where_an_operator_then_raises(
    tmp_path: Path, name: str, arguments: dict[str, object], promised: bool
) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 8_000, **FLOAT)
        recording.op(name, at + 8_100, at + 8_200, **arguments)

    (finding,) = judged(fp32_on_cpu, cpu_loop(tmp_path, 10_000, body), step_us=10_000).findings
    assert finding.predicted
    assert finding.predicted.verdict == ("gain" if promised else "uncertain")
    assert (name in finding.unless) is (name in finding.says) is not promised
    converted = f"before {name.removeprefix('aten::')}, in the model: x = x.float()" in finding.fix.code
    assert converted is not promised
    assert (name in finding.predicted.basis) is not promised


def test_types_agree_in_the_backward_pass_and_in_the_optimizer(tmp_path: Path) -> None:
    """The gradient of a gather, Adam's lerp_, and a moving average without gradients get tensors of one type."""

    def body(recording: Recording, at: float) -> None:
        forward = {"Sequence number": 1, "Fwd thread id": 0}
        recording.op("aten::mm", at, at + 6_000, **FLOAT, **forward)
        recording.op("autograd::engine::evaluate_function: GatherBackward0", at + 6_100, at + 6_900,
                     **{"Sequence number": 1, "Fwd thread id": 1})  # fmt: skip
        recording.op("aten::scatter_add_", at + 6_200, at + 6_800, **GATHERED)
        recording.annotation("Optimizer.step#Adam.step", at + 7_000, at + 8_000)
        recording.op("aten::lerp_", at + 7_100, at + 7_200, **GATHERED)
        recording.op("aten::lerp_", at + 8_100, at + 8_200, **GATHERED)

    (finding,) = judged(fp32_on_cpu, cpu_loop(tmp_path, 10_000, body), step_us=10_000).findings
    assert finding.predicted
    assert finding.predicted.verdict == "gain"


def nodes(folder: Path, *, sequence: bool) -> Trace:
    """Steps of 1 ms in which 50 operators each leave a node, or none does."""

    def body(recording: Recording, at: float) -> None:
        for number in range(50):
            start = at + 20 * number
            args = {"Sequence number": int(at) // 20 + number, "Fwd thread id": 0} if sequence else {}
            recording.op("aten::relu", start, start + 15, **args)

    return cpu_loop(folder, 1_000, body)


def test_a_graph_that_nothing_uses_costs_its_nodes(tmp_path: Path) -> None:
    """50 nodes of 3.5 µs in a step of 1,000 µs."""
    (finding,) = judged(needless_autograd, nodes(tmp_path, sequence=True), step_us=1_000).findings
    assert finding.predicted
    assert finding.evidence["nodes_per_step_count"] == pytest.approx(50, abs=1)
    left = 1_000 - 50 * cpu_overheads.NODE_NS / 1e3
    assert finding.predicted.after_ns.point / 1e3 == pytest.approx(left, rel=0.02)
    assert judged(needless_autograd, nodes(tmp_path, sequence=False), step_us=1_000).findings == ()


def test_an_optimizer_that_loops_is_replayed_fused(tmp_path: Path) -> None:
    """40 parameters of 1,000 elements, 8 operators each, in 4 of 10 ms: fused, 40 * (2.5 + 0.9) µs."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 5_900, **FLOAT)
        recording.annotation("Optimizer.step#AdamW.step", at + 6_000, at + 10_000)
        for number in range(320):
            start = at + 6_000 + 12.5 * number
            name = "aten::addcdiv_" if number % 8 == 0 else "aten::sqrt" if number % 8 == 1 else "aten::mul_"
            recording.op(
                name, start, start + 10, **{"Input Dims": [[1000], [1000]], "Input type": ["float"] * 2}
            )

    (finding,) = judged(optimizer_loop, cpu_loop(tmp_path, 10_000, body), step_us=10_000).findings
    assert finding.evidence["parameters_count"] == 40
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(6 + 40 * (2.5 + 0.9) / 1e3, rel=0.02)


def test_operators_between_two_products_become_one_loop(tmp_path: Path) -> None:
    """Four operators of 500 µs and one of 1,000 µs between two products: 1,003 µs are left of 3,000."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at, at + 3_000, **FLOAT)
        at += 3_000
        for dur in (500, 500, 1_000, 500, 500):
            recording.op("aten::tanh" if dur > 500 else "aten::mul", at, at + dur)
            at += dur
        recording.op("aten::mm", at, at + 4_000, **FLOAT)

    (finding,) = judged(eager_operators, cpu_loop(tmp_path, 10_000, body), step_us=10_000).findings
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(8.003, rel=0.01)


def dispersed(recording: Recording, at: float, *, within: str) -> None:
    """Behind one of its own, 49 operators of 100 µs, 100 µs apart, which a module, autograd, an operator or the program calls."""
    recording.op("aten::relu", at, at + 20)
    if within == "module":
        recording.python("nn.Module: Net_0", at + 200, at + 9_950)
    if within == "operator":
        recording.op("aten::outer", at + 200, at + 9_950)
    for number in range(1, 50):
        start = at + 200 * number
        if within == "backward":
            recording.op("autograd::engine::evaluate_function: MulBackward0", start, start + 110)
        recording.op("aten::mul", start, start + 100)


@pytest.mark.parametrize(
    ("within", "around_ms"),
    [
        ("module", 48 * 0.1),
        ("operator", 48 * 0.1 + 0.05),
        ("backward", 49 * 0.01 + 48 * 0.09),  # in the nodes, and between them
        ("program", 0.0),
    ],
)
def test_python_of_the_program_itself_is_not_compiled_away(
    tmp_path: Path, within: str, around_ms: float
) -> None:
    """Python of the program itself stays, and it is all that passes between its own operators."""
    trace = cpu_loop(tmp_path, 10_000, lambda recording, at: dispersed(recording, at, within=within))
    (finding,) = judged(eager_operators, trace, step_us=10_000).findings
    assert finding.evidence["around_ns"] / 1e6 == pytest.approx(around_ms, abs=0.03)


@pytest.mark.slow
def test_the_rich_recording_tells_which_gaps_are_a_modules(tmp_path: Path) -> None:
    """Of 48 gaps a step between operators of a light recording, a module makes the 24 between mul and tanh."""

    def body(recording: Recording, at: float, *, frames: bool) -> None:
        for number in range(24):
            start = at + 400 * number
            if frames:
                recording.python("nn.Module: Net_0", start, start + 310)
            recording.op("aten::mul", start, start + 100)
            recording.op("aten::tanh", start + 200, start + 300)

    (tmp_path / "light").mkdir()
    light = cpu_loop(tmp_path / "light", 10_000, lambda recording, at: body(recording, at, frames=False))
    rich = cpu_loop(tmp_path, 10_000, lambda recording, at: body(recording, at, frames=True))
    timed = Timed(blocks_ns=(), processor=ZEN4)
    case = Case(light, step_ns=10e6, timed=timed, open_rich=lambda: rich)
    (finding,) = diagnose(case, (eager_operators,)).findings
    assert finding.evidence["around_ns"] / 1e6 == pytest.approx(24 * 0.1, abs=0.06)
    (finding,) = diagnose(Case(light, step_ns=10e6, timed=timed), (eager_operators,)).findings
    assert finding.evidence["around_ns"] == 0


def test_python_between_operators_is_found_but_not_promised(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at + 3_000, at + 10_000, **FLOAT)

    (finding,) = judged(python_stretches, cpu_loop(tmp_path, 10_000, body), step_us=10_000).findings
    assert finding.evidence["python_pct"] == pytest.approx(30, abs=1)
    assert finding.predicted
    assert finding.predicted.after_ns.point / 1e6 == pytest.approx(7, rel=0.01)
    assert finding.predicted.verdict == "uncertain"


def test_python_goes_to_other_processes_only_where_a_core_is_idle(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.op("aten::mm", at + 3_000, at + 10_000, **FLOAT)

    trace = cpu_loop(tmp_path, 10_000, body)
    for cores, contended, pool in ((1, False, False), (2, True, False), (2, False, True)):
        timed = Timed((), cores=cores, core_use=BESIDE_A_LOOP if contended else None)
        (finding,) = diagnose(Case(trace, step_ns=10e6, timed=timed), (python_stretches,)).findings
        assert ("ProcessPoolExecutor" in finding.fix.code) is pool
        assert ("no core is idle" in finding.fix.says) is not pool


def test_copies_are_found_but_not_promised(tmp_path: Path) -> None:
    (finding,) = judged(copied_tensors, products(tmp_path, "aten::copy_"), step_us=10_000).findings
    assert finding.evidence["copies_pct"] == pytest.approx(80, abs=1)
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"


def test_rules_about_a_gpu_are_silent_and_nobody_advises_to_record_cuda(tmp_path: Path) -> None:
    found = diagnose(cpu_case(products(tmp_path), 10_000), RULES)
    assert found.findings[0].rule == "fp32-on-cpu"
    named = {
        *found.checked,
        *(each.rule for each in found.unchecked),
        *(each.rule for each in found.findings),
    }
    assert "launch-bound" not in named
    assert not any("CUDA" in each.why for each in found.unchecked)


def test_titles_of_rules_about_a_cpu_name_no_gpu() -> None:
    rules = [rule for rule in RULES if CPU in rule.on]
    assert len(rules) >= 7
    for rule in rules:
        assert "GPU" not in f"{rule.title} {rule.headline} {rule.topic}", rule.name


@pytest.mark.slow
def test_rules_about_a_cpu_are_silent_where_a_gpu_computes(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    for number in range(3):
        recording.step(number, number * 100, number * 100 + 100)
        recording.op("aten::add", number * 100, number * 100 + 20)
        recording.launch(number * 100 + 5, "add_kernel", number * 100 + 10, number * 100 + 50)
    found = diagnose(cpu_case(recording.open(tmp_path), 100), RULES)
    named = {
        *found.checked,
        *(each.rule for each in found.unchecked),
        *(each.rule for each in found.findings),
    }
    assert not named & {rule.name for rule in RULES if rule.on == ("cpu",)}
