"""Held-out programs of an industry team: language models, vision, video, recommenders, search and finance.

Written without sight of the rules they are measured against. Each does one ordinary thing badly, or nothing at all
badly ("healthy"); `programs` says what a program is.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Step,
    adamw,
    autocast,
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
    """Numbers of the host on the device, through pinned memory and without a wait."""
    return torch.tensor(values, dtype=dtype, pin_memory=on_gpu()).to(device(), non_blocking=True)


def allow_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


class DecoderLayer(nn.Module):
    """A layer as in Llama, without rotation: RMS norms, causal SDPA and a gated network."""

    def __init__(
        self, width: int, heads: int, hidden: int, linear: Callable[[int, int], nn.Module] | None = None
    ):
        super().__init__()
        linear = linear or partial(nn.Linear, bias=False)
        self.heads = heads
        self.input_norm, self.post_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q_proj, self.k_proj = linear(width, width), linear(width, width)
        self.v_proj, self.o_proj = linear(width, width), linear(width, width)
        self.gate_proj, self.up_proj = linear(width, hidden), linear(width, hidden)
        self.down_proj = linear(hidden, width)
        self.checkpoint_gate = False

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            proj(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.input_norm(x))
        h = self.post_norm(x)
        gate, up = self.gate_proj(h), self.up_proj(h)
        h = checkpoint(_gated, gate, up, use_reentrant=False) if self.checkpoint_gate else _gated(gate, up)
        return x + self.down_proj(h)


class CausalLM(nn.Module):
    """Words in, the mean loss of the next words out."""

    def __init__(self, words: int, width: int, heads: int, hidden: int, layers: int):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, hidden) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), labels.flatten())


def encoder(layers: int, width: int, heads: int) -> nn.Sequential:
    """PyTorch's own encoder layers, pre-norm and without dropout."""
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
    )


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "i",
    "sync",
    "host-sync",
    "an ads model scores users offline and asks the GPU before each of its 32 lookups whether the ids are in range; "
    "fixed: the answers are kept there and read once at the end. Same lookups, same maxima, same scores",
)
def ranged_lookups(fixed: bool) -> Step:
    features, rows, width = size(32, 3), size(500_000, 50), size(64, 8)
    batch, each = size(65536, 8), size(16, 4)
    bags = nn.ModuleList(
        nn.EmbeddingBag(rows, width, mode="sum", device=device(), dtype=BF16) for _ in range(features)
    )
    tower = made(
        lambda: nn.Sequential(
            nn.Linear(features * width, size(1024, 16)), nn.ReLU(), nn.Linear(size(1024, 16), 1)
        ),
        BF16,
    )
    batches = [whole(rows, batch, each) for _ in range(features)]

    @torch.no_grad()
    def step() -> Tensor:
        pooled, inside = [], []
        for bag, ids in zip(bags, batches, strict=True):
            good = ids.max() < rows
            if fixed:
                inside.append(good)
            elif not good.item():
                raise IndexError("an id beyond its table")
            pooled.append(bag(ids))
        scores = tower(torch.cat(pooled, 1)).sigmoid()
        if fixed and not torch.stack(inside).all().item():
            raise IndexError("an id beyond its table")
        return scores.float().mean()

    return step


_CHAT = re.compile(r"\w+|[^\w\s]")


class _Chats:
    """Conversations that are split into words and labelled, answers only, when they are asked for."""

    def __init__(self, rows: int, length: int, words: int):
        draw = random.Random(7)
        self.rows, self.length = rows, length
        self.words = {f"w{number}": number + 1 for number in range(words - 1)}
        self.chats = [
            [
                (role, " ".join(f"W{draw.randrange(words - 1)}" for _ in range(length // 8 - 1)) + ".")
                for role in ("user", "assistant") * 4
            ]
            for _ in range(16)
        ]

    def pack(self, first: int) -> tuple[list[list[int]], list[list[int]]]:
        ids, labels = [], []
        for row in range(self.rows):
            line: list[int] = []
            wanted: list[int] = []
            for role, text in self.chats[(first + row) % len(self.chats)]:
                found = [self.words.get(word.lower(), 0) for word in _CHAT.findall(text)]
                line.extend(found)
                wanted.extend(found if role == "assistant" else [-100] * len(found))
            ids.append(line[: self.length])
            labels.append([*wanted[1 : self.length], -100])
        return ids, labels


@pair(
    "i",
    "sync",
    "host-sync",
    "chats packed in Python and trained on in 4 micro-batches, with the loss put into the progress bar after each, which "
    "waits for it; fixed: the losses are added on the GPU. Same chats, gradients and update, same sum of losses",
)
def progress_bar(fixed: bool) -> Step:
    rows, length, words = size(8, 2), size(512, 16), size(8000, 40)
    width = size(1280, 32)
    model = made(lambda: CausalLM(words, width, size(20, 2), size(3456, 48), size(6, 1)), BF16)
    optimizer, chats = adamw(model), _Chats(rows, length, words)
    bar = {"step": 0, "loss": ""}

    def step() -> Any:
        total: Any = 0.0
        for part in range(4):
            ids, labels = chats.pack(part * rows)
            loss = model(sent(ids), sent(labels)) / 4
            loss.backward()
            if fixed:
                total = total + loss.detach()
            else:
                total += loss.item()
                bar["loss"] = f"{total:.4f}"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        bar["step"] += 1
        return total

    return step


class Router(nn.Module):
    """A mixture of gated experts, two for each token; one after the other or all at once."""

    def __init__(self, width: int, hidden: int, experts: int, *, grouped: bool):
        super().__init__()
        self.experts, self.grouped = experts, grouped
        self.norm, self.gate = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, width, hidden) * hidden**-0.5)

    def one_by_one(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=self.experts).permute(2, 1, 0)
        for expert in range(self.experts):
            place, token = torch.where(mask[expert])
            gate, up = F.linear(x[token], self.gate_up[expert]).chunk(2, -1)
            h = F.linear(_gated(gate, up), self.down[expert])
            out.index_add_(0, token, h * weights[token, place, None])
        return out

    def all_at_once(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        token = order // chosen.shape[1]
        counts = torch.zeros(self.experts, dtype=torch.int64, device=x.device)
        ends = counts.scatter_add_(0, flat, torch.ones_like(flat)).cumsum(0).to(torch.int32)
        gate, up = torch._grouped_mm(x[token], self.gate_up.transpose(-2, -1), offs=ends).chunk(2, -1)
        h = torch._grouped_mm(_gated(gate, up), self.down.transpose(-2, -1), offs=ends)
        return torch.zeros_like(x).index_add_(0, token, h * weights.flatten()[order, None])

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        weights, chosen = self.gate(h).float().softmax(-1).topk(2, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        return x + (self.all_at_once if self.grouped else self.one_by_one)(h, chosen, weights)


@pair(
    "i",
    "sync",
    "host-sync",
    "a prompt runs through 4 layers of 16 experts as model libraries write it, torch.where for each expert's tokens; "
    "fixed: tokens sorted by expert, one grouped product for all. Same tokens, experts and weights, same sums",
)
def expert_prompt(fixed: bool) -> Step:
    width, tokens = size(2048, 32), size(16384, 48)
    model = made(
        lambda: nn.Sequential(
            *(Router(width, size(1408, 16), size(16, 4), grouped=fixed) for _ in range(size(4, 1)))
        ),
        BF16,
    )
    x = rand(tokens, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x).float().square().mean()

    return step


# ------------------------------------------------------------------------------------------------ overlap


@pair(
    "i",
    "exposed copies",
    "exposed-communication",
    "a decoder's 300 million gradients go to the host, where a parameter server takes them, after the backward pass; "
    "fixed: each layer's on a side stream while the layers below go on. Same bytes, all there before the update",
)
def server_push(fixed: bool) -> Step:
    width = size(2048, 32)
    layers = made(
        lambda: nn.ModuleList(DecoderLayer(width, size(16, 2), size(5504, 48)) for _ in range(size(6, 2))),
        BF16,
    )
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4, fused=on_gpu())
    x = rand(size(4, 1), size(2048, 8), width, dtype=BF16)
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    outbox = [torch.empty(count, dtype=BF16, pin_memory=on_gpu()) for count in sizes]
    side = torch.cuda.Stream() if on_gpu() else None
    missing = [0] * len(layers)

    def push(place: int) -> None:
        start = 0
        for p in layers[place].parameters():
            outbox[place][start : start + p.numel()].view_as(p).copy_(p.grad, non_blocking=True)
            start += p.numel()

    def ready(place: int, _: Tensor) -> None:
        missing[place] -= 1
        if missing[place]:
            return
        if side is None:
            push(place)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            push(place)

    if fixed:
        for place, layer in enumerate(layers):
            for p in layer.parameters():
                p.register_post_accumulate_grad_hook(partial(ready, place))

    def step() -> tuple[Tensor, Tensor]:
        for place, layer in enumerate(layers):
            missing[place] = sum(1 for _ in layer.parameters())
        h = x
        for layer in layers:
            h = layer(h)
        loss = h.float().square().mean()
        loss.backward()
        if not fixed:
            for place in range(len(layers)):
                push(place)
        elif side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss, outbox[0][:16]

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


class Bottleneck(nn.Module):
    """ResNet's: narrow, 3x3, wide, and the input added."""

    def __init__(self, inner: int, middle: int, stride: int):
        super().__init__()
        outer = 4 * middle
        self.conv1, self.bn1 = nn.Conv2d(inner, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3, self.bn3 = nn.Conv2d(middle, outer, 1, bias=False), nn.BatchNorm2d(outer)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inner != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        h = F.relu(self.bn2(self.conv2(h)), inplace=True)
        return F.relu(self.bn3(self.conv3(h)) + self.downsample(x), inplace=True)


def _deep_resnet(counts: tuple[int, ...], width: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inner = width
    for stage, count in enumerate(counts):
        middle = width * 2**stage
        for place in range(count):
            layers.append(Bottleneck(inner, middle, 2 if stage and not place else 1))
            inner = 4 * middle
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, outputs))


@pair(
    "i",
    "launch-bound",
    "launch-bound",
    "visual search embeds the one photo of each request by a ResNet-101, op by op; fixed: the call as a CUDA graph. The "
    "graph holds the same kernels on the same photo",
)
def photo_request(fixed: bool) -> Step:
    side = size(224, 32)
    model = made(lambda: _deep_resnet((1, 1) if TINY else (3, 4, 23, 3), size(64, 8), size(512, 16)), BF16)
    model = model.to(memory_format=torch.channels_last).eval()
    photo = rand(1, 3, side, side, dtype=BF16).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def step() -> Tensor:
        return F.normalize(model(photo), dim=-1)

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


def _conv_bn(inner: int, outer: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    )


class OneShot(nn.Module):
    """VoVNet's block: some 3x3 in a row, all their outputs joined by a 1x1."""

    def __init__(self, inner: int, middle: int, outer: int, count: int):
        super().__init__()
        self.convs = nn.ModuleList(_conv_bn(inner if not n else middle, middle) for n in range(count))
        self.join = _conv_bn(inner + count * middle, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for conv in self.convs:
            kept.append(conv(kept[-1]))
        return self.join(torch.cat(kept, 1))


@pair(
    "i",
    "layout",
    "layout-conversions",
    "shop shelves' photos classified by a VoVNet with batch norm, trained under autocast in NCHW; fixed: weights and "
    "photos in channels_last. Same convolutions of the same numbers, which only lie differently",
)
def shelf_photos(fixed: bool) -> Step:
    side, classes = size(224, 32), size(400, 10)
    plan = ((8, 16, 2),) if TINY else ((128, 256, 5), (160, 512, 5), (192, 768, 5), (224, 1024, 5))

    def make() -> nn.Sequential:
        stem = size(64, 8)
        layers: list[nn.Module] = [
            _conv_bn(3, stem, stride=2),
            _conv_bn(stem, stem),
            _conv_bn(stem, 2 * stem),
        ]
        inner = 2 * stem
        for middle, outer, count in plan:
            layers += [nn.MaxPool2d(3, 2, 1), OneShot(inner, middle, outer, count)]
            inner = outer
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, classes))

    model, photos = made(make), rand(size(64, 4), 3, side, side)
    if fixed:
        model = model.to(memory_format=torch.channels_last)
        photos = photos.contiguous(memory_format=torch.channels_last)
    labels = whole(classes, len(photos))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=on_gpu())

    def loss_of() -> Tensor:
        with autocast():
            return F.cross_entropy(model(photos), labels, label_smoothing=0.1)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ tensor cores


@pair(
    "i",
    "no tensor cores",
    "no-tensor-cores",
    "two towers, of users and of items, trained in fp32 with PyTorch's default of no TF32 products; fixed: TF32 allowed. "
    "Same layers, negatives and update up to TF32's rounding",
)
def two_towers(fixed: bool) -> Step:
    allow_tf32(fixed)
    batch, features, width = size(8192, 32), size(1024, 16), size(2048, 32)

    def tower() -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(features, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, size(256, 8)),
        )

    towers = made(lambda: nn.ModuleDict({"user_tower": tower(), "item_tower": tower()}))
    users, items = rand(batch, features), rand(batch, features)
    target = torch.arange(batch, device=device())

    def loss_of() -> Tensor:
        u = F.normalize(towers["user_tower"](users), dim=-1)
        v = F.normalize(towers["item_tower"](items), dim=-1)
        return F.cross_entropy(u @ v.t() / 0.05, target)

    return trainer(towers, adamw(towers), loss_of)


# ------------------------------------------------------------------------------------------------ attention


class SpaceTimeBlock(nn.Module):
    """A video transformer's block: every patch of every frame attends to all."""

    def __init__(self, width: int, heads: int, *, fused: bool):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.qkv, self.proj = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (width // self.heads) ** -0.5
            mixed = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


@pair(
    "i",
    "unfused attention",
    "unfused-attention",
    "a video transformer over 24 frames of 196 patches at once, its attention written with einsum and softmax; fixed: "
    "SDPA. Same attention of the same weights, same loss up to rounding",
)
def joint_frames(fixed: bool) -> Step:
    width, patches = size(1024, 32), size(24, 2) * size(196, 9)
    model = made(
        lambda: nn.Sequential(*(SpaceTimeBlock(width, size(16, 2), fused=fixed) for _ in range(size(6, 1)))),
        BF16,
    )
    clip = rand(1, patches, width, dtype=BF16)
    return trainer(model, adamw(model), lambda: model(clip).float().square().mean())


# ------------------------------------------------------------------------------------------------ casts and copies


class Int8Linear(nn.Module):
    """Weights of 8 bits with a scale for each output; `keep` turns them into bf16 once."""

    def __init__(self, inner: int, outer: int, *, keep: bool):
        super().__init__()
        self.register_buffer("codes", torch.randint(-127, 128, (outer, inner), dtype=torch.int8))
        self.register_buffer("scale", torch.full((outer, 1), inner**-0.5 / 73))
        self.kept = self.weight() if keep else None

    def weight(self) -> Tensor:
        return (self.codes.float() * self.scale).to(BF16)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight() if self.kept is None else self.kept)


@pair(
    "i",
    "dtype casts",
    "dtype-casts",
    "a chat model stored in int8 turns every weight into fp32, scales it and rounds it to bf16 in each call; fixed: done "
    "once when it is loaded. The products see the same bf16 weights, so the same answers",
)
def loaded_in_8bit(fixed: bool) -> Step:
    width, layers = size(4096, 32), size(4, 1)
    linear = partial(Int8Linear, keep=fixed)
    with torch.device(device()):
        model = nn.Sequential(
            *(DecoderLayer(width, size(32, 2), size(11008, 48), linear) for _ in range(layers))
        )
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.to(BF16)
    x = rand(size(4, 1), size(512, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)[:, -1]

    return step


@pair(
    "i",
    "dtype casts",
    "dtype-casts",
    "a recommender keeps its 16 tables in fp16 and casts each whole table to fp32 before it looks up a batch; fixed: it "
    "casts what it looked up. The same numbers are cast, without those that nobody asked for",
)
def upcast_tables(fixed: bool) -> Step:
    count, rows, width = size(16, 3), size(1_000_000, 50), size(128, 8)
    batch, hidden = size(65536, 16), size(4096, 16)
    tables = [rand(rows, width, dtype=torch.float16) for _ in range(count)]
    ids = whole(rows, count, batch)
    top = made(
        lambda: nn.Sequential(
            nn.Linear(count * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        ),
        BF16,
    )  # fmt: skip

    @torch.no_grad()
    def step() -> Tensor:
        if fixed:
            found = [F.embedding(ids[n], table).float() for n, table in enumerate(tables)]
        else:
            found = [F.embedding(ids[n], table.float()) for n, table in enumerate(tables)]
        return top(torch.cat(found, 1).to(BF16)).float().mean()

    return step


@pair(
    "i",
    "copies",
    "redundant-copies",
    "product search turns each of 8 shards of vectors around and copies it before it multiplies; fixed: the product "
    "takes the turned view. Same products of the same numbers, same best products",
)
def turned_shards(fixed: bool) -> Step:
    rows, width, queries = size(786_432, 64), size(256, 16), size(256, 4)
    shards = [rand(rows, width, dtype=BF16) for _ in range(size(8, 2))]
    asked = rand(queries, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        best = []
        for shard in shards:
            turned = shard.t() if fixed else shard.t().contiguous()
            best.append((asked @ turned).max(1).values)
        return torch.stack(best).amax(0)

    return step


# ------------------------------------------------------------------------------------------------ optimizer


class PostNormLayer(nn.Module):
    """BERT's layer."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width)
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            proj(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for proj in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.dense(mixed))
        return self.norm2(x + self.output(F.gelu(self.intermediate(x))))


@pair(
    "i",
    "loop optimizer",
    "loop-optimizer",
    "a search cross-encoder of MiniLM's size, some 200 tensors, tuned by AdamW(foreach=False), left over from a debugging "
    "session; fixed: AdamW(fused=True). Same formula for every weight",
)
def cross_encoder(fixed: bool) -> Step:
    return cross(**{"fused": True} if fixed and on_gpu() else {"foreach": False})


def cross(**optimizing: Any) -> Step:
    width, words = size(384, 32), size(30522, 50)
    body = made(lambda: nn.Sequential(*(PostNormLayer(width, size(12, 2)) for _ in range(size(12, 1)))), BF16)
    model = made(
        lambda: nn.ModuleDict({"words": nn.Embedding(words, width), "head": nn.Linear(width, 1)}), BF16
    )
    model["body"] = body
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-5, **optimizing)
    ids = whole(words, size(64, 2), size(256, 8))
    clicked = (ids[:, 0] % 2).float()

    def loss_of() -> Tensor:
        first = model["body"](model["words"](ids))[:, 0]
        return F.binary_cross_entropy_with_logits(model["head"](first).squeeze(1).float(), clicked)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ host-device copies


@pair(
    "i",
    "host-device copies",
    "pageable-copy",
    "a moderator of uploads trains on clips of 16 frames, 77 MB a batch, each moved by .to() from ordinary memory; "
    "fixed: pinned and non_blocking, as a loader with pin_memory hands them over. Same clips in the same order",
)
def uploaded_clips(fixed: bool) -> Step:
    clips, frames, side, width = size(32, 2), size(16, 2), size(224, 32), size(1024, 32)
    grid = side // 16
    batches = [
        {
            "pixel_values": torch.randint(0, 256, (clips, frames, 3, side, side), dtype=torch.uint8),
            "labels": torch.randint(0, 2, (clips,)).float(),
        }
        for _ in range(2)
    ]
    if fixed and on_gpu():
        batches = [{key: value.pin_memory() for key, value in batch.items()} for batch in batches]
    model = made(
        lambda: nn.ModuleDict(
            {
                "patch": nn.Linear(768, width),
                "body": encoder(size(4, 1), width, size(16, 2)),
                "head": nn.Linear(width, 1),
            }
        ),
        BF16,
    )
    optimizer, count = adamw(model), 0

    def loss_of() -> Tensor:
        nonlocal count
        count += 1
        batch = {key: value.to(device(), non_blocking=fixed) for key, value in batches[count % 2].items()}
        x = batch["pixel_values"].to(BF16).div_(127.5).sub_(1)
        x = x.view(clips, frames, 3, grid, 16, grid, 16).permute(0, 1, 3, 5, 2, 4, 6)
        x = model["patch"](x.reshape(clips, frames, grid * grid, 768)).mean(1)
        logits = model["head"](model["body"](x).mean(1)).squeeze(1).float()
        return F.binary_cross_entropy_with_logits(logits, batch["labels"])

    return trainer(model, optimizer, loss_of)


@pair(
    "i",
    "tiny copies",
    "tiny-copies",
    "192 photos are turned and scaled on the GPU, each by a small matrix that is sent there by itself; fixed: all "
    "matrices in one pinned tensor. Same matrices, same photos, same training",
)
def turned_photos(fixed: bool) -> Step:
    photos, side, width = size(192, 4), size(224, 32), size(384, 32)
    grid = side // 16
    pictures, labels = rand(photos, 3, side, side), whole(size(100, 10), photos)
    model = made(
        lambda: nn.ModuleDict(
            {
                "patch": nn.Conv2d(3, width, 16, 16),
                "body": encoder(size(4, 1), width, size(6, 2)),
                "head": nn.Linear(width, size(100, 10)),
            }
        ),
        BF16,
    )
    draw = random.Random(3)

    def matrices() -> list[list[list[float]]]:
        drawn = []
        for _ in range(photos):
            angle, scale = draw.uniform(-0.3, 0.3), draw.uniform(0.8, 1.2)
            cos, sin = scale * math.cos(angle), scale * math.sin(angle)
            drawn.append([[cos, -sin, 0.0], [sin, cos, 0.0]])
        return drawn

    def loss_of() -> Tensor:
        drawn = matrices()
        theta = sent(drawn) if fixed else torch.stack([torch.tensor(m, device=device()) for m in drawn])
        turned = F.grid_sample(
            pictures, F.affine_grid(theta, [photos, 3, side, side], align_corners=False), align_corners=False
        )
        x = model["patch"](turned.to(BF16)).flatten(2).transpose(1, 2)
        assert x.shape[1] == grid * grid
        return F.cross_entropy(model["head"](model["body"](x).mean(1)).float(), labels)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ host


class _ClickLog(Dataset):  # type: ignore[type-arg]
    """Lines of a log, each a user's last clicks in JSON, parsed when they are asked for."""

    def __init__(self, length: int, items: int):
        draw = random.Random(11)
        self.length, self.items = length, items
        self.lines = [
            json.dumps(
                {
                    "user": user,
                    "events": [
                        {
                            "item": draw.randrange(10**9),
                            "dwell": round(draw.random() * 60, 2),
                            "kind": draw.choice("cbv"),
                        }
                        for _ in range(length)
                    ],
                }
            )
            for user in range(256)
        ]

    def __len__(self) -> int:
        return 4_000_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = json.loads(self.lines[index % len(self.lines)])
        items, dwell = np.zeros(self.length, np.int64), np.zeros(self.length, np.float32)
        for place, event in enumerate(record["events"]):
            items[place] = event["item"] % self.items
            dwell[place] = math.log1p(event["dwell"]) + (0.5 if event["kind"] == "b" else 0.0)
        return {"items": items, "dwell": dwell, "label": np.float32(index % 2)}


@pair(
    "i",
    "data loading",
    "input-bound",
    "a click model whose log of JSON lines is parsed by the training process, the loader's default; fixed: by 8 "
    "persistent workers. Same lines in the same order, same model",
)
def click_log(fixed: bool) -> Step:
    length, items, width = size(64, 8), size(200_000, 100), size(768, 32)
    workers = size(8, 1) if fixed else 0
    more = {"prefetch_factor": 4, "persistent_workers": True} if workers else {}
    loader = DataLoader(
        _ClickLog(length, items),
        batch_size=size(256, 4),
        num_workers=workers,
        pin_memory=on_gpu(),
        **more,
    )
    batches: Iterator[dict[str, Tensor]] = iter(loader)
    model = made(
        lambda: nn.ModuleDict(
            {
                "item_table": nn.Embedding(items, width),
                "dwell": nn.Linear(1, width),
                "body": encoder(size(6, 1), width, size(12, 2)),
                "head": nn.Linear(width, 1),
            }
        ),
        BF16,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=on_gpu())

    def loss_of() -> Tensor:
        batch = {key: value.to(device(), non_blocking=True) for key, value in next(batches).items()}
        x = model["item_table"](batch["items"]) + model["dwell"](batch["dwell"].unsqueeze(-1).to(BF16))
        logits = model["head"](model["body"](x).mean(1)).squeeze(1).float()
        return F.binary_cross_entropy_with_logits(logits, batch["label"])

    return trainer(model, optimizer, loss_of)


def _ndcg(scores: list[list[float]], gains: list[list[int]], most: int = 10) -> float:
    """The mean NDCG, as one would write it on a whiteboard."""
    total = 0.0
    for score, gain in zip(scores, gains, strict=True):
        order = sorted(range(len(score)), key=score.__getitem__, reverse=True)[:most]
        found = sum((2 ** gain[doc] - 1) / math.log2(place + 2) for place, doc in enumerate(order))
        ideal = sum(
            (2**g - 1) / math.log2(place + 2) for place, g in enumerate(sorted(gain, reverse=True)[:most])
        )
        total += found / ideal if ideal else 1.0
    return total / len(scores)


@pair(
    "i",
    "python gap",
    "host-stall",
    "a learned ranking computes the NDCG of its 512 queries in Python after every step, for a chart; fixed: after every "
    "two hundredth. Same training; the metric changes nothing in it",
)
def charted_ranking(fixed: bool) -> Step:
    queries, documents, features, hidden = size(512, 4), size(32, 6), size(1024, 16), size(4096, 32)
    model = made(
        lambda: nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, features), nn.GELU(), nn.Linear(features, 1),
        ),
        BF16,
    )  # fmt: skip
    x = rand(queries, documents, features, dtype=BF16)
    gains = whole(5, queries, documents)
    wanted, judged = gains.float().softmax(-1), gains.tolist()
    optimizer, history, count = adamw(model), [0.0], 0

    def step() -> Tensor:
        nonlocal count
        optimizer.zero_grad(set_to_none=True)
        scores = model(x).squeeze(-1).float()
        loss = -(wanted * scores.log_softmax(-1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        if not fixed or not count % 200:
            history[0] = _ndcg(scores.tolist(), judged)
        count += 1
        return loss

    return step


# ------------------------------------------------------------------------------------------------ recompute, fusion


class ScaledBlock(nn.Module):
    """A vision transformer's block with a learned scale of each branch."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma1, self.gamma2 = (
            nn.Parameter(torch.full((width,), 0.1)),
            nn.Parameter(torch.full((width,), 0.1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.gamma1 * self.attn(h, h, h, need_weights=False)[0]
        return x + self.gamma2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))


class CheckpointedViT(nn.Module):
    """timm's switch: `grad_checkpointing` runs every block again in the backward pass."""

    def __init__(self, layers: int, width: int, heads: int, classes: int, *, grad_checkpointing: bool):
        super().__init__()
        self.blocks = nn.ModuleList(ScaledBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.grad_checkpointing = grad_checkpointing

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.grad_checkpointing else block(x)
        return self.head(self.norm(x).mean(1))


@pair(
    "i",
    "recompute",
    "recompute",
    "a vision transformer tuned with set_grad_checkpointing(), copied from a recipe for a small GPU, with 100 GB free; "
    "fixed: switched off. No dropout: same loss and gradients, the blocks just run once",
)
def borrowed_recipe(fixed: bool) -> Step:
    width, classes = size(768, 32), size(1000, 10)
    model = made(
        lambda: CheckpointedViT(size(8, 2), width, size(12, 2), classes, grad_checkpointing=not fixed), BF16
    )
    patches, labels = rand(size(64, 2), size(256, 9), width, dtype=BF16), whole(classes, size(64, 2))
    return trainer(model, adamw(model), lambda: F.cross_entropy(model(patches).float(), labels))


def _call_price(spot: Tensor, strike: Tensor, years: Tensor, rate: Tensor, vol: Tensor) -> Tensor:
    """Black and Scholes's price of a call."""
    spread = vol * torch.sqrt(years)
    d1 = (torch.log(spot / strike) + (rate + 0.5 * vol * vol) * years) / spread
    d2 = d1 - spread
    inside1 = 0.5 * (1 + torch.erf(d1 / math.sqrt(2)))
    inside2 = 0.5 * (1 + torch.erf(d2 / math.sqrt(2)))
    return spot * inside1 - strike * torch.exp(-rate * years) * inside2


@pair(
    "i",
    "unfused elementwise",
    "unfused-elementwise",
    "33 million options priced by Black and Scholes's formula written out, then judged by a net; fixed: torch.compile of "
    "the formula. Same formula on the same options, same net",
)
def priced_book(fixed: bool) -> Step:
    books, options, hidden = size(16384, 16), size(2048, 24), size(4096, 32)
    count = books * options
    spot, strike = (torch.rand(count, device=device()) * 50 + 75 for _ in range(2))
    years, vol = torch.rand(count, device=device()) + 0.1, torch.rand(count, device=device()) * 0.3 + 0.1
    rate = torch.rand(count, device=device()) * 0.05
    net = made(
        lambda: nn.Sequential(
            nn.Linear(options, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, options),
        ),
        BF16,
    )
    price = compiled(_call_price) if fixed else _call_price

    @torch.no_grad()
    def step() -> Tensor:
        value = price(spot, strike, years, rate, vol)
        return net(value.view(books, options).to(BF16)).float().mean()

    return step


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "i",
    "healthy",
    "host-sync",
    "a large decoder reads its loss between forward and backward pass to skip a step that blows up; change: it does not "
    "look. No step does, so the same training; the GPU is idle for some microseconds in tens of milliseconds",
)
def healthy_spike_guard(fixed: bool) -> Step:
    words, width = size(16000, 40), size(2048, 32)
    model = made(lambda: CausalLM(words, width, size(16, 2), size(5504, 48), size(6, 1)), BF16)
    optimizer = adamw(model)
    ids = whole(words, size(4, 2), size(2048, 9))
    labels = ids.roll(-1, 1)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids, labels)
        if not fixed and loss.item() > 1e4:
            return loss
        loss.backward()
        optimizer.step()
        return loss

    return step


@pair(
    "i",
    "healthy",
    "launch-bound",
    "a nightly job embeds 1024 product titles at a time, op by op; change: CUDA graph. The same kernels, long enough that "
    "the host is always ahead of them",
)
def healthy_titles(fixed: bool) -> Step:
    words, width = size(32000, 50), size(768, 32)
    table = made(lambda: nn.Embedding(words, width), BF16)
    body = made(lambda: nn.Sequential(*(PostNormLayer(width, size(12, 2)) for _ in range(size(6, 1)))), BF16)
    ids = whole(words, size(1024, 2), size(64, 8))

    @torch.no_grad()
    def step() -> Tensor:
        return F.normalize(body(table(ids)).mean(1), dim=-1)

    return graphed(step) if fixed else step


class Adapted(nn.Module):
    """A frozen layer with a narrow one beside it that learns."""

    def __init__(self, inner: int, outer: int, rank: int):
        super().__init__()
        self.base = nn.Linear(inner, outer, bias=False)
        self.a, self.b = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


@pair(
    "i",
    "healthy",
    "exposed-communication",
    "a decoder tuned by adapters sends their gradients, 7 MB, to the host after the backward pass; change: each on "
    "a side stream once it is there. Same bytes before the same update, a hundredth of the step",
)
def healthy_adapter_push(fixed: bool) -> Step:
    width = size(2048, 32)
    linear = partial(Adapted, rank=size(16, 8))
    model = made(
        lambda: nn.Sequential(
            *(DecoderLayer(width, size(16, 2), size(5504, 48), linear) for _ in range(size(6, 1)))
        ),
        BF16,
    )
    adapters = [module for module in model.modules() if isinstance(module, Adapted)]
    model.requires_grad_(False)
    learned = [p for adapter in adapters for p in (adapter.a.weight, adapter.b.weight)]
    for p in learned:
        p.requires_grad_(True)
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=on_gpu())
    outbox = {p: torch.empty(p.shape, dtype=BF16, pin_memory=on_gpu()) for p in learned}
    side = torch.cuda.Stream() if on_gpu() else None
    x = rand(size(4, 1), size(2048, 8), width, dtype=BF16)

    def push(p: Tensor) -> None:
        if side is None:
            outbox[p].copy_(p.grad)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outbox[p].copy_(p.grad, non_blocking=True)

    if fixed:
        for p in learned:
            p.register_post_accumulate_grad_hook(push)

    def step() -> tuple[Tensor, Tensor]:
        loss = model(x).float().square().mean()
        loss.backward()
        if not fixed:
            for p in learned:
                outbox[p].copy_(p.grad, non_blocking=True)
        elif side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss, outbox[learned[0]][0]

    return step


@pair(
    "i",
    "healthy",
    "recompute",
    "a decoder that checkpoints nothing but its gates, one cheap elementwise operation a layer; change: nothing "
    "checkpointed. Same loss and gradients; what is computed again is a hundredth of the step",
)
def healthy_gates(fixed: bool) -> Step:
    words, width = size(16000, 40), size(2048, 32)
    model = made(lambda: CausalLM(words, width, size(16, 2), size(5504, 48), size(5, 1)), BF16)
    for layer in model.layers:
        layer.checkpoint_gate = not fixed
    ids = whole(words, size(4, 2), size(2048, 9))
    labels = ids.roll(-1, 1)
    return trainer(model, adamw(model), lambda: model(ids, labels))


@pair(
    "i",
    "healthy",
    "misaligned-gemm",
    "a model of stocks' returns with 61 factors, an odd number, before wide layers; change: 64, the new ones zero, whose "
    "weights are zero and stay so. Same loss; the first layer is a hundredth of the work",
)
def healthy_factors(fixed: bool) -> Step:
    rows, factors, width = size(32768, 16), 61, size(2048, 32)
    model = made(
        lambda: nn.Sequential(
            nn.Linear(factors, width),
            nn.GELU(),
            *(m for _ in range(size(8, 1)) for m in (nn.Linear(width, width), nn.GELU())),
            nn.Linear(width, 8),
        ),
        BF16,
    )
    x, returns = rand(rows, factors, dtype=BF16), rand(rows, 8)
    if fixed:
        x = F.pad(x, (0, 3))
        model[0].weight = nn.Parameter(F.pad(model[0].weight.detach(), (0, 3)))
    return trainer(model, adamw(model), lambda: F.mse_loss(model(x).float(), returns))


@pair(
    "i",
    "healthy",
    "no-tensor-cores",
    "a retriever in fp32 without TF32 that mostly adds up rows of its 24 tables, with one narrow layer behind; change: "
    "TF32 allowed. Same sums, and products that are a hundredth of the step",
)
def healthy_pooling(fixed: bool) -> Step:
    allow_tf32(fixed)
    features, rows, width = size(24, 3), size(1_000_000, 50), size(64, 8)
    batch, each = size(16384, 8), size(96, 4)
    bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", device=device()) for _ in range(features))
    head = made(lambda: nn.Linear(features * width, width))
    batches = [whole(rows, batch, each) for _ in range(features)]

    @torch.no_grad()
    def step() -> Tensor:
        pooled = [bag(ids) for bag, ids in zip(bags, batches, strict=True)]
        return F.normalize(head(torch.cat(pooled, 1)), dim=-1)

    return step
