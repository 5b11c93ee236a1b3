"""Programs for `measure.py` written after `set_d.py`, again without a look at `diagnose` and `predict`.

Half "e": predictions are frozen before these are measured. Both variants of a program give the same results, and
the note says why. The `harmless_` ones look faulty, but their fix does not pay.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Attention,
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
    whole,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, fused=on_gpu())


class _Llama(nn.Module):
    """A block with RMS norms, rotation left out, and a gated network; `linear` makes its layers."""

    def __init__(self, width: int, heads: int, linear: Callable[[int, int], nn.Module]):
        super().__init__()
        hidden = 8 * width // 3 // 16 * 16
        self.q_proj, self.k_proj, self.v_proj = (linear(width, width) for _ in range(3))
        self.o_proj, self.down_proj = linear(width, width), linear(hidden, width)
        self.gate_proj, self.up_proj = linear(width, hidden), linear(width, hidden)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        parts = (self.q_proj(h), self.k_proj(h), self.v_proj(h))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class _Lora(nn.Module):
    """A frozen layer and its adapter, as PEFT writes it: the input takes on the adapter's type."""

    def __init__(self, inner: int, outer: int, *, dtype: torch.dtype, rank: int = 16):
        super().__init__()
        self.base = nn.Linear(inner, outer, bias=False, dtype=BF16).requires_grad_(False)
        self.lora_a = nn.Linear(inner, rank, bias=False, dtype=dtype)
        self.lora_b = nn.Linear(rank, outer, bias=False, dtype=dtype)
        nn.init.normal_(self.lora_b.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        x = x.to(self.lora_a.weight.dtype)
        return (result + self.lora_b(self.lora_a(x)) * 2.0).to(result.dtype)


def _lora(count: int, dtype: torch.dtype) -> tuple[nn.Sequential, list[nn.Parameter]]:
    """Blocks with an adapter on each layer, and what of them is trained."""
    width, heads = size(2048, 32), size(16, 2)
    with torch.device(device()):
        model = nn.Sequential(*(_Llama(width, heads, partial(_Lora, dtype=dtype)) for _ in range(count)))
    for block in model:
        for norm in (block.norm1, block.norm2):
            norm.to(BF16).requires_grad_(False)
    return model, [p for p in model.parameters() if p.requires_grad]


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "e",
    "sync",
    "host-sync",
    "a graph network over molecules that averages the atoms of each molecule by a boolean mask in a loop; "
    "fixed: one index_add for all. Same means, same gradients",
)
def molecule_means(fixed: bool) -> Step:
    graphs, width = size(64, 4), size(256, 16)
    sizes = torch.tensor([12 + 7 * n % 25 for n in range(graphs)])
    member = torch.repeat_interleave(torch.arange(graphs), sizes).to(device())
    atoms, bonds = len(member), 2 * len(member)
    source, target = whole(atoms, bonds), whole(atoms, bonds)
    nets = [
        nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(4)
    ]
    model = nn.ModuleList([*nets, nn.Linear(width, 1)]).to(device())
    x, wanted, count = rand(atoms, width), rand(graphs), sizes.to(device()).unsqueeze(1)

    def loss_of() -> Tensor:
        h = x
        for net in nets:
            h = h + 0.1 * net(h + torch.zeros_like(h).index_add_(0, target, h[source]))
        if fixed:
            means = torch.zeros(graphs, width, device=device()).index_add_(0, member, h) / count
        else:
            means = torch.stack([h[member == graph].mean(0) for graph in range(graphs)])
        return F.mse_loss(model[-1](means).squeeze(1), wanted)

    return trainer(model, adamw(model), loss_of)


@pair(
    "e",
    "sync",
    "host-sync",
    "a forecaster over patches of time series trained with torch.autograd.set_detect_anomaly(True) left on, "
    "which looks for NaN after each function of the backward pass; fixed: off. Same training",
)
def anomaly_left_on(fixed: bool) -> Step:
    width, batch, patches = size(256, 16), size(256, 2), size(42, 4)
    enter, leave = nn.Linear(16, width), nn.Linear(width * patches, 96)
    body = blocks(size(4, 1), width, size(8, 2), fused=True)
    model = nn.ModuleList([enter, body, leave]).to(device())
    optimizer = adamw(model)
    x, wanted = rand(batch, patches, 16), rand(batch, 96)

    def step() -> Tensor:
        with torch.autograd.set_detect_anomaly(not fixed):
            optimizer.zero_grad(set_to_none=True)
            with autocast():
                guess = leave(body(enter(x)).flatten(1))
            loss = F.mse_loss(guess.float(), wanted)
            loss.backward()
            optimizer.step()
        return loss

    return step


def _overlaps(one: Tensor, other: Tensor) -> Tensor:
    """The overlap of boxes (..., n, 4) with boxes (..., m, 4)."""
    low = torch.maximum(one[..., :, None, :2], other[..., None, :, :2])
    high = torch.minimum(one[..., :, None, 2:], other[..., None, :, 2:])
    both = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (one, other)]
    return both / (areas[0][..., :, None] + areas[1][..., None, :] - both)


@pair(
    "e",
    "sync",
    "host-sync",
    "a detector that keeps the best boxes by a loop on the GPU: take the best, drop by a boolean mask what "
    "overlaps it, until none is left; fixed: all overlaps at once on the GPU, the choice on the host. Same "
    "boxes kept",
)
def best_boxes(fixed: bool) -> Step:
    batch, things, each, side = size(3, 2), size(24, 3), size(8, 3), size(320, 16)
    net = conv_stack((8,) if TINY else (32, 32, 64, 64, 128, 128))[:-3]
    model = net.to(device(), BF16).to(memory_format=torch.channels_last).eval()
    head = nn.Conv2d(size(128, 8), 5, 1).to(device(), BF16)
    pictures = rand(batch, 3, side, side, dtype=BF16).contiguous(memory_format=torch.channels_last)
    corner = torch.rand(batch, things, 1, 2, device=device()) * 900
    extent = 40 + 60 * torch.rand(batch, things, 1, 2, device=device())
    corner = (corner + 4 * rand(batch, things, each, 2)).flatten(1, 2)
    extent = extent.expand(-1, -1, each, -1).flatten(1, 2)
    count = things * each

    @torch.no_grad()
    def step() -> Tensor:
        found = head(model(pictures)).flatten(2).transpose(1, 2)[:, :count].float()
        start = corner + found[..., :2].tanh()
        boxes, scores = torch.cat([start, start + extent], -1), found[..., 4] + corner[..., 0] * 0.01
        kept = torch.zeros(batch, count)
        if fixed:
            order = scores.argsort(-1, descending=True)
            ranked = boxes.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
            close, places = (_overlaps(ranked, ranked) > 0.5).cpu().numpy(), order.cpu()
            for picture in range(batch):
                free = np.ones(count, dtype=bool)
                for place in range(count):
                    if free[place]:
                        kept[picture, places[picture, place]] = 1
                        free &= ~close[picture, place]
            return kept
        for picture in range(batch):
            order = scores[picture].argsort(descending=True)
            chosen = []
            while order.numel() > 0:
                chosen.append(order[0])
                overlap = _overlaps(boxes[picture, order[:1]], boxes[picture, order])[0]
                order = order[overlap <= 0.5]
            kept[picture, torch.stack(chosen).cpu()] = 1
        return kept

    return step


@pair(
    "e",
    "sync",
    "host-sync",
    "a DCGAN that reads six numbers by .item() in every step, as the tutorial does; fixed: they stay on the "
    "GPU. Same training",
)
def gan_logging(fixed: bool) -> Step:
    batch, wide, noise = size(64, 4), size(64, 4), size(100, 8)
    up, down = [nn.ConvTranspose2d(noise, 8 * wide, 4, 1, 0, bias=False)], [nn.Conv2d(3, wide, 4, 2, 1)]
    making: list[nn.Module] = [*up, nn.BatchNorm2d(8 * wide), nn.ReLU(True)]
    judging: list[nn.Module] = [*down, nn.LeakyReLU(0.2, inplace=True)]
    for factor in (4, 2, 1):
        making += [nn.ConvTranspose2d(2 * factor * wide, factor * wide, 4, 2, 1, bias=False)]
        making += [nn.BatchNorm2d(factor * wide), nn.ReLU(True)]
    making += [nn.ConvTranspose2d(wide, 3, 4, 2, 1, bias=False), nn.Tanh()]
    for factor in (1, 2, 4):
        judging += [nn.Conv2d(factor * wide, 2 * factor * wide, 4, 2, 1, bias=False)]
        judging += [nn.BatchNorm2d(2 * factor * wide), nn.LeakyReLU(0.2, inplace=True)]
    judging += [nn.Conv2d(8 * wide, 1, 4, 1, 0, bias=False), nn.Flatten(0)]
    maker, judge = nn.Sequential(*making).to(device()), nn.Sequential(*judging).to(device())
    optimizers = [
        torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=on_gpu())
        for net in (maker, judge)
    ]
    real = rand(batch, 3, 64, 64)
    true, false = torch.ones(batch, device=device()), torch.zeros(batch, device=device())
    say: Callable[[Tensor], Any] = (lambda value: value.detach()) if fixed else (lambda value: value.item())

    def step() -> Any:
        judge.zero_grad(set_to_none=True)
        output = judge(real)
        loss_real = F.binary_cross_entropy_with_logits(output, true)
        loss_real.backward()
        d_x = say(output.sigmoid().mean())
        fake = maker(torch.randn(batch, noise, 1, 1, device=device()))
        output = judge(fake.detach())
        loss_fake = F.binary_cross_entropy_with_logits(output, false)
        loss_fake.backward()
        d_g1 = say(output.sigmoid().mean())
        loss_d = say(loss_real + loss_fake)
        optimizers[1].step()
        maker.zero_grad(set_to_none=True)
        output = judge(fake)
        loss = F.binary_cross_entropy_with_logits(output, true)
        loss.backward()
        d_g2 = say(output.sigmoid().mean())
        optimizers[0].step()
        return d_x, d_g1, d_g2, loss_d, say(loss), say(fake.mean())

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


@pair(
    "e",
    "launch-bound",
    "launch-bound",
    "PPO whose generalised advantages are computed by a loop over 128 times on the GPU; fixed: that loop as a "
    "CUDA graph, same kernels",
)
def advantage_loop(fixed: bool) -> Step:
    times, worlds, seen, choices = size(128, 4), size(512, 4), 48, 6
    body = nn.Sequential(nn.Linear(seen, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
    actor, critic = nn.Linear(256, choices), nn.Linear(256, 1)
    model = nn.ModuleList([body, actor, critic]).to(device())
    optimizer = adamw(model)
    states, rewards = rand(times + 1, worlds, seen), rand(times, worlds)
    going = (rand(times, worlds) < 2).float()
    actions, before = whole(choices, times, worlds), rand(times, worlds) * 0.1 - 1.8
    values = torch.zeros(times + 1, worlds, device=device())
    advantages = torch.zeros(times, worlds, device=device())

    @torch.no_grad()
    def advance() -> None:
        last = torch.zeros(worlds, device=device())
        for time in reversed(range(times)):
            delta = rewards[time] + 0.99 * values[time + 1] * going[time] - values[time]
            last = delta + 0.99 * 0.95 * going[time] * last
            advantages[time] = last

    advance = graphed(advance) if fixed else advance

    def step() -> Tensor:
        with torch.no_grad():
            values.copy_(critic(body(states)).squeeze(-1))
        advance()
        returns = advantages + values[:-1]
        flat = [each.flatten(0, 1) for each in (states[:-1], actions, before, advantages, returns)]
        parts = zip(*(each.chunk(4) for each in flat), strict=True)
        for state, action, old, gain, wanted in parts:
            h = body(state)
            chance = actor(h).log_softmax(-1).gather(1, action.unsqueeze(1)).squeeze(1)
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            ratio = (chance - old).exp()
            policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = policy + 0.5 * F.mse_loss(critic(h).squeeze(1), wanted)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        return loss

    return step


@pair(
    "e",
    "launch-bound",
    "launch-bound",
    "a physics-informed network for Burgers' equation, its second derivatives by autograd; fixed: the whole "
    "step, optimizer included, as a CUDA graph, same kernels",
)
def burgers_equation(fixed: bool) -> Step:
    width, points = size(64, 8), size(10_000, 16)
    layers: list[nn.Module] = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(size(6, 2)):
        layers += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(device())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=on_gpu(), capturable=fixed and on_gpu())
    inside, edge = rand(points, 2), rand(size(400, 4), 2)
    wanted = -torch.sin(torch.pi * edge[:, :1])

    def loss_of() -> Tensor:
        x, t = (column.detach().requires_grad_() for column in inside.split(1, 1))
        u = model(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
        rest = u_t + u * u_x - (0.01 / torch.pi) * u_xx
        return rest.square().mean() + F.mse_loss(model(edge), wanted)

    step = trainer(model, optimizer, loss_of)
    return graphed(step) if fixed else step


@pair(
    "e",
    "launch-bound",
    "launch-bound",
    "a video classifier that sends the 16 frames of its clips through the picture network one after the "
    "other; fixed: all frames as one batch. Same frames, same features",
)
def frame_by_frame(fixed: bool) -> Step:
    clips, frames, side, width = size(4, 2), size(16, 3), size(112, 16), 100
    picture = conv_stack((8, 16) if TINY else (64, 64, 128, 128, 256, 256, 512, 512)).to(device(), BF16)
    picture = picture.to(memory_format=torch.channels_last).eval()
    track = nn.GRU(width, width, batch_first=True).to(device()).eval()
    head = nn.Linear(width, 400).to(device())
    x = rand(clips, frames, 3, side, side, dtype=BF16)

    def features(part: Tensor) -> Tensor:
        return picture(part.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def step() -> Tensor:
        if fixed:
            each = features(x.flatten(0, 1)).unflatten(0, (clips, frames))
        else:
            each = torch.stack([features(x[:, frame]) for frame in range(frames)], 1)
        return head(track(each.float())[0][:, -1])

    return step


# ------------------------------------------------------------------------------------------------ layout


class _Pyramid(nn.Module):
    """A backbone of four stages, a feature pyramid and RetinaNet's head."""

    def __init__(self, widths: tuple[int, ...], middle: int):
        super().__init__()
        self.stem, self.stages = self.layer(3, widths[0], 2), nn.ModuleList()
        for inner, outer in itertools.pairwise((widths[0], *widths)):
            self.stages.append(nn.Sequential(self.layer(inner, outer, 2), self.layer(outer, outer)))
        self.sides = nn.ModuleList(nn.Conv2d(width, middle, 1) for width in widths[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(middle, middle, 3, padding=1) for _ in widths[1:])
        self.head = nn.Sequential(self.layer(middle, middle), self.layer(middle, middle))
        self.boxes = nn.Conv2d(middle, 36, 3, padding=1)

    @staticmethod
    def layer(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
        conv = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x, levels = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        found, above = [], None
        for side, smooth, level in reversed(list(zip(self.sides, self.smooth, levels[1:], strict=True))):
            here = side(level)
            above = here if above is None else here + F.interpolate(above, scale_factor=2.0)
            found.append(self.boxes(self.head(smooth(above))).flatten(2))
        return torch.cat(found, 2)


@pair(
    "e",
    "layout",
    "layout-conversions",
    "a detector with a feature pyramid trained under autocast in NCHW; fixed: channels_last, same layers",
)
def pyramid_nchw(fixed: bool) -> Step:
    model = _Pyramid((8, 8, 16) if TINY else (64, 128, 256, 512), size(256, 8))
    side = size(384, 32)
    return _vision(model, rand(size(48, 2), 3, side, side), last=fixed)


# ------------------------------------------------------------------------------------------------ attention


class _SpeechLayer(nn.Module):
    """An encoder layer on nn.MultiheadAttention, with a convolution over time as in a Conformer."""

    def __init__(self, width: int, heads: int, *, weights: bool):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.depth = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        mixed, _ = self.attention(h, h, h, need_weights=self.weights)
        x = x + mixed
        x = x + self.depth(self.norms[1](x).transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norms[2](x))


@pair(
    "e",
    "unfused attention",
    "unfused-attention",
    "a speech encoder whose nn.MultiheadAttention returns weights that nobody reads, as by default; fixed: "
    "need_weights=False, so that SDPA is used. Same loss",
)
def weights_unread(fixed: bool) -> Step:
    width, heads = size(512, 32), size(8, 2)
    layers = (_SpeechLayer(width, heads, weights=not fixed) for _ in range(size(6, 1)))
    model = nn.Sequential(*layers).to(device())
    x = rand(size(16, 2), size(750, 10), width)

    def loss_of() -> Tensor:
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ tensor cores


@pair(
    "e",
    "no tensor cores",
    "no-tensor-cores",
    "a search service: 512 queries against 500 thousand vectors in fp32, TF32 off as by default, then topk; "
    "fixed: TF32 on. Same products",
)
def search_fp32(fixed: bool) -> Step:
    _tf32(fixed)
    width, rows, batch = size(768, 16), size(500_000, 200), size(512, 4)
    known = F.normalize(rand(rows, width), dim=-1)
    tower = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).to(device())
    queries = rand(batch, width)

    @torch.no_grad()
    def step() -> Tensor:
        asked = F.normalize(tower(queries), dim=-1)
        return (asked @ known.t()).topk(10).values

    return step


@pair(
    "e",
    "misaligned",
    "misaligned-gemm",
    "a graph model over ready-made features of four hops (SIGN), 602 per hop; fixed: 608, the new ones zero, "
    "so that their weights stay zero and the loss is the same",
)
def hop_features(fixed: bool) -> Step:
    inner, hidden, rows, hops = size(602, 10), size(512, 16), size(65_536, 32), 4
    more = -inner % 8 if fixed else 0
    data = [F.pad(rand(rows, inner, dtype=BF16), (0, more)) for _ in range(hops)]
    enter = nn.ParameterList(
        F.pad(rand(hidden, inner, dtype=BF16) * inner**-0.5, (0, more)) for _ in range(hops)
    )
    leave = nn.Sequential(nn.Linear(hops * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 48))
    model = nn.ModuleList([enter, leave.to(device(), BF16)])
    label = whole(41, rows)

    def loss_of() -> Tensor:
        h = torch.cat([F.linear(x, weight) for x, weight in zip(data, enter, strict=True)], 1)
        return F.cross_entropy(leave(F.relu(h)).float(), label)

    return trainer(model, sgd(model), loss_of)


# ------------------------------------------------------------------------------------------------ optimizer


@pair(
    "e",
    "loop optimizer",
    "loop-optimizer",
    "self-supervised training (BYOL) whose slow copy of the weights follows tensor by tensor; fixed: all by "
    "torch._foreach_lerp_. Same averages",
)
def slow_copy(fixed: bool) -> Step:
    width = size(192, 32)
    online = blocks(size(12, 1), width, size(3, 2), fused=True).to(device())
    target = blocks(size(12, 1), width, size(3, 2), fused=True).to(device()).requires_grad_(False)
    target.load_state_dict(online.state_dict())
    optimizer, views = adamw(online), [rand(size(32, 2), size(197, 8), width) for _ in range(2)]
    slow: list[Tensor] = list(target.parameters())
    fast: list[Tensor] = list(online.parameters())

    @torch.no_grad()
    def follow() -> None:
        if fixed:
            torch._foreach_lerp_(slow, fast, 0.004)
            return
        for mean, p in zip(slow, fast, strict=True):
            mean.mul_(0.996).add_(p.detach(), alpha=0.004)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            guess = online(views[0])
            with torch.no_grad():
                wanted = target(views[1])
        loss = 2 - 2 * F.cosine_similarity(guess.float().mean(1), wanted.float().mean(1)).mean()
        loss.backward()
        optimizer.step()
        follow()
        return loss

    return step


# ------------------------------------------------------------------------------------------------ copies and casts


@pair(
    "e",
    "dtype casts",
    "dtype-casts",
    "fine-tuning by adapters kept in fp32 beside a bf16 model, so that every layer's input and output are "
    "cast; fixed: adapters in bf16. Same products up to rounding",
)
def adapters_fp32(fixed: bool) -> Step:
    model, trained = _lora(size(5, 1), BF16 if fixed else torch.float32)
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=on_gpu())
    x = rand(size(4, 1), size(1024, 8), size(2048, 32), dtype=BF16)
    return trainer(model, optimizer, partial(_mean_square, model, x))


@pair(
    "e",
    "copies",
    "redundant-copies",
    "decoding with 8 heads of keys for 32 of queries, the keys and values repeated to 32 before SDPA; fixed: "
    "SDPA with enable_gqa=True. Same attention",
)
def repeated_keys(fixed: bool) -> Step:
    width, heads, few, batch, length = size(4096, 32), size(32, 4), size(8, 2), size(16, 2), size(4096, 9)
    head, count = width // heads, size(6, 2)
    with torch.device(device()):
        qkvs = nn.ModuleList(nn.Linear(width, (heads + 2 * few) * head, bias=False) for _ in range(count))
        outs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(count))
    nn.ModuleList([qkvs, outs]).to(BF16)
    caches = [[rand(batch, few, length, head, dtype=BF16) for _ in range(2)] for _ in range(count)]
    x0 = rand(batch, 1, width, dtype=BF16)

    def repeat(x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, heads // few, -1, -1).reshape(batch, heads, length, head)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for qkv, out, (keys, values) in zip(qkvs, outs, caches, strict=True):
            parts = qkv(x).unflatten(-1, (-1, head)).transpose(1, 2)
            q, k, v = parts.split([heads, few, few], 1)
            keys[:, :, -1:], values[:, :, -1:] = k, v
            if fixed:
                mixed = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            else:
                mixed = F.scaled_dot_product_attention(q, repeat(keys), repeat(values))
            x = x + out(mixed.transpose(1, 2).flatten(2))
        return x

    return step


@pair(
    "e",
    "copies",
    "redundant-copies",
    "a language model of 128256 words whose logits, without the last of each text, are made contiguous before "
    "the loss; fixed: the labels are shifted instead, the last one ignored. Same loss",
)
def shifted_logits(fixed: bool) -> Step:
    width, words, batch, length = size(1024, 32), size(128_256, 64), size(2, 2), size(2048, 8)
    with torch.device(device()):
        body = blocks(size(4, 1), width, size(16, 2), fused=True, causal=True)
        model = nn.Sequential(nn.Embedding(words, width), *body, nn.Linear(width, words, bias=False)).to(BF16)
    ids = whole(words, batch, length)
    following = F.pad(ids[:, 1:], (0, 1), value=-100).flatten()

    def loss_of() -> Tensor:
        logits = model(ids).float()
        if fixed:
            return F.cross_entropy(logits.flatten(0, 1), following)
        shifted = logits[:, :-1, :].contiguous()
        return F.cross_entropy(shifted.view(-1, words), ids[:, 1:].contiguous().view(-1))

    return trainer(model, sgd(model), loss_of)


@pair(
    "e",
    "host-device copies",
    "pageable-copy",
    "point clouds for a PointNet copied from pageable memory; fixed: pinned, non_blocking. Same points",
)
def point_clouds(fixed: bool) -> Step:
    batch, points = size(96, 2), size(8192, 16)
    layers: list[nn.Module] = []
    for inner, outer in ((6, 64), (64, 64), (64, 128), (128, 256)):
        layers += [nn.Linear(inner, outer), nn.ReLU(inplace=True)]
    each, head = nn.Sequential(*layers), nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 40))
    model = nn.ModuleList([each, head]).to(device())
    clouds = [torch.randn(batch, points, 6) for _ in range(3)]
    if fixed and on_gpu():
        clouds = [cloud.pin_memory() for cloud in clouds]
    given, label = itertools.cycle(clouds), whole(40, batch)

    def loss_of() -> Tensor:
        x = next(given).to(device(), non_blocking=fixed)
        with autocast():
            return F.cross_entropy(head(each(x).amax(1)).float(), label)

    return trainer(model, adamw(model), loss_of)


@pair(
    "e",
    "tiny copies",
    "tiny-copies",
    "a click model that sends its 64 features to the GPU one by one; fixed: as the one tensor that they were "
    "collated into. Same ids",
)
def feature_by_feature(fixed: bool) -> Step:
    features, batch, rows, width = size(64, 5), size(2048, 4), size(2000, 20), 16
    table = nn.Embedding(features * rows, width)
    top = nn.Sequential(nn.Linear(features * width, size(512, 16)), nn.ReLU(), nn.Linear(size(512, 16), 1))
    model = nn.ModuleList([table, top]).to(device())
    start = (torch.arange(features, device=device()) * rows).unsqueeze(1)
    ready = [torch.randint(0, rows, (features, batch)) for _ in range(4)]
    named = [{f"feature_{n}": row.clone() for n, row in enumerate(ids)} for ids in ready]
    given, label = itertools.cycle(range(4)), whole(2, batch).float()

    def loss_of() -> Tensor:
        place = next(given)
        if fixed:
            ids = ready[place].to(device())
        else:
            sent = {name: ids.to(device()) for name, ids in named[place].items()}
            ids = torch.stack(list(sent.values()))
        x = table(ids + start).transpose(0, 1).flatten(1)
        return F.binary_cross_entropy_with_logits(top(x).squeeze(1), label)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ host


class _Windows(Dataset):  # type: ignore[type-arg]
    """Windows of a series, each brought to mean 0 and deviation 1 by what is known of it."""

    def __init__(self, series: np.ndarray[Any, Any], known: int, ahead: int):
        self.series, self.known, self.ahead = series, known, ahead

    def __len__(self) -> int:
        return len(self.series) - self.known - self.ahead

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        part = self.series[index : index + self.known + self.ahead]
        known = part[: self.known]
        part = (part - known.mean(0)) / (known.std(0) + 1e-5)
        return part[: self.known], part[self.known :]


@pair(
    "e",
    "data loading",
    "input-bound",
    "windows of a time series cut and scaled one by one in the training process; fixed: the series lies on "
    "the GPU, a batch is cut and scaled there at once. Same windows in the same order",
)
def series_windows(fixed: bool) -> Step:
    known, ahead, batch, width, columns = size(336, 12), size(96, 4), size(128, 4), size(256, 16), 7
    rng = np.random.default_rng(0)
    series = rng.standard_normal((size(17_000, 200), columns), dtype=np.float32).cumsum(0)
    data = _Windows(series, known, ahead)
    order = rng.permutation(len(data) // batch * batch).tolist()
    net = nn.Sequential(
        nn.Conv1d(columns, width, 5, padding=2),
        nn.ReLU(),
        *(m for _ in range(size(4, 1)) for m in (nn.Conv1d(width, width, 5, padding=2), nn.ReLU())),
    )
    head = nn.Linear(known, ahead)
    model = nn.ModuleList([net, head, nn.Conv1d(width, columns, 1)]).to(device())

    def from_host() -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(data, batch_size=batch, sampler=order, pin_memory=on_gpu())
        while True:
            for x, y in loader:
                yield x.to(device(), non_blocking=True), y.to(device(), non_blocking=True)

    def from_gpu() -> Iterator[tuple[Tensor, Tensor]]:
        all_windows = torch.from_numpy(series).to(device()).unfold(0, known + ahead, 1)
        places = torch.tensor(order, device=device())
        while True:
            for some in places.split(batch):
                part = all_windows[some].transpose(1, 2)
                first = part[:, :known]
                deviation, mean = torch.std_mean(first, 1, keepdim=True, correction=0)
                part = (part - mean) / (deviation + 1e-5)
                yield part[:, :known], part[:, known:]

    batches = from_gpu() if fixed else from_host()

    def loss_of() -> Tensor:
        x, y = next(batches)
        with autocast():
            guess = model[2](head(net(x.transpose(1, 2)))).transpose(1, 2)
        return F.smooth_l1_loss(guess.float(), y)

    return trainer(model, adamw(model), loss_of)


@pair(
    "e",
    "python gap",
    "host-stall",
    "a click model that brings its scores to the host in every step and computes the AUC there by NumPy; "
    "fixed: the same ranks and sums on the GPU. Same AUC",
)
def auc_on_host(fixed: bool) -> Step:
    batch, features, rows, width = size(65_536, 64), size(24, 3), size(5000, 20), 16
    table = nn.Embedding(features * rows, width)
    hidden = size(400, 16)
    top = nn.Sequential(
        nn.Linear(features * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    )
    model = nn.ModuleList([table, top]).to(device())
    optimizer = adamw(model)
    ids = whole(rows, batch, features) + torch.arange(features, device=device()) * rows
    label = (torch.rand(batch, device=device()) < 0.2).float()

    def area(scores: Tensor) -> Any:
        if fixed:
            ranks = torch.empty_like(scores)
            ranks[scores.argsort(stable=True)] = torch.arange(
                1, batch + 1, device=device(), dtype=scores.dtype
            )
            good = label.sum()
            return ((ranks.double() * label).sum() - good * (good + 1) / 2) / (good * (batch - good))
        host, true = scores.cpu().numpy(), label.cpu().numpy()
        places = np.empty(batch)
        places[np.argsort(host, kind="mergesort")] = np.arange(1, batch + 1)
        many = true.sum(dtype=np.float64)
        return float((places[true > 0].sum() - many * (many + 1) / 2) / (many * (batch - many)))

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            scores = top(table(ids).flatten(1)).squeeze(1)
        scores = scores.float()
        loss = F.binary_cross_entropy_with_logits(scores, label)
        loss.backward()
        optimizer.step()
        return loss, area(scores.detach())

    return step


# ------------------------------------------------------------------------------------------------ needless work


@pair(
    "e",
    "recompute",
    "recompute",
    "fine-tuning by adapters with every block checkpointed though memory is plenty; fixed: none. Same "
    "gradients",
)
def adapters_checkpoint(fixed: bool) -> Step:
    model, trained = _lora(size(6, 2), BF16)
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=on_gpu())
    x = rand(size(4, 1), size(1024, 8), size(2048, 32), dtype=BF16)

    def loss_of() -> Tensor:
        h = x
        for block in model:
            h = block(h) if fixed else checkpoint(block, h, use_reentrant=False)
        return h.float().square().mean()

    return trainer(model, optimizer, loss_of)


@pair(
    "e",
    "dense gradients",
    None,
    "a recommender whose tables of 8 million rows get dense gradients, of which a batch fills 2 %; fixed: "
    "sparse=True. Plain SGD: the other rows stay as they are either way, so the update is the same",
)
def dense_tables(fixed: bool) -> Step:
    _tf32(True)
    users, things, width = size(2_000_000, 50), size(6_000_000, 80), size(64, 8)
    batch, past = size(8192, 4), size(20, 3)
    with torch.device(device()):
        user = nn.Embedding(users, width, sparse=fixed)
        thing = nn.Embedding(things, width, sparse=fixed)
        towers = nn.ModuleList(
            nn.Sequential(nn.Linear(inner, 256), nn.ReLU(), nn.Linear(256, 64))
            for inner in (2 * width, width)
        )
    optimizers = [torch.optim.SGD([user.weight, thing.weight], lr=0.1), adamw(towers)]
    who, seen, liked = whole(users, batch), whole(things, batch, past), whole(things, batch)
    same = torch.arange(batch, device=device())

    def step() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        left = towers[0](torch.cat([user(who), thing(seen).mean(1)], 1))
        right = towers[1](thing(liked))
        loss = F.cross_entropy(left @ right.t(), same)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return step


class _MaskedBlock(nn.Module):
    """An encoder block that attends to what is no padding."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


@pair(
    "e",
    "padding",
    None,
    "an embedding service that pads every text to 512 tokens though the longest of its batch has 120; fixed: "
    "to the longest. The padding is masked: same embeddings",
)
def padded_texts(fixed: bool) -> Step:
    width, batch, most, words = size(768, 32), size(64, 3), size(512, 40), 1000
    with torch.device(device()):
        table = nn.Embedding(words, width)
        body = nn.ModuleList(_MaskedBlock(width, size(12, 2)) for _ in range(size(12, 2)))
    nn.ModuleList([table, body]).to(BF16).eval()
    lengths = [size(12, 2) + (37 * n) % size(109, 6) for n in range(batch)]
    texts = [torch.arange(length).square() % words for length in lengths]
    ends = torch.tensor(lengths).unsqueeze(1)

    @torch.no_grad()
    def step() -> Tensor:
        long = -(-max(lengths) // 8) * 8 if fixed else most
        padded = torch.zeros(batch, long, dtype=torch.long)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        ids, keep = padded.to(device()), (torch.arange(long) < ends).to(device())
        x = table(ids)
        for block in body:
            x = block(x, keep)
        share = keep.unsqueeze(-1).float()
        return F.normalize((x.float() * share).sum(1) / share.sum(1), dim=-1)

    return step


@pair(
    "e",
    "needless gradients",
    None,
    "a linear probe whose backbone is not frozen, so that the backward pass goes through all of it though "
    "only the head is trained; fixed: the backbone under no_grad. Same training of the head",
)
def unfrozen_backbone(fixed: bool) -> Step:
    width, batch = size(1024, 32), size(32, 2)
    with torch.device(device()):
        backbone = blocks(size(6, 1), width, size(16, 2), fused=True).to(BF16)
        head = nn.Linear(width, 1000)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9, fused=on_gpu())
    x, label = rand(batch, size(257, 8), width, dtype=BF16), whole(1000, batch)

    def loss_of() -> Tensor:
        with torch.set_grad_enabled(not fixed):
            features = backbone(x).mean(1)
        return F.cross_entropy(head(features.float()), label)

    return trainer(head, optimizer, loss_of)


@pair(
    "e",
    "unfused elementwise",
    "unfused-elementwise",
    "segmentation with a Dice and focal loss written out over 19 classes; fixed: the loss by torch.compile. "
    "Same loss",
)
def dice_focal(fixed: bool) -> Step:
    classes, side, batch, width = 19, size(512, 16), size(8, 2), size(32, 8)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, classes, 1),
    )
    model = model.to(device()).to(memory_format=torch.channels_last)
    x = rand(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    target = whole(classes, batch, side, side)

    def measure(logits: Tensor, target: Tensor) -> Tensor:
        chance = logits.softmax(1)
        true = F.one_hot(target, classes).permute(0, 3, 1, 2).float()
        both = (chance * true).sum((0, 2, 3))
        dice = 1 - ((2 * both + 1) / (chance.sum((0, 2, 3)) + true.sum((0, 2, 3)) + 1)).mean()
        hit = (chance * true).sum(1)
        focal = -0.25 * (1 - hit) ** 2 * torch.log(hit + 1e-6)
        return dice + focal.mean()

    loss = compiled(measure) if fixed else measure

    def loss_of() -> Tensor:
        with autocast():
            logits = model(x)
        return loss(logits.float(), target)

    return trainer(model, sgd(model), loss_of)


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "e",
    "healthy",
    "loop-optimizer",
    "fine-tuning by bf16 adapters over 4 micro-steps, AdamW as by default (foreach); change: fused. Same "
    "update of the few weights trained",
)
def healthy_adapters(fixed: bool) -> Step:
    return adapters(fused=(fixed and on_gpu()) or None)


def adapters(**optimizing: Any) -> Step:
    model, trained = _lora(size(4, 1), BF16)
    optimizer = torch.optim.AdamW(trained, lr=1e-5, **optimizing)
    data = [rand(size(4, 1), size(1024, 8), size(2048, 32), dtype=BF16) for _ in range(4)]

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device())
        for x in data:
            loss = _mean_square(model, x) / len(data)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


@pair(
    "e",
    "healthy",
    "launch-bound",
    "the prefill of 2 texts of 4096 tokens by Llama-like blocks; change: CUDA graph, same kernels",
)
def healthy_prefill(fixed: bool) -> Step:
    width = size(2048, 32)
    with torch.device(device()):
        layers = (_Llama(width, size(16, 2), partial(nn.Linear, bias=False)) for _ in range(size(8, 1)))
        model = nn.Sequential(*layers).to(BF16).eval()
    x = rand(2, size(4096, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return graphed(step) if fixed else step


class _Tokens(nn.Module):
    """Patches as tokens, behind one for the class."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), tokens], 1)


@pair(
    "e",
    "healthy",
    "layout-conversions",
    "a vision transformer trained under autocast on NCHW pictures, cut into patches by its only convolution; "
    "change: channels_last. Same patches",
)
def healthy_patches(fixed: bool) -> Step:
    width, side = size(1024, 32), size(224, 32)
    body = blocks(size(6, 1), width, size(16, 2), fused=True)
    stem = nn.Conv2d(3, width, 16, 16)
    model = nn.Sequential(stem, _Tokens(width), *body)
    return _vision(model, rand(size(96, 2), 3, side, side), last=fixed)


class _Clips(Dataset):  # type: ignore[type-arg]
    """Clips of 8 frames that lie in memory."""

    def __init__(self, side: int):
        self.clips = torch.randint(0, 256, (24, 8, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return self.clips[index % 24]


@pair(
    "e",
    "healthy",
    "input-bound",
    "video clips from 3 workers that keep up with the training; change: each fetches 6 batches ahead instead "
    "of 2. Same clips",
)
def healthy_ahead(fixed: bool) -> Step:
    loader = DataLoader(
        _Clips(size(112, 16)),
        batch_size=size(16, 1),
        num_workers=size(3, 1),
        prefetch_factor=6 if fixed else 2,
        pin_memory=on_gpu(),
        persistent_workers=True,
    )
    batches = iter(loader)
    widths = (8, 16) if TINY else (64, 64, 64, 128, 128, 128, 256, 256, 256)
    model = conv_stack(widths).to(device()).to(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        x = next(batches).to(device(), non_blocking=True).flatten(0, 1)
        x = x.to(BF16, memory_format=torch.channels_last).div_(255)
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, sgd(model), loss_of)


@pair(
    "e",
    "healthy",
    "host-sync",
    "a large segmentation step that reads its mean IoU once at the end; change: it stays on the GPU. Same "
    "training",
)
def healthy_iou(fixed: bool) -> Step:
    return _segmentation(on_device=fixed)


@pair("p", "unfused-elementwise", "unfused-elementwise", "healthy_iou; change: its model compiled, same work")
def iou_promise(fixed: bool) -> Step:
    return _segmentation(wrap=compiled if fixed else lambda model: model)


def _segmentation(*, on_device: bool = False, wrap: Callable[..., Any] = lambda model: model) -> Step:
    side, classes = size(192, 16), 4
    net = UNet(size(96, 8), attention=False).to(device()).to(memory_format=torch.channels_last)
    model = wrap(net)
    x = rand(size(16, 1), 4, side, side).contiguous(memory_format=torch.channels_last)
    target, optimizer = whole(classes, len(x), side, side), sgd(net)
    one = torch.ones(target.numel(), device=device())

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            logits = model(x)
        loss = F.cross_entropy(logits.float(), target)
        loss.backward()
        optimizer.step()
        both = (target * classes + logits.argmax(1)).flatten()
        table = torch.zeros(classes * classes, device=device()).scatter_add_(0, both, one)
        table = table.view(classes, classes)
        iou = (table.diag() / (table.sum(0) + table.sum(1) - table.diag()).clamp(min=1)).mean()
        return iou if on_device else iou.item()

    return step


@pair(
    "e",
    "healthy",
    "tiny-copies",
    "a large diffusion training step that sends the times drawn on the host to the GPU; change: they lie "
    "there. Same times",
)
def healthy_times(fixed: bool) -> Step:
    return _diffusion(on_device=fixed)


@pair(
    "p", "unfused-elementwise", "unfused-elementwise", "healthy_times; change: its model compiled, same work"
)
def times_promise(fixed: bool) -> Step:
    return _diffusion(wrap=compiled if fixed else lambda model: model)


def _diffusion(*, on_device: bool = False, wrap: Callable[..., Any] = lambda model: model) -> Step:
    batch, side = size(256, 2), size(32, 8)
    net = UNet(size(128, 8), attention=True).to(device()).to(memory_format=torch.channels_last)
    model = wrap(net)
    x, noise = rand(batch, 4, side, side), rand(batch, 4, side, side)
    share = torch.linspace(0.9999, 0.98, 1000, device=device()).cumprod(0)
    drawn = [[(77 * n + 13 * m) % 1000 for m in range(batch)] for n in range(4)]
    ready, given = [torch.tensor(times, device=device()) for times in drawn], itertools.cycle(range(4))

    def loss_of() -> Tensor:
        place = next(given)
        times = ready[place] if on_device else torch.tensor(drawn[place]).to(device())
        part = share[times].view(-1, 1, 1, 1)
        mixed = (part.sqrt() * x + (1 - part).sqrt() * noise).contiguous(memory_format=torch.channels_last)
        with autocast():
            guess = model(mixed)
        return F.mse_loss(guess.float(), noise)

    return trainer(net, adamw(net), loss_of)


@pair(
    "e",
    "healthy",
    "host-sync",
    "a decoder that asks after each token whether all texts have ended, while the host launches more slowly "
    "than the GPU computes; change: it asks after the last one. No text ends: same tokens",
)
def harmless_stop(fixed: bool) -> Step:
    width, heads, batch, count, tokens = size(768, 32), size(12, 2), size(4, 2), size(16, 2), size(8, 3)
    start, words, end = size(128, 4), size(32_000, 50), -1
    with torch.device(device()):
        table, out = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        body = nn.ModuleList(Attention(width, heads, fused=True) for _ in range(count))
        feeds = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(count)
        )
        norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(count))
    nn.ModuleList([table, out, body, feeds, norms]).to(BF16).eval()
    caches = rand(count, 2, batch, heads, start + tokens, width // heads, dtype=BF16)
    first = whole(words, batch)

    @torch.no_grad()
    def step() -> Tensor:
        word, done, said = first, torch.zeros(batch, dtype=torch.bool, device=device()), []
        for place in range(start, start + tokens):
            x = table(word).unsqueeze(1)
            for layer, norm, feed, (keys, values) in zip(body, norms, feeds, caches, strict=True):
                q, k, v = layer.qkv(norm(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
                keys[:, :, place : place + 1], values[:, :, place : place + 1] = k, v
                mixed = F.scaled_dot_product_attention(q, keys[:, :, : place + 1], values[:, :, : place + 1])
                x = x + layer.out(mixed.transpose(1, 2).flatten(2))
                x = x + feed(x)
            word = out(x[:, 0]).argmax(-1)
            said.append(word)
            done = done | (word == end)
            if (not fixed or len(said) == tokens) and done.all():
                break
        return torch.stack(said, 1)

    return step


@pair(
    "e",
    "healthy",
    "unfused-attention",
    "a model of tables with 24 columns, its attention over them written out, where the products of the other "
    "layers take nearly all the time; change: SDPA, same loss",
)
def harmless_columns(fixed: bool) -> Step:
    width, heads, columns = size(1024, 32), size(8, 2), size(24, 5)
    with torch.device(device()):
        model = blocks(size(4, 1), width, heads, fused=fixed).to(BF16)
    x = rand(size(1024, 2), columns, width, dtype=BF16)
    return trainer(model, adamw(model), partial(_mean_square, model, x))
