"""What the ranks of usual kinds of jobs do: data, tensor, pipeline and expert parallel, and sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.ranks.simulate import Compute, Job, Load, Op, Send, Sync, Wait

MIB = 1 << 20


def three_d(
    *,
    tensor: int = 4,
    pipeline: int = 4,
    data: int = 4,
    micro: int = 4,
    layers: int = 2,
    steps: int = 6,
    layer_us: float = 900.0,
    order: str = "tdp",
    schedule: str = "gpipe",
    buckets: int = 2,
    gradient_bytes: int = 48 * MIB,
    activation_bytes: int = 4 * MIB,
    kernels: int = 4,
    input_us: float = 300.0,
    **options: Any,
) -> Job:
    """Tensor, pipeline and data parallel; `order` names the fastest running of the three first."""
    sizes = {"t": tensor, "p": pipeline, "d": data}
    world = tensor * pipeline * data

    def place(rank: int) -> dict[str, int]:
        found = {}
        for axis in order:
            found[axis], rank = rank % sizes[axis], rank // sizes[axis]
        return found

    def rank_of(at: dict[str, int]) -> int:
        rank, stride = 0, 1
        for axis in order:
            rank, stride = rank + at[axis] * stride, stride * sizes[axis]
        return rank

    def group(at: dict[str, int], axis: str) -> tuple[int, ...]:
        return tuple(rank_of({**at, axis: index}) for index in range(sizes[axis]))

    def program(rank: int, step: int) -> Iterator[Op]:
        at = place(rank)
        tp, dp, stage = group(at, "t"), group(at, "d"), at["p"]
        previous = rank_of({**at, "p": stage - 1}) if stage else -1
        following = rank_of({**at, "p": stage + 1}) if stage + 1 < pipeline else -1

        def layer(us: float) -> Iterator[Op]:
            yield Compute(us, kernels)
            if tensor > 1:
                yield Send("all_reduce", tp, activation_bytes, description="tp")

        def message(source: int, destination: int) -> Iterator[Op]:
            kind = "send" if source == rank else "recv"
            members = tuple(sorted((source, destination)))
            stream = 40 + (source > destination)
            yield Send(kind, members, activation_bytes, stream, wait=kind == "recv", tag="sent",
                       source=source, destination=destination, description="pp")  # fmt: skip

        def forward() -> Iterator[Op]:
            if previous >= 0:
                yield from message(previous, rank)
            for _ in range(layers):
                yield from layer(layer_us)
            if following >= 0:
                yield from message(rank, following)

        def backward(last: bool) -> Iterator[Op]:
            if following >= 0:
                yield from message(following, rank)
            for index in range(layers):
                yield from layer(2 * layer_us)
                if last and data > 1 and index * buckets // layers != (index + 1) * buckets // layers:
                    yield Send("all_reduce", dp, gradient_bytes // buckets, 30, wait=False, tag="gradients",
                               description="dp")  # fmt: skip
            if previous >= 0:
                yield from message(rank, previous)

        yield Load(input_us)
        warm = min(pipeline - stage - 1, micro) if schedule == "1f1b" else micro
        for _ in range(warm):
            yield from forward()
        for _ in range(micro - warm):
            yield from forward()
            yield from backward(False)
        for index in range(warm if schedule == "1f1b" else micro):
            yield from backward(index == (warm if schedule == "1f1b" else micro) - 1)
        if schedule == "1f1b" and not warm and data > 1:
            yield Send("all_reduce", dp, gradient_bytes, 30, wait=False, tag="gradients", description="dp")
        yield Wait("gradients")
        yield Compute(layer_us, kernels)
        yield Sync()

    return Job("3d", world, steps, program, stage=lambda rank: place(rank)["p"], **options)


def data_parallel(
    *,
    world: int = 16,
    steps: int = 6,
    buckets: int = 6,
    layer_us: float = 1_500.0,
    bucket_bytes: int = 24 * MIB,
    kernels: int = 6,
    input_us: float = 200.0,
    **options: Any,
) -> Job:
    """DDP: gradients are summed in buckets while the backward pass goes on."""
    everyone = tuple(range(world))

    def program(rank: int, step: int) -> Iterator[Op]:
        yield Load(input_us)
        yield Compute(buckets * layer_us, kernels * buckets)
        for _ in range(buckets):
            yield Compute(2 * layer_us, kernels)
            yield Send("all_reduce", everyone, bucket_bytes, 20, wait=False, tag="gradients")
        yield Wait("gradients")
        yield Compute(layer_us, kernels)
        yield Sync()

    return Job("ddp", world, steps, program, **options)


def sharded(
    *,
    world: int = 16,
    shard: int | None = None,
    steps: int = 6,
    layers: int = 6,
    layer_us: float = 1_500.0,
    layer_bytes: int = 40 * MIB,
    kernels: int = 6,
    input_us: float = 200.0,
    **options: Any,
) -> Job:
    """FSDP: the parameters of the next layer are gathered while this one computes, gradients are scattered behind."""
    shard = shard or world

    def program(rank: int, step: int) -> Iterator[Op]:
        first = rank - rank % shard
        members = tuple(range(first, first + shard))
        replicas = tuple(range(rank % shard, world, shard))
        yield Load(input_us)
        for factor, passes in ((1, "f"), (2, "b")):
            yield Send(
                "all_gather", members, layer_bytes, 20, wait=False, tag=f"{passes}0", description="fsdp"
            )
            for layer in range(layers):
                if layer + 1 < layers:
                    yield Send("all_gather", members, layer_bytes, 20, wait=False, tag=f"{passes}{layer + 1}",
                               description="fsdp")  # fmt: skip
                yield Wait(f"{passes}{layer}")
                yield Compute(factor * layer_us, kernels)
                if passes == "b":
                    yield Send("reduce_scatter", members, layer_bytes, 22, wait=False, tag="gradients",
                               description="fsdp")  # fmt: skip
                    if shard < world:
                        yield Send("all_reduce", replicas, layer_bytes // shard, 23, wait=False, tag="gradients",
                                   description="replicate")  # fmt: skip
        yield Wait("gradients")
        yield Compute(layer_us, kernels)
        yield Send("all_reduce", tuple(range(world)), 4, 20)
        yield Sync()

    return Job("fsdp", world, steps, program, **options)


def experts(
    *,
    world: int = 16,
    expert: int = 8,
    steps: int = 6,
    layers: int = 4,
    layer_us: float = 900.0,
    token_bytes: int = 8 * MIB,
    kernels: int = 5,
    input_us: float = 200.0,
    **options: Any,
) -> Job:
    """Expert parallel: tokens go to their experts and back by all-to-all; gradients are summed over all."""

    def program(rank: int, step: int) -> Iterator[Op]:
        first = rank - rank % expert
        members = tuple(range(first, first + expert))
        yield Load(input_us)
        for factor in (1, 2):
            for _ in range(layers):
                yield Compute(factor * layer_us, kernels)
                yield Send("all_to_all", members, token_bytes, 20, description="ep")
                yield Compute(factor * layer_us, kernels, expert=True)
                yield Send("all_to_all", members, token_bytes, 20, description="ep")
        yield Send("all_reduce", tuple(range(world)), 64 * MIB, 24, description="dp")
        yield Compute(layer_us, kernels)
        yield Sync()

    return Job("moe", world, steps, program, **options)


LAYOUTS: dict[str, Callable[..., Job]] = {
    "3d": three_d,
    "ddp": data_parallel,
    "fsdp": sharded,
    "moe": experts,
}
