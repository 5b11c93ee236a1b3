"""Programs for `measure.py` written later than `set_c.py`, again without a look at `diagnose` and `predict`.

Half "d": predictions are frozen before these are measured; in each of them both variants do the same work per
step, and the note says why.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Residual,
    Step,
    UNet,
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
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.data import DataLoader, Dataset


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, fused=on_gpu())


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "d",
    "sync",
    "host-sync",
    "a detector whose box loss picks the positive anchors by a boolean mask, level by level, if there are "
    "any; fixed: the mask multiplied into the dense loss. Same sum over the same anchors and same gradients; "
    "the loss itself, a small part, is computed for all anchors",
)
def positive_anchors(fixed: bool) -> Step:
    width, batch, anchors = size(128, 8), size(16, 2), 9
    head = nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 4 * anchors, 3, padding=1),
    ).to(device(), BF16)
    sides = (8, 4) if TINY else (64, 32, 16, 8, 4)
    levels = [rand(batch, width, side, side, dtype=BF16) for side in sides]
    targets = [rand(batch, side * side * anchors, 4) for side in sides]
    positives = [rand(batch, side * side * anchors) > 1.5 for side in sides]

    def loss_of() -> Tensor:
        total, count = torch.zeros((), device=device()), torch.zeros((), device=device())
        for x, target, positive in zip(levels, targets, positives, strict=True):
            boxes = head(x).permute(0, 2, 3, 1).reshape(batch, -1, 4).float()
            if fixed:
                each = F.smooth_l1_loss(boxes, target, reduction="none")
                total = total + (each * positive.unsqueeze(-1)).sum()
            elif positive.any():
                total = total + F.smooth_l1_loss(boxes[positive], target[positive], reduction="sum")
            count = count + positive.sum()
        return total / count.clamp(min=1)

    return trainer(head, sgd(head), loss_of)


@pair(
    "d",
    "sync",
    "host-sync",
    "int8 products with activations quantised on the fly, the scale of each layer read by .item(); fixed: "
    "the scale stays a tensor. Same quantisation, same products",
)
def int8_dynamic(fixed: bool) -> Step:
    width, rows = size(2048, 32), size(2048, 32)
    weights = [
        torch.randint(-127, 128, (width, width), device=device(), dtype=torch.int8)
        for _ in range(size(16, 2))
    ]
    weight_scale = 1.4 / (73 * width**0.5)
    x0 = rand(rows, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for weight in weights:
            scale: Any = x.abs().amax().float() / 127
            if not fixed:
                scale = scale.item()
            small = (x.float() / scale).round().clamp(-127, 127).to(torch.int8)
            x = F.gelu((torch._int_mm(small, weight.t()) * (scale * weight_scale)).to(BF16))
        return x

    return step


class _Expert(nn.Module):
    """Mixtral's expert."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


@pair(
    "d",
    "sync",
    "host-sync",
    "a mixture of experts, two per token, each expert's tokens found by torch.where; fixed: by one stable "
    "argsort a layer. The router is balanced, so the same tokens reach the same experts in the same order",
)
def two_experts(fixed: bool) -> Step:
    experts, layers = size(8, 4), size(4, 2)
    tokens, width = experts * (experts - 1) * size(64, 2), size(1024, 32)
    with torch.device(device()):
        model = nn.ModuleList(_Expert(width, size(3584, 64)) for _ in range(experts)).to(BF16)
        place = torch.arange(tokens)
    selected = torch.stack([place, place + 1 + place // experts % (experts - 1)], 1) % experts
    gate, x0 = rand(width, experts, dtype=BF16) * 0.05, rand(tokens, width, dtype=BF16)
    each = 2 * tokens // experts

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for _ in range(layers):
            weights = (x @ gate).float().softmax(-1).gather(1, selected)
            weights = (weights / weights.sum(-1, keepdim=True)).to(BF16)
            out = torch.zeros_like(x)
            order = selected.flatten().argsort(stable=True) if fixed else None
            for number, expert in enumerate(model):
                if order is not None:
                    mine = order[number * each : (number + 1) * each]
                    token, slot = mine // 2, mine % 2
                else:
                    token, slot = torch.where(selected == number)
                    if token.numel() == 0:
                        continue
                out.index_add_(0, token, expert(x[token]) * weights[token, slot].unsqueeze(1))
            x = x + out
        return x

    return step


# ------------------------------------------------------------------------------------------------ overlap


@pair(
    "d",
    "exposed copies",
    None,
    "a snapshot of the weights copied to the host after every update, in line with the training; fixed: on a "
    "side stream beside the next forward and backward pass, awaited before the next update. Same copies",
)
def weight_snapshot(fixed: bool) -> Step:
    width, rows = size(4096, 32), size(12288, 8)
    with torch.device(device()):
        layers = (m for _ in range(size(6, 2)) for m in (nn.Linear(width, width, bias=False), nn.ReLU()))
        model = nn.Sequential(*layers).to(BF16)
    optimizer, x = sgd(model), rand(rows, width, dtype=BF16)
    kept = [torch.empty(p.shape, dtype=BF16, pin_memory=on_gpu()) for p in model.parameters()]
    side = torch.cuda.Stream() if fixed and on_gpu() else None

    def save() -> None:
        for copy, p in zip(kept, model.parameters(), strict=True):
            copy.copy_(p.detach(), non_blocking=True)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = _mean_square(model, x)
        loss.backward()
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        if side is None:
            save()
            return loss
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            save()
        return loss

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


@pair(
    "d",
    "launch-bound",
    "launch-bound",
    "a translator's decoder: additive attention, a GRU cell and a choice of word, 40 times; fixed: the loop "
    "as a CUDA graph, same kernels",
)
def translator_decode(fixed: bool) -> Step:
    width, batch, words = size(512, 16), size(16, 2), size(16000, 40)
    table, cell = nn.Embedding(words, width), nn.GRUCell(2 * width, width)
    query, score, out = nn.Linear(width, width), nn.Linear(width, 1), nn.Linear(width, words)
    nn.ModuleList([table, cell, query, score, out]).to(device(), BF16)
    memory = rand(batch, size(64, 5), width, dtype=BF16)
    keys, first = rand(*memory.shape, dtype=BF16), torch.zeros(batch, dtype=torch.long, device=device())

    @torch.no_grad()
    def step() -> Tensor:
        h, word, chosen = memory.mean(1), first, []
        for _ in range(size(40, 4)):
            weights = score(torch.tanh(keys + query(h).unsqueeze(1))).softmax(1)
            context = (weights * memory).sum(1)
            h = cell(torch.cat([table(word), context], -1), h)
            word = out(h).argmax(-1)
            chosen.append(word)
        return torch.stack(chosen, 1)

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


class _MBConv(nn.Module):
    """EfficientNetV2's block: a 3x3 that widens, or a 1x1 and a depthwise 3x3 with squeeze and excitation."""

    def __init__(self, inner: int, outer: int, stride: int, *, depthwise: bool):
        super().__init__()
        middle = 4 * inner
        if depthwise:
            wide = [nn.Conv2d(inner, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.SiLU()]
            wide += [nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=False)]
            squeeze = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(middle, inner // 4, 1), nn.SiLU()]
            self.excite = nn.Sequential(*squeeze, nn.Conv2d(inner // 4, middle, 1), nn.Sigmoid())
        else:
            wide = [nn.Conv2d(inner, middle, 3, stride, 1, bias=False)]
        self.wide = nn.Sequential(*wide, nn.BatchNorm2d(middle), nn.SiLU())
        self.narrow = nn.Sequential(nn.Conv2d(middle, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.depthwise, self.same = depthwise, inner == outer and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        h = self.wide(x)
        h = self.narrow(h * self.excite(h) if self.depthwise else h)
        return x + h if self.same else h


@pair(
    "d",
    "layout",
    "layout-conversions",
    "an EfficientNetV2 with batch norm trained under autocast in NCHW; fixed: channels_last, same layers",
)
def efficientnet_nchw(fixed: bool) -> Step:
    stages = (
        [(8, 1, 1, False), (16, 1, 2, True)]
        if TINY
        else [(24, 2, 1, False), (48, 3, 2, False), (96, 4, 2, True), (160, 4, 2, True)]
    )
    inner = stages[0][0]
    layers: list[nn.Module] = [
        nn.Conv2d(3, inner, 3, 2, 1, bias=False),
        nn.BatchNorm2d(inner),
        nn.SiLU(),
    ]
    for outer, count, stride, depthwise in stages:
        for place in range(count):
            layers.append(_MBConv(inner, outer, 1 if place else stride, depthwise=depthwise))
            inner = outer
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000))
    side = size(128, 16)
    return _vision(model, rand(size(96, 2), 3, side, side), last=fixed)


# ------------------------------------------------------------------------------------------------ attention


class _SpatialAttention(nn.Module):
    """Attention over all pixels, as early diffusion code wrote it."""

    def __init__(self, width: int, heads: int, *, fused: bool):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(8, width), nn.Linear(width, 3 * width, bias=False)
        self.out, self.heads, self.fused = nn.Linear(width, width), heads, fused

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        parts = self.qkv(pixels).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
            mixed = torch.einsum("bhij,bhjd->bhid", scores.softmax(dim=-1), v)
        return x + self.out(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).reshape(x.shape)


@pair(
    "d",
    "unfused attention",
    "unfused-attention",
    "a latent diffusion UNet, 320 and 640 channels, its attention over pixels written with einsum; fixed: "
    "SDPA, same outputs",
)
def latent_unet(fixed: bool) -> Step:
    width, side, heads = size(320, 16), size(64, 8), size(8, 2)
    half = torch.float16 if on_gpu() else BF16
    with torch.device(device()):
        model = nn.Sequential(
            nn.Conv2d(4, width, 3, padding=1),
            Residual(width, width),
            _SpatialAttention(width, heads, fused=fixed),
            Residual(width, width),
            _SpatialAttention(width, heads, fused=fixed),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            Residual(2 * width, 2 * width),
            _SpatialAttention(2 * width, heads, fused=fixed),
            nn.Upsample(scale_factor=2),
            Residual(2 * width, width),
            _SpatialAttention(width, heads, fused=fixed),
            nn.Conv2d(width, 4, 3, padding=1),
        )
    model, x = model.to(half).eval(), rand(2, 4, side, side, dtype=half)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


class _EagerBlock(nn.Module):
    """A GPT block with a stored mask and a softmax in fp32, as model libraries write it without SDPA."""

    def __init__(self, width: int, heads: int, length: int, *, fused: bool):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.fused = heads, fused
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        weights = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        weights = torch.where(self.get_buffer("mask"), weights, torch.finfo(weights.dtype).min)
        weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(v.dtype)
        return torch.matmul(weights, v)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(self.ln_1(x)).split(x.shape[-1], dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        x = x + self.c_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


@pair(
    "d",
    "unfused attention",
    "unfused-attention",
    "training over 4096 tokens, 16 heads of 128, causal attention by a stored mask and a softmax in fp32; "
    "fixed: causal SDPA, same loss",
)
def eager_mask(fixed: bool) -> Step:
    width, heads, length = size(2048, 32), size(16, 2), size(4096, 80)
    with torch.device(device()):
        layers = (_EagerBlock(width, heads, length, fused=fixed) for _ in range(size(2, 1)))
        model = nn.Sequential(*layers).to(BF16)
    return trainer(model, adamw(model), partial(_mean_square, model, rand(1, length, width, dtype=BF16)))


# ------------------------------------------------------------------------------------------------ tensor cores


def _conv3d(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv3d(inner, outer, 3, stride, 1)
    return nn.Sequential(layer, nn.InstanceNorm3d(outer, affine=True), nn.LeakyReLU(0.01, inplace=True))


@pair(
    "d",
    "no tensor cores",
    "no-tensor-cores",
    "a 3D UNet for medical volumes trained in fp32 with TF32 off; fixed: TF32 on, same layers",
)
def volume_fp32(fixed: bool) -> Step:
    _tf32(fixed)
    width, side = size(32, 4), size(64, 8)
    enter, down = nn.Sequential(_conv3d(1, width), _conv3d(width, width)), _conv3d(width, 2 * width, 2)
    middle, up = _conv3d(2 * width, 2 * width), nn.ConvTranspose3d(2 * width, width, 2, 2)
    leave = nn.Sequential(_conv3d(2 * width, width), nn.Conv3d(width, 3, 1))
    model = nn.ModuleList([enter, down, middle, up, leave]).to(device())
    x = rand(size(2, 1), 1, side, side, side)
    target = torch.randint(0, 3, (size(2, 1), side, side, side), device=device())

    def loss_of() -> Tensor:
        first = enter(x)
        return F.cross_entropy(leave(torch.cat([up(middle(down(first))), first], 1)), target)

    return trainer(model, sgd(model), loss_of)


@pair(
    "d",
    "misaligned",
    "misaligned-gemm",
    "a text classifier over word vectors of 300 with 1250 hidden features; fixed: 304 and 1256, the new ones "
    "zero: they stay zero in training, so the loss is the same",
)
def word_vectors(fixed: bool) -> Step:
    narrow, wide = size(300, 12), size(1250, 26)
    more = (8 - narrow % 8, 8 - wide % 8) if fixed else (0, 0)
    ups, downs = nn.ParameterList(), nn.ParameterList()
    for _ in range(size(4, 2)):
        up, down = rand(wide, narrow, dtype=BF16) * 0.05, rand(narrow, wide, dtype=BF16) * 0.03
        ups.append(F.pad(up, (0, more[0], 0, more[1])))
        downs.append(F.pad(down, (0, more[1], 0, more[0])))
    head = nn.Parameter(F.pad(rand(16, narrow, dtype=BF16), (0, more[0])))
    model = nn.ParameterList([*ups, *downs, head])
    x = F.pad(rand(size(256, 4), size(128, 6), narrow, dtype=BF16), (0, more[0]))
    label = torch.randint(0, 16, (len(x),), device=device())

    def loss_of() -> Tensor:
        h = x
        for up, down in zip(ups, downs, strict=True):
            h = h + F.linear(F.gelu(F.linear(h, up)), down)
        return F.cross_entropy(F.linear(h.mean(1), head).float(), label)

    return trainer(model, sgd(model), loss_of)


# ------------------------------------------------------------------------------------------------ optimizer


@pair(
    "d",
    "loop optimizer",
    "loop-optimizer",
    "Lion written by hand over one tensor after the other; fixed: by torch._foreach over all. Same update",
)
def lion_loop(fixed: bool) -> Step:
    width, rate, decay = size(192, 32), 1e-5, 0.01
    model = blocks(size(12, 1), width, size(3, 2), fused=True).to(device(), BF16)
    params: list[Tensor] = list(model.parameters())
    moments = [torch.zeros_like(p) for p in params]
    x = rand(size(64, 2), size(197, 8), width, dtype=BF16)

    @torch.no_grad()
    def update(grads: list[Tensor]) -> None:
        if not fixed:
            for p, grad, moment in zip(params, grads, moments, strict=True):
                p.mul_(1 - rate * decay)
                p.add_(moment.mul(0.9).add_(grad, alpha=0.1).sign_(), alpha=-rate)
                moment.mul_(0.99).add_(grad, alpha=0.01)
            return
        torch._foreach_mul_(params, 1 - rate * decay)
        mixed = torch._foreach_mul(moments, 0.9)
        torch._foreach_add_(mixed, grads, alpha=0.1)
        torch._foreach_sign_(mixed)
        torch._foreach_add_(params, mixed, alpha=-rate)
        torch._foreach_mul_(moments, 0.99)
        torch._foreach_add_(moments, grads, alpha=0.01)

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = _mean_square(model, x)
        loss.backward()
        update([p.grad for p in params if p.grad is not None])
        return loss

    return step


# ------------------------------------------------------------------------------------------------ copies and casts


@pair(
    "d",
    "dtype casts",
    "dtype-casts",
    "one block applied 12 times under autocast without its cache, so that its weights are cast each time; "
    "fixed: with the cache, cast once. Same products, same outputs",
)
def shared_block(fixed: bool) -> Step:
    width = size(2048, 32)
    with torch.device(device()):
        block = blocks(1, width, size(16, 2), fused=True)
    x0 = rand(size(4, 1), size(256, 8), width)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        with torch.autocast(device(), dtype=BF16, cache_enabled=fixed):
            for _ in range(size(12, 3)):
                x = block(x)
        return x

    return step


@pair(
    "d",
    "copies",
    "redundant-copies",
    "decoding whose cache of keys and values grows by torch.cat at every token; fixed: written in place into "
    "a buffer of the final length, read up to the token. Same attention over the same keys",
)
def cache_cat(fixed: bool) -> Step:
    width, heads, batch, tokens = size(2048, 32), size(16, 2), size(8, 2), size(12, 3)
    length, count = size(2048, 8), size(4, 2)
    with torch.device(device()):
        qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(count)).to(BF16)
        outs = nn.ModuleList(nn.Linear(width, width) for _ in range(count)).to(BF16)
    whole = (batch, heads, length + tokens, width // heads)
    buffers = [(rand(*whole, dtype=BF16), rand(*whole, dtype=BF16)) for _ in range(count)]
    if not fixed:
        buffers = [(k[:, :, :length].contiguous(), v[:, :, :length].contiguous()) for k, v in buffers]
    x0 = rand(batch, 1, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x, caches = x0, list(buffers)
        for end in range(length + 1, length + tokens + 1):
            for n, (qkv, out) in enumerate(zip(qkvs, outs, strict=True)):
                q, k, v = qkv(x).view(batch, 1, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
                keys, values = caches[n]
                if fixed:
                    keys[:, :, end - 1 : end], values[:, :, end - 1 : end] = k, v
                    keys, values = keys[:, :, :end], values[:, :, :end]
                else:
                    keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
                    caches[n] = keys, values
                mixed = F.scaled_dot_product_attention(q, keys, values)
                x = x + out(mixed.transpose(1, 2).reshape(batch, 1, width))
        return x

    return step


@pair(
    "d",
    "host-device copies",
    "pageable-copy",
    "a segmentation service that brings its label maps to the host by .cpu(); fixed: into one of two pinned "
    "buffers without waiting, the maps of the step before being handed out. Same maps, same copies",
)
def label_maps(fixed: bool) -> Step:
    side, batch, width = size(256, 16), size(32, 2), size(32, 8)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 21, 1),
    )
    model = model.to(device(), BF16).to(memory_format=torch.channels_last).eval()
    x = rand(batch, 3, side, side, dtype=BF16).contiguous(memory_format=torch.channels_last)
    shape = (batch, side, side)
    pinned = [torch.empty(shape, dtype=torch.long, pin_memory=on_gpu()) for _ in range(2)] if fixed else []
    copied = [torch.cuda.Event() for _ in pinned] if on_gpu() else []
    count = 0

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal count
        labels = model(x).argmax(1)
        if not fixed:
            return labels.cpu()
        place, before = count % 2, 1 - count % 2
        count += 1
        pinned[place].copy_(labels, non_blocking=True)
        if not copied:
            return pinned[place]
        copied[place].record()
        copied[before].synchronize()
        return pinned[before]

    return step


@pair(
    "d",
    "tiny copies",
    "tiny-copies",
    "rotary embeddings made on the host and sent to the GPU in every layer; fixed: made once and kept there. "
    "Same rotation; the small host arithmetic is repeated work that goes as well",
)
def rotary_host(fixed: bool) -> Step:
    width, heads, length = size(768, 32), size(12, 2), size(128, 8)
    head, count = width // heads, size(12, 2)
    qkvs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(count)).to(device(), BF16)
    outs = nn.ModuleList(nn.Linear(width, width) for _ in range(count)).to(device(), BF16)
    x0 = rand(size(16, 2), length, width, dtype=BF16)

    def tables() -> tuple[Tensor, Tensor]:
        rates = 1.0 / 10000 ** (torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(length).float(), rates)
        return angles.cos().to(BF16).to(device()), angles.sin().to(BF16).to(device())

    kept = tables()

    def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for qkv, out in zip(qkvs, outs, strict=True):
            cos, sin = kept if fixed else tables()
            q, k, v = qkv(x).unflatten(-1, (3, heads, head)).permute(2, 0, 3, 1, 4).unbind(0)
            q, k = turn(q, cos, sin), turn(k, cos, sin)
            x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x

    return step


@pair(
    "d",
    "allocator churn",
    "allocator-churn",
    "a diffusion sampler that calls torch.cuda.empty_cache() after each of its iterations; fixed: without "
    "it. Same iterations",
)
def sampler_empty_cache(fixed: bool) -> Step:
    side = size(32, 8)
    model = UNet(size(128, 8), attention=True).to(device(), BF16).eval()
    noise = rand(size(16, 1), 4, side, side, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = noise
        for _ in range(4):
            guess = model(x)
            x = x - 0.1 * guess
            del guess
            if not fixed:
                torch.cuda.empty_cache()
        return x

    return step


# ------------------------------------------------------------------------------------------------ host


class _Sounds(Dataset):  # type: ignore[type-arg]
    """Two seconds of sound each, turned into a spectrogram of log-spaced bands when asked for."""

    def __init__(self, samples: int):
        self.samples = samples
        self.window = np.hanning(512).astype(np.float32)
        self.edges = np.unique(np.geomspace(1, 250, 81).astype(int) + np.arange(81) // 12)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        sound = np.random.default_rng(index).standard_normal(self.samples, dtype=np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(sound, 512)[::160] * self.window
        power = np.abs(np.fft.rfft(frames, axis=-1)) ** 2
        bands = np.add.reduceat(power, self.edges, axis=-1)
        return np.log(bands.T + 1e-6).astype(np.float32)[None]


@pair(
    "d",
    "data loading",
    "input-bound",
    "spectrograms computed by the training process itself; fixed: by 6 workers. Same batches in the same "
    "order",
)
def loader_sounds(fixed: bool) -> Step:
    workers = size(6, 1) if fixed else 0
    loader = DataLoader(
        _Sounds(size(32_000, 4000)),
        batch_size=size(16, 2),
        num_workers=workers,
        pin_memory=on_gpu(),
        persistent_workers=workers > 0,
    )
    batches = iter(loader)
    model = conv_stack((8,) if TINY else (64, 64, 128, 128, 256), inputs=1).to(device())
    model = model.to(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        x = next(batches).to(device(), non_blocking=True)
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, sgd(model), loss_of)


@pair(
    "d",
    "python gap",
    "host-stall",
    "a server that sleeps 2 ms to let its batch fill though it is full already; fixed: it sleeps only where "
    "requests are missing. Same batches, same answers",
)
def batch_window(fixed: bool) -> Step:
    width, batch, length = size(1024, 32), size(16, 2), size(128, 8)
    with torch.device(device()):
        body = blocks(size(6, 1), width, size(16, 2), fused=True)
        model = nn.Sequential(nn.Embedding(1000, width), *body, nn.Linear(width, 8)).to(BF16).eval()
    waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    requests = [[(7 * n + m * m) % 1000 for m in range(length)] for n in range(batch)]

    @torch.no_grad()
    def step() -> Any:
        for request in requests:  # what the network thread does
            waiting.put(request)
        if not fixed or waiting.qsize() < batch:
            time.sleep(0.002)
        ids = torch.tensor([waiting.get() for _ in range(batch)]).to(device())
        return model(ids).mean(1).float().softmax(-1).tolist()

    return step


# ------------------------------------------------------------------------------------------------ recompute, fusion


@pair(
    "d",
    "recompute",
    "recompute",
    "PyTorch's own encoder layers in four checkpointed segments though memory is plenty; fixed: none. There "
    "is no dropout: same gradients",
)
def checkpoint_segments(fixed: bool) -> Step:
    width, heads = size(1024, 32), size(16, 2)
    with torch.device(device()):
        layers = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(size(8, 4))
        ]
        model = nn.Sequential(*layers).to(BF16)
    x = rand(size(16, 1), size(512, 8), width, dtype=BF16)

    def loss_of() -> Tensor:
        y = model(x) if fixed else checkpoint_sequential(model, 4, x, use_reentrant=False)
        return y.float().square().mean()

    return trainer(model, adamw(model), loss_of)


@pair(
    "d",
    "unfused elementwise",
    "unfused-elementwise",
    "a diffusion transformer's layers with modulation, bias, GELU and gated residual written out; fixed: "
    "torch.compile. Same operations",
)
def modulated_layers(fixed: bool) -> Step:
    width, batch = size(1152, 32), size(64, 2)
    ups = [rand(width, 4 * width, dtype=BF16) * 0.03 for _ in range(size(4, 2))]
    downs = [rand(4 * width, width, dtype=BF16) * 0.015 for _ in ups]
    bias, x0 = rand(4 * width, dtype=BF16), rand(batch, size(256, 8), width, dtype=BF16)
    shift, scale, gate = (rand(batch, 1, width, dtype=BF16) * 0.1 for _ in range(3))

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        for up, down in zip(ups, downs, strict=True):
            h = F.layer_norm(x, (width,)) * (1 + scale) + shift
            h = h @ up + bias
            h = 0.5 * h * (1 + torch.tanh(0.79788456 * (h + 0.044715 * torch.pow(h, 3))))
            x = x + gate * (h @ down)
        return x

    return partial(compiled(step) if fixed else step, x0)


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "d",
    "healthy",
    "host-sync",
    "gradient accumulation over 4 large micro-steps with loss.item() after each; change: the losses are "
    "added on the GPU. Same training",
)
def healthy_accumulate(fixed: bool) -> Step:
    width = size(2048, 32)
    with torch.device(device()):
        model = blocks(size(3, 1), width, size(32, 2), fused=True, causal=True).to(BF16)
    optimizer = adamw(model)
    data = [rand(size(4, 1), size(1024, 8), width, dtype=BF16) for _ in range(4)]

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        running: Any = 0.0
        for x in data:
            loss = _mean_square(model, x) / len(data)
            loss.backward()
            running = running + (loss.detach() if fixed else loss.item())
        optimizer.step()
        return running

    return step


class _Photos(Dataset):  # type: ignore[type-arg]
    """Decoded photos that lie in memory."""

    def __init__(self, side: int):
        self.photos = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return self.photos[index % 64]


@pair(
    "d",
    "healthy",
    "pageable-copy",
    "a loader without pin_memory before a net that computes far longer than the copy; change: "
    "pin_memory=True and non_blocking. Same batches",
)
def healthy_pin(fixed: bool) -> Step:
    loader = DataLoader(
        _Photos(size(128, 16)),
        batch_size=size(96, 2),
        num_workers=size(3, 1),
        pin_memory=fixed and on_gpu(),
        persistent_workers=True,
    )
    batches = iter(loader)
    widths = (8, 16) if TINY else (64, 64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512)
    model = conv_stack(widths).to(device()).to(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        x = next(batches).to(device(), non_blocking=fixed)
        x = x.to(BF16, memory_format=torch.channels_last).div_(255)
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, sgd(model), loss_of)


@pair(
    "d",
    "healthy",
    "launch-bound",
    "a large vision transformer over batches of 32 pictures; change: CUDA graph, same kernels",
)
def healthy_vit(fixed: bool) -> Step:
    width = size(1024, 32)
    with torch.device(device()):
        model = blocks(size(8, 1), width, size(16, 2), fused=True).to(BF16).eval()
    x = rand(size(32, 2), size(577, 9), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return graphed(step) if fixed else step


@pair(
    "d",
    "healthy",
    "unfused-elementwise",
    "Newton-Schulz iterations (Muon's) on two matrices of 4096 by addmm; change: torch.compile. Same "
    "products",
)
def healthy_newton(fixed: bool) -> Step:
    width = size(4096, 32)
    grads = [rand(width, width, dtype=BF16) for _ in range(2)]

    @torch.no_grad()
    def step(grads: list[Tensor]) -> tuple[Tensor, ...]:
        done = []
        for grad in grads:
            x = grad / (grad.norm() + 1e-7)
            for _ in range(5):
                square = x @ x.t()
                inner = torch.addmm(square, square, square, beta=-4.775, alpha=2.0315)
                x = torch.addmm(x, inner, x, beta=3.4445)
            done.append(x)
        return tuple(done)

    return partial(compiled(step) if fixed else step, grads)


@pair(
    "d",
    "healthy",
    "loop-optimizer",
    "SGD with momentum one tensor at a time, launched while the GPU is still busy with large convolutions; "
    "change: fused. Same update",
)
def healthy_momentum(fixed: bool) -> Step:
    width, side = size(64, 8), size(64, 8)
    layers = (_MBConv(width, width, 1, depthwise=False) for _ in range(size(6, 1)))
    model: nn.Module = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *layers)
    model = model.to(device()).to(memory_format=torch.channels_last)
    x = rand(size(128, 2), 3, side, side).contiguous(memory_format=torch.channels_last)
    kind: dict[str, Any] = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, **kind)

    def loss_of() -> Tensor:
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, optimizer, loss_of)


@pair(
    "d",
    "healthy",
    "misaligned-gemm",
    "a SwiGLU network with 2728 hidden features, a multiple of 8; change: 2752, a multiple of 64, the new "
    "ones zero: same loss, 0.9 % more work",
)
def healthy_swiglu(fixed: bool) -> Step:
    return _swiglu(24 if fixed else 0)


@pair(
    "p",
    "unfused-elementwise",
    "unfused-elementwise",
    "healthy_swiglu; change: its loss under torch.compile, same work",
)
def swiglu_promise(fixed: bool) -> Step:
    return _swiglu(0, compiled if fixed else lambda call: call)


def _swiglu(more: int, wrap: Callable[..., Any] = lambda call: call) -> Step:
    width, hidden = size(1024, 32), size(2728, 40)
    model = nn.ParameterList()
    for _ in range(size(6, 2)):
        model.append(F.pad(rand(2, hidden, width, dtype=BF16) * 0.03, (0, 0, 0, more)).flatten(0, 1))
        model.append(F.pad(rand(width, hidden, dtype=BF16) * 0.02, (0, more)))
    x = rand(size(16384, 8), width, dtype=BF16)

    def loss_of() -> Tensor:
        h = x
        for up, down in zip(model[::2], model[1::2], strict=True):
            one, two = F.linear(h, up).chunk(2, -1)
            h = h + F.linear(F.silu(one) * two, down)
        return h.float().square().mean()

    return trainer(model, adamw(model), wrap(loss_of))
