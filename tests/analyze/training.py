"""A hand-made training step with modules, stacks, backward links, an optimizer and a GPU; in microseconds."""

from __future__ import annotations

from tests.builders import MAIN_THREAD, PROCESS, Recording

AUTOGRAD = 200


def training_step() -> Recording:
    """One step: 53 us of launched device work and one orphan kernel; 119 us of host time on two threads."""
    recording = Recording()
    recording.python("train.py(1): main", 0, 100).python("torch/profiler/profiler.py(9): start", 0, 0)
    recording.python("nn.Module: Net_0", 10, 50).python("train.py(10): forward", 11, 49)
    recording.python("nn.Module: Linear_0", 12, 30).python("nn.Module: ReLU_0", 32, 40)
    for name, start, end, sequence, work in (
        ("aten::linear", 13, 29, 5, (40, 60)),
        ("aten::relu", 33, 39, 6, (60, 65)),
        ("aten::add", 42, 48, 7, (65, 67)),
        ("aten::mse_loss", 52, 55, 8, (67, 68)),
    ):
        recording.op(name, start, end, **{"Sequence number": sequence, "Fwd thread id": 0})
        recording.launch(start + 1, f"{name} kernel", *work)
    node = "autograd::engine::evaluate_function: "
    for name, start, end, sequence, work in (
        ("ReluBackward0", 60, 66, 6, (70, 78)),
        ("LinearBackward0", 66, 76, 5, (78, 90)),
    ):
        link = {"Sequence number": sequence, "Fwd thread id": 1}
        recording.op(node + name, start, end, thread=AUTOGRAD, **link)
        recording.launch(start + 1, f"{name} kernel", *work, thread=AUTOGRAD)
    recording.op(f"{node}torch::autograd::AccumulateGrad", 76, 79, thread=AUTOGRAD)
    recording.launch(77, "accumulate kernel", 90, 91, thread=AUTOGRAD)
    recording.annotation("Optimizer.step#SGD.step", 85, 95)
    recording.op("aten::_foreach_add_", 86, 94)
    recording.launch(87, "foreach kernel", 95, 99)
    recording.kernel("left over", 1, 6)
    return recording


def lost_return() -> Recording:
    """Two calls of a module; the first calls `apply`, whose return the profiler lost: it never seems to end."""
    recording = Recording()
    for number, caller, name, start, end in (
        (1, None, "train.py(1): main", 0, 100),
        (2, 1, "nn.Module: Net_0", 10, 30),
        (3, 2, "<built-in method apply of FunctionMeta object at 0x4920>", 12, 100),
        (4, 1, "nn.Module: Net_0", 50, 70),
    ):
        ids = {"Python id": number, "Python parent id": caller}
        recording.add("python_function", name, start, end - start, PROCESS, MAIN_THREAD, **ids)
    recording.op("aten::mm", 13, 20).launch(14, "gemm", 20, 30)
    recording.op("aten::mm", 55, 60).launch(56, "gemm", 60, 75)
    recording.op("aten::mse_loss", 80, 90).launch(81, "loss kernel", 82, 85)
    return recording
