"""Programs written by somebody who knew nothing of the rules, half "j": eleven with a fault, four without.

As in `programs.py`, each function takes `fixed` and returns a step. Every pair's note says why both variants do the
same work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Step,
    adamw,
    autocast,
    device,
    graphed,
    made,
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


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


class Perceptron(nn.Module):
    """Norm, two linear layers with GELU between them, and the input added."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, hidden),
            nn.Linear(hidden, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "j",
    "sync",
    "host-sync",
    "a land-cover map made strip by strip, each strip's cloud cover read by .item() to leave cloudy ones out; fixed: the "
    "covers of all strips are read at once before the first. Same covers, same strips left out, same map",
)
def cloudy_strips(fixed: bool) -> Step:
    strips, rows, width = size(40, 5), size(2560, 8), size(1024, 16)
    stem = made(lambda: nn.Linear(16, width), BF16)
    tower = made(lambda: nn.Sequential(*(Perceptron(width, 4 * width) for _ in range(2))), BF16)
    head = made(lambda: nn.Linear(width, 24), BF16)
    bands = torch.rand(strips, rows, 12, device=device()) + 0.2
    clouds = torch.rand(strips, rows, device=device()) * 0.5
    clouds[3::8] += 0.5  # hopeless ones

    def indices(strip: Tensor) -> Tensor:
        blue, green, red, near, short = (strip[:, place] for place in (1, 2, 3, 7, 10))
        plants = (near - red) / (near + red)
        water = (green - near) / (green + near)
        built = (short - near) / (short + near)
        soil = ((short + red) - (near + blue)) / ((short + red) + (near + blue))
        return torch.cat([strip, torch.stack([plants, water, built, soil], 1)], 1).to(BF16)

    @torch.no_grad()
    def step() -> Tensor:
        classes = torch.full((strips, rows), -1, device=device())
        known = clouds.mean(1).tolist() if fixed else None
        for place in range(strips):
            cover = known[place] if known is not None else clouds[place].mean().item()
            if cover > 0.6:
                continue
            classes[place] = head(tower(stem(indices(bands[place])))).argmax(1)
        return classes

    return step


# ------------------------------------------------------------------------------------------------ overlap


class _Layer(nn.Module):
    """A decoder's layer that hands its keys and values to whoever wants to keep them."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.both = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, keep: Callable[[Tensor], None]) -> Tensor:
        h = self.norm1(x)
        both = self.both(h)
        keep(both)
        keys, values = both.chunk(2, -1)
        mixed = F.scaled_dot_product_attention(
            self.split(self.query(h)), self.split(keys), self.split(values), is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@pair(
    "j",
    "exposed copies",
    "exposed-communication",
    "a prompt of 8192 words whose keys and values are put away in host memory for later questions, layer by layer, in "
    "line with the layers; fixed: on a side stream beside the next ones. Same bytes, all there at the end of the step",
)
def prompt_store(fixed: bool) -> Step:
    width, length, count = size(2048, 32), size(8192, 8), size(6, 2)
    layers = made(
        lambda: nn.ModuleList(_Layer(width, size(16, 2), size(5632, 48)) for _ in range(count)), BF16
    )
    x0 = rand(1, length, width, dtype=BF16)
    store = [torch.empty(1, length, 2 * width, dtype=BF16, pin_memory=on_gpu()) for _ in range(count)]
    side = torch.cuda.Stream() if on_gpu() and fixed else None

    def keeper(place: int) -> Callable[[Tensor], None]:
        def keep(both: Tensor) -> None:
            if side is None:
                store[place].copy_(both, non_blocking=True)
                return
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                store[place].copy_(both, non_blocking=True)
            both.record_stream(side)

        return keep

    keepers = [keeper(place) for place in range(count)]

    @torch.no_grad()
    def step() -> Any:
        x = x0
        for layer, keep in zip(layers, keepers, strict=True):
            x = layer(x, keep)
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        return (x, *(each.clone() for each in store)) if TINY else x

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


class _Coupling(nn.Module):
    """Half of the cells scaled and shifted by what the other half and the energy say; then the halves change places."""

    def __init__(self, half: int, hidden: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(half + 8, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2 * half),
        )

    def forward(self, z: Tensor, energy: Tensor) -> Tensor:
        kept, changed = z.chunk(2, 1)
        scale, shift = self.net(torch.cat([kept, energy], 1)).chunk(2, 1)
        return torch.cat([changed * torch.exp(torch.tanh(scale)) + shift, kept], 1)


@pair(
    "j",
    "launch-bound",
    "launch-bound",
    "a detector simulation served by a normalising flow: 40 coupling layers for the 64 particles of one event, op by op; "
    "fixed: the whole flow as a CUDA graph. The graph holds the same kernels on the same noise",
)
def shower_flow(fixed: bool) -> Step:
    cells, particles = size(504, 16), size(64, 4)
    flow = made(lambda: nn.ModuleList(_Coupling(cells // 2, size(512, 16)) for _ in range(size(40, 3))), BF16)
    noise, energy = rand(particles, cells, dtype=BF16), rand(particles, 8, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        z = noise
        for layer in flow:
            z = layer(z, energy)
        return F.softplus(z)

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


def _conv(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)
    )


class _Hourglass(nn.Module):
    """Two levels down and up again, what was seen on the way down added on the way up."""

    def __init__(self, width: int, points: int):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )
        self.top = nn.Sequential(_conv(width, width), _conv(width, width), _conv(width, width))
        self.middle = nn.Sequential(_conv(width, 2 * width), _conv(2 * width, 2 * width))
        self.bottom = nn.Sequential(*(_conv(2 * width, 2 * width) for _ in range(4)))
        self.rise = nn.Sequential(_conv(2 * width, 2 * width), _conv(2 * width, width))
        self.end = nn.Sequential(_conv(width, width), _conv(width, width), nn.Conv2d(width, points, 1))

    def forward(self, x: Tensor) -> Tensor:
        top = self.top(self.stem(x))
        middle = self.middle(F.max_pool2d(top, 2))
        bottom = self.bottom(F.max_pool2d(middle, 2))
        up = self.rise(middle + F.interpolate(bottom, scale_factor=2, mode="nearest"))
        return self.end(top + F.interpolate(up, scale_factor=2, mode="nearest"))


@pair(
    "j",
    "layout",
    "layout-conversions",
    "the joints of a hand found by an hourglass net with batch norm, trained under autocast in NCHW; fixed: net and "
    "pictures in channels_last. Same convolutions of the same numbers, only placed differently in memory",
)
def hand_joints(fixed: bool) -> Step:
    side, batch = size(192, 16), size(32, 2)
    model = made(lambda: _Hourglass(size(128, 8), 21))
    x, target = rand(batch, 3, side, side), rand(batch, 21, side // 2, side // 2)
    if fixed:
        model, x, target = model.to(memory_format=torch.channels_last), last(x), last(target)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=on_gpu())

    def loss_of() -> Tensor:
        with autocast():
            maps = model(x)
        return F.mse_loss(maps.float(), target)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ attention


class _Notes(nn.Module):
    """A post-norm layer in the manner of older sequence toolkits, whose heads are part of the batch."""

    def __init__(self, width: int, heads: int, *, fused: bool):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        each = width // self.heads

        def heads(h: Tensor) -> Tensor:
            return h.view(batch, length, self.heads, each).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q, k, v = (h.reshape(batch * self.heads, length, each) for h in (q, k, v))
            scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=each**-0.5)
            mixed = torch.bmm(F.softmax(scores, dim=-1), v).view(batch, self.heads, length, each)
        x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return self.norm2(x + self.fc2(F.relu(self.fc1(x))))


@pair(
    "j",
    "unfused attention",
    "unfused-attention",
    "piano music, 3072 notes a piece, learned by layers that add a mask in baddbmm, take the softmax and multiply by bmm; "
    "fixed: causal SDPA. Same weights and same attention, so the same loss and gradients up to rounding",
)
def piano_pieces(fixed: bool) -> Step:
    width, length, batch = size(768, 32), size(3072, 12), size(4, 2)
    layers = made(
        lambda: nn.ModuleList(_Notes(width, size(12, 2), fused=fixed) for _ in range(size(4, 1))), BF16
    )
    table, head = made(lambda: nn.Embedding(400, width), BF16), made(lambda: nn.Linear(width, 400), BF16)
    model = nn.ModuleList([layers, table, head])
    notes = torch.randint(0, 400, (batch, length + 1), device=device())
    mask = torch.full((length, length), float("-inf"), device=device(), dtype=BF16).triu(1)

    def loss_of() -> Tensor:
        h = table(notes[:, :-1])
        for layer in layers:
            h = layer(h, mask)
        return F.cross_entropy(head(h).float().flatten(0, 1), notes[:, 1:].flatten())

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ data loading


class _Handwriting(Dataset):  # type: ignore[type-arg]
    """Letters kept as pen strokes, drawn with a soft pen when they are asked for; and where the pen was."""

    side = size(64, 16)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        points = np.random.default_rng(index).random((9, 2), dtype=np.float32)
        rows, columns = np.mgrid[0 : self.side, 0 : self.side].astype(np.float32) / self.side
        ink = np.zeros((self.side, self.side), dtype=np.float32)
        for begin, end in pairwise(points):
            way = end - begin
            along = (rows - begin[0]) * way[0] + (columns - begin[1]) * way[1]
            along = np.clip(along / (way @ way + np.float32(1e-6)), 0, 1)
            far = np.hypot(rows - begin[0] - along * way[0], columns - begin[1] - along * way[1])
            ink = np.maximum(ink, np.exp(-((far * 24) ** 2)))
        return ink[None].astype(np.float32), points.reshape(-1)


class _Reader(nn.Module):
    """Convolutions over the page, then a recurrent net along the line."""

    def __init__(self, width: int):
        super().__init__()
        layers: list[nn.Module] = []
        inner = 1
        for outer in (width, 2 * width, 4 * width):
            layers += [*_conv(inner, outer), *_conv(outer, outer), nn.MaxPool2d(2)]
            inner = outer
        self.look = nn.Sequential(*layers)
        self.read = nn.GRU(4 * width, 2 * width, batch_first=True, bidirectional=True)
        self.where = nn.Linear(4 * width, 18)

    def forward(self, x: Tensor) -> Tensor:
        with autocast():
            seen = self.look(x)
        return self.where(self.read(seen.float().mean(2).transpose(1, 2))[0].mean(1))


@pair(
    "j",
    "data loading",
    "input-bound",
    "letters drawn from pen strokes by the training process, the loader's num_workers being 0; fixed: by 8 persistent "
    "workers. A letter is drawn by its number: same letters in the same order, same training",
)
def pen_strokes(fixed: bool) -> Step:
    workers = size(8, 1) if fixed else 0
    loader = DataLoader(
        _Handwriting(),
        batch_size=size(32, 2),
        num_workers=workers,
        pin_memory=on_gpu(),
        persistent_workers=workers > 0,
    )
    batches: Iterator[list[Tensor]] = iter(loader)
    model = made(lambda: _Reader(size(64, 8))).to(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        pictures, points = (each.to(device(), non_blocking=True) for each in next(batches))
        return F.l1_loss(model(last(pictures)), points)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ optimizer


@pair(
    "j",
    "loop optimizer",
    "loop-optimizer",
    "the demand of 36 shops forecast by one trunk and a small head for each shop, trained by Adam(foreach=False); fixed: "
    "Adam(fused=True). The same formula for each of the 150 tensors",
)
def shop_heads(fixed: bool) -> Step:
    width, shops, days = size(1024, 16), size(36, 3), size(256, 4)
    trunk = made(
        lambda: nn.Sequential(nn.Linear(96, width), *(Perceptron(width, 2 * width) for _ in range(2)))
    )
    heads = made(
        lambda: nn.ModuleList(
            nn.Sequential(nn.Linear(width, 128), nn.SiLU(), nn.Linear(128, 28)) for _ in range(shops)
        )
    )
    model = nn.ModuleList([trunk, heads])
    kind = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, weight_decay=1e-5, **kind)
    x, target = rand(shops * days, 96), rand(shops * days, 28)

    def loss_of() -> Tensor:
        with autocast():
            parts = trunk(x).chunk(shops)
            guess = torch.cat([head(part) for head, part in zip(heads, parts, strict=True)])
        return F.smooth_l1_loss(guess.float(), target)

    return trainer(model, optimizer, loss_of)


# ------------------------------------------------------------------------------------------------ casts and copies


class _Member(nn.Module):
    """One of an ensemble, which brings what it is given to its own type."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.hidden, self.out = nn.Linear(inputs, hidden), nn.Linear(hidden, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x.to(self.hidden.weight.dtype))))


@pair(
    "j",
    "dtype casts",
    "dtype-casts",
    "a river's inflow from 16 small nets in bf16, each of which casts the same half gigabyte of fp32 inputs for itself; "
    "fixed: cast once before the first. Every net sees the same bf16 numbers",
)
def inflow_ensemble(fixed: bool) -> Step:
    rows, inputs = size(65536, 16), size(2048, 32)
    members = made(lambda: nn.ModuleList(_Member(inputs, size(256, 8)) for _ in range(size(16, 3))), BF16)
    x0 = rand(rows, inputs)

    @torch.no_grad()
    def step() -> Any:
        x = x0.to(BF16) if fixed else x0
        flows = torch.stack([member(x) for member in members]).float()
        return flows.mean(0), flows.std(0)

    return step


class _Careful(nn.Module):
    """A residual layer that clones whatever it fears somebody might change."""

    def __init__(self, width: int, *, clones: bool):
        super().__init__()
        self.norm, self.linear, self.clones = nn.LayerNorm(width), nn.Linear(width, width), clones

    def own(self, x: Tensor) -> Tensor:
        return x.clone() if self.clones else x

    def forward(self, x: Tensor) -> Tensor:
        skip = self.own(x)
        h = F.relu_(self.linear(self.own(self.norm(x))))
        return self.own(h).add_(skip)


@pair(
    "j",
    "copies",
    "redundant-copies",
    "card payments scored by 12 residual layers, each of which clones its input, its normed input and its result, lest "
    "an in-place operation spoil them; fixed: no clones. None is ever spoilt: same scores",
)
def card_payments(fixed: bool) -> Step:
    width = size(512, 16)
    layers = made(
        lambda: nn.Sequential(*(_Careful(width, clones=not fixed) for _ in range(size(12, 2)))), BF16
    )
    head = made(lambda: nn.Linear(width, 1), BF16)
    x = rand(size(131072, 16), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return torch.sigmoid(head(layers(x)))

    return step


@pair(
    "j",
    "host-device copies",
    "pageable-copy",
    "raw scans of 16 coils, 79 MB a step, sent by .to() from ordinary memory to be transformed and denoised; fixed: from "
    "pinned memory, non_blocking. Same scans in the same order, same training",
)
def coil_scans(fixed: bool) -> Step:
    side, coils, batch = size(320, 16), size(16, 2), size(6, 1)
    scans = [torch.randn(batch, coils, side, side, dtype=torch.complex64) for _ in range(2)]
    if fixed and on_gpu():
        scans = [each.pin_memory() for each in scans]
    wide = size(64, 4)
    model = made(
        lambda: nn.Sequential(
            _conv(1, wide), _conv(wide, wide), _conv(wide, wide), nn.Conv2d(wide, 1, 3, padding=1)
        )
    )
    model = model.to(memory_format=torch.channels_last)
    clean = rand(batch, 1, side, side)
    count = 0

    def loss_of() -> Tensor:
        nonlocal count
        count += 1
        scan = scans[count % 2].to(device(), non_blocking=fixed)
        image = torch.fft.ifft2(scan, norm="ortho").abs().square().sum(1, keepdim=True).sqrt()
        with autocast():
            noise = model(last(image))
        return F.mse_loss(image - noise.float(), clean)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ recompute


class _Gated(nn.Module):
    """gMLP's layer: one half of the features, mixed over the words, gates the other."""

    def __init__(self, width: int, hidden: int, length: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(hidden)
        self.into, self.out = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)
        self.mix = nn.Parameter(torch.randn(length, length) * 0.01)

    def forward(self, x: Tensor) -> Tensor:
        plain, gate = F.gelu(self.into(self.norm1(x))).chunk(2, -1)
        return x + self.out(plain * (torch.matmul(self.mix, self.norm2(gate)) + 1))


@pair(
    "j",
    "recompute",
    "recompute",
    "court rulings sorted by a gMLP whose every layer is checkpointed since the day of smaller GPUs; fixed: none. "
    "Nothing is random: same loss and gradients, each layer just runs forward once",
)
def court_rulings(fixed: bool) -> Step:
    width, length, batch = size(1024, 16), size(512, 8), size(32, 2)
    layers = made(
        lambda: nn.ModuleList(_Gated(width, size(3072, 24), length) for _ in range(size(6, 2))), BF16
    )
    head = made(lambda: nn.Linear(width, 40), BF16)
    x = rand(batch, length, width, dtype=BF16)
    target = torch.randint(0, 40, (batch,), device=device())

    def loss_of() -> Tensor:
        h = x
        for layer in layers:
            h = layer(h) if fixed else checkpoint(layer, h, use_reentrant=False)
        return F.cross_entropy(head(h.mean(1)).float(), target)

    model = nn.ModuleList([layers, head])
    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "j",
    "healthy",
    "host-sync",
    "a large surrogate of a wind farm that clips its gradients and reads their norm by .item() for the log, once a step; "
    "change: the norm stays on the GPU. Same clipping; the wait costs microseconds of tens of milliseconds",
)
def healthy_windfarm(fixed: bool) -> Step:
    width = size(2560, 16)
    model = made(lambda: nn.Sequential(*(Perceptron(width, 4 * width) for _ in range(5))), BF16)
    optimizer = adamw(model)
    x, target = rand(size(16384, 8), width, dtype=BF16), rand(size(16384, 8), width, dtype=BF16)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(x), target).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        seen = norm if fixed else norm.item()
        optimizer.step()
        return seen

    return step


@pair(
    "j",
    "healthy",
    "loop-optimizer",
    "night photos denoised by 12 convolutions of 64 channels in channels_last with AdamW(foreach=False); change: fused. "
    "Same update of 24 small tensors, launched while the GPU still has convolutions to do",
)
def healthy_night_photos(fixed: bool) -> Step:
    wide, side, batch = size(64, 8), size(256, 12), size(16, 2)
    inner = (
        m for _ in range(size(10, 1)) for m in (nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(inplace=True))
    )
    model = made(
        lambda: nn.Sequential(
            nn.Conv2d(4, wide, 3, padding=1),
            nn.ReLU(inplace=True),
            *inner,
            nn.Conv2d(wide, 4, 3, padding=1),
        ),
        BF16,
    ).to(memory_format=torch.channels_last)
    kind = {"fused": True} if fixed and on_gpu() else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)
    noisy, clean = (last(rand(batch, 4, side, side, dtype=BF16)) for _ in range(2))
    return trainer(model, optimizer, lambda: F.l1_loss(model(noisy), clean))


@pair(
    "j",
    "healthy",
    "pageable-copy",
    "a wide model of engines' wear whose 8192 readings of 8 sensors, a quarter of a megabyte, come from ordinary memory; "
    "change: pinned and non_blocking. Same readings; the products behind them take ten milliseconds and more",
)
def healthy_engines(fixed: bool) -> Step:
    width, rows = size(4096, 16), size(8192, 8)
    layers = (m for _ in range(size(8, 2)) for m in (nn.Linear(width, width), nn.ReLU()))
    model = made(lambda: nn.Sequential(nn.Linear(8, width), nn.ReLU(), *layers, nn.Linear(width, 8)), BF16)
    readings = [torch.randn(rows, 8) for _ in range(4)]
    if fixed and on_gpu():
        readings = [each.pin_memory() for each in readings]
    count = 0

    def loss_of() -> Tensor:
        nonlocal count
        count += 1
        x = readings[count % 4].to(device(), non_blocking=fixed).to(BF16)
        return F.mse_loss(model(x), x)

    return trainer(model, adamw(model), loss_of)


class _Mixer(nn.Module):
    """MLP-Mixer's layer: over the patches, then over the features."""

    def __init__(self, patches: int, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(patches, 4 * patches), nn.Linear(4 * patches, patches)
        self.features = Perceptron(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.down(F.gelu(self.up(self.norm(x).transpose(1, 2))))
        return self.features(x + mixed.transpose(1, 2))


@pair(
    "j",
    "healthy",
    "layout-conversions",
    "the harvest of fields from pictures of 8 bands by an MLP-Mixer, whose only convolution cuts the patches; change: "
    "net and pictures in channels_last. Same patches; the convolution is a hundredth of the work",
)
def healthy_harvest(fixed: bool) -> Step:
    side, batch, width, cut = size(256, 8), size(32, 2), size(1024, 16), size(16, 4)
    stem = made(lambda: nn.Conv2d(8, width, cut, stride=cut), BF16)
    layers = made(
        lambda: nn.Sequential(*(_Mixer((side // cut) ** 2, width) for _ in range(size(10, 2)))), BF16
    )
    head = made(lambda: nn.Linear(width, 1), BF16)
    model = nn.ModuleList([stem, layers, head])
    x, target = rand(batch, 8, side, side, dtype=BF16), rand(batch, 1)
    if fixed:
        model, x = model.to(memory_format=torch.channels_last), last(x)

    def loss_of() -> Tensor:
        tokens = stem(x).flatten(2).transpose(1, 2)
        return F.mse_loss(head(layers(tokens).mean(1)).float(), target)

    return trainer(model, adamw(model), loss_of)
