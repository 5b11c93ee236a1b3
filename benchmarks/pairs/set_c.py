"""More programs for `measure.py`, written without a look at `src/foretrace/diagnose` and `predict`.

Half "c": programs whose predictions are frozen before they are measured; in each of them both variants do the
same work per step, and the note says why. Half "p": two programs of the corpus in their good form,
beside the one thing that could still be tried on them.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Block,
    Residual,
    Step,
    _mean_square,
    _tf32,
    _vision,
    adamw,
    autocast,
    blocks,
    compiled,
    conv_stack,
    device,
    graphed,
    on_gpu,
    pair,
    rand,
    size,
    trainer,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def linears(count: int, width: int, *, bias: bool = True) -> nn.ModuleList:
    layers = (nn.Linear(width, width, bias=bias, device=device(), dtype=BF16) for _ in range(count))
    return nn.ModuleList(layers)


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "c",
    "sync",
    "host-sync",
    "gradient clipping that adds up each tensor's norm with .item(); fixed: the same norms stacked and the "
    "scale kept on the GPU. Same norms and same scaling of every gradient",
)
def grad_norm_items(fixed: bool) -> Step:
    width = size(256, 32)
    model = blocks(size(12, 1), width, size(4, 2), fused=True).to(device(), BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=on_gpu())
    x = rand(size(16, 2), size(128, 8), width, dtype=BF16)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        model(x).float().square().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm: Any
        scale: Any
        if fixed:
            norm = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float32) for g in grads]).norm()
            scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        else:
            norm = 0.0
            for grad in grads:
                norm += torch.linalg.vector_norm(grad, dtype=torch.float32).item() ** 2
            norm = norm**0.5
            scale = min(1.0, 1.0 / (norm + 1e-6))
        for grad in grads:
            grad.mul_(scale)
        optimizer.step()
        return norm

    return step


@pair(
    "c",
    "sync",
    "host-sync",
    "conjugate gradients that look at the residual after every iteration; fixed: after the last one. The "
    "tolerance is never met, so both do all iterations",
)
def solver_check(fixed: bool) -> Step:
    width = size(4096, 32)
    root = rand(width, width)
    matrix = root @ root.t() / width + 0.01 * torch.eye(width, device=device())
    right = rand(width)

    @torch.no_grad()
    def step() -> Tensor:
        x, r = torch.zeros_like(right), right
        p, rr = r, torch.dot(r, r)
        for _ in range(size(40, 6)):
            product = torch.mv(matrix, p)
            alpha = rr / torch.dot(p, product)
            x, r = x + alpha * p, r - alpha * product
            before, rr = rr, torch.dot(r, r)
            if not fixed and rr.item() < 1e-12:
                break
            p = r + (rr / before) * p
        if fixed and rr.item() < 1e-12:
            raise ValueError("converged: the two variants differ")
        return x

    return step


@pair(
    "c",
    "sync",
    "host-sync",
    "padding dropped and put back around every layer by a boolean mask; fixed: the positions are found once "
    "a step and used by index. The same rows are computed; the repeated nonzero goes",
)
def unpad_layers(fixed: bool) -> Step:
    width, batch, length = size(1024, 32), size(16, 2), size(512, 8)
    ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(size(10, 2))).to(device(), BF16)
    downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(size(10, 2))).to(device(), BF16)
    x0 = rand(batch, length, width, dtype=BF16)
    lengths = torch.tensor([length - (n * 5 % 8) * length // 12 for n in range(batch)], device=device())
    mask = torch.arange(length, device=device()).unsqueeze(0) < lengths.unsqueeze(1)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        places = mask.flatten().nonzero().squeeze(1) if fixed else None
        for up, down in zip(ups, downs, strict=True):
            packed = x[mask] if places is None else x.flatten(0, 1).index_select(0, places)
            packed = packed + down(F.gelu(up(packed)))
            x = torch.zeros_like(x0)
            if places is None:
                x[mask] = packed
            else:
                x.flatten(0, 1).index_copy_(0, places, packed)
        return x

    return step


@pair(
    "c",
    "sync",
    "host-sync",
    "experts' token counts brought to the host by tolist() in every layer; fixed: the known capacity. The "
    "router is balanced, so the slices are the same; the counts are still taken, on the GPU",
)
def moe_counts(fixed: bool) -> Step:
    width, tokens, experts = size(1024, 32), size(4096, 64), size(8, 4)
    ups = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(experts)).to(device(), BF16)
    downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(experts)).to(device(), BF16)
    router = rand(width, experts, dtype=BF16)
    x0 = rand(tokens, width, dtype=BF16)
    assigned = (torch.arange(tokens, device=device()) * 5) % experts
    names = torch.arange(experts, device=device())

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for _ in range(size(6, 2)):
            weight = (x @ router).float().softmax(-1).amax(-1, keepdim=True).to(BF16)
            counts = (assigned.unsqueeze(1) == names).sum(0)
            order = assigned.argsort()
            sizes = [tokens // experts] * experts if fixed else counts.tolist()
            parts = x.index_select(0, order).split(sizes)
            mixed = [down(F.silu(up(part))) for part, up, down in zip(parts, ups, downs, strict=True)]
            x = x + torch.empty_like(x).index_copy_(0, order, torch.cat(mixed)) * weight
        return x

    return step


# ------------------------------------------------------------------------------------------------ overlap


@pair(
    "c",
    "exposed copies",
    None,
    "a model too large for the GPU: each layer's weight is copied from the host right before its use; "
    "fixed: the next one on a side stream meanwhile. Same copies and products",
)
def weight_streaming(fixed: bool) -> Step:
    width, rows, count = size(4096, 32), size(16384, 8), size(8, 3)
    stored = [torch.randn(width, width).mul_(0.02).to(BF16) for _ in range(count)]
    if on_gpu():
        stored = [each.pin_memory() for each in stored]
    slots = [torch.empty(width, width, device=device(), dtype=BF16) for _ in range(2)]
    x0 = rand(rows, width, dtype=BF16)

    @torch.no_grad()
    def serial() -> Tensor:
        x = x0
        for n, weight in enumerate(stored):
            slots[n % 2].copy_(weight, non_blocking=True)
            x = F.relu(F.linear(x, slots[n % 2]))
        return x

    if not fixed or not on_gpu():
        return serial
    side = torch.cuda.Stream()
    ready = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]

    def load(n: int) -> None:
        with torch.cuda.stream(side):
            slots[n % 2].copy_(stored[n], non_blocking=True)
            ready[n % 2].record(side)

    @torch.no_grad()
    def ahead() -> Tensor:
        x, main = x0, torch.cuda.current_stream()
        side.wait_stream(main)
        load(0)
        for n in range(count):
            if n + 1 < count:
                if n:
                    side.wait_event(used[(n + 1) % 2])
                load(n + 1)
            main.wait_event(ready[n % 2])
            x = F.relu(F.linear(x, slots[n % 2]))
            used[n % 2].record(main)
        return x

    return ahead


@pair(
    "c",
    "exposed copies",
    "exposed-communication",
    "data parallel without NCCL: after the backward pass every gradient travels to the host and back; "
    "fixed: each as soon as it is ready, on a side stream. Same copies and products",
)
def gradient_exchange(fixed: bool) -> Step:
    width, rows = size(3072, 32), size(12288, 8)
    layers = (nn.Linear(width, width, bias=False) for _ in range(size(6, 2)))
    model = nn.Sequential(*layers).to(device(), BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=on_gpu())
    x = rand(rows, width, dtype=BF16)
    buffers = {p: torch.empty(p.shape, dtype=BF16, pin_memory=on_gpu()) for p in model.parameters()}
    side = torch.cuda.Stream() if on_gpu() else None

    def exchange(p: Tensor) -> None:
        assert p.grad is not None
        buffers[p].copy_(p.grad, non_blocking=True)
        p.grad.copy_(buffers[p], non_blocking=True)

    def when_ready(p: Tensor) -> None:
        if side is None:
            exchange(p)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            exchange(p)

    if fixed:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(when_ready)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).float().square().mean()
        loss.backward()
        if not fixed:
            for p in model.parameters():
                exchange(p)
        elif side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        return loss

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


@pair(
    "c",
    "launch-bound",
    "launch-bound",
    "an LSTM cell called once per time step; fixed: the loop as a CUDA graph, same kernels",
)
def lstm_cells(fixed: bool) -> Step:
    width, batch, length = size(512, 16), size(32, 2), size(96, 4)
    cell = nn.LSTMCell(width, width).to(device(), BF16)
    xs = rand(length, batch, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        h = c = torch.zeros(batch, width, device=device(), dtype=BF16)
        for x in xs:
            h, c = cell(x, (h, c))
        return h

    return graphed(step) if fixed else step


class _Decoder(nn.Module):
    """One token through a block with grouped-query attention, RMS norm and a cache."""

    def __init__(self, width: int, heads: int, groups: int, batch: int, length: int):
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.q, self.kv = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, 2 * groups * self.head, bias=False),
        )
        self.out, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.scales = nn.Parameter(torch.ones(2, width))
        shape = (batch, groups, length, self.head)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    @staticmethod
    def norm(x: Tensor, scale: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * scale

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        batch = x.shape[0]
        keys, values = self.get_buffer("keys"), self.get_buffer("values")
        h = self.norm(x, self.scales[0])
        q = self.q(h).view(batch, self.heads, 1, self.head)
        k, v = self.kv(h).view(batch, 2, self.groups, 1, self.head).unbind(1)
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        many = self.heads // self.groups
        k, v = (each.unsqueeze(2).expand(-1, -1, many, -1, -1).flatten(1, 2) for each in (keys, values))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).reshape(batch, -1))
        h = self.norm(x, self.scales[1])
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pair(
    "c",
    "launch-bound",
    "launch-bound",
    "a server's decode step with grouped-query attention; fixed: CUDA graph, same kernels",
)
def grouped_decode(fixed: bool) -> Step:
    width, batch = size(1024, 32), size(4, 2)
    layers = [_Decoder(width, size(16, 4), size(4, 2), batch, size(1024, 8)) for _ in range(size(16, 2))]
    model = nn.ModuleList(layers).to(device(), BF16).eval()
    head = nn.Linear(width, size(32000, 50), bias=False).to(device(), BF16)
    x0, place = rand(batch, width, dtype=BF16), torch.tensor([3], device=device())

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for layer in model:
            x = layer(x, place)
        return head(x).argmax(-1)

    return graphed(step) if fixed else step


@pair(
    "c",
    "launch-bound",
    "launch-bound",
    "a small policy and its world rolled out in a loop; fixed: CUDA graph, same kernels",
)
def policy_rollout(fixed: bool) -> Step:
    state0, drive = rand(size(256, 4), 64), rand(8, 64) * 0.1
    policy = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    policy = policy.to(device())

    @torch.no_grad()
    def step() -> Tensor:
        state, reward = state0, torch.zeros(len(state0), device=device())
        for _ in range(size(48, 4)):
            action = torch.tanh(policy(state))
            state = 0.95 * state + action @ drive
            reward = reward - state.square().mean(-1)
        return reward

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


class _ConvNeXt(nn.Module):
    """Depthwise 7x7, layer norm over channels, two linear layers."""

    def __init__(self, width: int):
        super().__init__()
        self.depth, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(h))).permute(0, 3, 1, 2)


@pair(
    "c",
    "layout",
    "layout-conversions",
    "a ConvNeXt trained under autocast in NCHW; fixed: channels_last, same layers",
)
def convnext_nchw(fixed: bool) -> Step:
    width, side = size(96, 8), size(128, 16)
    model = nn.Sequential(
        nn.Conv2d(3, width, 4, stride=4),
        *(_ConvNeXt(width) for _ in range(size(3, 1))),
        nn.Conv2d(width, 2 * width, 2, stride=2),
        *(_ConvNeXt(2 * width) for _ in range(size(3, 1))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 100),
    )
    return _vision(model, rand(size(64, 2), 3, side, side), last=fixed)


def _conv(inner: int, outer: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outer))


class _Inverted(nn.Module):
    """MobileNet's inverted residual."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.depth = _conv(width, 6 * width, 1), _conv(6 * width, 6 * width, 3, groups=6 * width)
        self.down = _conv(6 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu6(self.depth(F.relu6(self.up(x)))))


@pair(
    "c",
    "layout",
    "layout-conversions",
    "a MobileNet that serves bf16 batches in NCHW; fixed: channels_last, same layers",
)
def mobilenet_nchw(fixed: bool) -> Step:
    width, side = size(24, 4), size(128, 16)
    model: nn.Module = nn.Sequential(
        _conv(3, width, 3, stride=2),
        *(_Inverted(width) for _ in range(size(4, 1))),
        _conv(width, 2 * width, 3, stride=2),
        *(_Inverted(2 * width) for _ in range(size(4, 1))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    model, x = model.to(device(), BF16).eval(), rand(size(64, 2), 3, side, side, dtype=BF16)
    if fixed:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


class _Bottleneck(nn.Module):
    """ResNet's block: two 3x3, or 1x1, 3x3 and 1x1 around a narrower middle."""

    def __init__(self, inner: int, middle: int, outer: int, stride: int):
        super().__init__()
        if middle == outer:
            self.layers = nn.ModuleList([_conv(inner, outer, 3, stride=stride), _conv(outer, outer, 3)])
        else:
            self.layers = nn.ModuleList(
                [_conv(inner, middle, 1), _conv(middle, middle, 3, stride=stride), _conv(middle, outer, 1)]
            )
        same = inner == outer and stride == 1
        self.skip = nn.Identity() if same else _conv(inner, outer, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers[:-1]:
            h = F.relu(layer(h), inplace=True)
        h = self.layers[-1](h)
        h += self.skip(x)
        return F.relu(h, inplace=True)


def _resnet(counts: tuple[int, ...], width: int, grow: int, classes: int) -> nn.Sequential:
    """torchvision's ResNet: `grow` is 1 for 18 and 34, 4 for 50 and more."""
    layers: list[nn.Module] = [_conv(3, width, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inner = width
    for level, count in enumerate(counts):
        middle = width << level
        for place in range(count):
            layers.append(_Bottleneck(inner, middle, grow * middle, 2 if level and not place else 1))
            inner = grow * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))


@pair(
    "c",
    "layout",
    "layout-conversions",
    "a ResNet-18 trained under autocast in NCHW; fixed: channels_last, same layers",
)
def resnet18_nchw(fixed: bool) -> Step:
    side = size(160, 32)
    model = _resnet((1, 1) if TINY else (2, 2, 2, 2), size(64, 4), 1, 100)
    return _vision(model, rand(size(128, 2), 3, side, side), last=fixed)


# ------------------------------------------------------------------------------------------------ attention


def _attend(q: Tensor, k: Tensor, v: Tensor, *, fused: bool) -> Tensor:
    if fused:
        return F.scaled_dot_product_attention(q, k, v)
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v


class _Painter(nn.Module):
    """A diffusion model's block: attention to itself, attention to the text, two linear layers."""

    def __init__(self, width: int, heads: int, *, fused: bool):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.q = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.kv, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 4 * width)
        self.outs, self.down = (
            nn.ModuleList(nn.Linear(width, width) for _ in range(2)),
            nn.Linear(4 * width, width),
        )
        self.heads, self.fused = heads, fused

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.outs[0](_attend(q, k, v, fused=self.fused).transpose(1, 2).flatten(2))
        q = self.split(self.q(self.norms[1](x)))
        k, v = (self.split(part) for part in self.kv(text).chunk(2, -1))
        x = x + self.outs[1](_attend(q, k, v, fused=self.fused).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[2](x))))


@pair(
    "c",
    "unfused attention",
    "unfused-attention",
    "a diffusion transformer whose self- and cross-attention are written out; fixed: SDPA, same outputs",
)
def painter_attention(fixed: bool) -> Step:
    width = size(1024, 32)
    layers = [_Painter(width, size(16, 2), fused=fixed) for _ in range(size(4, 1))]
    model = nn.ModuleList(layers).to(device(), BF16).eval()
    x0, text = (rand(size(8, 1), length, width, dtype=BF16) for length in (size(2048, 64), size(77, 7)))

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for layer in model:
            x = layer(x, text)
        return x

    return step


@pair(
    "c",
    "unfused attention",
    "unfused-attention",
    "training over 6144 tokens, heads of 128, attention written out without a mask; fixed: SDPA, same loss",
)
def long_bidirectional(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(2, 1), width, size(8, 2), fused=fixed).to(device(), BF16)
    x = rand(1, size(6144, 80), width, dtype=BF16)
    return trainer(model, adamw(model), partial(_mean_square, model, x))


@pair(
    "c",
    "unfused attention",
    "unfused-attention",
    "the prefill of 12288 tokens, heads of 64, causal attention written out; fixed: SDPA, same outputs",
)
def long_prefill(fixed: bool) -> Step:
    width = size(512, 32)
    model = blocks(size(2, 1), width, size(8, 2), fused=fixed, causal=True).to(device(), BF16).eval()
    x = rand(1, size(12288, 80), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


# ------------------------------------------------------------------------------------------------ tensor cores


@pair(
    "c",
    "no tensor cores",
    "no-tensor-cores",
    "a picture decoder (VAE) in fp32 with TF32 off; fixed: TF32 on, same layers",
)
def picture_decoder_fp32(fixed: bool) -> Step:
    _tf32(fixed)
    width, side = size(256, 16), size(64, 8)
    model = nn.Sequential(
        nn.Conv2d(4, width, 3, padding=1),
        Residual(width, width),
        nn.Upsample(scale_factor=2),
        Residual(width, width // 2),
        nn.Upsample(scale_factor=2),
        Residual(width // 2, width // 2),
        nn.Conv2d(width // 2, 3, 3, padding=1),
    )
    model = model.to(device()).eval()
    x = rand(size(4, 1), 4, side, side)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


@pair(
    "c",
    "misaligned",
    "misaligned-gemm",
    "an MLP over 1023 features with 3071 hidden ones; fixed: 1024 and 3072, the new ones zero, so that the "
    "outputs are the same",
)
def odd_features(fixed: bool) -> Step:
    narrow, wide, rows = size(1023, 15), size(3071, 31), size(16384, 8)
    more = 1 if fixed else 0
    shapes = [(wide, narrow), (narrow, wide)] * size(4, 1)
    weights = [F.pad(rand(*shape, dtype=BF16) * 0.03, (0, more, 0, more)) for shape in shapes]
    x0 = F.pad(rand(rows, narrow, dtype=BF16), (0, more))

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for weight in weights:
            x = F.gelu(F.linear(x, weight))
        return x[:, :narrow]

    return step


# ------------------------------------------------------------------------------------------------ optimizer


@pair(
    "c",
    "loop optimizer",
    "loop-optimizer",
    "Adam over 200 million fp32 parameters one tensor at a time; fixed: fused, same update",
)
def adam_large(fixed: bool) -> Step:
    width = size(2048, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True).to(device())
    kind: dict[str, Any] = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **kind)
    x = rand(size(4, 1), size(256, 8), width)

    def loss_of() -> Tensor:
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, optimizer, loss_of)


@pair(
    "c",
    "loop optimizer",
    "loop-optimizer",
    "AMSGrad over 240 small tensors one at a time; fixed: fused, same update",
)
def amsgrad_small(fixed: bool) -> Step:
    layers = (m for _ in range(size(60, 2)) for m in (nn.Linear(192, 192), nn.SiLU(), nn.LayerNorm(192)))
    model = nn.Sequential(*layers).to(device())
    kind: dict[str, Any] = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, amsgrad=True, **kind)
    return trainer(model, optimizer, partial(_mean_square, model, rand(size(1024, 8), 192)))


# ------------------------------------------------------------------------------------------------ copies and casts


@pair(
    "c",
    "copies",
    "redundant-copies",
    "gradient accumulation by hand: each micro-step's gradients are cloned, added to a total and dropped; "
    "fixed: backward() adds them up. Same sums",
)
def accumulate_clone(fixed: bool) -> Step:
    width = size(2048, 32)
    model = nn.Sequential(*linears(size(6, 2), width, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=on_gpu())
    data = [rand(size(1024, 4), width, dtype=BF16) for _ in range(size(6, 2))]

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        sums: list[Tensor] = []
        total = torch.zeros((), device=device())
        for x in data:
            loss = model(x).float().square().mean() / len(data)
            loss.backward()
            total = total + loss.detach()
            if not fixed:
                held = [p.grad.clone() for p in model.parameters() if p.grad is not None]
                sums = [a + b for a, b in zip(sums, held, strict=True)] if sums else held
                model.zero_grad(set_to_none=True)
        if not fixed:
            for p, grad in zip(model.parameters(), sums, strict=True):
                p.grad = grad
        optimizer.step()
        return total

    return step


@pair(
    "c",
    "copies",
    "redundant-copies",
    "an MLP-Mixer that transposes and copies around its mixing of tokens; fixed: the weight multiplied from "
    "the left. Same products",
)
def mixer_transpose(fixed: bool) -> Step:
    tokens, width, batch, count = size(1024, 16), size(768, 32), size(32, 2), size(6, 2)
    ins = [rand(tokens, tokens, dtype=BF16) * 0.03 for _ in range(count)]
    outs = [rand(tokens, tokens, dtype=BF16) * 0.03 for _ in range(count)]
    x0 = rand(batch, tokens, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for one, two in zip(ins, outs, strict=True):
            if fixed:
                x = x + two @ F.gelu(one @ x)
            else:
                h = x.transpose(1, 2).contiguous()
                h = F.linear(F.gelu(F.linear(h, one)), two)
                x = x + h.transpose(1, 2).contiguous()
        return x

    return step


@pair(
    "c",
    "dtype casts",
    "dtype-casts",
    "int8 weights turned into bf16 in every forward pass; fixed: turned once. Same products, same outputs",
)
def int8_weights(fixed: bool) -> Step:
    width = size(4096, 32)
    stored = [
        torch.randint(-127, 128, (width, width), device=device(), dtype=torch.int8) for _ in range(size(8, 2))
    ]
    scales = [rand(width, 1).abs().mul_(3e-4).to(BF16) for _ in stored]
    ready = [q.to(BF16) * s for q, s in zip(stored, scales, strict=True)] if fixed else []
    x0 = rand(size(512, 4), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for n, (q, s) in enumerate(zip(stored, scales, strict=True)):
            x = F.relu(F.linear(x, ready[n] if fixed else q.to(BF16) * s))
        return x

    return step


@pair(
    "c",
    "dtype casts",
    "dtype-casts",
    "layer norms called in fp32 between bf16 layers; fixed: called in bf16, which computes in fp32 inside: "
    "same outputs",
)
def norms_in_fp32(fixed: bool) -> Step:
    width = size(2048, 32)
    layers, x0 = linears(size(8, 2), width), rand(size(16384, 8), width, dtype=BF16)
    full = torch.ones(width, device=device()), torch.zeros(width, device=device())
    half = full[0].to(BF16), full[1].to(BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for layer in layers:
            if fixed:
                h = F.layer_norm(x, (width,), *half)
            else:
                h = F.layer_norm(x.float(), (width,), *full).to(BF16)
            x = x + layer(h)
        return x

    return step


@pair(
    "c",
    "host-device copies",
    "pageable-copy",
    "rows of a host table gathered into pageable memory, then copied; fixed: gathered into one of two "
    "pinned buffers and copied without waiting. Same rows",
)
def pageable_gather(fixed: bool) -> Step:
    rows, width = size(16384, 8), size(256, 16)
    table = torch.randn(size(100_000, 50), width)
    picks = [torch.randint(0, len(table), (rows,)) for _ in range(4)]
    model = nn.Sequential(
        nn.Linear(width, size(2048, 32)), nn.ReLU(), nn.Linear(size(2048, 32), size(2048, 32)), nn.ReLU()
    )
    model = model.to(device(), BF16)
    pinned = [torch.empty(rows, width, pin_memory=fixed and on_gpu()) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in pinned] if on_gpu() else []
    count = 0

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal count
        ids, place = picks[count % 4], count % 2
        count += 1
        if not fixed:
            return model(table.index_select(0, ids).to(device()).to(BF16))
        if copied:
            copied[place].synchronize()  # the buffer's last copy has left
        torch.index_select(table, 0, ids, out=pinned[place])
        x = pinned[place].to(device(), non_blocking=True)
        if copied:
            copied[place].record()
        return model(x.to(BF16))

    return step


@pair(
    "c",
    "tiny copies",
    "tiny-copies",
    "a diffusion sampler that makes its time and two coefficients on the host for every iteration; fixed: "
    "taken from tables on the GPU. Same numbers",
)
def sampler_tables(fixed: bool) -> Step:
    width, count = size(512, 32), size(24, 4)
    block = Block(width, size(8, 2), fused=True).to(device(), BF16).eval()
    times = nn.Embedding(1000, width).to(device(), BF16)
    alphas = np.cos(np.linspace(0.01, 1.5, count)).tolist()
    x0 = rand(size(8, 1), size(256, 8), width, dtype=BF16)
    ready_alphas = torch.tensor(alphas, device=device(), dtype=BF16)
    ready_sigmas = torch.tensor([1 - a for a in alphas], device=device(), dtype=BF16)
    ready_times = torch.arange(count, device=device())

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for n in range(count):
            if fixed:
                alpha, sigma, when = ready_alphas[n], ready_sigmas[n], ready_times[n : n + 1]
            else:
                alpha = torch.tensor(alphas[n], dtype=BF16).to(device())
                sigma = torch.tensor(1 - alphas[n], dtype=BF16).to(device())
                when = torch.tensor([n]).to(device())
            x = alpha * x + sigma * block(x + times(when))
        return x

    return step


@pair(
    "c",
    "allocator churn",
    "allocator-churn",
    "an evaluation that calls torch.cuda.empty_cache() after each of 4 batches; fixed: without it, same "
    "batches",
)
def empty_cache_batches(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True).to(device(), BF16).eval()
    data = [rand(size(4, 1), size(1024, 8), width, dtype=BF16) for _ in range(4)]

    @torch.no_grad()
    def step() -> Tensor:
        total = torch.zeros((), device=device())
        for x in data:
            y = model(x)
            total = total + y.float().square().mean()
            del y
            if not fixed:
                torch.cuda.empty_cache()
        return total

    return step


# ------------------------------------------------------------------------------------------------ host


_WORD = re.compile(r"[a-z]+|[0-9]+")


class _Texts(Dataset):  # type: ignore[type-arg]
    """Texts that are split by a regular expression and looked up when they are asked for."""

    def __init__(self, length: int):
        self.length = length
        self.words = [f"w{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(600)]
        self.vocabulary = {word: n for n, word in enumerate(self.words)}

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        text = " ".join(self.words[(index + n * n) % 600] for n in range(self.length))
        ids = [self.vocabulary.get(word, 0) for word in _WORD.findall(text.lower())]
        return torch.tensor(ids[: self.length])


@pair(
    "c",
    "data loading",
    "input-bound",
    "texts tokenised by the training process itself; fixed: by 6 workers. Same batches in the same order",
)
def loader_texts(fixed: bool) -> Step:
    width, workers = size(512, 32), size(6, 1) if fixed else 0
    loader = DataLoader(
        _Texts(size(512, 8)),
        batch_size=size(32, 2),
        num_workers=workers,
        pin_memory=on_gpu(),
        persistent_workers=workers > 0,
    )
    batches = iter(loader)
    table = nn.Embedding(1000, width)
    model = nn.Sequential(table, *blocks(size(4, 1), width, size(8, 2), fused=True, causal=True))
    model = model.to(device(), BF16)
    return trainer(
        model, adamw(model), lambda: _mean_square(model, next(batches).to(device(), non_blocking=True))
    )


@pair(
    "c",
    "data loading",
    "input-bound",
    "compressed frames unpacked one after the other in the step; fixed: by 8 threads, two steps ahead. Same "
    "frames",
)
def inflate_frames(fixed: bool) -> Step:
    side, batch = size(128, 16), size(32, 2)
    wave = np.random.default_rng(0).normal(size=(batch, 3, side, side)).cumsum(-1)
    packed = [zlib.compress(frame.astype(np.int8).tobytes()) for frame in wave]
    model = conv_stack((8, 16) if TINY else (64, 64, 128, 128)).to(device(), BF16)
    model = model.to(memory_format=torch.channels_last).eval()
    pool = ThreadPoolExecutor(8) if fixed else None

    def unpack(data: bytes) -> Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(data)), dtype=torch.int8).view(3, side, side)

    waiting: deque[list[Future[Tensor]]] = deque()

    def frames() -> list[Tensor]:
        if pool is None:
            return [unpack(data) for data in packed]
        while len(waiting) < 3:
            waiting.append([pool.submit(unpack, data) for data in packed])
        return [each.result() for each in waiting.popleft()]

    @torch.no_grad()
    def step() -> Tensor:
        x = torch.stack(frames()).to(device())
        return model(x.to(BF16, memory_format=torch.channels_last).div_(64))

    return step


@pair(
    "c",
    "python gap",
    "host-stall",
    "a training step that turns its whole history into JSON; fixed: it does not. Same training",
)
def history_json(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(3, 1), width, size(16, 2), fused=True, causal=True).to(device(), BF16)
    x = rand(size(4, 1), size(512, 8), width, dtype=BF16)
    train = trainer(model, adamw(model), partial(_mean_square, model, x))
    history = [{"step": n, "loss": 1 / (n + 1), "rate": 1e-4} for n in range(size(5000, 10))]

    def step() -> Tensor:
        loss = train()
        if not fixed:
            json.dumps(history)
        return loss

    return step


# ------------------------------------------------------------------------------------------------ recompute, fusion


@pair(
    "c",
    "recompute",
    "recompute",
    "a convolution net whose every block is checkpointed though memory is plenty; fixed: none. Same "
    "gradients",
)
def checkpointed_convs(fixed: bool) -> Step:
    width, side = size(128, 8), size(64, 8)
    model = nn.Sequential(*(Residual(width, width) for _ in range(size(6, 2)))).to(device(), BF16)
    x = rand(size(16, 1), width, side, side, dtype=BF16)
    if on_gpu():  # on the CPU torch 2.13 crashes in this order
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        h = x
        for block in model:
            h = block(h) if fixed else checkpoint(block, h, use_reentrant=False)
        return h.float().square().mean()

    return trainer(model, adamw(model), loss_of)


@pair(
    "c",
    "unfused elementwise",
    "unfused-elementwise",
    "Monte-Carlo dropout with bias, GELU, dropout and residual written out; fixed: torch.compile. Same "
    "operations, other random numbers",
)
def dropout_residual(fixed: bool) -> Step:
    width = size(4096, 32)
    weights = [rand(width, width, dtype=BF16) * 0.015 for _ in range(size(4, 2))]
    bias, x0 = rand(width, dtype=BF16), rand(size(8192, 8), width, dtype=BF16)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        for weight in weights:
            h = x @ weight
            h = h + bias
            h = 0.5 * h * (1.0 + torch.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
            keep = (torch.rand_like(h) > 0.1).to(h.dtype)
            x = x + h * keep / 0.9
        return x

    return partial(compiled(step) if fixed else step, x0)


@pair(
    "c",
    "unfused elementwise",
    "unfused-elementwise",
    "a detector's focal loss written out over all anchors; fixed: torch.compile. Same loss",
)
def focal_loss(fixed: bool) -> Step:
    side = size(192, 8)
    logits = rand(size(64, 2), size(80, 4), side, side)
    target = (rand(*logits.shape) > 2).float()

    @torch.no_grad()
    def step(logits: Tensor, target: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        cross = -(target * torch.log(p + 1e-6) + (1 - target) * torch.log(1 - p + 1e-6))
        right = p * target + (1 - p) * (1 - target)
        weight = 0.25 * target + 0.75 * (1 - target)
        return (weight * (1 - right) ** 2 * cross).sum((1, 2, 3)).mean()

    return partial(compiled(step) if fixed else step, logits, target)


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "c",
    "healthy",
    "host-sync",
    "a large vision step that reads its loss and its accuracy once; change: they stay on the GPU, same "
    "training",
)
def healthy_metrics(fixed: bool) -> Step:
    side, batch = size(128, 16), size(192, 4)
    model = conv_stack((8, 16) if TINY else (64, 64, 128, 128, 256, 256, 256)).to(device())
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=on_gpu())
    x = rand(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (batch,), device=device())

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            scores = model(x)
            loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        right = (scores.argmax(1) == y).float().mean()
        return (loss.detach(), right) if fixed else (loss.item(), right.cpu())

    return step


@pair(
    "c",
    "healthy",
    "launch-bound",
    "a large decoder's training step; change: the whole step, optimizer included, as a CUDA graph, same "
    "kernels",
)
def healthy_graph(fixed: bool) -> Step:
    width = size(2048, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True, causal=True).to(device(), BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu(), capturable=fixed and on_gpu())
    x = rand(size(8, 1), size(1024, 8), width, dtype=BF16)
    step = trainer(model, optimizer, partial(_mean_square, model, x))
    return graphed(step) if fixed else step


@pair(
    "c",
    "healthy",
    "unfused-elementwise",
    "inference by six products of 8192; change: torch.compile, same products",
)
def healthy_products(fixed: bool) -> Step:
    width = size(8192, 32)
    model = nn.Sequential(*(m for layer in linears(size(6, 2), width) for m in (layer, nn.ReLU())))
    x0 = rand(size(8192, 8), width, dtype=BF16)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return model(x)

    return partial(compiled(step) if fixed else step, x0)


@pair(
    "c",
    "healthy",
    "misaligned-gemm",
    "a language model's head of 50264 words, a multiple of 8; change: 50304, a multiple of 128 (0.08 % more "
    "work)",
)
def healthy_vocabulary(fixed: bool) -> Step:
    width, words = size(1024, 32), (50304 if fixed else 50264) if not TINY else 104
    body = blocks(size(3, 1), width, size(16, 2), fused=True, causal=True)
    model = nn.Sequential(*body, nn.Linear(width, words, bias=False)).to(device(), BF16)
    x = rand(size(8, 1), size(1024, 8), width, dtype=BF16)
    target = torch.randint(0, 100, (size(8192, 8),), device=device())
    return trainer(model, adamw(model), lambda: F.cross_entropy(model(x).flatten(0, 1), target))


@pair(
    "c",
    "healthy",
    "pageable-copy",
    "a large training step that copies its 128 KB of ids from pageable memory; change: pinned, "
    "non_blocking, same ids",
)
def healthy_pageable(fixed: bool) -> Step:
    width, batch, length = size(1024, 32), size(16, 2), size(1024, 8)
    table = nn.Embedding(1000, width)
    model = nn.Sequential(table, *blocks(size(6, 1), width, size(16, 2), fused=True, causal=True))
    model = model.to(device(), BF16)
    ids = torch.randint(0, 1000, (batch, length))
    if fixed and on_gpu():
        ids = ids.pin_memory()
    return trainer(model, adamw(model), lambda: _mean_square(model, ids.to(device(), non_blocking=fixed)))


@pair(
    "c",
    "healthy",
    "loop-optimizer",
    "Adam, foreach as by default, in a step that it is 2 % of; change: fused, same update",
)
def healthy_foreach(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(6, 1), width, size(16, 2), fused=True).to(device(), BF16)
    kind: dict[str, Any] = {"fused": True} if fixed and on_gpu() else {"foreach": True}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **kind)
    x = rand(size(32, 1), size(1024, 8), width, dtype=BF16)
    return trainer(model, optimizer, partial(_mean_square, model, x))


@pair(
    "c",
    "healthy",
    "host-stall",
    "a host that sleeps 3 ms in a step of which the GPU needs far more and that waits for nothing; change: "
    "no sleep, same training",
)
def healthy_sleep(fixed: bool) -> Step:
    width = size(2048, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True).to(device(), BF16)
    x = rand(size(12, 1), size(1024, 8), width, dtype=BF16)
    train = trainer(model, adamw(model), partial(_mean_square, model, x))

    def step() -> Tensor:
        loss = train()
        if not fixed:
            time.sleep(0.003)
        return loss

    return step


@pair(
    "c", "healthy", "launch-bound", "fp8 products of 8192 with their casts; change: CUDA graph, same kernels"
)
def healthy_fp8(fixed: bool) -> Step:
    width = size(8192, 32)
    fp8 = torch.float8_e4m3fn
    weights = [rand(width, width).to(fp8) for _ in range(size(6, 2))]
    small, one = torch.tensor(0.01, device=device()), torch.ones((), device=device())
    x0 = rand(width, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for weight in weights:
            x = torch._scaled_mm(x.to(fp8), weight.t(), scale_a=small, scale_b=one, out_dtype=BF16)
        return x

    return graphed(step) if fixed else step


@pair(
    "c",
    "healthy",
    "redundant-copies",
    "contiguous() on what is contiguous already, between large layers, where it copies nothing; change: "
    "without it",
)
def healthy_contiguous(fixed: bool) -> Step:
    width = size(2048, 32)
    layers, x0 = linears(size(10, 2), width), rand(16, size(1024, 4), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for layer in layers:
            x = layer(x) if fixed else layer(x.contiguous()).contiguous()
            x = F.gelu(x) if fixed else F.gelu(x.view(-1, width)).view(x.shape).contiguous()
        return x

    return step


# ------------------------------------------------------------------------------------------------ promises


@pair(
    "p",
    "launch-bound",
    "launch-bound",
    "the corpus's item_sync.fixed, as its recording shows it; change: the whole step as a CUDA graph, same "
    "work",
)
def item_sync_fixed(fixed: bool) -> Step:
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(10)).to(device())
    x0 = rand(size(64, 4), 256)

    def step() -> Tensor:
        x = x0
        for layer in layers:
            x = F.relu(layer(x))
            x = torch.where(x.max() > 100, x / 2, x)
        total = x.sum()
        total.backward()  # the gradients add up: the recorded program has no optimizer and never clears them
        return total.detach()

    return graphed(step) if fixed else step


@pair(
    "p",
    "launch-bound",
    "launch-bound",
    "the corpus's resnet50.fixed, as its recording shows it (batch 32, autocast, channels_last, SGD); "
    "change: the whole step, optimizer included, as a CUDA graph, same work",
)
def resnet50_fixed(fixed: bool) -> Step:
    batch, side = size(32, 2), size(224, 32)
    model = _resnet((1, 1) if TINY else (3, 4, 6, 3), size(64, 4), 4, size(1000, 10)).to(device())
    model = model.to(memory_format=torch.channels_last)
    x = rand(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, size(1000, 10), (batch,), device=device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of() -> Tensor:
        with autocast():
            return F.cross_entropy(model(x), y)

    step = trainer(model, optimizer, loss_of)
    return graphed(step) if fixed else step
