"""The model's kernels beside those that torch's own compiler makes of the same functions, here for the CPU.

Its scheduler decides what is fused before it writes code for any device. Known differences have a test of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from foretrace.predict.compiler.kernels import Flow
from foretrace.predict.compiler.nodes import Node, shape_of
from foretrace.predict.compiler.prices import launches

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the compiler warns of what it imports

Function = Callable[..., Any]
TYPES = {
    "torch.float32": "float",
    "torch.bfloat16": "c10::BFloat16",
    "torch.int64": "long int",
    "torch.bool": "bool",
}
NO_KERNEL = frozenset(
    (
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "split",
        "detach",
    )
)
ROWS, WIDTH = 64, 96


def recorded(function: Function, *tensors: Any) -> list[Node]:
    """The operators that it runs, as a recording tells of them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    nodes: list[Node] = []

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = called(*args, **(kwargs or {}))
            name = called._schema.name.removeprefix("aten::")
            if name == "_to_copy":
                name, args = "copy_", (made, args[0], False)  # as the profiler records the kernel of a cast
            if name not in NO_KERNEL:
                place = len(nodes)
                nodes.append(Node(place, f"aten::{name}", (place,), 10**9, shape_of(f"aten::{name}", *_written(args), "CatArray<float>"), backward=False))  # fmt: skip
            return made

    with torch.no_grad(), Operators():
        function(*tensors)
    return nodes


def _written(args: Any) -> tuple[str, str, str, str]:
    """Shapes, types, strides and values as torch.profiler writes them."""
    columns: tuple[list[Any], ...] = ([], [], [], [])
    for value in args:
        listed = isinstance(value, list | tuple)
        if isinstance(value, torch.Tensor):
            row = (list(value.shape), TYPES[str(value.dtype)], list(value.stride()), "")
        elif listed and any(isinstance(item, torch.Tensor) for item in value):
            row = (
                [list(item.shape) for item in value],
                "TensorList",
                [list(item.stride()) for item in value],
                "",
            )
        else:
            row = ([], "ScalarList" if listed else "Scalar", [], "" if value is None else str(list(value) if listed else value))  # fmt: skip
        for column, item in zip(columns, row, strict=True):
            column.append(item)
    shapes, types, strides, values = map(json.dumps, columns)
    return shapes, types, strides, values


def modelled(function: Function, *tensors: Any) -> int:
    """Kernels by the model."""
    return sum(launches(kernel) for kernel in Flow(recorded(function, *tensors)).kernels.values())


def compiled(function: Function, *tensors: Any) -> int:
    """Kernels by torch's compiler: what its scheduler leaves that is no call of a library."""
    from torch._inductor import config

    seen: list[int] = []

    def look(nodes: list[Any]) -> list[Any]:
        seen.append(sum(not node.is_extern() and not type(node).__name__.startswith("Nop") for node in nodes))
        return nodes

    torch._dynamo.reset()
    with config.patch(_post_fusion_custom_pass=look, fx_graph_cache=False), torch.no_grad():
        torch.compile(function, fullgraph=True)(*tensors)
    (count,) = seen
    return count


def rand(*shape: int) -> Any:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def norm_chain(x: Any, h: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm((x + h) * 2, (WIDTH,), w, b).to(torch.bfloat16)


def gelu_mlp(x: Any, up: Any, down: Any) -> Any:
    return x + torch.nn.functional.gelu(torch.relu(x) @ up, approximate="tanh") @ down * 2


def cross_entropy(logits: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits * 0.5, target)


def rotated(q: Any, cos: Any, sin: Any) -> Any:
    """RMS norm written out, and a rotation of halves."""
    q = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-6)
    left, right = q.chunk(2, -1)
    return q * cos + torch.cat((-right, left), -1) * sin


def gate(x: Any, a: Any, b: Any) -> Any:
    return torch.nn.functional.silu(x @ a) * (x @ b)


def softmax(x: Any, h: Any) -> Any:
    return torch.softmax(x * h + 1, -1).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (norm_chain, ((ROWS, WIDTH), (ROWS, WIDTH), (WIDTH,), (WIDTH,))),
        (gelu_mlp, ((ROWS, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))),
        (rotated, ((2, 4, ROWS, 32), (ROWS, 32), (ROWS, 32))),
        (gate, ((ROWS, WIDTH), (WIDTH, 4 * WIDTH), (WIDTH, 4 * WIDTH))),
        (softmax, ((ROWS, WIDTH), (ROWS, WIDTH))),
    ],
)
def test_as_many_kernels_as_the_compiler_makes(
    function: Function, shapes: tuple[tuple[int, ...], ...]
) -> None:
    tensors = [rand(*shape) for shape in shapes]
    assert modelled(function, *tensors) == compiled(function, *tensors)


def test_a_loss_is_as_many_kernels_as_the_compiler_makes() -> None:
    logits, target = rand(ROWS, 1000), torch.arange(ROWS)
    assert modelled(cross_entropy, logits, target) == compiled(cross_entropy, logits, target)


def test_a_sum_of_columns_computes_its_operand_in_the_compilers_hands() -> None:
    """Known: the model leaves x * h apart, as where gradients are summed, and others read them too."""

    def columns(x: Any, h: Any) -> Any:
        return (x * h).sum(0) * 0.5

    x, h = rand(ROWS, WIDTH), rand(ROWS, WIDTH)
    assert compiled(columns, x, h) == 1
    assert modelled(columns, x, h) == 3  # x * h, and a sum in two passes, as a GPU's is where rows are many


def test_the_compiler_may_leave_apart_what_it_has_to_write_anyway() -> None:
    """Known: on the CPU a sum that is returned is a loop of its own before the norm; the model keeps it in one kernel."""

    def residual(x: Any, h: Any) -> Any:
        total = x + h
        return total, torch.nn.functional.layer_norm(total, (WIDTH,))

    x, h = rand(ROWS, WIDTH), rand(ROWS, WIDTH)
    assert modelled(residual, x, h) == 1
    assert compiled(residual, x, h) == 2


def test_what_reads_a_scattered_sum_is_a_kernel_of_its_own() -> None:
    """Zeros, weighed messages added to them, and what is done with the sums: three kernels by both."""

    def messages(source: Any, weight: Any, index: Any) -> Any:
        sums = torch.zeros(ROWS, WIDTH).index_add(0, index, source * weight)
        return torch.relu(sums) * 2

    tensors = rand(4 * ROWS, WIDTH), rand(4 * ROWS, 1), torch.arange(4 * ROWS) % ROWS
    assert modelled(messages, *tensors) == compiled(messages, *tensors) == 3
