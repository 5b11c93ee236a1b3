"""Programs of half "h": a laboratory's and a small company's training and serving code, one known fault each.

Written without sight of the tool's rules, from PyTorch's tuning guide, its profiler tutorials and everyday review.
Every program returns what it computes, so that its two variants can be compared. Nothing here touches CUDA on import.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    Block,
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


def sent(values: Any) -> Tensor:
    """Lists as a tensor on the device, through pinned memory and without a wait."""
    kept = torch.tensor(values)
    return kept.pin_memory().to(device(), non_blocking=True) if on_gpu() else kept


def squared(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), target)


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "h",
    "sync",
    "host-sync",
    "a robot arm's planner that rolls plans out in a learned model and asks after each moment whether all plans have "
    "left the workspace; fixed: asked once, after the last moment. They never have, so both compute all moments",
)
def arm_planner(fixed: bool) -> Step:
    samples, joints, wide, moments = size(24576, 16), 7, size(1024, 32), size(24, 3)
    model = made(
        lambda: nn.Sequential(
            nn.Linear(4 * joints, wide),
            nn.SiLU(),
            nn.Linear(wide, wide),
            nn.SiLU(),
            nn.Linear(wide, 2 * joints),
        ),
        BF16,
    )
    plans, goal = rand(moments, samples, joints), rand(joints)
    start = torch.zeros(samples, joints, device=device())

    @torch.no_grad()
    def step() -> Tensor:
        angle, speed, cost, flags = start, start, start[:, 0], []
        for moment in range(moments):
            push = plans[moment].clamp(-1, 1) * 0.5
            cost = cost + (angle - goal).square().sum(1) + 0.1 * push.square().sum(1)
            cost = cost + 0.01 * speed.abs().amax(1)
            features = torch.cat([angle.sin(), angle.cos(), speed.tanh(), push], 1).to(BF16)
            turn, gain = model(features).float().chunk(2, 1)
            angle, speed = angle + 0.05 * turn, 0.9 * speed + 0.05 * gain
            left = (angle.abs() > 10).any(1).all()
            if fixed:
                flags.append(left)
            elif left:
                raise ValueError("no plan stays in the workspace")
        if fixed and torch.stack(flags).any():
            raise ValueError("no plan stays in the workspace")
        return cost

    return step


class _Hashed(nn.Module):
    """Experts of a hash layer: a token's id says which one is asked."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, 1)
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(experts))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(experts))

    def forward(self, x: Tensor, expert_of: Tensor, *, sorts: bool) -> Tensor:
        h, out = self.norm(x), torch.zeros_like(x)
        each = len(x) // len(self.ups)
        order = expert_of.argsort(stable=True) if sorts else None
        for number, (up, down) in enumerate(zip(self.ups, self.downs, strict=True)):
            if order is not None:
                rows = order[number * each : (number + 1) * each]
            else:
                rows = torch.where(expert_of == number)[0]
                if rows.numel() == 0:
                    continue
            out.index_add_(0, rows, down(F.gelu(up(h.index_select(0, rows)))))
        return x + torch.sigmoid(self.gate(h)) * out


@pair(
    "h",
    "sync",
    "host-sync",
    "a chatbot's hash-routed experts, each of which looks for its tokens with torch.where and skips if there are none; "
    "fixed: slices of one stable argsort. The hash is balanced: the same tokens in the same order for each expert",
)
def hash_experts(fixed: bool) -> Step:
    width, tokens, experts = size(1024, 32), size(6144, 64), size(16, 4)
    model = made(lambda: nn.ModuleList(_Hashed(width, experts) for _ in range(size(6, 2))), BF16)
    expert_of = torch.randperm(tokens, device=device()) % experts
    x0 = rand(tokens, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for layer in model:
            x = layer(x, expert_of, sorts=fixed)
        return x

    return step


class _Assistant(nn.Module):
    """A small causal language model."""

    def __init__(self, words: int, width: int, heads: int, count: int):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = blocks(count, width, heads, fused=True, causal=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.table(ids))))


def _collated(
    chats: list[list[tuple[str, str]]], vocabulary: dict[str, int], length: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and labels of chats, brought to one length; what the user says is no label."""
    rows, labels = [], []
    for chat in chats:
        ids: list[int] = []
        own: list[int] = []
        for speaker, text in chat:
            words = [vocabulary.get(word.strip(".,"), 0) for word in text.lower().split()]
            ids += words
            own += words if speaker == "assistant" else [-100] * len(words)
        ids, own = ids[:length], own[1 : length + 1]
        rows.append(ids + [0] * (length - len(ids)))
        labels.append(own + [-100] * (length - len(own)))
    return rows, labels


@pair(
    "h",
    "sync",
    "host-sync",
    "an assistant tuned on chats by 4 micro-batches, each put together in Python, whose losses are fetched by .cpu() one "
    "by one; fixed: they stay on the GPU. Same micro-batches, gradients, update and sum; only its place differs",
)
def assistant_tuning(fixed: bool) -> Step:
    words, width, length = size(8000, 50), size(1024, 32), size(512, 16)
    model = made(partial(_Assistant, words, width, size(16, 2), size(3, 1)), BF16)
    optimizer = adamw(model)
    vocabulary = {f"word{n}": n for n in range(words)}
    draw = np.random.default_rng(0)

    def text(count: int) -> str:
        return " ".join(f"Word{n}," for n in draw.integers(0, words, count))

    turns = [("user", length // 4), ("assistant", length // 4)] * 2
    micro = [
        [[(speaker, text(count)) for speaker, count in turns] for _ in range(size(16, 2))]
        for _ in range(size(4, 2))
    ]

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        losses = []
        for chats in micro:
            rows, labels = _collated(chats, vocabulary, length)
            logits, target = model(sent(rows)), sent(labels)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten()) / len(micro)
            loss.backward()
            losses.append(loss.detach() if fixed else loss.detach().cpu())
        optimizer.step()
        return torch.stack(losses).float().sum()

    return step


# ------------------------------------------------------------------------------------------------ overlap


@pair(
    "h",
    "exposed copies",
    "exposed-communication",
    "a genome model trained on several hosts through host memory: all gradients are copied out after the backward pass, "
    "before the update; fixed: each on a side stream once it is ready. Same bytes, all there before the update",
)
def genome_gradients(fixed: bool) -> Step:
    width, length = size(2048, 32), size(2048, 8)
    model = made(partial(blocks, size(4, 1), width, size(16, 2), fused=True), BF16)
    optimizer, x = adamw(model), rand(size(3, 1), length, width, dtype=BF16)
    target = rand(size(3, 1), length, width)
    outbox = {p: torch.empty(p.shape, dtype=BF16, pin_memory=on_gpu()) for p in model.parameters()}
    side = torch.cuda.Stream() if on_gpu() else None

    def post(p: Tensor) -> None:
        outbox[p].copy_(p.grad, non_blocking=True)

    def post_beside(p: Tensor) -> None:
        if side is None:
            post(p)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            post(p)

    if fixed:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(post_beside)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = squared(model, x, target)
        loss.backward()
        if not fixed:
            for p in model.parameters():
                post(p)
        elif side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        return loss

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


class _Film(nn.Module):
    """Two convolutions over time, the first one's result scaled and shifted by what the robot sees."""

    def __init__(self, inner: int, outer: int, seen: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(inner, outer, 5, padding=2), nn.GroupNorm(8, outer)
        self.conv2, self.norm2 = nn.Conv1d(outer, outer, 5, padding=2), nn.GroupNorm(8, outer)
        self.film = nn.Linear(seen, 2 * outer)
        self.skip = nn.Conv1d(inner, outer, 1)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        h = F.mish(self.norm1(self.conv1(x)))
        scale, shift = self.film(F.mish(seen)).unsqueeze(-1).chunk(2, 1)
        h = h * (1 + scale) + shift
        return F.mish(self.norm2(self.conv2(h))) + self.skip(x)


@pair(
    "h",
    "launch-bound",
    "launch-bound",
    "a diffusion policy that serves one robot: 8 denoising rounds of a small convolution net over 16 moments; fixed: all "
    "rounds as a CUDA graph. The graph holds the same kernels on the same buffers",
)
def arm_diffusion(fixed: bool) -> Step:
    width, seen_width, moments, actions, rounds = size(256, 16), size(256, 16), 16, 10, size(8, 2)
    stages = made(
        lambda: nn.ModuleList(_Film(actions if not n else width, width, seen_width) for n in range(5)), BF16
    ).eval()
    head, times = made(partial(nn.Conv1d, width, actions, 1), BF16), rand(rounds, 1, seen_width, dtype=BF16)
    seen, noise = rand(1, seen_width, dtype=BF16), rand(1, actions, moments, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = noise
        for number in range(rounds):
            known, h = seen + times[number], x
            for stage in stages:
                h = stage(h, known)
            x = (x - 0.1 * head(h)).clamp(-3, 3)
        return x

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


class _Wide(nn.Module):
    """A wide residual net's block: norm and ReLU before each convolution."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.skip = nn.Conv2d(inner, outer, 1, stride=stride, bias=False) if inner != outer else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        kept = x if self.skip is None else self.skip(h)
        return kept + self.conv2(F.relu(self.norm2(self.conv1(h))))


def _wide_net(base: int, deep: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, base, 3, padding=1, bias=False)]
    inner = base
    for stage in range(3):
        outer = base << stage
        for number in range(deep):
            layers.append(_Wide(inner, outer, 2 if stage and not number else 1))
            inner = outer
    layers += [nn.BatchNorm2d(inner), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(inner, classes))


@pair(
    "h",
    "layout",
    "layout-conversions",
    "plankton pictures learned by a wide residual net with batch norm under autocast in NCHW; fixed: net and pictures in "
    "channels_last. Same convolutions of the same values; only their order in memory differs",
)
def plankton_nchw(fixed: bool) -> Step:
    batch, side, classes = size(64, 2), size(64, 16), size(40, 5)
    model = made(partial(_wide_net, size(128, 8), size(2, 1), classes))
    pictures, kinds = rand(batch, 3, side, side), whole(classes, batch)
    if fixed:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=on_gpu())

    def loss_of() -> Tensor:
        with autocast():
            return F.cross_entropy(model(pictures), kinds)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ attention


class _Bases(nn.Module):
    """Which base was hidden, from all others of a long piece of a chromosome."""

    def __init__(self, width: int, heads: int, *, fused: bool):
        super().__init__()
        self.table, self.head = nn.Embedding(6, width), nn.Linear(width, 5)
        self.blocks = blocks(size(2, 1), width, heads, fused=fused)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.table(ids)))


@pair(
    "h",
    "unfused attention",
    "unfused-attention",
    "a chromosome model over 9216 bases trained with softmax(q k) v written out; fixed: SDPA. Same weights, same "
    "attention, same loss and gradients up to rounding",
)
def chromosome_attention(fixed: bool) -> Step:
    length = size(9216, 72)
    model = made(partial(_Bases, size(1024, 32), size(8, 2), fused=fixed), BF16)
    ids, target = whole(6, 1, length), whole(5, length)
    return trainer(model, adamw(model), lambda: F.cross_entropy(model(ids)[0].float(), target))


# ------------------------------------------------------------------------------------------------ tensor cores


@pair(
    "h",
    "no tensor cores",
    "no-tensor-cores",
    "a climate emulator over patches of the globe trained in fp32 with TF32 off, as by default for products; fixed: TF32 "
    "on. Same model, data and update up to TF32's rounding",
)
def climate_emulator(fixed: bool) -> Step:
    torch.backends.cuda.matmul.allow_tf32 = fixed
    torch.backends.cudnn.allow_tf32 = fixed
    width, fields = size(1024, 32), size(256, 12)
    model = made(
        lambda: nn.Sequential(
            nn.Linear(fields, width),
            blocks(size(4, 1), width, size(16, 2), fused=True),
            nn.LayerNorm(width),
            nn.Linear(width, fields),
        )
    )
    today, tomorrow = (rand(size(4, 1), size(1024, 8), fields) for _ in range(2))
    return trainer(model, adamw(model), partial(squared, model, today, tomorrow))


# ------------------------------------------------------------------------------------------------ optimizer


@pair(
    "h",
    "loop optimizer",
    "loop-optimizer",
    "a robot's skills learned by imitation under autocast with Adam(foreach=False); fixed: Adam(fused=True). The same "
    "formula for each of the hundred parameters",
)
def imitation_adam(fixed: bool) -> Step:
    return imitation(**{"fused": True} if fixed and on_gpu() else {"foreach": False})


def imitation(**optimizing: Any) -> Step:
    width, sensors, motors = size(512, 32), size(96, 6), size(24, 3)
    model = made(
        lambda: nn.Sequential(
            nn.Linear(sensors, width),
            blocks(size(8, 1), width, size(8, 2), fused=True, causal=True),
            nn.Linear(width, motors),
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **optimizing)
    batch, length = size(16, 2), size(512, 8)
    felt, done = rand(batch, length, sensors), rand(batch, length, motors)

    def loss_of() -> Tensor:
        with autocast():
            return squared(model, felt, done)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ copies and casts


class _Int8(nn.Module):
    """A layer stored in int8 with a scale per output; unpacked whenever it is called, or once."""

    def __init__(self, inner: int, outer: int, *, ready: bool):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (outer, inner), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(outer, 1).add_(0.5).mul_(0.5 / 73 * inner**-0.5))
        self.register_buffer("kept", self.unpacked() if ready else None)

    def unpacked(self) -> Tensor:
        return (self.weight.float() * self.scale).to(BF16)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.unpacked() if self.kept is None else self.kept)


class _Int8Block(nn.Module):
    """A chat model's block with RMS norms, SDPA and SwiGLU, all layers in int8."""

    def __init__(self, width: int, hidden: int, heads: int, *, ready: bool):
        super().__init__()
        layer = partial(_Int8, ready=ready)
        self.qkv, self.out = layer(width, 3 * width), layer(width, width)
        self.gate, self.up, self.down = layer(width, hidden), layer(width, hidden), layer(hidden, width)
        self.heads, self.width = heads, width

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(F.rms_norm(x, (width,))).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        h = F.rms_norm(x, (width,))
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pair(
    "h",
    "dtype casts",
    "dtype-casts",
    "a chat model stored in int8 that unpacks every weight through fp32 to bf16 in each prefill; fixed: unpacked once "
    "when loaded. The products see the same bf16 weights",
)
def int8_chat(fixed: bool) -> Step:
    width, hidden, heads = size(4096, 32), size(11008, 80), size(32, 2)
    with torch.device(device()):
        model = nn.Sequential(*(_Int8Block(width, hidden, heads, ready=fixed) for _ in range(size(4, 1))))
    x = rand(size(8, 2), size(128, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


class _Grasp(nn.Module):
    """A residual perceptron over points, its GELU called in fp32 or in the type of its input."""

    def __init__(self, width: int, *, casts: bool):
        super().__init__()
        self.norm, self.casts = nn.LayerNorm(width), casts
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        h = F.gelu(h.float()).to(h.dtype) if self.casts else F.gelu(h)
        return x + self.down(h)


@pair(
    "h",
    "dtype casts",
    "dtype-casts",
    "a grasp scorer over 16384 points in bf16 that goes to fp32 and back around each GELU, to be safe; fixed: GELU in "
    "bf16, which computes in fp32 inside and rounds once. Same values, same training",
)
def grasp_points(fixed: bool) -> Step:
    return grasps(casts=not fixed)


def grasps(*, casts: bool, wrap: Callable[..., Any] = lambda model: model) -> Step:
    width, points = size(1024, 32), size(16384, 32)
    model = made(
        lambda: nn.Sequential(*(_Grasp(width, casts=casts) for _ in range(size(6, 2)))).append(
            nn.Linear(width, 8)
        ),
        BF16,
    )
    x, target = rand(points, width, dtype=BF16), rand(points, 8)
    return trainer(model, adamw(model), partial(squared, wrap(model), x, target))


class _Pairs(nn.Module):
    """A transition of a protein's pair features, each pair of residues for itself."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.down(F.relu(self.up(self.norm(pairs))))


@pair(
    "h",
    "copies",
    "redundant-copies",
    "a protein's pair features are cloned, turned to columns, made contiguous and turned back around each transition; "
    "fixed: left as they lie. A transition sees one pair at a time, so their order changes no value",
)
def residue_pairs(fixed: bool) -> Step:
    width, residues = size(128, 16), size(768, 12)
    layers = made(lambda: nn.ModuleList(_Pairs(width) for _ in range(size(10, 2))), BF16)
    z0 = rand(1, residues, residues, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        z = z0
        for layer in layers:
            if fixed:
                z = z + layer(z)
                continue
            before = z.clone()
            columns = layer(z.transpose(1, 2).contiguous())
            z = before + columns.transpose(1, 2).contiguous()
        return z

    return step


@pair(
    "h",
    "host-device copies",
    "pageable-copy",
    "clips of eight hydrophones, 65 MB a step, are copied from pageable memory; fixed: from pinned memory, non_blocking. "
    "Same clips in the same order, same training",
)
def hydrophone_clips(fixed: bool) -> Step:
    clips, phones, frames, frame, width = size(64, 2), 8, size(100, 4), size(320, 4), size(768, 32)
    model = made(
        lambda: nn.Sequential(
            nn.Linear(phones * frame, width),
            blocks(size(4, 1), width, size(12, 2), fused=True),
            nn.Linear(width, 12),
        ),
        BF16,
    )
    recorded = [torch.randn(clips, phones, frames * frame) for _ in range(2)]
    if fixed and on_gpu():
        recorded = [each.pin_memory() for each in recorded]
    calls, count = whole(12, clips * frames), 0

    def loss_of() -> Tensor:
        nonlocal count
        count += 1
        x = recorded[count % 2].to(device(), non_blocking=fixed)
        x = x.view(clips, phones, frames, frame).transpose(1, 2).flatten(2).to(BF16)
        return F.cross_entropy(model(x).flatten(0, 1).float(), calls)

    return trainer(model, adamw(model), loss_of)


@pair(
    "h",
    "tiny copies",
    "tiny-copies",
    "a warehouse's 160 robots, each one's state made a tensor on the GPU by itself before the plans are scored; fixed: "
    "all states as one list and one copy. Same states, same scores",
)
def fleet_states(fixed: bool) -> Step:
    robots, facts, plans, width = size(160, 6), size(32, 4), size(64, 2), size(768, 32)
    states = np.random.default_rng(0).standard_normal((robots, facts)).tolist()
    embed = made(partial(nn.Linear, facts, width), BF16)
    model = made(partial(blocks, size(8, 1), width, size(12, 2), fused=True), BF16).eval()
    ideas, head = rand(plans, 1, width, dtype=BF16), made(partial(nn.Linear, width, 1), BF16)

    @torch.no_grad()
    def step() -> Tensor:
        if fixed:
            fleet = torch.tensor(states, device=device())
        else:
            fleet = torch.stack([torch.tensor(state, device=device()) for state in states])
        return head(model(embed(fleet.to(BF16)) + ideas)).squeeze(-1)

    return step


# ------------------------------------------------------------------------------------------------ host


class _Seismograms(Dataset):  # type: ignore[type-arg]
    """Three-component records kept as compressed differences, unpacked and filtered when asked for."""

    def __init__(self, samples: int):
        draw = np.random.default_rng(0)
        steps = draw.integers(-90, 90, (size(96, 4), 3, samples)).astype(np.int32)
        self.samples, self.packed = samples, [zlib.compress(each.tobytes(), 1) for each in steps]
        self.taper = np.hanning(samples).astype(np.float32)
        self.slope = np.linspace(-1, 1, samples, dtype=np.float32)
        waves = np.fft.rfftfreq(samples, 0.01)
        self.band = ((waves > 0.5) & (waves < 20)).astype(np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        steps = np.frombuffer(zlib.decompress(self.packed[index % len(self.packed)]), np.int32)
        trace = steps.reshape(3, self.samples).cumsum(1).astype(np.float32)
        trace -= trace.mean(1, keepdims=True)
        trace -= (trace @ self.slope / (self.slope @ self.slope))[:, None] * self.slope
        trace = np.fft.irfft(np.fft.rfft(trace * self.taper) * self.band, self.samples)
        return (trace / (trace.std(1, keepdims=True) + 1e-6)).astype(np.float32), index % 3


class _Shaking(nn.Module):
    """What kind of event a record shows, from patches of 24 samples."""

    def __init__(self, width: int, heads: int, count: int):
        super().__init__()
        self.embed, self.head = nn.Linear(72, width), nn.Linear(width, 3)
        self.blocks = blocks(count, width, heads, fused=True)

    def forward(self, traces: Tensor) -> Tensor:
        patches = traces.unfold(2, 24, 24).transpose(1, 2).flatten(2)
        return self.head(self.blocks(self.embed(patches)).mean(1))


@pair(
    "h",
    "data loading",
    "input-bound",
    "seismograms are unpacked and filtered by the training process; fixed: by 8 persistent loader workers. Same records "
    "in the same order, same training",
)
def seismogram_workers(fixed: bool) -> Step:
    workers = size(8, 1) if fixed else 0
    loader = DataLoader(
        _Seismograms(size(6000, 96)),
        batch_size=size(32, 2),
        num_workers=workers,
        pin_memory=on_gpu(),
        persistent_workers=workers > 0,
    )
    records: Iterator[list[Tensor]] = iter(loader)
    model = made(partial(_Shaking, size(512, 32), size(8, 2), size(6, 1)), BF16)

    def loss_of() -> Tensor:
        traces, kinds = (each.to(device(), non_blocking=True) for each in next(records))
        return F.cross_entropy(model(traces.to(BF16)).float(), kinds)

    return trainer(model, adamw(model), loss_of)


@pair(
    "h",
    "python gap",
    "host-stall",
    "an earthquake picker whose precision and recall at 8 thresholds are counted in Python after every step; fixed: after "
    "every thousandth. Same training; the counts are only for the diary",
)
def picker_thresholds(fixed: bool) -> Step:
    width, batch, length = size(768, 32), size(16, 2), size(512, 8)
    model = made(
        lambda: nn.Sequential(
            blocks(size(6, 1), width, size(12, 2), fused=True), nn.LayerNorm(width), nn.Linear(width, 1)
        ),
        BF16,
    )
    optimizer, x = adamw(model), rand(batch, length, width, dtype=BF16)
    truth = whole(2, batch * length).float()
    arrivals, diary, count = truth.tolist(), {}, 0

    def counted(scores: list[float]) -> None:
        for place in range(1, 9):
            bar = place / 9
            picked = sum(1 for score in scores if score >= bar)
            right = sum(1 for score, real in zip(scores, arrivals, strict=True) if real and score >= bar)
            diary[bar] = right / max(1, picked), right / max(1.0, sum(arrivals))

    def step() -> Tensor:
        nonlocal count
        count += 1
        optimizer.zero_grad(set_to_none=True)
        logits = model(x).flatten().float()
        loss = F.binary_cross_entropy_with_logits(logits, truth)
        loss.backward()
        optimizer.step()
        if not fixed or count % 1000 == 0:
            counted(logits.detach().sigmoid().tolist())
        return loss

    return step


# ------------------------------------------------------------------------------------------------ recompute, fusion


class _Sine(nn.Module):
    """Two sine layers with their input added."""

    def __init__(self, width: int):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.two(torch.sin(self.one(x))))


@pair(
    "h",
    "recompute",
    "recompute",
    "the Earth's magnetic field fitted by sine layers, each pair of which is checkpointed though memory is plenty; fixed: "
    "not checkpointed. Same loss and gradients; nothing is computed twice",
)
def magnetic_field(fixed: bool) -> Step:
    width, points = size(1024, 32), size(98304, 32)
    embed = made(partial(nn.Linear, 4, width), BF16)
    layers = made(lambda: nn.ModuleList(_Sine(width) for _ in range(size(5, 2))), BF16)
    model = nn.ModuleList([embed, layers, made(partial(nn.Linear, width, 3), BF16)])
    where, field = rand(points, 4, dtype=BF16), rand(points, 3)

    def loss_of() -> Tensor:
        h = torch.sin(embed(where))
        for layer in layers:
            h = layer(h) if fixed else checkpoint(layer, h, use_reentrant=False)
        return F.mse_loss(model[2](h).float(), field)

    return trainer(model, adamw(model), loss_of)


def _evaporation(warmth: Tensor, damp: Tensor, wind: Tensor, light: Tensor, weight: Tensor) -> Tensor:
    """Penman and Monteith's formula for grass."""
    full = 0.6108 * torch.exp(17.27 * warmth / (warmth + 237.3))
    slope = 4098 * full / (warmth + 237.3).square()
    constant = 0.000665 * weight
    dry = full - full * damp
    top = 0.408 * slope * light + constant * 900 / (warmth + 273) * wind * dry
    return (top / (slope + constant * (1 + 0.34 * wind))).clamp_min(0)


@pair(
    "h",
    "unfused elementwise",
    "unfused-elementwise",
    "evaporation over a grid of 8192 x 8192 by a formula written out before a small net over its patches; fixed: "
    "torch.compile of the formula. Same formula on the same grids",
)
def evaporation_grid(fixed: bool) -> Step:
    side, patch = size(8192, 16), size(32, 4)
    warmth, damp, wind, light, weight = (torch.rand(side, side, device=device()) for _ in range(5))
    warmth, wind, light, weight = warmth.mul_(30), wind.mul_(8), light.mul_(20), weight.add_(100)
    width = patch * patch
    net = made(
        lambda: nn.Sequential(
            *(m for _ in range(size(6, 1)) for m in (nn.Linear(width, width), nn.ReLU()))
        ).append(nn.Linear(width, 8)),
        BF16,
    )
    formula = compiled(_evaporation) if fixed else _evaporation

    @torch.no_grad()
    def step() -> Tensor:
        water = formula(warmth, damp, wind, light, weight).to(BF16)
        patches = water.view(side // patch, patch, side // patch, patch).transpose(1, 2)
        return net(patches.reshape(-1, width))

    return step


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "h",
    "healthy",
    "host-sync",
    "a judge of chatbots' answers that turns its scores into a list after each of 3 large batches; change: they stay on "
    "the GPU until all are there. Same scores; a batch takes far longer than a wait costs",
)
def healthy_judge(fixed: bool) -> Step:
    width, answers, length = size(2048, 32), size(16, 2), size(512, 8)
    model = made(partial(blocks, size(4, 1), width, size(16, 2), fused=True, causal=True), BF16).eval()
    head = made(partial(nn.Linear, width, 1), BF16)
    batches = [rand(answers, length, width, dtype=BF16) for _ in range(3)]

    @torch.no_grad()
    def step() -> list[float]:
        scores: list[float] = []
        kept = []
        for batch in batches:
            score = head(model(batch)[:, -1]).squeeze(1)
            if fixed:
                kept.append(score)
            else:
                scores += score.tolist()
        return torch.cat(kept).tolist() if fixed else scores

    return step


@pair(
    "h",
    "healthy",
    "launch-bound",
    "a service that embeds 32 proteins of 1024 residues at a time; change: CUDA graph. Same kernels, each long enough for "
    "the host to be far ahead",
)
def healthy_proteins(fixed: bool) -> Step:
    width = size(1280, 32)
    model = made(partial(blocks, size(6, 1), width, size(20, 2), fused=True), BF16).eval()
    x = rand(size(32, 2), size(1024, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x).mean(1)

    return graphed(step) if fixed else step


@pair(
    "h",
    "healthy",
    "recompute",
    "a soil-moisture model of which only the narrow head is checkpointed; change: not checkpointed. Same loss and "
    "gradients; the head is a thousandth of the work",
)
def healthy_soil(fixed: bool) -> Step:
    width, batch, length = size(1536, 32), size(8, 1), size(1024, 8)
    body = made(partial(blocks, size(4, 1), width, size(12, 2), fused=True), BF16)
    head = made(lambda: nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 8)), BF16)
    model = nn.ModuleList([body, head])
    x, target = rand(batch, length, width, dtype=BF16), rand(batch, length, 8)

    def loss_of() -> Tensor:
        h = body(x)
        guess = head(h) if fixed else checkpoint(head, h, use_reentrant=False)
        return F.mse_loss(guess.float(), target)

    return trainer(model, adamw(model), loss_of)


@pair(
    "h",
    "healthy",
    "redundant-copies",
    "a voice converter that clones its speakers' vectors and makes its mel bands contiguous, about a megabyte, before "
    "large blocks; change: neither. Same values; the copies are microseconds of the step",
)
def healthy_voices(fixed: bool) -> Step:
    width, bands, batch, length = size(1536, 32), size(80, 8), size(8, 2), size(1024, 8)
    embed = made(partial(nn.Linear, bands, width), BF16)
    body = made(partial(blocks, size(4, 1), width, size(12, 2), fused=True), BF16)
    model = nn.ModuleList([embed, body, made(partial(nn.Linear, width, bands), BF16)])
    mel, speakers = rand(batch, bands, length, dtype=BF16), rand(batch, 1, width, dtype=BF16)
    target = rand(batch, length, bands)

    def loss_of() -> Tensor:
        frames = mel.transpose(1, 2) if fixed else mel.transpose(1, 2).contiguous()
        voice = speakers if fixed else speakers.clone()
        return F.mse_loss(model[2](body(embed(frames) + voice)).float(), target)

    return trainer(model, adamw(model), loss_of)


@pair(
    "h",
    "healthy",
    "host-stall",
    "a large world model of a robot whose training loop smooths its diary's curves in Python, 1 to 2 ms a step, without "
    "asking the GPU for anything; change: it does not. Same training; the host is ahead of the GPU all along",
)
def healthy_diary(fixed: bool) -> Step:
    width, batch, length = size(2048, 32), size(8, 1), size(1024, 8)
    model = made(partial(blocks, size(3, 1), width, size(16, 2), fused=True, causal=True), BF16)
    x, target = rand(batch, length, width, dtype=BF16), rand(batch, length, width)
    train = trainer(model, adamw(model), partial(squared, model, x, target))
    curves = np.random.default_rng(0).random((size(20, 2), 2000)).tolist()
    diary: dict[int, str] = {}

    def smoothed() -> None:
        for number, curve in enumerate(curves):
            mean = 0.0
            for value in curve:
                mean += 0.02 * (value - mean)
            diary[number] = f"{mean:.4f}"

    def step() -> Tensor:
        loss = train()
        if not fixed:
            smoothed()
        return loss

    return step


class _Adapted(nn.Module):
    """A frozen block and a narrow adapter behind it."""

    def __init__(self, width: int, heads: int, narrow: int):
        super().__init__()
        self.block = Block(width, heads, fused=True, causal=True).requires_grad_(False)
        self.into, self.out = nn.Linear(width, narrow), nn.Linear(narrow, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block(x)
        return h + self.out(F.gelu(self.into(h)))


@pair(
    "h",
    "healthy",
    "exposed-communication",
    "a frozen chat model with narrow adapters whose gradients, 2 MB, are copied to the host after the backward pass; "
    "change: on a side stream as each is ready. Same bytes; they take a hundredth of the step at most",
)
def healthy_adapter_mail(fixed: bool) -> Step:
    width, batch, length = size(2048, 32), size(8, 1), size(1024, 8)
    model = made(
        lambda: nn.Sequential(*(_Adapted(width, size(16, 2), size(64, 4)) for _ in range(size(4, 1)))), BF16
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=on_gpu())
    x, target = rand(batch, length, width, dtype=BF16), rand(batch, length, width)
    outbox = {p: torch.empty(p.shape, dtype=BF16, pin_memory=on_gpu()) for p in trained}
    side = torch.cuda.Stream() if on_gpu() else None

    def post(p: Tensor) -> None:
        if side is None or not fixed:
            outbox[p].copy_(p.grad, non_blocking=True)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outbox[p].copy_(p.grad, non_blocking=True)

    if fixed:
        for p in trained:
            p.register_post_accumulate_grad_hook(post)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = squared(model, x, target)
        loss.backward()
        if not fixed:
            for p in trained:
                post(p)
        elif side is not None:
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        return loss

    return step
