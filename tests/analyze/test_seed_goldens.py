"""Tables printed in tutorials, rebuilt as recordings: the analyses must come to the same figures.

S0: the torch-profiler tutorial's tables of a transformer layer before and after it was optimised (RTX 4090).
S1: "Profiling in PyTorch", part 1. S4: the CS336 systems report (RTX 5090, 30 steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from tests.builders import Recording

LAUNCH_US = 4.625  # S0: 222 us in 48 calls of cudaLaunchKernel


@dataclass(frozen=True)
class Call:
    """A call, with the time on the host that is its own; `kernels` are (name, duration) that it launches."""

    name: str
    self_us: float
    inside: Sequence[Call] = ()
    kernels: Sequence[tuple[str, float]] = ()
    annotation: bool = False
    launch_us: float = LAUNCH_US
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        inside = sum(call.total_us for call in self.inside)
        return self.self_us + inside + self.launch_us * len(self.kernels)


class Writer:
    """Lays calls out one after another on the host, and their kernels on one stream."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.gpu_us = 0.0

    def call(self, call: Call, start: float) -> float:
        """Adds the call; returns when it ends."""
        end = start + call.total_us
        add = self.recording.annotation if call.annotation else self.recording.op
        add(call.name, round(start, 3), round(end, 3), **call.args)
        at = start
        for name, length in call.kernels:
            begin = max(self.gpu_us, at + call.launch_us)
            self.gpu_us = begin + length
            self.recording.launch(
                round(at, 3), name, round(begin, 3), round(self.gpu_us, 3), call=round(call.launch_us, 3)
            )
            at += call.launch_us
        for inner in call.inside:
            at = self.call(inner, at)
        return end


def section(name: str, self_us: float, *inside: Call) -> Call:
    return Call(name, self_us, inside, annotation=True)


def spread(total: float, step: int, steps: int = 3) -> float:
    """What of a printed total falls to one step: whole nanoseconds, and exactly the total together."""
    share, rest = divmod(round(total * 1000), steps)
    return (share + (step < rest)) / 1000


def row(table: pl.DataFrame, name: str, **where: Any) -> dict[str, Any]:
    found = table.filter(pl.col("name") == name, **where)
    assert found.height == 1, f"{found.height} rows of {name}"
    return found.row(0, named=True)


# ---- S0, the layer as it was ---------------------------------------------------------------------------


def base_step(i: int) -> list[Call]:
    def us(total: float) -> float:
        return spread(total, i)

    def linear(total: float, self_us: float, addmm_self: float, rest: float, gpu: float, dims: Any) -> Call:
        addmm = Call(
            "aten::addmm", us(addmm_self), [Call("aten::expand", us(rest))], [("gemm", us(gpu))],
            args={"Input Dims": dims},
        )  # fmt: skip
        transpose = Call("aten::t", us(total) - us(self_us) - addmm.total_us)
        return Call("aten::linear", us(self_us), [transpose, addmm], args={"Input Dims": dims})

    def norm(which: int, self_us: float, gpu: tuple[float, float]) -> Call:
        # The two are printed together: 162 us of layer_norm in 6 calls, 98 us of add in 6; 33 and 18 us of CUDA.
        half = [spread(each, which, 2) for each in (15, 78, 41.25, 63, 7.25)]
        native = Call(
            "aten::native_layer_norm", us(half[1]), [Call("aten::empty", us(half[2]))], [("norm", us(gpu[1]))]
        )
        normed = Call("aten::layer_norm", us(half[0]), [native])
        added = Call("aten::add", us(half[3]), [Call("aten::as_strided", us(half[4]))], [("add", us(gpu[0]))])
        return section(f"Add & Norm {which + 1}", us(self_us), added, normed)

    pieces = [("attention", us(355 / 9))] * 8
    pieces.append(("attention", us(355) - sum(each for _, each in pieces)))
    heads = Call(
        "aten::_native_multi_head_attention", us(77),
        [Call("aten::bmm", us(592) - us(77) - 9 * LAUNCH_US, (), pieces)],
    )  # fmt: skip
    fc1 = linear(124, 15, 63, 93 - 63 - 3 * LAUNCH_US, 189, [[2048, 512], [512, 2048]])
    fc2 = linear(122, 16, 57, 94 - 57 - 3 * LAUNCH_US, 195, [[2048, 2048], [2048, 512]])
    relu = Call(
        "aten::relu", us(478) - us(183) - fc1.total_us - fc2.total_us - LAUNCH_US, (), [("relu", us(27))]
    )
    return [
        section("Self-Attention", us(182), heads),
        norm(0, 136, (9, 15)),
        section("MLP", us(183), fc1, relu, fc2),
        norm(1, 119, (9, 18)),
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> foretrace.Trace:
    writer = Writer()
    at = 0.0
    for i in range(3):
        calls = base_step(i)
        at = writer.call(section(f"ProfilerStep#{i + 3}", spread(167, i), *calls), at)
    writer.recording.runtime("cudaDeviceSynchronize", round(at, 3), round(at, 3) + 4)
    return writer.recording.open(tmp_path_factory.mktemp("s0"))


# name: self and total on the host, total on the device, calls; as printed
BASE = {
    "ProfilerStep*": (167, 1934, 817, 3),
    "Self-Attention": (182, 774, 355, 3),
    "aten::_native_multi_head_attention": (77, 592, 355, 3),
    "MLP": (183, 478, 411, 3),
    "Add & Norm 1": (136, 266, 24, 3),
    "Add & Norm 2": (119, 249, 27, 3),
    "cudaLaunchKernel": (222, 222, None, 48),
    "aten::layer_norm": (15, 162, 33, 6),
    "aten::native_layer_norm": (78, 147, 33, 6),
    "aten::add": (63, 98, 18, 6),
    "aten::linear": (31, 246, 384, 6),
    "aten::addmm": (120, 187, 384, 6),
}
NS = 12  # of rounding: six calls, each end to the nanosecond


@pytest.mark.parametrize("name", BASE)
def test_s0_base_operators(base: foretrace.Trace, name: str) -> None:
    own, total, device, calls = BASE[name]
    found = row(analyze.run(base, "operators").table, name, on="host")
    assert found["calls_count"] == calls
    assert found["host_self_ns"] == pytest.approx(own * 1000, abs=4 * NS)
    assert found["host_total_ns"] == pytest.approx(total * 1000, abs=4 * NS)
    assert found["host_mean_ns"] == pytest.approx(total * 1000 / calls, abs=NS)
    assert found["host_self_pct"] == pytest.approx(100 * own / 1938, abs=0.005)
    assert found["host_total_pct"] == pytest.approx(100 * total / 1938, abs=0.005)
    if device is not None:
        assert found["device_total_ns"] == pytest.approx(device * 1000, abs=NS)


def test_s0_base_footer(base: foretrace.Trace) -> None:
    """355 + 411 + 24 + 27 = 817 us of CUDA; 1,934 = 167 + 774 + 478 + 266 + 249, and 4 us after the steps."""
    values = analyze.run(base, "operators").values
    assert values["device_self_ns"] == pytest.approx(817_000, abs=NS)
    assert values["host_self_ns"] == pytest.approx(1_938_000, abs=NS)
    kernels = analyze.run(base, "kernels")
    assert kernels.values["total_ns"] == pytest.approx(817_000, abs=NS)
    assert kernels.values["kernel_count"] == 48


def test_s0_base_by_shape(base: foretrace.Trace) -> None:
    """195 / 817 = 23.87 % and 189 / 817 = 23.13 %: two rows of one operator, told apart by their shapes."""
    table = analyze.run(base, "operators", group_by="shape").table.filter(pl.col("name") == "aten::addmm")
    shares = table.select("device_self_ns", "device_self_pct", "host_self_ns", "host_total_ns", "calls_count")
    expected = [(195_000, 23.87, 57_000, 94_000, 3), (189_000, 23.13, 63_000, 93_000, 3)]
    for found, printed in zip(shares.iter_rows(), expected, strict=True):
        assert found == pytest.approx(printed, rel=2e-4)


def test_s0_base_sections(base: foretrace.Trace) -> None:
    table = analyze.run(base, "sections").table
    found = {name: rest for name, *rest in table.select("section", "host_ns", "device_ns").iter_rows()}
    expected = {name: BASE[name] for name in ("Self-Attention", "MLP", "Add & Norm 1", "Add & Norm 2")}
    assert found.keys() == expected.keys()
    for name, (_, host, device, _) in expected.items():
        assert found[name] == pytest.approx([host * 1000, (device or 0) * 1000], abs=4 * NS)
    assert table["device_ns"].sum() == pytest.approx(817_000, abs=NS)
    assert table["device_pct"].sum() == pytest.approx(100)


def test_s0_step_breakdown(tmp_path: Path) -> None:
    """The screenshot: a step of 716 us = Kernel 272 + CPU Exec 228 + Other 216; utilisation is of the same time."""
    recording = Recording().step(1, 0, 716).op("aten::linear", 0, 228)
    recording.launch(10, "gemm", 228, 500, call=1)
    trace = recording.open(tmp_path)
    steps = analyze.run(trace, "steps")
    only = steps.table.row(0, named=True)
    # The launch call is a runtime call of 1 us.
    parts = [only[f"{role}_ns"] for role in ("kernel", "runtime", "cpu_exec", "other")]
    assert parts == [272_000, 1_000, 227_000, 216_000]
    assert only["wall_ns"] == 716_000
    assert steps.values["kernel_pct"] == pytest.approx(37.97, abs=0.05)
    assert steps.values["other_pct"] == pytest.approx(30.15, abs=0.05)
    assert analyze.run(trace, "overview").values["gpu_busy_pct"] == pytest.approx(100 * 272 / 716)


# ---- S0, the layer made faster ----------------------------------------------------------------------------


def optim_step(i: int) -> list[Call]:
    def us(total: float) -> float:
        return spread(total, i)

    def plain(name: str, op: str, self_us: float, total_us: float, device_us: float) -> Call:
        inside = us(total_us) - us(self_us) - LAUNCH_US
        return section(name, us(self_us), Call(op, inside, (), [(op, us(device_us))]))

    def norm(which: int, self_us: float, total_us: float, device_us: float) -> Call:
        # Autocast calls layer_norm again inside layer_norm: 12 calls, 6 of them inside the other 6.
        casts, inner = us(0.012e3 / 2), us(2.043e3 / 2)
        within = Call("aten::layer_norm", 5, (), [("norm", inner)])
        outer = Call("aten::layer_norm", 5, [Call("aten::to", 5, (), [("cast", casts)]), within])
        left = us(total_us) - us(self_us) - outer.total_us - LAUNCH_US
        add = Call("aten::add", left, (), [("add", us(device_us) - casts - inner)])
        return section(f"Add & Norm {which}", us(self_us), add, outer)

    return [
        plain("Self-Attention", "aten::scaled_dot_product_attention", 392, 1355, 16_896),
        norm(1, 141, 418, 2_140),
        plain("MLP", "aten::linear", 175, 538, 7_612),
        norm(2, 123, 345, 1_867),
    ]


@pytest.fixture(scope="module")
def optim(tmp_path_factory: pytest.TempPathFactory) -> foretrace.Trace:
    writer = Writer()
    # What the warm-up step had queued: kernels whose launch is not in the recording.
    writer.recording.kernel("warm-up", 0, 9_497, correlation=10_001)
    writer.gpu_us = 9_497
    at = 0.0
    for i in range(3):
        calls = optim_step(i)
        at = writer.call(section(f"ProfilerStep#{i + 3}", spread(237, i), *calls), at)
    writer.recording.runtime("cudaDeviceSynchronize", round(at, 3), round(at, 3) + 42_497)
    return writer.recording.open(tmp_path_factory.mktemp("s0-optim"))


def test_s0_optim_host(optim: foretrace.Trace) -> None:
    """42.497 + 2.893 = 45.390 ms, 93.63 % of it waiting in one cudaDeviceSynchronize."""
    result = analyze.run(optim, "operators")
    assert result.values["host_self_ns"] == pytest.approx(45_390_000, abs=4 * NS)
    wait = row(result.table, "cudaDeviceSynchronize")
    assert (wait["calls_count"], round(wait["host_self_pct"], 2)) == (1, 93.63)
    step = row(result.table, "ProfilerStep*", on="host")
    assert step["host_total_ns"] == pytest.approx(2_893_000, abs=4 * NS)
    assert step["host_total_pct"] == pytest.approx(6.37, abs=0.005)


def test_s0_optim_device(optim: foretrace.Trace) -> None:
    """16.896 + 7.612 + 2.140 + 1.867 = 28.515 ms in the steps; the table's 38.012 hold a step of warm-up too."""
    operators = analyze.run(optim, "operators")
    assert row(operators.table, "ProfilerStep*")["device_total_ns"] == pytest.approx(28_515_000, abs=4 * NS)
    assert operators.values["device_self_ns"] == pytest.approx(38_012_000, abs=4 * NS)
    kernels = analyze.run(optim, "kernels").values
    assert kernels["total_ns"] == pytest.approx(28_515_000, abs=4 * NS)
    assert kernels["orphan_ns"] == 9_497_000
    table = analyze.run(optim, "sections").table
    found = dict(table.select("section", "device_ns").iter_rows())
    expected = {"Self-Attention": 16.896, "MLP": 7.612, "Add & Norm 1": 2.140, "Add & Norm 2": 1.867}
    assert found == pytest.approx({name: ms * 1e6 for name, ms in expected.items()}, abs=4 * NS)


def test_s0_optim_nested_calls_of_one_name(optim: foretrace.Trace) -> None:
    """torch's row of layer_norm has 4.098 ms, more than both Add & Norm together: the inner calls count twice."""
    table = analyze.run(optim, "operators").table
    norm = row(table, "aten::layer_norm")
    assert norm["calls_count"] == 12
    assert norm["device_total_ns"] == pytest.approx(4_098_000, abs=4 * NS), "as torch counts"
    own = table.filter((pl.col("kind") == "op") & pl.col("name").str.contains("layer_norm|to$|add"))
    assert own["device_self_ns"].sum() == pytest.approx(4_007_000, abs=4 * NS), (
        "nothing counts twice in self time"
    )


# ---- S1 ---------------------------------------------------------------------------------------------------


def small_matmul(folder: Path, host_us: float, gpu_us: float, steps: int = 3) -> foretrace.Trace:
    """Steps of a matmul and an add: the host time of all, and the GPU time of all, as the footer prints them."""
    writer = Writer()
    at = 0.0
    for i in range(steps):
        matmul = Call("aten::matmul", 10, (), [("ampere_bf16_s16816gemm", spread(gpu_us, i, steps) * 0.9)])
        add = Call("aten::add", 10, (), [("add", spread(gpu_us, i, steps) * 0.1)])
        rest = spread(host_us, i, steps) - matmul.total_us - add.total_us
        marked = section("matmul_add", rest / 2, matmul, add)
        at = writer.call(section(f"ProfilerStep#{i + 2}", rest / 2, marked), at)
    return writer.recording.open(folder)


@pytest.mark.slow
def test_s1_overhead_bound(tmp_path: Path) -> None:
    """23.104 us of CUDA in 2.314 ms of CPU: 1.0 %, so the GPU waits for the host."""
    trace = small_matmul(tmp_path, 2_314, 23.104)
    values = analyze.run(trace, "operators").values
    assert values["host_self_ns"] == pytest.approx(2_314_000, abs=20)
    assert values["device_self_ns"] == pytest.approx(23_104, abs=20)
    overview = analyze.run(trace, "overview").values
    assert overview["gpu_busy_pct"] == pytest.approx(1.0, abs=0.05)
    assert analyze.run(trace, "cold-start").values["bound"] == "overhead"
    assert float(analyze.run(trace, "critical-path").values["host_pct"] or 0) > 95


def test_s1_compute_bound(tmp_path: Path) -> None:
    """4.495 ms of CUDA in 4.908 ms of CPU: 91.6 %."""
    trace = small_matmul(tmp_path, 4_908, 4_495)
    values = analyze.run(trace, "operators").values
    share = 100 * int(values["device_self_ns"] or 0) / int(values["host_self_ns"] or 1)
    assert share == pytest.approx(91.6, abs=0.05)
    assert float(analyze.run(trace, "overview").values["gpu_busy_pct"] or 0) > 85
    assert analyze.run(trace, "cold-start").values["bound"] == "compute"


def test_s1_idle(tmp_path: Path) -> None:
    """26 us of kernels in 1.78 ms: 98 % idle."""
    recording = Recording().step(1, 0, 1_780).op("aten::matmul", 100, 140)
    recording.launch(110, "ampere_bf16_s16816gemm", 120, 146)
    trace = recording.open(tmp_path)
    busy = analyze.run(trace, "overview").values["gpu_busy_pct"]
    assert 100 - float(busy or 0) == pytest.approx(98.5, abs=0.05)


# step: when the label and the first operator in it begin, microseconds
S1_GAPS = {2: (138.736, 366.493), 3: (517.926, 523.447), 4: (610.039, 614.527)}


def test_s1_gaps_before_the_first_operator(tmp_path: Path) -> None:
    """227.757, 5.521 and 4.488 us between entering the label and aten::matmul: the first step is cold."""
    recording = Recording()
    for number, (label, first) in S1_GAPS.items():
        recording.step(number, label - 1, first + 60).annotation("matmul_add", label, first + 50)
        recording.op("aten::matmul", first, first + 30)
        recording.launch(first + 5, "ampere_bf16_s16816gemm", first + 20, first + 28)
    trace = recording.open(tmp_path)
    found = analyze.run(trace, "cold-start")
    assert found.table["label_gap_ns"].to_list() == [227_757, 5_521, 4_488]
    assert found.values["excess_ns"] == pytest.approx(222_753, abs=1), (
        "288.757 us less the median of the others"
    )
    assert float(found.values["explained_pct"] or 0) > 99


# ---- S4 ---------------------------------------------------------------------------------------------------

STEPS = 30
MHA_PARTS = {
    "QKV projections": 220.429, "RoPE(Q)": 142.246, "RoPE(K)": 126.224, "attn_logits (QK^T) + mask": 109.037,
    "softmax": 22.079, "attn*V (context)": 89.342, "output proj": 59.793,
}  # fmt: skip
FORWARD, MHA, BACKWARD, OPTIMIZER, OPTIMIZER_OWN = 1139.483, 780.154, 1782.316, 272.168, 0.207
# role: operator, total in ms, printed share, kernel, calls a step
CATEGORIES = {
    "gemm": ("aten::mm", 1004.806, 37.04, "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>", 651),
    "elementwise": ("aten::add", 963.182, 35.51, "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", 2),
    "optimizer": ("aten::_foreach_add_", 602.932, 22.23, "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>>", 1),
    "softmax": ("aten::_softmax", 104.399, 2.69 + 1.16, "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>", 1),
    "reduction": ("aten::sum", 35.158, 1.30, "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", 1),
    "unknown": ("mine::other", 2.243, 0.08, "something_else", 1),
}  # fmt: skip


def ms(total: float, step: int) -> float:
    """A printed total in milliseconds: what falls to one step, in microseconds."""
    return spread(total * 1000, step, STEPS)


@pytest.fixture(scope="module")
def cs336(tmp_path_factory: pytest.TempPathFactory) -> foretrace.Trace:
    writer = Writer()
    at = 0.0
    for i in range(STEPS):
        parts = [section(name, ms(total, i)) for name, total in MHA_PARTS.items()]
        attention = section("MHA (total)", ms(MHA, i) - sum(part.total_us for part in parts), *parts)
        # Few operators launch all, quickly: the sections are time on the host.
        work = [
            Call(op, 0.1, (), [(name, ms(total, i) / count)] * count, launch_us=0.01)
            for op, total, _, name, count in CATEGORIES.values()
        ]
        rest = ms(FORWARD, i) - attention.total_us - sum(call.total_us for call in work)
        forward = section("FORWARD", rest, attention, *work)
        inner = section("OPTIMIZER.step", ms(OPTIMIZER, i) - ms(OPTIMIZER_OWN, i))
        calls = [
            forward,
            section("BACKWARD", ms(BACKWARD, i)),
            section("OPTIMIZER", ms(OPTIMIZER_OWN, i), inner),
        ]
        at = writer.call(section(f"ProfilerStep#{i}", 1.0, *calls), at)
    return writer.recording.open(tmp_path_factory.mktemp("s4"))


@pytest.fixture(scope="module")
def cs336_sections(cs336: foretrace.Trace) -> dict[str, dict[str, Any]]:
    table = analyze.run(cs336, "sections").table
    return {found["section"]: found for found in table.iter_rows(named=True)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "total_ms"),
    [("FORWARD", FORWARD), ("BACKWARD", BACKWARD), ("OPTIMIZER", OPTIMIZER), ("FORWARD / MHA (total)", MHA)],
)
def test_s4_sections(cs336_sections: dict[str, dict[str, Any]], name: str, total_ms: float) -> None:
    found = cs336_sections[name]
    assert found["host_ns"] == pytest.approx(total_ms * 1e6, abs=STEPS)
    assert found["host_per_step_ns"] == pytest.approx(total_ms * 1e6 / STEPS, abs=500)
    assert found["calls_count"] == STEPS


@pytest.mark.slow
def test_s4_attention(cs336_sections: dict[str, dict[str, Any]]) -> None:
    """Seven parts make 769.150 ms of 780.154: a residual of 11.004 (1.41 %); linear 280.222 (35.9 %)."""
    attention = cs336_sections["FORWARD / MHA (total)"]
    parts = {name: cs336_sections[f"FORWARD / MHA (total) / {name}"] for name in MHA_PARTS}
    assert sum(part["host_ns"] for part in parts.values()) == pytest.approx(769.150e6, abs=200)
    assert attention["host_exclusive_ns"] == pytest.approx(11.004e6, abs=400)
    assert attention["residual_pct"] == pytest.approx(1.41, abs=0.005)
    assert attention["host_pct"] == pytest.approx(68.47, abs=0.005), "of FORWARD"
    printed = {"QKV projections": 28.25, "output proj": 7.66, "RoPE(Q)": 18.23, "RoPE(K)": 16.18,
               "attn_logits (QK^T) + mask": 13.98, "attn*V (context)": 11.45, "softmax": 2.83}  # fmt: skip
    assert {name: part["host_pct"] for name, part in parts.items()} == pytest.approx(printed, abs=0.0051)
    linear = parts["QKV projections"]["host_ns"] + parts["output proj"]["host_ns"]
    assert linear == pytest.approx(280.222e6, abs=100)
    assert 100 * linear / attention["host_ns"] == pytest.approx(35.9, abs=0.05)
    assert cs336_sections["FORWARD"]["host_exclusive_ns"] == pytest.approx(359.329e6, abs=500)


def test_s4_exclusive_optimizer(cs336_sections: dict[str, dict[str, Any]]) -> None:
    assert cs336_sections["OPTIMIZER"]["host_exclusive_ns"] == pytest.approx(0.207e6, abs=100)


def test_s4_nested_ranges_of_one_name_count_once(tmp_path: Path) -> None:
    """The older analyser printed 544.128 = 2 x 272.168 - 0.207 ms."""
    inner = section("OPTIMIZER", (OPTIMIZER - OPTIMIZER_OWN) * 1000)
    writer = Writer()
    writer.call(section("OPTIMIZER", OPTIMIZER_OWN * 1000, inner), 0)
    for flat in (False, True):
        found = analyze.run(writer.recording.open(tmp_path), "sections", flat=flat).table
        assert found["section"].to_list() == ["OPTIMIZER"]
        assert found["host_ns"].to_list() == [272_168_000]
        assert found["host_exclusive_ns"].to_list() == [272_168_000]


def test_s4_categories(cs336: foretrace.Trace) -> None:
    """They sum to 2,712.72 ms, 90.424 a step, and each has its printed share."""
    table = analyze.run(cs336, "roles", by="role").table
    found = {role: rest for role, *rest in table.select("role", "total_ns", "total_pct").iter_rows()}
    assert found.keys() == CATEGORIES.keys()
    for role, (_, total, share, _, count) in CATEGORIES.items():
        assert found[role][0] == pytest.approx(total * 1e6, abs=STEPS * count), role
        assert found[role][1] == pytest.approx(share, abs=0.011), role
    assert table["total_pct"].sum() == pytest.approx(100)
    kernels = analyze.run(cs336, "kernels").values
    assert int(kernels["total_ns"] or 0) / 1e6 == pytest.approx(2712.72, abs=0.03)
    assert sum(table["per_step_ns"]) / 1e6 == pytest.approx(90.424, abs=0.001)


def test_s4_top_kernel(cs336: foretrace.Trace) -> None:
    """Kernel2: 19,530 calls, 651 = 3 x (24 x 9 + 1) a step, 37.04 % of the GPU's time."""
    top = analyze.run(cs336, "kernels").table.row(0, named=True)
    assert "Kernel2" in top["name"]
    assert top["calls_count"] == 19_530 == STEPS * 3 * (24 * 9 + 1)
    assert top["total_pct"] == pytest.approx(37.04, abs=0.01)
