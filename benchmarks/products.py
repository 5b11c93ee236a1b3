"""How long products, convolutions, attention and streaming operators take, by size and type.

    python benchmarks/products.py --seconds 60 --out products.json
    python benchmarks/products.py --layers --seconds 0 --out layers.json
    python benchmarks/products.py --seconds 5 --cpu --out /tmp/tiny.json

Cases are drawn at random, so that a run cut short is a sample of the whole. All types of one size are measured in
succession. One JSON object a line, written as it is measured: first the machine, then
`{"kind", ..., "dtype", "cold", "ns", "host_ns"}`: the GPU's time for one call and the host's.

Time on the GPU is between two events around calls that were queued while the GPU slept: no launch shows. `cold`: the calls
go round copies of the tensors that L2 does not hold together. Otherwise the same tensors are used again and again (warm).
The costs in `foretrace/predict/costs` are fitted on what this prints.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Call = Callable[[], object]
Case = dict[str, Any]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MOST_FLOPS = 4e11  # of one call: 8 ms in fp32 on an H200
MOST_ITEMS = 2**28  # of one tensor
COLD_BYTES = 256 * 2**20  # of all copies together; an H200's L2 holds 50 MiB
TIMED_NS = 1.2e6  # of calls between two events
HIDDEN = (256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096)
CONVS = (  # channels in, out, side, kernel, stride, groups
    (3, 64, 224, 7, 2, 1), (64, 64, 56, 1, 1, 1), (64, 64, 56, 3, 1, 1), (64, 256, 56, 1, 1, 1), (256, 128, 56, 1, 1, 1),
    (128, 128, 56, 3, 2, 1), (128, 512, 28, 1, 1, 1), (256, 512, 56, 1, 2, 1), (256, 256, 14, 3, 1, 1),
    (256, 1024, 14, 1, 1, 1), (1024, 256, 14, 1, 1, 1), (512, 512, 7, 3, 1, 1), (2048, 512, 7, 1, 1, 1),
    (3, 96, 224, 4, 4, 1), (96, 192, 56, 2, 2, 1), (96, 96, 56, 7, 1, 96), (384, 384, 14, 7, 1, 384),
    (32, 32, 112, 3, 1, 32), (144, 144, 56, 3, 2, 144), (128, 128, 56, 3, 1, 32), (256, 256, 28, 3, 1, 32),
    (32, 32, 128, 3, 1, 1), (64, 128, 128, 3, 1, 1), (128, 64, 128, 3, 1, 1), (256, 256, 32, 3, 1, 1),
    (320, 320, 64, 3, 1, 1), (640, 640, 32, 3, 1, 1), (1280, 1280, 16, 3, 1, 1), (1920, 640, 32, 3, 1, 1),
    (320, 320, 64, 3, 2, 1), (4, 320, 64, 3, 1, 1), (3, 768, 224, 16, 16, 1), (64, 64, 96, 5, 1, 1),
)  # fmt: skip
CONVS_1D = (  # channels in, out, length, kernel, stride, groups
    (1, 512, 80000, 10, 5, 1), (512, 512, 16000, 3, 2, 1), (512, 512, 4000, 3, 2, 1), (512, 512, 1000, 2, 2, 1),
    (768, 768, 250, 128, 1, 16), (80, 384, 3000, 3, 1, 1), (384, 384, 3000, 3, 2, 1), (256, 512, 1000, 1, 1, 1),
    (512, 512, 500, 31, 1, 512), (64, 64, 2048, 7, 1, 1),
)  # fmt: skip


# Layers of programs that people run, measured before the random ones with --real: GPT-2's head with its gradients (and its
# attention), and wav2vec 2.0's positions.
REAL_PRODUCTS = (  # batch, m, n, k, layout
    (1, 4096, 50257, 768, "NT"), (1, 4096, 768, 50257, "NN"), (1, 50257, 768, 4096, "TN"), (1, 4096, 50304, 768, "NT"),
    (1, 4096, 768, 50304, "NN"), (1, 50304, 768, 4096, "TN"), (96, 512, 512, 64, "NN"), (96, 512, 512, 64, "NT"),
    (96, 512, 64, 512, "NN"), (96, 64, 512, 512, "TN"), (1, 4096, 2304, 768, "NN"), (1, 4096, 768, 3072, "NT"),
    (1, 3992, 768, 768, "NT"), (1, 3992, 3072, 768, "NT"), (1, 768, 3072, 3992, "TN"), (1, 8192, 32001, 1024, "NT"),
)  # fmt: skip
REAL_CONVS = (  # dimensions, batch, channels in, out, side, kernel, stride, groups
    (1, 8, 768, 768, 499, 128, 1, 16), (1, 8, 512, 512, 31999, 3, 2, 1), (1, 8, 1, 512, 160000, 10, 5, 1),
    (2, 128, 64, 64, 56, 3, 1, 1), (2, 128, 1024, 256, 14, 1, 1, 1), (2, 64, 96, 96, 56, 7, 1, 96),
)  # fmt: skip

# Measured with --layers: convolutions in groups of many widths, which cuDNN has few kernels for; attention with a mask in
# memory; group norm in both orders.
GROUPED_CONVS = (  # dimensions, batch, channels in, out, side, kernel, stride, groups
    (1, 8, 768, 768, 749, 128, 1, 16), (1, 16, 768, 768, 249, 128, 1, 16), (1, 8, 1024, 1024, 499, 128, 1, 16),
    (1, 8, 512, 512, 500, 31, 1, 512), (1, 8, 512, 512, 3000, 3, 1, 512), (1, 8, 256, 256, 1000, 9, 1, 4),
    (1, 8, 768, 768, 400, 19, 1, 16), (1, 16, 384, 384, 512, 9, 1, 384), (1, 4, 128, 128, 8000, 7, 1, 8),
    (2, 32, 128, 128, 56, 3, 1, 32), (2, 32, 256, 256, 28, 3, 1, 32), (2, 64, 256, 256, 14, 3, 1, 16),
    (2, 32, 1024, 1024, 7, 3, 1, 32), (2, 32, 64, 64, 112, 3, 1, 2), (2, 32, 232, 232, 28, 3, 1, 2),
    (2, 32, 96, 96, 56, 7, 1, 96), (2, 32, 384, 384, 14, 7, 1, 384), (2, 64, 144, 144, 56, 3, 1, 144),
    (2, 64, 672, 672, 14, 5, 1, 672), (2, 64, 960, 960, 7, 3, 1, 960), (2, 8, 512, 512, 64, 3, 1, 8),
)  # fmt: skip
MASKED_SIZES = (  # batch, heads, tokens, values of a head
    (16, 20, 512, 24), (32, 12, 128, 32), (16, 12, 512, 32), (4, 12, 512, 48), (16, 16, 128, 64), (8, 16, 512, 64),
    (4, 16, 1024, 64), (2, 16, 2048, 64), (1, 16, 8192, 64), (8, 8, 512, 80), (8, 8, 512, 96), (8, 8, 512, 128),
    (2, 16, 2048, 128), (4, 8, 512, 160), (16, 8, 197, 64), (64, 12, 64, 64),
)  # fmt: skip
NORMED_IMAGES = (
    (4, 128, 512),
    (4, 256, 256),
    (4, 512, 128),
    (4, 512, 64),
    (8, 320, 64),
    (8, 640, 32),
    (8, 1280, 16),
)


def layers() -> Iterator[Case]:
    """Those as cases."""
    names = ("dims", "batch", "given", "out", "side", "kernel", "stride", "groups")
    for sizes in GROUPED_CONVS:
        for part in ("forward", "input", "weight"):
            for last in (False, True)[: sizes[0]]:
                yield {"kind": "conv", **dict(zip(names, sizes, strict=True)), "last": last, "part": part}
    for batch, heads, tokens, head in MASKED_SIZES:
        for mask in ("none", "causal", "rows", "full"):
            for part in ("forward", "both"):
                yield {
                    "kind": "attention", "batch": batch, "heads": heads, "tokens": tokens, "head": head,
                    "causal": mask == "causal", "mask": mask, "part": part,
                }  # fmt: skip
    for batch, channels, side in NORMED_IMAGES:
        for last in (False, True):
            yield {"kind": "group_norm", "batch": batch, "channels": channels, "side": side, "last": last}
            sizes = (2, batch, channels, channels, side, 3, 1, 1)
            yield {"kind": "conv", **dict(zip(names, sizes, strict=True)), "last": last, "part": "forward"}


def real() -> Iterator[Case]:
    """Layers of programs that people run, as cases."""
    for batch, m, n, k, layout in REAL_PRODUCTS:
        kind = "gemm" if batch == 1 else "bmm"
        yield {"kind": kind, "batch": batch, "m": m, "n": n, "k": k, "layout": layout, "bias": False}
    names = ("dims", "batch", "given", "out", "side", "kernel", "stride", "groups")
    for sizes in REAL_CONVS:
        for part in ("forward", "input", "weight"):
            yield {"kind": "conv", **dict(zip(names, sizes, strict=True)), "last": False, "part": part}


def log_uniform(rng: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A size between two, as likely in every octave."""
    value = low * (high / low) ** rng.random()
    return max(round(value / multiple) * multiple, multiple)


def gemm(rng: random.Random) -> Case:
    """A layer's product (forward, gradient of its input, gradient of its weight) or one of any size."""
    if rng.random() < 0.6:
        hidden = rng.choice(HIDDEN)
        wide = round(hidden * rng.choice((1, 1, 2, 3, 4, 4, 8 / 3)))
        out, given = rng.choice(
            ((hidden, wide), (wide, hidden), (rng.choice((32000, 50257, 50304, 1000)), hidden))
        )
        tokens = rng.choice((128, 197, 256, 512, 1000, 1024, 2048, 4096, 8192, 12608, 16384, 32768))
    else:
        tokens, out, given = (log_uniform(rng, 16, 16384, rng.choice((1, 8, 64))) for _ in range(3))
    layout = rng.choice(("NT", "NN", "TN"))
    m, n, k = {"NT": (tokens, out, given), "NN": (tokens, given, out), "TN": (out, given, tokens)}[layout]
    bias = layout == "NT" and rng.random() < 0.6
    return {"kind": "gemm", "batch": 1, "m": m, "n": n, "k": k, "layout": layout, "bias": bias}


def bmm(rng: random.Random) -> Case:
    """One of attention's products, or its gradient's."""
    batch = rng.choice((8, 12, 16, 32, 64, 96, 128, 192, 256, 384, 512))
    tokens, head = (
        rng.choice((64, 128, 197, 256, 384, 512, 1024, 2048)),
        rng.choice((32, 64, 64, 80, 96, 128)),
    )
    layout = rng.choice(("NT", "NN", "TN"))
    m, n, k = {"NT": (tokens, tokens, head), "NN": (tokens, head, tokens), "TN": (tokens, head, tokens)}[
        layout
    ]
    return {"kind": "bmm", "batch": batch, "m": m, "n": n, "k": k, "layout": layout, "bias": False}


def conv(rng: random.Random) -> Case:
    """A convolution of a known network, forward or one of its two gradients."""
    dims = 1 if rng.random() < 0.25 else 2
    given, out, side, kernel, stride, groups = rng.choice(CONVS_1D if dims == 1 else CONVS)
    return {
        "kind": "conv", "dims": dims, "batch": rng.choice((1, 2, 4, 8, 16, 32, 64, 128)), "given": given, "out": out,
        "side": side, "kernel": kernel, "stride": stride, "groups": groups, "last": dims == 2 and rng.random() < 0.5,
        "part": rng.choice(("forward", "input", "weight")),
    }  # fmt: skip


def attention(rng: random.Random) -> Case:
    """Fused attention."""
    return {
        "kind": "attention", "batch": rng.choice((1, 4, 8, 16, 32)), "heads": rng.choice((8, 12, 16)),
        "tokens": rng.choice((128, 197, 256, 512, 1024, 2048)), "head": rng.choice((32, 64, 64, 128)),
        "causal": rng.random() < 0.5, "part": rng.choice(("forward", "both")),
    }  # fmt: skip


def stream(rng: random.Random) -> Case:
    """An operator that waits for memory."""
    op = rng.choice(tuple(STREAMS))
    width = rng.choice((128, 256, 512, 768, 1024, 2048, 4096))
    return {"kind": "stream", "op": op, "rows": log_uniform(rng, 2**14, 2**27) // width or 1, "width": width}


def block(rng: random.Random) -> Case:
    """A transformer's block, forward and backward, as a check of the sums."""
    hidden = rng.choice((256, 512, 768, 1024, 2048))
    tokens = rng.choice((32, 128, 512, 1024))
    return {"kind": "block", "batch": rng.choice((1, 4, 8, 16)), "tokens": tokens, "hidden": hidden}


KINDS = {gemm: 0.40, bmm: 0.12, conv: 0.26, attention: 0.05, stream: 0.14, block: 0.03}
TYPES = {
    "block": ("fp32", "tf32", "autocast", "bf16"),
    "stream": ("fp32", "bf16"),
    "group_norm": ("fp32", "bf16"),
}


def flops(case: Case) -> float:
    """Of one call, about."""
    match case["kind"]:
        case "gemm" | "bmm":
            return 2.0 * case["batch"] * case["m"] * case["n"] * case["k"]
        case "conv":
            places = (case["side"] / case["stride"]) ** case["dims"] * case["batch"]
            return (
                2.0 * places * case["out"] * case["given"] / case["groups"] * case["kernel"] ** case["dims"]
            )
        case "attention":
            scores = case["batch"] * case["heads"] * case["tokens"] ** 2 * case["head"]
            return scores * (4.0 if case["part"] == "forward" else 14.0)
        case "block":
            return (
                case["batch"]
                * case["tokens"]
                * (72.0 * case["hidden"] ** 2 + 12 * case["tokens"] * case["hidden"])
            )
    return 0.0


def items(case: Case) -> int:
    """Of its largest tensor."""
    match case["kind"]:
        case "gemm" | "bmm":
            m, n, k = case["m"], case["n"], case["k"]
            return int(case["batch"] * max(m * k, k * n, m * n))
        case "conv":
            channels = max(case["given"], case["out"] / case["stride"] ** case["dims"])
            return int(case["batch"] * channels * case["side"] ** case["dims"])
        case "stream":
            return int(case["rows"] * case["width"])
    return 0


def small(case: Case) -> Case:
    """The case with its sizes cut, for a machine without a GPU."""
    most = {
        "m": 40,
        "n": 40,
        "k": 40,
        "batch": 2,
        "side": 40,
        "rows": 40,
        "width": 40,
        "tokens": 16,
        "hidden": 64,
    }
    return {name: min(value, most[name]) if name in most else value for name, value in case.items()}


class Bench:
    """Builds and times cases on one device."""

    def __init__(self, device: str) -> None:
        """On a device: "cuda" or "cpu"."""
        self.device = device
        self.cuda = device == "cuda"

    def tensor(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Random values, as training has them: their bits cost power."""
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def build(self, case: Case, dtype: str) -> Call:
        """One call of the case, on tensors of its own."""
        kind = torch.bfloat16 if dtype == "bf16" else DTYPES.get(dtype, torch.float32)
        match case["kind"]:
            case "gemm" | "bmm":
                return self.product(case, kind)
            case "conv":
                return self.convolution(case, kind)
            case "attention":
                return self.attention(case, kind)
            case "group_norm":
                return self.group_norm(case, kind)
            case "stream":
                return STREAMS[case["op"]](self.tensor(case["rows"], case["width"], dtype=kind))
        return self.block(case, kind, autocast=dtype == "autocast")

    def product(self, case: Case, kind: torch.dtype) -> Call:
        """A product with its operands laid out as asked: T is a transposed view of a contiguous tensor."""
        batch = () if case["kind"] == "gemm" else (case["batch"],)
        m, n, k = case["m"], case["n"], case["k"]
        left = self.tensor(*batch, *((k, m) if case["layout"][0] == "T" else (m, k)), dtype=kind)
        right = self.tensor(*batch, *((n, k) if case["layout"][1] == "T" else (k, n)), dtype=kind)
        left = left.transpose(-1, -2) if case["layout"][0] == "T" else left
        right = right.transpose(-1, -2) if case["layout"][1] == "T" else right
        if case["bias"]:
            bias = self.tensor(n, dtype=kind)
            return lambda: torch.addmm(bias, left, right)
        return lambda: left @ right

    def convolution(self, case: Case, kind: torch.dtype) -> Call:
        """A convolution, or one of its gradients."""
        dims, kernel, stride, groups = case["dims"], case["kernel"], case["stride"], case["groups"]
        layout = torch.channels_last if case["last"] else torch.contiguous_format
        given = self.tensor(case["batch"], case["given"], *[case["side"]] * dims, dtype=kind)
        weight = self.tensor(case["out"], case["given"] // groups, *[kernel] * dims, dtype=kind)
        given, weight = given.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
        padding = kernel // 2
        function = F.conv1d if dims == 1 else F.conv2d
        if case["part"] == "forward":
            return lambda: function(given, weight, None, stride, padding, 1, groups)
        grad = torch.randn_like(function(given, weight, None, stride, padding, 1, groups))
        mask = [case["part"] == "input", case["part"] == "weight", False]
        backward = torch.ops.aten.convolution_backward
        many = [stride] * dims, [padding] * dims, [1] * dims
        return lambda: backward(grad, given, weight, None, *many, False, [0] * dims, groups, mask)

    def attention(self, case: Case, kind: torch.dtype) -> Call:
        """Fused attention, forward or with its backward."""
        shape = case["batch"], case["heads"], case["tokens"], case["head"]
        query, key, value = (self.tensor(*shape, dtype=kind) for _ in range(3))
        how = {"is_causal": case["causal"], "attn_mask": self.mask(case)}
        if case["part"] == "forward":
            return lambda: F.scaled_dot_product_attention(query, key, value, **how)
        grad = torch.randn_like(query)
        for tensor in (query, key, value):
            tensor.requires_grad_()

        def both() -> object:
            out = F.scaled_dot_product_attention(query, key, value, **how)
            return torch.autograd.grad(out, (query, key, value), grad)

        return both

    def mask(self, case: Case) -> Tensor | None:
        """A mask in memory: the same for every row, as of padding, or a triangle for each sample."""
        tokens = case["tokens"]
        full = torch.ones(case["batch"], 1, tokens, tokens, dtype=torch.bool, device=self.device)
        match case.get("mask"):
            case "rows":
                return full[:, :, :1].expand_as(full)
            case "full":
                return full.tril()
        return None

    def group_norm(self, case: Case, kind: torch.dtype) -> Call:
        """Group norm of images with 32 groups, in inference."""
        layout = torch.channels_last if case["last"] else torch.contiguous_format
        given = self.tensor(case["batch"], case["channels"], case["side"], case["side"], dtype=kind)
        given = given.contiguous(memory_format=layout)
        weight = self.tensor(case["channels"], dtype=kind)
        return lambda: F.group_norm(given, 32, weight, weight)

    def block(self, case: Case, kind: torch.dtype, *, autocast: bool) -> Call:
        """A block of a transformer, forward and backward."""
        hidden = case["hidden"]
        layer = nn.TransformerEncoderLayer(
            hidden,
            hidden // 64 or 1,
            4 * hidden,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        layer.to(self.device, kind)
        given = self.tensor(case["batch"], case["tokens"], hidden, dtype=kind)
        given.requires_grad_()
        parameters = (given, *layer.parameters())

        def both() -> object:
            with torch.autocast(self.device, torch.bfloat16, enabled=autocast):
                out = layer(given)
            return torch.autograd.grad(out, parameters, torch.ones_like(out))

        return both

    def time(self, calls: list[Call]) -> tuple[float, float, bool]:
        """The device's nanoseconds for one call, the host's, and whether the host kept ahead of the device."""
        for call in (calls * 2)[:3]:
            call()
        began = time.perf_counter_ns()
        for call in (calls * 3)[:3]:
            call()
        host_ns = (time.perf_counter_ns() - began) / 3
        if not self.cuda:
            return host_ns, host_ns, True
        torch.cuda.synchronize()
        device_ns, _, _ = self.events(calls, 2, 2 * host_ns)
        count = int(min(max(TIMED_NS / max(device_ns, 1), 2), 100))
        found = [self.events(calls, count, count * host_ns) for _ in range(1 if device_ns > 3e6 else 3)]
        return (
            statistics.median(device for device, _, _ in found),
            min(host for _, host, _ in found),
            all(ahead for _, _, ahead in found),
        )

    def events(self, calls: list[Call], count: int, sleep_ns: float) -> tuple[float, float, bool]:
        """Between two events, around calls queued while the device sleeps."""
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(min(2.5 * sleep_ns, 1e8) + 50_000))  # cycles, about two a nanosecond
        first.record()
        began = time.perf_counter_ns()
        for number in range(count):
            calls[number % len(calls)]()
        host_ns = (time.perf_counter_ns() - began) / count
        ahead = not first.query()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e6 / count, host_ns, ahead


def with_grad(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Call]:
    """The backward pass alone, of a function of one tensor."""

    def build(given: Tensor) -> Call:
        given.requires_grad_()
        out = function(given)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, given, grad, retain_graph=True)

    return build


def normed(given: Tensor) -> Tensor:
    """Layer norm with weight and bias."""
    weight = torch.ones(given.shape[-1], device=given.device, dtype=given.dtype)
    return F.layer_norm(given, given.shape[-1:], weight, weight)


STREAMS: dict[str, Callable[[Tensor], Call]] = {
    "cast": lambda x: lambda: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32),
    "add": lambda x: lambda: x + x[:1],
    "add_": lambda x: lambda: x.add_(x),
    "mul": lambda x: lambda: x * x,
    "gelu": lambda x: lambda: F.gelu(x),
    "gelu_backward": with_grad(F.gelu),
    "relu": lambda x: lambda: F.relu(x),
    "dropout": lambda x: lambda: F.dropout(x, 0.1),
    "softmax": lambda x: lambda: F.softmax(x, -1),
    "softmax_backward": with_grad(lambda x: F.softmax(x, -1)),
    "layer_norm": lambda x: lambda: normed(x),
    "layer_norm_backward": with_grad(normed),
    "sum_rows": lambda x: lambda: x.sum(0),
    "copy_transposed": lambda x: lambda: x.t().contiguous(),
}


def set_tf32(allowed: bool) -> None:
    """Products and convolutions of fp32 tensors on tensor cores, or not."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def machine(device: str) -> Case:
    """What was measured on."""
    found: Case = {"kind": "machine", "device": "cpu", "torch": torch.__version__}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "sm_count": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "cudnn": torch.backends.cudnn.version(),
            "cuda": torch.version.cuda,
        }
    return found


def measured(bench: Bench, rng: random.Random) -> Iterator[Case]:
    """One random case in every type."""
    case = rng.choices(tuple(KINDS), tuple(KINDS.values()))[0](rng)
    if flops(case) <= MOST_FLOPS and items(case) <= MOST_ITEMS:
        yield from in_every_type(bench, case, rng)


def in_every_type(bench: Bench, case: Case, rng: random.Random) -> Iterator[Case]:
    """The case in every type."""
    case = case if bench.cuda else small(case)
    cold = rng.random() < (0.5 if case["kind"] == "stream" else 0.25) and 0 < items(case) * 4 < COLD_BYTES
    copies = min(max(COLD_BYTES // (8 * items(case)), 2), 32) if cold else 1
    types = TYPES.get(case["kind"], ("fp32", "tf32", "bf16"))
    if rng.random() < 0.1 and case["kind"] in ("gemm", "conv", "attention"):
        types += ("fp16",)
    for dtype in types:
        set_tf32(dtype == "tf32")
        try:
            calls = [bench.build(case, dtype) for _ in range(copies)]
            ns, host_ns, ahead = bench.time(calls)
        except RuntimeError as problem:  # out of memory, or no kernel for this size
            yield case | {"dtype": dtype, "cold": cold, "failed": str(problem).splitlines()[0][:200]}
            continue
        yield case | {
            "dtype": dtype,
            "cold": cold,
            "ns": round(ns),
            "host_ns": round(host_ns),
            "ahead": ahead,
        }


def main() -> None:
    """Measures until the time is up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to measure (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, one JSON object a line")
    parser.add_argument("--cpu", action="store_true", help="small sizes on the CPU, to try the program")
    parser.add_argument("--real", action="store_true", help="layers of programs that people run first")
    parser.add_argument("--layers", action="store_true", help="groups, masks and norms of images first")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = "cpu" if args.cpu else "cuda"
    bench, rng = Bench(device), random.Random(args.seed)
    torch.set_float32_matmul_precision("highest")
    count, end = 0, time.monotonic() + args.seconds
    with args.out.open("w") as out:
        print(json.dumps(machine(device)), file=out, flush=True)
        first = [*(real() if args.real else ()), *(layers() if args.layers else ())]
        while first or time.monotonic() < end:
            for case in in_every_type(bench, first.pop(0), rng) if first else measured(bench, rng):
                print(json.dumps(case), file=out, flush=True)
                count += 1
    print(f"{count} timings in {args.out}")


if __name__ == "__main__":
    main()
