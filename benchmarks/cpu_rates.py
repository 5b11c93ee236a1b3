"""The rates that predictions of CPU programs rest on: products in bf16, casts, attention, nodes of autograd, threads.

    python benchmarks/cpu_rates.py           # all but the threads, in processor time of one core
    python benchmarks/cpu_rates.py threads PROGRAMS   # by the clock: begin it alone, on one core: taskset -c 1 python ...

PROGRAMS is the folder of the CPU programs of docs/accuracy.md.

Each figure is the least of many repeats; predict/costs/cpu_products.py and cpu_overheads.py hold what came of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

PRODUCTS = (
    (32, 384, 384), (32, 384, 1536), (32, 1536, 384), (768, 128, 384), (768, 128, 512), (768, 512, 128), (1024, 1024, 1024),
    (128, 768, 768), (8, 768, 768), (1, 768, 768),
)  # fmt: skip
BF16 = torch.bfloat16


def least_us(work: Callable[[], object], repeats: int = 12) -> float:
    """Microseconds of processor time, at least."""
    began = time.process_time()
    work()
    count = max(1, int(0.01 / max(time.process_time() - began, 1e-6)))
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        for _ in range(count):
            work()
        best = min(best, (time.process_time() - began) / count)
    return best * 1e6


def products() -> None:
    for rows, depth, columns in PRODUCTS:
        x, w = torch.randn(rows, depth), torch.randn(columns, depth)
        wide = least_us(lambda x=x, w=w: functional.linear(x, w))  # type: ignore[misc]
        x, w = x.to(BF16), w.to(BF16)
        half = least_us(lambda x=x, w=w: functional.linear(x, w))  # type: ignore[misc]
        print(
            f"product {rows} x {depth} x {columns}: fp32 {wide:.0f} µs, bf16 {half:.0f} µs, {wide / half:.2f} times"
        )
    for count in (1 << 14, 1 << 18, 1 << 20):
        tensor = torch.randn(count)
        taken = least_us(lambda tensor=tensor: tensor.to(BF16))  # type: ignore[misc]
        print(f"cast of {count} elements: {taken:.1f} µs")


def attention() -> None:
    for batch, heads, length, width in ((12, 4, 64, 32), (1, 6, 32, 64), (4, 12, 256, 64)):
        for dtype in (torch.float32, BF16):
            q = torch.randn(batch, heads, length, width, dtype=dtype, requires_grad=True)
            y = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
            grad = torch.randn_like(y)
            forward = least_us(partial(functional.scaled_dot_product_attention, q, q, q, is_causal=True))
            backward = least_us(partial(torch.autograd.grad, y, q, grad, retain_graph=True))
            print(
                f"attention of {length} tokens, {dtype}: forward {forward:.0f} µs, backward {backward:.0f} µs"
            )


def nodes() -> None:
    leaf = torch.randn(16, requires_grad=True)

    def work() -> None:
        y = leaf
        for _ in range(50):
            y = y + 1

    made = least_us(work) / 50
    with torch.no_grad():
        plain = least_us(work) / 50
    print(f"a node of autograd: {made - plain:.2f} µs, without the memory that it keeps")


def threads() -> None:
    from encoder_serving import Server
    from nanogpt_loop import Trainer

    for name, step, count in (("encoder", Server().step, 25), ("nanogpt", Trainer().step, 4)):
        best: dict[int, float] = {}
        for _ in range(6):
            for number in (1, 2, 4, 8):
                torch.set_num_threads(number)
                for _ in range(count):
                    began = time.perf_counter()
                    step()
                    best[number] = min(best.get(number, 1e9), time.perf_counter() - began)
        print(name, {number: f"{taken * 1e3:.1f} ms" for number, taken in best.items()})


if __name__ == "__main__":
    if sys.argv[1:2] == ["threads"]:
        sys.path.insert(0, sys.argv[2])
        threads()
    else:
        torch.set_num_threads(1)
        products()
        attention()
        nodes()
