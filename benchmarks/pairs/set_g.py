"""Programs whose author never read a rule: one fault each that the tuning guides name, or none.

Written from PyTorch's tuning guide, the profiler tutorials and everyday reviews alone. What `programs.py` says of its
programs holds here as well.
"""

from __future__ import annotations

import math
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Step,
    adamw,
    autocast,
    blocks,
    compiled,
    device,
    graphed,
    made,
    on_gpu,
    pair,
    rand,
    size,
    trainer,
    whole,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def sent(values: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A list as a tensor on the device, through pinned memory and without a wait."""
    return torch.tensor(values, dtype=dtype, pin_memory=on_gpu()).to(device(), non_blocking=True)


def tf32(on: bool) -> None:
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.cuda.matmul.allow_tf32 = on


# ------------------------------------------------------------------------------------------------ syncs


class TripleScorer(nn.Module):
    """How likely a (head, relation, tail) is."""

    def __init__(self, entities: int, relations: int, width: int, hidden: int):
        super().__init__()
        self.entities, self.relations = nn.Embedding(entities, width), nn.Embedding(relations, width)
        self.first, self.second = nn.Linear(3 * width, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1)

    def forward(self, triples: Tensor) -> Tensor:
        head, relation, tail = triples.unbind(-1)
        x = torch.cat([self.entities(head), self.relations(relation), self.entities(tail)], -1)
        return self.last(F.relu(self.second(F.relu(self.first(x))))).squeeze(-1)


@pair(
    "g",
    "sync",
    "host-sync",
    "a knowledge graph's triples are corrupted in Python, and each batch counts its hits with .item(); fixed: the "
    "count stays on the GPU. Same batches, same updates, same count; only where it is kept differs",
)
def corrupted_triples(fixed: bool) -> Step:
    entities, relations = size(20_000, 50), size(200, 5)
    rng = random.Random(0)
    count = size(1536, 8)
    facts = [
        (rng.randrange(entities), rng.randrange(relations), rng.randrange(entities))
        for _ in range(16 * count)
    ]
    known = set(facts)
    model = made(lambda: TripleScorer(entities, relations, size(512, 8), size(6144, 16)), BF16)
    optimizer = adamw(model)
    place = 0

    def corrupt(batch: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        wrong = []
        for head, relation, tail in batch:
            candidate = (head, relation, tail)
            while candidate in known:
                other = rng.randrange(entities)
                candidate = (other, relation, tail) if rng.random() < 0.5 else (head, relation, other)
            wrong.append(candidate)
        return wrong

    def step() -> Any:
        nonlocal place
        hits: Any = 0
        for _ in range(3):
            batch = facts[place : place + count]
            place = (place + count) % len(facts)
            triples = sent(batch + corrupt(batch))
            optimizer.zero_grad(set_to_none=True)
            true, false = model(triples).float().chunk(2)
            F.softplus(false - true).mean().backward()
            optimizer.step()
            right = (true.detach() > false.detach()).sum()
            hits = hits + (right if fixed else right.item())
        return hits

    return step


@pair(
    "g",
    "sync",
    "host-sync",
    "masked-word training over 6 micro-batches with a throughput meter that synchronises after each; fixed: the meter "
    "only reads the clock. Same masks, gradients and update; the wait computes nothing",
)
def masked_words(fixed: bool) -> Step:
    words, width, length, rows = size(8192, 50), size(1024, 32), size(128, 40), size(24, 2)
    rng = random.Random(1)
    vocabulary = {f"word{n}": n for n in range(words)}
    texts = [" ".join(f"word{rng.randrange(4, words)}" for _ in range(length)) for _ in range(8 * rows)]
    parts = lambda: nn.Sequential(  # noqa: E731
        nn.Embedding(words, width),
        *blocks(size(4, 1), width, size(16, 2), fused=True),
        nn.Linear(width, words),
    )
    model = made(parts, BF16)
    optimizer = adamw(model)
    meter: list[float] = []
    place = 0

    def collate(batch: list[str]) -> tuple[Tensor, Tensor]:
        inputs, targets = [], []
        for text in batch:
            for token in text.split():
                word = vocabulary.get(token, 1)
                draw = rng.random()
                if draw < 0.12:
                    inputs.append(3)
                elif draw < 0.135:
                    inputs.append(int(rng.random() * words))
                else:
                    inputs.append(word)
                targets.append(word if draw < 0.15 else -100)
        return sent(inputs), sent(targets)

    def step() -> Tensor:
        nonlocal place
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device())
        meter.clear()
        since = time.perf_counter()
        for _ in range(6):
            inputs, targets = collate(texts[place : place + rows])
            place = (place + rows) % len(texts)
            logits = model(inputs.view(rows, length)).flatten(0, 1)
            loss = F.cross_entropy(logits, targets) / 6
            loss.backward()
            total += loss.detach()
            if not fixed and on_gpu():
                torch.cuda.synchronize()
            now = time.perf_counter()
            meter.append(rows * length / (now - since))
            since = now
        optimizer.step()
        return total

    return step


class ExpertChoice(nn.Module):
    """Experts that choose their tokens, a fixed number each."""

    def __init__(self, width: int, hidden: int, experts: int, capacity: int, *, batched: bool):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.ups = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.downs = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.experts, self.capacity, self.batched = experts, capacity, batched

    def forward(self, x: Tensor) -> Tensor:
        likely = self.router(x).float().softmax(-1).t()
        weights, chosen = likely.topk(self.capacity, dim=1)
        weights, y = weights.to(x.dtype), torch.zeros_like(x)
        if self.batched:
            h = torch.bmm(F.gelu(torch.bmm(x[chosen], self.ups)), self.downs)
            y.index_add_(0, chosen.flatten(), (h * weights.unsqueeze(-1)).flatten(0, 1))
            return x + y
        gates = torch.zeros(self.experts, len(x), dtype=x.dtype, device=x.device).scatter_(1, chosen, weights)
        for expert in range(self.experts):
            mine = gates[expert].nonzero().squeeze(1)
            if mine.numel() == 0:
                continue
            h = F.gelu(x[mine] @ self.ups[expert]) @ self.downs[expert]
            y.index_add_(0, mine, h * gates[expert, mine].unsqueeze(1))
        return x + y


@pair(
    "g",
    "sync",
    "host-sync",
    "a mixture of experts in which each expert looks for its tokens with nonzero(); fixed: all experts at once from "
    "the router's own indices. Same tokens for the same experts with the same weights, so the same sums",
)
def chosen_experts(fixed: bool) -> Step:
    width, tokens, experts = size(1024, 16), size(8192, 32), size(16, 4)
    capacity = 2 * tokens // experts
    make = lambda: nn.Sequential(  # noqa: E731
        *(ExpertChoice(width, 4 * width, experts, capacity, batched=fixed) for _ in range(size(6, 1)))
    )
    model = made(make, BF16)
    x = rand(tokens, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


# ------------------------------------------------------------------------------------------------ overlap


@pair(
    "g",
    "exposed copies",
    "exposed-communication",
    "gradient buckets are sent to the host, as a CPU all-reduce wants them, after the whole backward pass; fixed: each "
    "on a side stream once full. Same buckets, same bytes, all there before the optimizer starts",
)
def bucket_push(fixed: bool) -> Step:
    width, hidden = size(2048, 16), size(8192, 32)
    make = lambda: nn.ModuleList(  # noqa: E731
        nn.Sequential(nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, width, bias=False))
        for _ in range(size(4, 2))
    )
    layers = made(make, BF16)
    optimizer = adamw(layers)
    x0, target = rand(size(6144, 8), width, dtype=BF16), rand(size(6144, 8), width, dtype=BF16)
    side = torch.cuda.Stream() if on_gpu() else None
    buckets, hosts, full = [], [], []
    for layer in layers:
        parameters = list(layer.parameters())
        bucket = torch.zeros(sum(p.numel() for p in parameters), device=device(), dtype=BF16)
        begin = 0
        for p in parameters:
            p.grad = bucket[begin : begin + p.numel()].view_as(p)
            begin += p.numel()
        buckets.append(bucket)
        hosts.append(torch.empty(bucket.shape, dtype=BF16, pin_memory=on_gpu()))
        full.append(0)

    def push(number: int) -> None:
        hosts[number].copy_(buckets[number], non_blocking=True)

    def arrived(number: int) -> Callable[[Tensor], None]:
        def hook(_: Tensor) -> None:
            full[number] += 1
            if full[number] % 2:
                return
            if side is None:
                push(number)
                return
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                push(number)

        return hook

    if fixed:
        for number, layer in enumerate(layers):
            for p in layer.parameters():
                p.register_post_accumulate_grad_hook(arrived(number))

    def step() -> Tensor:
        for bucket in buckets:
            bucket.zero_()
        x = x0
        for layer in layers:
            x = x + layer(x)
        loss = F.mse_loss(x.float(), target.float())
        loss.backward()
        if not fixed:
            for number in reversed(range(len(buckets))):
                push(number)
        elif side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        return loss.detach()

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


class StateSpace(nn.Module):
    """A selective state-space layer that takes one token at a time."""

    def __init__(self, width: int, states: int, batch: int):
        super().__init__()
        inner, self.rank, self.states = 2 * width, max(1, width // 16), states
        self.norm, self.enter = nn.LayerNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.taps = nn.Parameter(torch.randn(inner, 4) * 0.5)
        self.select = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.rate, self.leave = nn.Linear(self.rank, inner), nn.Linear(inner, width, bias=False)
        self.decay = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.register_buffer("window", torch.zeros(batch, inner, 4))
        self.register_buffer("state", torch.zeros(batch, inner, states))

    def forward(self, x: Tensor) -> Tensor:
        h, gate = self.enter(self.norm(x)).chunk(2, -1)
        self.window.copy_(torch.cat([self.window[..., 1:], h.unsqueeze(-1)], -1))
        h = F.silu((self.window * self.taps).sum(-1))
        rate, enter, leave = self.select(h).split([self.rank, self.states, self.states], -1)
        delta = F.softplus(self.rate(rate)).unsqueeze(-1)
        kept = torch.exp(-delta * self.decay.exp())
        self.state.mul_(kept).add_(delta * enter.unsqueeze(1) * h.unsqueeze(-1))
        y = (self.state * leave.unsqueeze(1)).sum(-1) + self.skip * h
        return x + self.leave(y * F.silu(gate))


@pair(
    "g",
    "launch-bound",
    "launch-bound",
    "a state-space language model that serves four streams a token at a time; fixed: CUDA graph. The graph holds the "
    "same kernels on the same buffers",
)
def state_space_serve(fixed: bool) -> Step:
    words, width, batch = size(32_000, 40), size(1024, 16), 4
    layers = made(
        lambda: nn.Sequential(*(StateSpace(width, size(16, 4), batch) for _ in range(size(24, 2)))), BF16
    )
    table = made(lambda: nn.Embedding(words, width), BF16)
    token = whole(words, batch)

    @torch.no_grad()
    def step() -> Tensor:
        logits = F.linear(F.layer_norm(layers(table(token)), (width,)), table.weight)
        token.copy_(logits.argmax(-1))
        return logits

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


def _unit(inner: int, outer: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outer),
        nn.LeakyReLU(0.1, inplace=True),
    )


class Shortcut(nn.Module):
    """A narrow and a wide convolution, and the input added."""

    def __init__(self, width: int):
        super().__init__()
        self.inside = nn.Sequential(_unit(width, width // 2, 1), _unit(width // 2, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


def _darknet(stages: tuple[tuple[int, int], ...], outputs: int) -> nn.Sequential:
    inner = stages[0][0] // 2
    layers: list[nn.Module] = [_unit(3, inner, 3)]
    for width, count in stages:
        layers += [_unit(inner, width, 3, 2), *(Shortcut(width) for _ in range(count))]
        inner = width
    return nn.Sequential(*layers, nn.Conv2d(inner, outputs, 1))


@pair(
    "g",
    "layout",
    "layout-conversions",
    "a Darknet classifier with batch norm trained under autocast in NCHW; fixed: model and pictures in channels_last. "
    "Same convolutions on the same values; only their order in memory differs",
)
def darknet_nchw(fixed: bool) -> Step:
    stages = ((16, 1), (32, 1)) if TINY else ((64, 1), (128, 2), (256, 4), (512, 4))
    model = made(lambda: _darknet(stages, size(1000, 10)))
    side, batch = size(224, 16), size(64, 2)
    pictures, labels = rand(batch, 3, side, side), whole(size(1000, 10), batch)
    if fixed:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=on_gpu())

    def loss_of() -> Tensor:
        with autocast():
            return F.cross_entropy(model(pictures).mean((2, 3)), labels)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ attention


class CrossRead(nn.Module):
    """Latents that read a long input."""

    def __init__(self, width: int, inputs: int, heads: int, *, fused: bool):
        super().__init__()
        self.norm, self.inputs_norm = nn.LayerNorm(width), nn.LayerNorm(inputs)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(inputs, 2 * width)
        self.out, self.heads, self.fused = nn.Linear(width, width), heads, fused
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, latents: Tensor, inputs: Tensor) -> Tensor:
        batch, count, width = latents.shape
        q = self.q(self.norm(latents)).view(batch, count, self.heads, -1).transpose(1, 2)
        kv = self.kv(self.inputs_norm(inputs)).view(batch, inputs.shape[1], 2, self.heads, -1)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            read = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
            read = torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)
        latents = latents + self.out(read.transpose(1, 2).reshape(batch, count, width))
        return latents + self.mlp(latents)


@pair(
    "g",
    "unfused attention",
    "unfused-attention",
    "a Perceiver whose 2048 latents read 32768 inputs with softmax(q k) v written out; fixed: SDPA. Same attention, "
    "same weights, same gradients up to rounding",
)
def perceiver_reads(fixed: bool) -> Step:
    width, inputs, count = size(1024, 32), size(512, 16), size(2048, 8)
    reads = made(
        lambda: nn.ModuleList(CrossRead(width, inputs, size(8, 2), fused=fixed) for _ in range(size(3, 1))),
        BF16,
    )
    optimizer = adamw(reads)
    latents, signal = rand(1, count, width, dtype=BF16), rand(1, size(32_768, 64), inputs, dtype=BF16)
    target = rand(1, count, width)

    def loss_of() -> Tensor:
        x = latents
        for read in reads:
            x = read(x, signal)
        return F.mse_loss(x.float(), target)

    return trainer(reads, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ tensor cores


class TimedResidual(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, inner: int, outer: int, clock: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.clock = nn.Linear(clock, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, clock: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.clock(clock)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    """Three levels down and up, as diffusion models of pixels have them."""

    def __init__(self, width: int, clock: int):
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(clock, clock), nn.SiLU(), nn.Linear(clock, clock), nn.SiLU())
        self.down = nn.ModuleList(
            TimedResidual(inner, outer, clock)
            for inner, outer in zip((width, *widths[:2]), widths, strict=True)
        )
        self.middle = TimedResidual(widths[2], widths[2], clock)
        self.up = nn.ModuleList(
            TimedResidual(2 * outer, inner, clock)
            for inner, outer in zip((width, *widths[:2]), widths, strict=True)
        )
        self.clock = clock

    def forward(self, x: Tensor, moment: Tensor) -> Tensor:
        waves = torch.exp(torch.linspace(0, -8, self.clock // 2, device=x.device)) * moment[:, None] * 1000
        clock = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        h, kept = self.stem(x), []
        for level, layer in enumerate(self.down):
            h = layer(F.avg_pool2d(h, 2) if level else h, clock)
            kept.append(h)
        h = self.middle(h, clock)
        for level in (2, 1, 0):
            h = self.up[level](torch.cat([h, kept[level]], 1), clock)
            h = F.interpolate(h, scale_factor=2.0) if level else h
        return self.head(F.silu(h))


@pair(
    "g",
    "no tensor cores",
    "no-tensor-cores",
    "a time-conditioned denoising UNet trained in fp32 with TF32 off; fixed: TF32 on. Same model, noise and update up "
    "to TF32's rounding",
)
def denoiser_fp32(fixed: bool) -> Step:
    tf32(fixed)
    side, batch = size(64, 8), size(16, 2)
    model = made(lambda: Denoiser(size(128, 8), size(256, 8)))
    pictures = rand(batch, 3, side, side)

    def loss_of() -> Tensor:
        noise, moment = torch.randn_like(pictures), torch.rand(batch, device=device())
        angle = (moment * math.pi / 2)[:, None, None, None]
        return F.mse_loss(model(angle.cos() * pictures + angle.sin() * noise, moment), noise)

    return trainer(model, adamw(model), loss_of)


class GatedFeedForward(nn.Module):
    """SwiGLU, optionally with columns of zeros behind its hidden ones."""

    def __init__(self, width: int, hidden: int, padded: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up, self.down = (
            nn.Parameter(F.pad(torch.randn(hidden, width) * width**-0.5, (0, 0, 0, padded - hidden)))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + (F.silu(F.linear(h, self.gate)) * F.linear(h, self.up)) @ self.down


@pair(
    "g",
    "misaligned",
    "misaligned-gemm",
    "SwiGLU layers of int(8 / 3 * 1280) = 3413 hidden units; fixed: padded with zeros to 3456. The added units give "
    "zero and get zero gradients, so every result stays",
)
def swiglu_odd(fixed: bool) -> Step:
    width = size(1280, 32)
    hidden = int(8 * width / 3)
    padded = (hidden + 127) // 128 * 128 if fixed else hidden
    make = lambda: nn.Sequential(  # noqa: E731
        *(GatedFeedForward(width, hidden, padded) for _ in range(size(4, 2)))
    )
    model = made(make, BF16)
    x, target = rand(size(16_384, 8), width, dtype=BF16), rand(size(16_384, 8), width)
    return trainer(model, adamw(model), lambda: F.mse_loss(model(x).float(), target))


# ------------------------------------------------------------------------------------------------ optimizer


class ForecastBlock(nn.Module):
    """What a series' past explains of itself and of its future."""

    def __init__(self, past: int, future: int, width: int):
        super().__init__()
        widths = (past, width, width, width)
        self.layers = nn.ModuleList(nn.Linear(inner, width) for inner in widths)
        self.past, self.future = nn.Linear(width, past, bias=False), nn.Linear(width, future, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x
        for layer in self.layers:
            h = F.relu(layer(h))
        return x - self.past(h), self.future(h)


@pair(
    "g",
    "loop optimizer",
    "loop-optimizer",
    "an N-BEATS forecaster with AdamW(foreach=False); fixed: AdamW(fused=True). Same formula for every parameter",
)
def forecast_stacks(fixed: bool) -> Step:
    tf32(True)
    past, future, batch = size(256, 12), size(64, 4), size(1024, 4)
    make = lambda: nn.ModuleList(  # noqa: E731
        ForecastBlock(past, future, size(512, 16)) for _ in range(size(12, 2))
    )
    model = made(make)
    kind: dict[str, bool] = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, **kind)
    series, target = rand(batch, past), rand(batch, future)

    def loss_of() -> Tensor:
        x, forecast = series, torch.zeros_like(target)
        for block in model:
            x, part = block(x)
            forecast = forecast + part
        return F.smooth_l1_loss(forecast, target)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ copies and casts


class StoredLinear(nn.Module):
    """A layer kept in fp8 with a scale per output."""

    def __init__(self, inner: int, outer: int, *, ready: bool):
        super().__init__()
        weight = torch.randn(outer, inner) * inner**-0.5
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.weight, self.scale = (weight / scale).to(torch.float8_e4m3fn), scale.to(BF16)
        self.ready = self.unpacked() if ready else None

    def unpacked(self) -> Tensor:
        return self.weight.to(BF16) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.unpacked() if self.ready is None else self.ready)


@pair(
    "g",
    "dtype casts",
    "dtype-casts",
    "a feed-forward stack stored in fp8 unpacks every weight to bf16 in each call; fixed: unpacked once and kept. The "
    "products see the same bf16 weights",
)
def fp8_stored(fixed: bool) -> Step:
    width, hidden = size(4096, 32), size(11_008, 48)
    with torch.device(device()):
        layers = [
            tuple(
                StoredLinear(*shape, ready=fixed)
                for shape in ((width, hidden), (width, hidden), (hidden, width))
            )
            for _ in range(size(6, 2))
        ]
    x0 = rand(size(1024, 4), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for gate, up, down in layers:
            h = F.layer_norm(x, (width,))
            x = x + down(F.silu(gate(h)) * up(h))
        return x

    return step


@pair(
    "g",
    "dtype casts",
    "dtype-casts",
    "a reranker serves fp32 weights under autocast, which casts them anew in every call; fixed: its linear layers are "
    "kept in bf16. The products see the same bf16 weights; norms and sums stay in fp32",
)
def reranker_autocast(fixed: bool) -> Step:
    width = size(4096, 32)
    make = lambda: blocks(size(6, 1), width, size(32, 2), fused=True)  # noqa: E731
    model = made(make).eval().requires_grad_(False)
    score = made(lambda: nn.Linear(width, 1)).requires_grad_(False)
    if fixed:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.to(BF16)
    pairs = rand(size(4, 2), size(128, 8), width)

    @torch.no_grad()
    def step() -> Tensor:
        with autocast():
            return score(model(pairs)[:, 0]).float()

    return step


@pair(
    "g",
    "copies",
    "redundant-copies",
    "users are repeated for each of their candidates, and the candidates cloned, before both are compared; fixed: "
    "broadcast, and read where they are. Same products and differences of the same numbers",
)
def candidate_grid(fixed: bool) -> Step:
    users, candidates, width = size(768, 3), size(4096, 5), size(256, 8)
    wanted, offered = rand(users, width, dtype=BF16), rand(users, candidates, width, dtype=BF16)
    alike, apart = (made(lambda: nn.Linear(width, size(64, 4)), BF16) for _ in range(2))

    @torch.no_grad()
    def step() -> Tensor:
        if fixed:
            user, items = wanted.unsqueeze(1), offered
        else:
            user, items = wanted.unsqueeze(1).repeat(1, candidates, 1), offered.clone()
        hidden = F.relu(alike(user * items)) + F.relu(apart(user - items))
        return hidden.sum(-1)

    return step


@pair(
    "g",
    "host-device copies",
    "pageable-copy",
    "hyperspectral cubes are copied from pageable memory before each step; fixed: pinned, the next one fetched on a "
    "side stream meanwhile. Same cubes in the same order",
)
def spectral_cubes(fixed: bool) -> Step:
    batch, bands, side, width = size(16, 2), size(200, 12), size(64, 8), size(256, 16)
    layers: list[nn.Module] = [_unit(bands, width, 1)]
    layers += [_unit(width, width, 3) for _ in range(size(5, 1))]
    model = made(lambda: nn.Sequential(*layers, nn.Conv2d(width, 20, 1))).to(device())
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=on_gpu())
    cubes = [torch.randn(batch, bands, side, side) for _ in range(3)]
    labels = whole(20, batch, side, side)
    fetch = torch.cuda.Stream() if fixed and on_gpu() else None
    if fetch is not None:
        cubes = [cube.pin_memory() for cube in cubes]
    count = 0

    def take() -> Tensor:
        nonlocal count
        count += 1
        return cubes[count % 3].to(device(), non_blocking=fetch is not None)

    def take_aside() -> Tensor:
        with torch.cuda.stream(fetch):
            return take()

    ahead = torch.empty(0) if fetch is None else take_aside()

    def loss_of() -> Tensor:
        nonlocal ahead
        if fetch is None:
            cube = take()
        else:
            torch.cuda.current_stream().wait_stream(fetch)
            cube = ahead
            cube.record_stream(torch.cuda.current_stream())
            ahead = take_aside()
        with autocast():
            return F.cross_entropy(model(cube.contiguous(memory_format=torch.channels_last)), labels)

    return trainer(model, optimizer, loss_of)


@pair(
    "g",
    "tiny copies",
    "tiny-copies",
    "a text server copies four settings of each of its 64 requests one by one; fixed: one table, one copy. Same "
    "settings, so the same words",
)
def request_settings(fixed: bool) -> Step:
    width, words, many = size(8192, 32), size(128_256, 300), size(64, 4)
    make = lambda: nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(size(32, 2)))  # noqa: E731
    layers, head = made(make, BF16), made(lambda: nn.Linear(width, words, bias=False), BF16)
    x0 = rand(many, width, dtype=BF16)
    requests = [
        {
            "temperature": 0.7 + n % 5 / 10,
            "top_p": 0.8 + n % 4 / 25,
            "bias": n % 3 / 10,
            "draw": (n + 0.5) / many,
        }
        for n in range(many)
    ]
    names = ("temperature", "top_p", "bias", "draw")

    def settings() -> list[Tensor]:
        if fixed:
            table = sent([[request[name] for request in requests] for name in names], torch.float32)
            return list(table.unsqueeze(-1))
        columns = []
        for name in names:
            column = [torch.tensor(request[name], dtype=torch.float32).to(device()) for request in requests]
            columns.append(torch.stack(column).unsqueeze(-1))
        return columns

    @torch.no_grad()
    def step() -> Tensor:
        temperature, top_p, bias, draw = settings()
        x = x0
        for layer in layers:
            x = x + F.silu(layer(F.layer_norm(x, (width,))))
        logits, ids = head(x).float().topk(size(256, 16))
        logits[:, 0] -= bias[:, 0]
        chances = (logits / temperature).softmax(-1)
        chances = chances * (chances.cumsum(-1) - chances < top_p)
        reached = chances.cumsum(-1) >= draw * chances.sum(-1, keepdim=True)
        return ids.gather(-1, reached.float().argmax(-1, keepdim=True))

    return step


# ------------------------------------------------------------------------------------------------ allocator


class Enlarger(nn.Module):
    """Super-resolution without norms."""

    def __init__(self, width: int, count: int):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(count)
        )
        self.grow = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = x
        for layer in self.body:
            h = h + layer(h)
        return self.head(F.interpolate(self.grow(h + x), scale_factor=2.0))


@pair(
    "g",
    "allocator churn",
    "allocator-churn",
    "a picture enlarger calls empty_cache() after every tile, lest memory run out; fixed: it does not. Same tiles "
    "through the same network",
)
def enlarge_tiles(fixed: bool) -> Step:
    side = size(768, 12)
    model = made(lambda: Enlarger(size(64, 8), size(8, 1)), BF16).to(memory_format=torch.channels_last).eval()
    tiles = [
        rand(1, 3, side, side, dtype=BF16).contiguous(memory_format=torch.channels_last) for _ in range(2)
    ]

    @torch.no_grad()
    def step() -> Tensor:
        means = []
        for tile in tiles:
            means.append(model(tile).float().mean())
            if not fixed:
                torch.cuda.empty_cache()
        return torch.stack(means)

    return step


# ------------------------------------------------------------------------------------------------ host


class Molecules(Dataset):  # type: ignore[type-arg]
    """Fingerprints of made-up molecules, hashed from their formulas in Python."""

    def __init__(self, bits: int, length: int):
        self.bits, self.length = bits, length

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.float32]:
        rng = random.Random(index)
        formula = "".join(rng.choices("CCCCNOSFcccn()=1234", k=self.length)).encode()
        print_ = np.zeros(self.bits, dtype=np.float32)
        for width in range(1, 7):
            for begin in range(len(formula) - width + 1):
                print_[zlib.crc32(formula[begin : begin + width]) % self.bits] += 1
        return print_, np.float32(zlib.crc32(formula) % 1000 / 1000)


@pair(
    "g",
    "data loading",
    "input-bound",
    "molecules are hashed into fingerprints by the training process; fixed: by 8 persistent loader workers. Same "
    "molecules in the same order, same model",
)
def molecule_prints(fixed: bool) -> Step:
    workers, bits, width = size(8, 1) if fixed else 0, size(2048, 32), size(4096, 16)
    loader = DataLoader(
        Molecules(bits, size(50, 12)),
        batch_size=size(48, 4),
        num_workers=workers,
        pin_memory=on_gpu(),
        persistent_workers=workers > 0,
        prefetch_factor=4 if workers else None,
    )
    batches: Iterator[list[Tensor]] = iter(loader)
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(bits, width),
        *(m for _ in range(size(6, 1)) for m in (nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width))),
        nn.Linear(width, 1),
    )
    model = made(make)

    def loss_of() -> Tensor:
        prints, target = (part.to(device(), non_blocking=True) for part in next(batches))
        with autocast():
            guess = model(prints).squeeze(-1)
        return F.mse_loss(guess.float(), target)

    return trainer(model, adamw(model), loss_of)


@pair(
    "g",
    "python gap",
    "host-stall",
    "a heartbeat classifier counts all the labels of its data set in every step to weigh its loss; fixed: counted once. "
    "The weights are the same each time",
)
def class_counts(fixed: bool) -> Step:
    width, classes, batch, length = size(768, 32), 12, size(16, 2), size(256, 8)
    rng = random.Random(2)
    labels = [min(int(rng.expovariate(0.4)), classes - 1) for _ in range(size(80_000, 200))]
    make = lambda: nn.Sequential(  # noqa: E731
        *blocks(size(4, 1), width, size(12, 2), fused=True), nn.Linear(width, classes)
    )
    model = made(make, BF16)
    x, target = rand(batch, length, width, dtype=BF16), sent(labels[:batch])

    def weights() -> Tensor:
        counts = Counter(labels)
        return sent([len(labels) / (classes * max(1, counts[n])) for n in range(classes)], BF16)

    once = weights()

    def loss_of() -> Tensor:
        weight = once if fixed else weights()
        return F.cross_entropy(model(x).mean(1), target, weight=weight)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ recompute, fusion


class ConditionedBlock(nn.Module):
    """A diffusion transformer's block: norms shifted, scaled and gated by a condition."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width, elementwise_affine=False)
        self.condition = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.condition(F.silu(condition)).unsqueeze(1).chunk(6, -1)
        h = self.norm(x) * (1 + parts[0]) + parts[1]
        q, k, v = self.qkv(h).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + parts[2] * self.out(h)
        h = self.norm(x) * (1 + parts[3]) + parts[4]
        return x + parts[5] * self.down(F.gelu(self.up(h), approximate="tanh"))


@pair(
    "g",
    "recompute",
    "recompute",
    "a diffusion transformer with every block checkpointed on a GPU with memory to spare; fixed: not checkpointed. "
    "Same loss and gradients; the blocks are merely not run twice",
)
def latent_transformer(fixed: bool) -> Step:
    width, batch, length = size(1024, 32), size(32, 2), size(256, 8)
    model = made(lambda: nn.ModuleList(ConditionedBlock(width, size(16, 2)) for _ in range(size(8, 2))))
    latents, condition, noise = rand(batch, length, width), rand(batch, width), rand(batch, length, width)

    def loss_of() -> Tensor:
        with autocast():
            x = latents
            for block in model:
                x = block(x, condition) if fixed else checkpoint(block, x, condition, use_reentrant=False)
        return F.mse_loss(x.float(), noise)

    return trainer(model, adamw(model), loss_of)


def _augment(
    pictures: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, gamma: Tensor, shade: Tensor
) -> Tensor:
    """Colours changed as photographs' are, one operation after the other."""
    x = pictures.float() / 255
    x = (x * brightness).clamp(0, 1)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = ((x - mean) * contrast + mean).clamp(0, 1)
    grey = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    x = ((x - grey) * saturation + grey).clamp(1e-4, 1)
    x = x.pow(gamma) * shade
    x = (x - 0.45) / 0.225
    return x.to(BF16)


@pair(
    "g",
    "unfused elementwise",
    "unfused-elementwise",
    "photographs are augmented on the GPU by some twenty elementwise operations before a small ViT; fixed: "
    "torch.compile of the augmentation. Same formulas on the same pictures",
)
def photo_augment(fixed: bool) -> Step:
    batch, side, patch, width = size(128, 2), size(384, 16), size(16, 4), size(512, 32)
    pictures = whole(256, batch, 3, side, side).to(torch.uint8)
    factors = [0.8 + 0.4 * torch.rand(batch, 1, 1, 1, device=device()) for _ in range(4)]
    shade = torch.linspace(0.8, 1, side, device=device()).expand(side, side).contiguous()
    augment: Callable[..., Tensor] = compiled(_augment) if fixed else _augment
    patches = made(lambda: nn.Conv2d(3, width, patch, stride=patch), BF16)
    model = made(lambda: blocks(1, width, size(8, 2), fused=True), BF16)

    @torch.no_grad()
    def step() -> Tensor:
        tokens = patches(augment(pictures, *factors, shade)).flatten(2).transpose(1, 2)
        return model(tokens).mean(1)

    return step


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "g",
    "healthy",
    "host-sync",
    "a large model asks after every micro-batch whether its loss is finite; change: torch.where on the GPU instead. Same "
    "gradients, for the loss is finite",
)
def healthy_guard(fixed: bool) -> Step:
    width, batch, length = size(2560, 32), size(8, 1), size(1024, 8)
    model = made(lambda: blocks(size(3, 1), width, size(20, 2), fused=True, causal=True), BF16)
    optimizer = adamw(model)
    data = [rand(batch, length, width, dtype=BF16) for _ in range(2)]

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device())
        for x in data:
            loss = F.mse_loss(model(x)[:, :-1].float(), x[:, 1:].float()) / len(data)
            if fixed:
                torch.where(torch.isfinite(loss), loss, torch.zeros_like(loss)).backward()
            elif torch.isfinite(loss).item():
                loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


@pair(
    "g",
    "healthy",
    "launch-bound",
    "a sound tagger scores 32 long spectrograms at once; change: CUDA graph. Same kernels, which keep the GPU busy "
    "either way",
)
def healthy_sounds(fixed: bool) -> Step:
    width = size(1536, 32)
    model = made(lambda: blocks(size(6, 1), width, size(12, 2), fused=True), BF16).eval()
    tags = made(lambda: nn.Linear(width, size(527, 6)), BF16)
    sounds = rand(size(32, 2), size(512, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return torch.sigmoid(tags(model(sounds).mean(1)))

    return graphed(step) if fixed else step


@pair(
    "g",
    "healthy",
    "layout-conversions",
    "a detector already in channels_last turns its small input around in every step; change: turned around once. Same "
    "pictures, same layers",
)
def healthy_detector(fixed: bool) -> Step:
    stages = ((16, 1), (32, 1)) if TINY else ((64, 2), (128, 3), (256, 4), (512, 2))
    model = made(lambda: _darknet(stages, size(85, 5))).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=on_gpu())
    side = size(256, 16)
    pictures = rand(size(64, 2), 3, side, side)
    if fixed:
        pictures = pictures.contiguous(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        with autocast():
            return model(pictures.contiguous(memory_format=torch.channels_last)).float().square().mean()

    return trainer(model, optimizer, loss_of)


@pair(
    "g",
    "healthy",
    "pageable-copy",
    "a large event model copies its ids from pageable memory; change: pinned and non_blocking. Same ids, and a fraction "
    "of a megabyte before tens of milliseconds of products",
)
def healthy_events(fixed: bool) -> Step:
    kinds, width, batch, length = size(16_000, 40), size(2048, 32), size(8, 2), size(1024, 8)
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Embedding(kinds, width),
        *blocks(size(4, 1), width, size(16, 2), fused=True, causal=True),
        nn.Linear(width, kinds, bias=False),
    )
    model = made(make, BF16)
    events = [torch.randint(0, kinds, (batch, length + 1)) for _ in range(4)]
    if fixed and on_gpu():
        events = [each.pin_memory() for each in events]
    count = 0

    def loss_of() -> Tensor:
        nonlocal count
        count += 1
        ids = events[count % 4].to(device(), non_blocking=fixed)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return trainer(model, adamw(model), loss_of)


@pair(
    "g",
    "healthy",
    "loop-optimizer",
    "a radiance field of nine layers, a quarter of a million points a step, with AdamW(foreach=False); change: fused. "
    "Same update of 18 tensors, a hundredth of the step",
)
def healthy_field(fixed: bool) -> Step:
    width, points = size(1024, 16), size(262_144, 32)
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(64, width),
        *(m for _ in range(size(7, 1)) for m in (nn.ReLU(), nn.Linear(width, width))),
        nn.ReLU(),
        nn.Linear(width, 16),
    )
    model = made(make)
    kind: dict[str, bool] = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)
    places, colours = rand(points, 64), rand(points, 16)

    def loss_of() -> Tensor:
        with autocast():
            seen = model(places)
        return F.mse_loss(seen.float(), colours)

    return trainer(model, optimizer, loss_of)


class Reader(nn.Module):
    """An encoder's block with SDPA, its projections apart or joined."""

    def __init__(self, width: int, heads: int, *, joined: bool):
        super().__init__()
        parts = [nn.Linear(width, width, bias=False) for _ in range(3)]
        self.heads, self.parts, self.joined = heads, nn.ModuleList([] if joined else parts), None
        if joined:
            self.joined = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        parts = (
            [part(h) for part in self.parts]
            if self.joined is None
            else list(F.linear(h, self.joined).chunk(3, -1))
        )
        q, k, v = (part.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in parts)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@pair(
    "g",
    "healthy",
    "unfused-attention",
    "a document encoder with SDPA and three projections; change: one joined projection. The same weights side by side, "
    "the same products",
)
def healthy_documents(fixed: bool) -> Step:
    width = size(2048, 32)
    make = lambda: nn.Sequential(  # noqa: E731
        *(Reader(width, size(16, 2), joined=fixed) for _ in range(size(4, 1)))
    )
    model = made(make, BF16).eval()
    texts = rand(size(8, 2), size(2048, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(texts).mean(1)

    return step
