"""Programs for `measure.py` written after `set_e.py`, again without a look at `diagnose` and `predict`.

Half "f": what is met every week, one field after the other. Both variants of a program give the same results, and
the note says why. The `harmless_` ones look faulty, but their fix does not pay.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from programs import (
    BF16,
    TINY,
    Step,
    UNet,
    _mean_square,
    _tf32,
    adamw,
    autocast,
    blocks,
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
from torch.utils.data import DataLoader, Dataset


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, fused=on_gpu())


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def sent(x: Tensor) -> Tensor:
    """The tensor on the GPU, through pinned memory and without waiting."""
    return x.pin_memory().to(device(), non_blocking=True) if on_gpu() else x


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "f",
    "sync",
    "host-sync",
    "skin pictures judged, the table of true and guessed classes filled by a Python loop over the tensors on "
    "the GPU, as in many a forum's answer; fixed: by one scatter_add there. Same table",
)
def confusion_table(fixed: bool) -> Step:
    classes, batch, side = 7, size(96, 6), size(160, 16)
    model = conv_stack((8, 16) if TINY else (32, 64, 64, 128, 128, 256)).to(device(), BF16)
    model = model.to(memory_format=torch.channels_last).eval()
    x, label = last(rand(batch, 3, side, side, dtype=BF16)), whole(classes, batch)
    one = torch.ones(batch, device=device())

    @torch.no_grad()
    def step() -> Tensor:
        guess = model(x)[:, :classes].argmax(1)
        if fixed:
            table = torch.zeros(classes * classes, device=device())
            return table.scatter_add_(0, label * classes + guess, one).view(classes, classes)
        table = torch.zeros(classes, classes)
        for true, said in zip(label.view(-1), guess.view(-1), strict=True):
            table[true.long(), said.long()] += 1
        return table

    return step


@pair(
    "f",
    "sync",
    "host-sync",
    "pictures and texts brought together (CLIP) under bf16 autocast with a GradScaler left over from fp16, "
    "which asks the GPU for overflows before every update; fixed: disabled. The scale is a power of two: same "
    "gradients",
)
def leftover_scaler(fixed: bool) -> Step:
    width, heads, batch, words = size(512, 32), size(8, 2), size(256, 4), size(8000, 50)
    pictures = nn.Sequential(nn.Linear(768, width), *blocks(size(6, 1), width, heads, fused=True))
    texts = nn.Sequential(nn.Embedding(words, width), *blocks(size(4, 1), width, heads, fused=True))
    model = nn.ModuleList([pictures, texts]).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device(), enabled=not fixed)
    patches, ids = rand(batch, size(49, 4), 768), whole(words, batch, size(32, 5))
    same = torch.arange(batch, device=device())

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            seen = F.normalize(pictures(patches).mean(1), dim=-1)
            read = F.normalize(texts(ids).mean(1), dim=-1)
            logits = 14.3 * seen @ read.t()
        logits = logits.float()
        loss = (F.cross_entropy(logits, same) + F.cross_entropy(logits.t(), same)) / 2
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


@pair(
    "f",
    "sync",
    "host-sync",
    "keyword spotting checked on 12 batches, with .item() on the loss and on the number of hits of each, as "
    "in the beginners' tutorial; fixed: both are added on the GPU and read once. Same sums",
)
def validation_items(fixed: bool) -> Step:
    classes, batch, count = 35, size(512, 4), size(12, 2)
    net = conv_stack((8,) if TINY else (32, 64, 64, 128, 128), inputs=1)
    model = net.to(device(), BF16).to(memory_format=torch.channels_last).eval()
    data = [
        (last(rand(batch, 1, size(40, 8), size(100, 8), dtype=BF16)), whole(classes, batch))
        for _ in range(count)
    ]

    @torch.no_grad()
    def step() -> tuple[float, float]:
        total: Any = 0.0
        hits: Any = 0.0
        for x, label in data:
            logits = model(x).float()
            loss = F.cross_entropy(logits, label)
            right = (logits.argmax(1) == label).float().sum()
            total = total + (loss if fixed else loss.item())
            hits = hits + (right if fixed else right.item())
        return float(total) / count, float(hits) / (batch * count)

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


@pair(
    "f",
    "launch-bound",
    "launch-bound",
    "a soft actor-critic's update of two critics, an actor and a temperature, all small; fixed: the whole "
    "update as a CUDA graph, same kernels",
)
def soft_actor(fixed: bool) -> Step:
    seen, acts, hidden, batch, stored = 17, 6, size(256, 16), size(256, 8), size(100_000, 64)
    with torch.device(device()):
        actor = perceptron(seen, hidden, hidden, 2 * acts)
        critics = nn.ModuleList(perceptron(seen + acts, hidden, hidden, 1) for _ in range(2))
        slow = nn.ModuleList(perceptron(seen + acts, hidden, hidden, 1) for _ in range(2))
        warmth = nn.Parameter(torch.zeros(1))
    slow.load_state_dict(critics.state_dict())
    slow.requires_grad_(False)
    states, nexts = rand(stored, seen), rand(stored, seen)
    actions, rewards = rand(stored, acts).tanh(), rand(stored, 1)
    adam = partial(torch.optim.Adam, lr=3e-4, fused=on_gpu(), capturable=fixed and on_gpu())
    judge, play, heat = adam(critics.parameters()), adam(actor.parameters()), adam([warmth])
    old: list[Tensor] = list(slow.parameters())
    new: list[Tensor] = list(critics.parameters())

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, -1)
        spread = -5 + 3.5 * (spread.tanh() + 1)
        noise = torch.randn_like(mean)
        action = (mean + spread.exp() * noise).tanh()
        chance = -0.5 * noise.square() - spread - 0.919 - torch.log(1 - action.square() + 1e-6)
        return action, chance.sum(-1, keepdim=True)

    def worth(nets: nn.ModuleList, state: Tensor, action: Tensor) -> list[Tensor]:
        both = torch.cat([state, action], -1)
        return [net(both) for net in nets]

    def step() -> tuple[Tensor, Tensor]:
        pick = torch.randint(0, stored, (batch,), device=device())
        state, then, action, reward = states[pick], nexts[pick], actions[pick], rewards[pick]
        alpha = warmth.detach().exp()
        with torch.no_grad():
            following, chance = act(then)
            one, two = worth(slow, then, following)
            wanted = reward + 0.99 * (torch.minimum(one, two) - alpha * chance)
        judge.zero_grad(set_to_none=True)
        one, two = worth(critics, state, action)
        loss = F.mse_loss(one, wanted) + F.mse_loss(two, wanted)
        loss.backward()
        judge.step()
        play.zero_grad(set_to_none=True)
        played, chance = act(state)
        one, two = worth(critics, state, played)
        policy = (alpha * chance - torch.minimum(one, two)).mean()
        policy.backward()
        play.step()
        heat.zero_grad(set_to_none=True)
        (-warmth.exp() * (chance.detach() - acts)).mean().backward()
        heat.step()
        with torch.no_grad():
            torch._foreach_lerp_(old, new, 0.005)
        return loss.detach(), policy.detach()

    return graphed(step) if fixed else step


@pair(
    "f",
    "launch-bound",
    "launch-bound",
    "cell pictures turned, lightened and normalised on the GPU one by one in a loop before training; fixed: "
    "all at once, by the same numbers. Same pictures",
)
def picture_by_picture(fixed: bool) -> Step:
    batch, side = size(96, 4), size(96, 16)
    model = conv_stack((8,) if TINY else (32, 64, 64, 128, 128)).to(device())
    model = model.to(memory_format=torch.channels_last)
    x, label = torch.rand(batch, 3, side, side, device=device()), whole(100, batch)
    middle = torch.tensor([0.7, 0.5, 0.6], device=device()).view(3, 1, 1)
    spread = torch.tensor([0.2, 0.25, 0.2], device=device()).view(3, 1, 1)
    rng = random.Random(0)

    def draw() -> list[tuple[float, float, float]]:
        return [
            (float(rng.random() < 0.5), rng.uniform(0.8, 1.2), rng.uniform(0.7, 1.3)) for _ in range(batch)
        ]

    def changed() -> Tensor:
        drawn = draw()
        if fixed:
            turn, light, contrast = sent(torch.tensor(drawn)).t().reshape(3, batch, 1, 1, 1).unbind(0)
            y = torch.where(turn > 0, x.flip(-1), x) * light
            mean = y.mean((1, 2, 3), keepdim=True)
            return (((y - mean) * contrast + mean).clamp(0, 1) - middle) / spread
        made = []
        for picture, (turned, lighter, sharper) in zip(x, drawn, strict=True):
            one = picture.flip(-1) if turned else picture
            one = one * lighter
            mean = one.mean()
            one = ((one - mean) * sharper + mean).clamp(0, 1)
            made.append((one - middle) / spread)
        return torch.stack(made)

    def loss_of() -> Tensor:
        y = last(changed())
        with autocast():
            return F.cross_entropy(model(y).float(), label)

    return trainer(model, sgd(model), loss_of)


@pair(
    "f",
    "small batch",
    "small-batch",
    "a code model trained by 8 micro-batches of 2 texts though memory is plenty; fixed: one batch of 16. "
    "Texts of equal length: same mean loss, same gradients",
)
def micro_batches(fixed: bool) -> Step:
    width, words, texts, length = size(768, 32), size(8192, 40), 16, size(256, 6)
    with torch.device(device()):
        body = blocks(size(4, 1), width, size(12, 2), fused=True, causal=True)
        model = nn.Sequential(nn.Embedding(words, width), *body, nn.Linear(width, words, bias=False)).to(BF16)
    optimizer, parts = adamw(model), 1 if fixed else 8
    ids = whole(words, texts, length + 1)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device())
        for part in ids.chunk(parts):
            logits = model(part[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten()) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


# ------------------------------------------------------------------------------------------------ data loading


COLUMNS = {"A": [1.0, 0, 0, 0], "C": [0, 1.0, 0, 0], "G": [0, 0, 1.0, 0], "T": [0, 0, 0, 1.0]}


class _Reads(Dataset):  # type: ignore[type-arg]
    """Pieces of a genome, each turned into four columns base by base."""

    def __init__(self, reads: list[str], labels: list[int]):
        self.reads, self.labels = reads, labels

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([COLUMNS[base] for base in self.reads[index]]).t(), self.labels[index]


@pair(
    "f",
    "data loading",
    "input-bound",
    "a genome's pieces turned into four columns base by base in the training process; fixed: kept as whole "
    "numbers, turned on the GPU. Same pieces in the same order",
)
def genome_pieces(fixed: bool) -> Step:
    length, batch, width = size(256, 16), size(64, 4), size(256, 8)
    codes = np.random.default_rng(0).integers(0, 4, (size(1536, 16), length), dtype=np.uint8)
    reads = ["".join("ACGT"[code] for code in row) for row in codes]
    labels = [n % 5 for n in range(len(reads))]
    net: list[nn.Module] = [nn.Conv1d(4, width, 15, padding=7), nn.ReLU(), nn.MaxPool1d(2)]
    for _ in range(size(3, 1)):
        net += [nn.Conv1d(width, width, 9, padding=4), nn.ReLU()]
    model = nn.Sequential(*net, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 5)).to(device())

    def one_by_one() -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(_Reads(reads, labels), batch_size=batch, pin_memory=on_gpu())
        while True:
            for x, y in loader:
                yield x.to(device(), non_blocking=True), y.to(device(), non_blocking=True)

    def at_once() -> Iterator[tuple[Tensor, Tensor]]:
        pieces, wanted = torch.from_numpy(codes), torch.tensor(labels)
        while True:
            for x, y in zip(pieces.split(batch), wanted.split(batch), strict=True):
                yield F.one_hot(sent(x).long(), 4).transpose(1, 2).float(), sent(y)

    batches = at_once() if fixed else one_by_one()

    def loss_of() -> Tensor:
        x, y = next(batches)
        with autocast():
            return F.cross_entropy(model(x).float(), y)

    return trainer(model, adamw(model), loss_of)


class _Scans(Dataset):  # type: ignore[type-arg]
    """Crops of a scan with noise, another gamma and some smoothing, and what is bright in them."""

    def __init__(self, side: int):
        whole_side = side + 16
        self.side = side
        self.scan = np.random.default_rng(0).random((whole_side, whole_side, whole_side), dtype=np.float32)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        rng = np.random.default_rng(index)
        i, j, k = rng.integers(0, 16, 3)
        crop = self.scan[i : i + self.side, j : j + self.side, k : k + self.side]
        crop = crop ** np.float32(rng.uniform(0.7, 1.5))
        crop = crop + np.float32(0.1) * rng.standard_normal(crop.shape, dtype=np.float32)
        for axis in range(3):
            crop = (np.roll(crop, 1, axis) + 2 * crop + np.roll(crop, -1, axis)) / 4
        return crop[None].astype(np.float32), (crop[None] > 0.5).astype(np.float32)


@pair(
    "f",
    "data loading",
    "input-bound",
    "crops of medical scans prepared by the one worker that the loader was given; fixed: by 6. Each crop is "
    "drawn by its number: same crops in the same order",
)
def one_worker(fixed: bool) -> Step:
    loader = DataLoader(
        _Scans(size(48, 8)),
        batch_size=size(6, 2),
        num_workers=size(6, 1) if fixed else 1,
        pin_memory=on_gpu(),
        persistent_workers=True,
    )
    batches, width = iter(loader), size(32, 4)
    layers: list[nn.Module] = []
    for inner, outer in ((1, width), (width, width), (width, 2 * width), (2 * width, width)):
        layers += [nn.Conv3d(inner, outer, 3, padding=1), nn.InstanceNorm3d(outer), nn.LeakyReLU(0.01)]
    model = nn.Sequential(*layers, nn.Conv3d(width, 1, 1)).to(device())

    def loss_of() -> Tensor:
        x, y = (part.to(device(), non_blocking=True) for part in next(batches))
        with autocast():
            guess = model(x)
        return F.binary_cross_entropy_with_logits(guess.float(), y)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ host


class _Spectral(nn.Module):
    """A layer of a Fourier neural operator: its lowest waves mixed, the rest dropped; beside it a 1x1 layer."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.low = nn.Parameter(torch.randn(width, width, modes, modes, 2) / width)
        self.side, self.modes = nn.Conv2d(width, width, 1), modes

    def forward(self, x: Tensor) -> Tensor:
        waves, most = torch.fft.rfft2(x, norm="ortho"), self.modes
        mixed = torch.einsum("bixy,ioxy->boxy", waves[:, :, :most, :most], torch.view_as_complex(self.low))
        kept = torch.zeros_like(waves)
        kept[:, :, :most, :most] = mixed
        return F.gelu(torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho") + self.side(x))


@pair(
    "f",
    "host-device copies",
    "pageable-copy",
    "a weather model (Fourier neural operator) whose fields, and those of six hours later, come from pageable "
    "memory; fixed: pinned, non_blocking. Same fields",
)
def weather_fields(fixed: bool) -> Step:
    _tf32(True)
    batch, fields, tall, wide, width = size(4, 2), size(40, 3), size(180, 12), size(360, 16), size(48, 6)
    body = (_Spectral(width, size(16, 3)) for _ in range(size(3, 1)))
    model = nn.Sequential(nn.Conv2d(fields, width, 1), *body, nn.Conv2d(width, fields, 1)).to(device())
    stored = [torch.randn(2, batch, fields, tall, wide) for _ in range(3)]
    if fixed and on_gpu():
        stored = [each.pin_memory() for each in stored]
    given = itertools.cycle(stored)

    def loss_of() -> Tensor:
        now, then = next(given).unbind(0)
        x, y = now.to(device(), non_blocking=fixed), then.to(device(), non_blocking=fixed)
        return F.l1_loss(model(x), y)

    return trainer(model, sgd(model), loss_of)


@pair(
    "f",
    "tiny copies",
    "tiny-copies",
    "a detector whose 16 pictures' targets, dictionaries of five small tensors, are sent to the GPU one by "
    "one, as in torchvision's reference; fixed: all in one pinned tensor. Same targets",
)
def box_targets(fixed: bool) -> Step:
    batch, classes, side, cells = size(16, 3), size(20, 3), size(256, 32), size(32, 4)
    body = conv_stack((8, 8, 16, 16, 32, 32) if TINY else (32, 64, 64, 128, 128, 256))[:-3]
    inner = size(256, 32)
    heat, extent = nn.Conv2d(inner, classes, 1), nn.Conv2d(inner, 2, 1)
    model = nn.ModuleList([body, heat, extent]).to(device()).to(memory_format=torch.channels_last)
    x = last(rand(batch, 3, side, side))

    def described(number: int) -> dict[str, Tensor]:
        count = 3 + number % 9
        low, high = torch.rand(count, 2) * 0.7 * side, torch.rand(count, 2) * 0.3 * side
        return {
            "boxes": torch.cat([low, low + high], 1),
            "labels": torch.randint(0, classes, (count,)),
            "image_id": torch.tensor([number]),
            "area": high.prod(1),
            "iscrowd": torch.zeros(count, dtype=torch.long),
        }

    given = itertools.cycle([[described(5 * m + n) for n in range(batch)] for m in range(4)])

    def on_device(targets: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Boxes, labels and the pictures they are in."""
        if fixed:
            rows = [
                torch.column_stack(
                    [t["boxes"], t["labels"], torch.full_like(t["area"], n), t["area"], t["iscrowd"]]
                )
                for n, t in enumerate(targets)
            ]
            packed = sent(torch.cat(rows))
            return packed[:, :4], packed[:, 4].long(), packed[:, 5].long()
        moved = [{key: value.to(device()) for key, value in t.items()} for t in targets]
        owners = [torch.full_like(t["labels"], n) for n, t in enumerate(moved)]
        return (
            torch.cat([t["boxes"] for t in moved]),
            torch.cat([t["labels"] for t in moved]),
            torch.cat(owners),
        )

    def loss_of() -> Tensor:
        boxes, labels, owner = on_device(next(given))
        with autocast():
            h = F.adaptive_avg_pool2d(body(x), cells)
            map_of, size_of = heat(h).float(), extent(h).float()
        place = ((boxes[:, :2] + boxes[:, 2:]) / 2 * (cells / side)).long().clamp(0, cells - 1)
        wanted = torch.zeros_like(map_of)
        wanted[owner, labels, place[:, 1], place[:, 0]] = 1.0
        found = size_of[owner, :, place[:, 1], place[:, 0]]
        sizes = F.l1_loss(found, (boxes[:, 2:] - boxes[:, :2]) / side)
        return F.binary_cross_entropy_with_logits(map_of, wanted) + sizes

    return trainer(model, sgd(model), loss_of)


@pair(
    "f",
    "python gap",
    "host-stall",
    "a variational autoencoder that makes NumPy histograms of all its weights and gradients in every step, "
    "for a board; fixed: at every thousandth. Same training",
)
def weight_histograms(fixed: bool) -> Step:
    inner, hidden, code, batch = size(784, 16), size(384, 8), size(32, 2), size(1024, 4)
    encoder = perceptron(inner, hidden, hidden, 2 * code).to(device())
    decoder = perceptron(code, hidden, hidden, inner).to(device())
    model = nn.ModuleList([encoder, decoder])
    optimizer, x = adamw(model), torch.rand(batch, inner, device=device())
    count, board = 0, {}

    def step() -> Tensor:
        nonlocal count
        optimizer.zero_grad(set_to_none=True)
        mean, spread = encoder(x).chunk(2, -1)
        guess = decoder(mean + torch.randn_like(mean) * (0.5 * spread).exp())
        known = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        loss = F.binary_cross_entropy_with_logits(guess, x, reduction="sum") / (batch * inner) + 0.01 * known
        loss.backward()
        optimizer.step()
        count += 1
        if not fixed or count % 1000 == 0:
            for name, p in model.named_parameters():
                board[name] = np.histogram(p.detach().cpu().numpy(), bins=64)
                board[f"{name}.grad"] = np.histogram(p.grad.cpu().numpy(), bins=64)
        return loss.detach()

    return step


# ------------------------------------------------------------------------------------------------ attention


class _ProteinBlock(nn.Module):
    """A block that attends to what is no padding, written out or fused."""

    def __init__(self, width: int, heads: int, *, fused: bool):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.heads, self.fused = nn.Linear(width, width), heads, fused
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        h = self.norm1(x)
        parts = (self.query(h), self.key(h), self.value(h))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
        else:
            scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
            scores = scores.masked_fill(~keep[:, None, None], torch.finfo(scores.dtype).min)
            mixed = torch.matmul(F.softmax(scores, -1), v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@pair(
    "f",
    "unfused attention",
    "unfused-attention",
    "a protein language model, 20 heads over 1024 amino acids, its masked attention written out under "
    "autocast; fixed: SDPA with the same mask. Same loss",
)
def protein_model(fixed: bool) -> Step:
    width, heads, batch, length, words = size(640, 32), size(20, 2), size(8, 3), size(1024, 12), 33
    with torch.device(device()):
        table, head = nn.Embedding(words, width), nn.Linear(width, words)
        body = nn.ModuleList(_ProteinBlock(width, heads, fused=fixed) for _ in range(size(5, 1)))
    model = nn.ModuleList([table, body, head])
    ids, target = whole(words, batch, length), whole(words, batch, length)
    ends = torch.tensor([length - n * length // 16 for n in range(batch)], device=device())
    keep = torch.arange(length, device=device()) < ends.unsqueeze(1)
    target = target.masked_fill(~keep, -100)

    def loss_of() -> Tensor:
        with autocast():
            x = table(ids)
            for block in body:
                x = block(x, keep)
            logits = head(x)
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ fusion, precision


class _OldNorm(nn.Module):
    """A layer norm as old code has it, or PyTorch's own."""

    def __init__(self, width: int, *, own: bool):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        if not self.own:
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-5)
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(spread + 1e-5)) + self.bias


class _OldBlock(nn.Module):
    """A post-norm block of an encoder with GELU and norms written by hand, or PyTorch's own."""

    def __init__(self, width: int, heads: int, *, own: bool):
        super().__init__()
        self.qkv, self.out, self.heads, self.own = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            heads,
            own,
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = _OldNorm(width, own=own), _OldNorm(width, own=own)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
        h = self.up(x)
        if self.own:
            h = 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * torch.pow(h, 3))))
        else:
            h = F.gelu(h, approximate="tanh")
        return self.norm2(x + self.down(h))


@pair(
    "f",
    "unfused elementwise",
    "unfused-elementwise",
    "an encoder of contracts trained by old code, its GELU and its layer norms written out; fixed: F.gelu and "
    "F.layer_norm. Same formulas, same loss",
)
def old_encoder(fixed: bool) -> Step:
    width, classes = size(768, 32), 12
    with torch.device(device()):
        body = (_OldBlock(width, size(12, 2), own=not fixed) for _ in range(size(6, 1)))
        model = nn.Sequential(*body, nn.Linear(width, classes)).to(BF16)
    x, label = rand(size(32, 3), size(256, 6), width, dtype=BF16), whole(classes, size(32, 3))
    return trainer(model, adamw(model), lambda: F.cross_entropy(model(x)[:, 0].float(), label))


@pair(
    "f",
    "no tensor cores",
    "no-tensor-cores",
    "a speech encoder served in fp32, as it was loaded, with PyTorch's defaults; fixed: in bf16. Same layers, "
    "same embeddings up to rounding",
)
def speech_served(fixed: bool) -> Step:
    width, bands, batch = size(768, 32), size(80, 8), size(4, 2)
    with torch.device(device()):
        stem = nn.Sequential(
            nn.Conv1d(bands, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, 2, 1), nn.GELU()
        )
        body = blocks(size(6, 1), width, size(12, 2), fused=True)
        norm = nn.LayerNorm(width)
    kind = BF16 if fixed else torch.float32
    nn.ModuleList([stem, body, norm]).to(kind).eval()
    sound = rand(batch, bands, size(3000, 16))

    @torch.no_grad()
    def step() -> Tensor:
        x = stem(sound.to(kind)).transpose(1, 2)
        return F.normalize(norm(body(x)).float().mean(1), dim=-1)

    return step


@pair(
    "f",
    "misaligned",
    "misaligned-gemm",
    "an autoencoder of single cells over 2000 genes and 7 covariates; fixed: a column of zeros more, whose "
    "weights are zero and stay so. Same loss",
)
def cell_genes(fixed: bool) -> Step:
    inner, hidden, code, cells = size(2007, 15), size(1024, 16), size(64, 8), size(32_768, 8)
    more = -inner % 8 if fixed else 0
    x = F.pad(rand(cells, inner, dtype=BF16), (0, more))
    enter = nn.Parameter(F.pad(rand(hidden, inner, dtype=BF16) * inner**-0.5, (0, more)))
    leave = nn.Parameter(F.pad(rand(inner, hidden, dtype=BF16) * hidden**-0.5, (0, 0, 0, more)))
    middle = nn.Sequential(nn.ReLU(), perceptron(hidden, code, hidden), nn.ReLU()).to(device(), BF16)
    model = nn.ModuleList([nn.ParameterList([enter, leave]), middle])

    def loss_of() -> Tensor:
        guess = F.linear(middle(F.linear(x, enter)), leave)
        return (guess - x).square().sum(dtype=torch.float32) / (cells * inner)

    return trainer(model, adamw(model), loss_of)


# ------------------------------------------------------------------------------------------------ optimizer, layout


@pair(
    "f",
    "loop optimizer",
    "loop-optimizer",
    "a vision transformer tuned by AdamW with a group of its own for each tensor, as a well-known detector's "
    "code makes them; fixed: one group for each weight decay. Same update",
)
def group_each(fixed: bool) -> Step:
    width, batch = size(384, 32), size(64, 2)
    model = nn.Sequential(*blocks(size(8, 1), width, size(6, 2), fused=True), nn.Linear(width, 100)).to(
        device()
    )
    groups: list[dict[str, Any]] = [
        {"params": [p], "lr": 1e-4, "weight_decay": 0.05 if p.ndim > 1 else 0.0} for p in model.parameters()
    ]
    if fixed:
        merged: dict[float, list[nn.Parameter]] = {}
        for group in groups:
            merged.setdefault(group["weight_decay"], []).extend(group["params"])
        groups = [{"params": many, "lr": 1e-4, "weight_decay": decay} for decay, many in merged.items()]
    x, label = rand(batch, size(197, 5), width), whole(100, batch)

    def loss_of() -> Tensor:
        with autocast():
            return F.cross_entropy(model(x).mean(1).float(), label)

    return trainer(model, torch.optim.AdamW(groups), loss_of)


class _Bottleneck(nn.Module):
    """ResNet's bottleneck."""

    def __init__(self, inner: int, middle: int, stride: int):
        super().__init__()
        outer = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(inner, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        same = inner == outer and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


@pair(
    "f",
    "layout",
    "layout-conversions",
    "people's poses found by bottlenecks and transposed convolutions, served in fp16 in NCHW; fixed: "
    "channels_last. Same layers, same heat maps",
)
def pose_served(fixed: bool) -> Step:
    half = torch.float16 if on_gpu() else BF16
    width = size(64, 4)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inner = width
    for stage in range(size(4, 2)):
        for place in range(size(2, 1)):
            stride = 2 if stage and not place else 1
            layers.append(_Bottleneck(inner, width << stage, stride))
            inner = 4 * (width << stage)
    for _ in range(size(3, 1)):
        layers += [nn.ConvTranspose2d(inner, 4 * width, 4, 2, 1), nn.ReLU(inplace=True)]
        inner = 4 * width
    with torch.device(device()):
        model: nn.Module = nn.Sequential(*layers, nn.Conv2d(inner, 17, 1))
    model = model.to(device(), half).eval()
    x = rand(size(48, 2), 3, size(256, 32), size(192, 24), dtype=half)
    if fixed:
        model, x = model.to(memory_format=torch.channels_last), last(x)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x).flatten(2).amax(2)

    return step


# ------------------------------------------------------------------------------------------------ casts, copies


@pair(
    "f",
    "dtype casts",
    "dtype-casts",
    "a large encoder of search queries kept in fp32 and served under autocast, which casts all weights for "
    "every four short queries; fixed: kept in bf16. Same products, same embeddings up to rounding",
)
def query_encoder(fixed: bool) -> Step:
    width, heads = size(4096, 32), size(32, 2)
    with torch.device(device()):
        model = blocks(size(5, 1), width, heads, fused=True).eval()
    model = model.to(BF16) if fixed else model
    queries = rand(4, size(16, 5), width, dtype=BF16 if fixed else torch.float32)

    @torch.no_grad()
    def step() -> Tensor:
        with torch.autocast(device(), dtype=BF16, enabled=not fixed):
            x = model(queries)
        return F.normalize(x.float().mean(1), dim=-1)

    return step


@pair(
    "f",
    "copies",
    "redundant-copies",
    "an autoencoder of shapes whose Chamfer distance repeats both clouds to all pairs before it subtracts "
    "them; fixed: the subtraction broadcasts. Same distances",
)
def chamfer_distance(fixed: bool) -> Step:
    batch, points, code = size(8, 2), size(2048, 12), size(512, 16)
    each, head = perceptron(3, 64, 128, code), perceptron(code, code, 2 * code, 3 * points)
    model = nn.ModuleList([each, head]).to(device())
    cloud = rand(batch, points, 3)

    def loss_of() -> Tensor:
        made = head(each(cloud).amax(1)).view(batch, points, 3)
        if fixed:
            between = made.unsqueeze(2) - cloud.unsqueeze(1)
        else:
            left = made.unsqueeze(2).repeat(1, 1, points, 1)
            right = cloud.unsqueeze(1).repeat(1, points, 1, 1)
            between = left - right
        apart = between.square().sum(-1)
        return apart.amin(2).mean() + apart.amin(1).mean()

    return trainer(model, adamw(model), loss_of)


@pair(
    "f",
    "allocator churn",
    "allocator-churn",
    "a slide of tissue segmented tile by tile, with del and torch.cuda.empty_cache() after each of 6 tiles; "
    "fixed: without empty_cache. Same tiles",
)
def slide_tiles(fixed: bool) -> Step:
    side, count = size(384, 16), size(6, 2)
    model = UNet(size(48, 8), attention=False).to(device(), BF16).to(memory_format=torch.channels_last).eval()
    slide = rand(1, 4, side, side * count, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        parts = []
        for tile in slide.split(side, -1):
            logits = model(last(tile))
            parts.append(logits.float().softmax(1).mean((2, 3)))
            del logits
            if not fixed:
                torch.cuda.empty_cache()
        return torch.cat(parts)

    return step


# ------------------------------------------------------------------------------------------------ healthy


@pair(
    "f",
    "healthy",
    "launch-bound",
    "an advertiser's model with tables, crossed features and wide layers that scores 32768 pairs at a time; "
    "change: CUDA graph, same kernels",
)
def healthy_scores(fixed: bool) -> Step:
    batch, tables, rows, width, hidden = size(32_768, 4), size(15, 3), size(100_000, 20), 64, size(2048, 16)
    with torch.device(device()):
        table = nn.Embedding(tables * rows, width)
        bottom = perceptron(16, 256, width)
        top = perceptron((tables + 1) ** 2 + width, hidden, hidden, hidden, 8)
    nn.ModuleList([table, bottom, top]).to(BF16).eval()
    ids = whole(rows, batch, tables) + torch.arange(tables, device=device()) * rows
    dense = rand(batch, 16, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        known = bottom(dense)
        parts = torch.cat([known.unsqueeze(1), table(ids)], 1)
        crossed = torch.bmm(parts, parts.transpose(1, 2)).flatten(1)
        return torch.sigmoid(top(torch.cat([known, crossed * 0.1], 1)))

    return graphed(step) if fixed else step


@pair(
    "f",
    "healthy",
    "small-batch",
    "a large decoder trained by two micro-batches of 8192 tokens, each of which fills the GPU; change: one "
    "batch of 16384. Same mean loss, same gradients",
)
def healthy_halves(fixed: bool) -> Step:
    width, parts = size(1536, 32), 1 if fixed else 2
    with torch.device(device()):
        model = blocks(size(5, 1), width, size(12, 2), fused=True, causal=True).to(BF16)
    optimizer, data = adamw(model), rand(size(16, 2), size(1024, 6), width, dtype=BF16)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device())
        for x in data.chunk(parts):
            loss = _mean_square(model, x) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


@pair(
    "f",
    "healthy",
    "dtype-casts",
    "a judge of reviews tuned in bf16 whose few logits are cast to fp32 for the loss; change: they stay in "
    "bf16. Same loss up to rounding",
)
def healthy_upcast(fixed: bool) -> Step:
    width, classes, batch = size(1024, 32), 8, size(64, 3)
    with torch.device(device()):
        body = blocks(size(6, 1), width, size(16, 2), fused=True).to(BF16)
        head = nn.Linear(width, classes).to(BF16)
    model = nn.ModuleList([body, head])
    x, label = rand(batch, size(256, 6), width, dtype=BF16), whole(classes, batch)

    def loss_of() -> Tensor:
        logits = head(body(x)[:, 0])
        return F.cross_entropy(logits if fixed else logits.float(), label)

    return trainer(model, adamw(model), loss_of)


@pair(
    "f",
    "healthy",
    "no-tensor-cores",
    "an imputer of masked sensor readings trained under bf16 autocast, all its products in bf16; change: TF32 "
    "allowed as well. No product is in fp32: same training",
)
def healthy_allowed(fixed: bool) -> Step:
    _tf32(fixed)
    width, batch, length, sensors = size(1024, 32), size(16, 2), size(1024, 6), 32
    enter, leave = nn.Linear(sensors, width), nn.Linear(width, sensors)
    body = blocks(size(5, 1), width, size(16, 2), fused=True)
    model = nn.ModuleList([enter, body, leave]).to(device())
    readings = rand(batch, length, sensors)
    hidden = rand(batch, length, 1) > 1

    def loss_of() -> Tensor:
        with autocast():
            guess = leave(body(enter(readings.masked_fill(hidden, 0.0))))
        return ((guess.float() - readings).square() * hidden).mean()

    return trainer(model, adamw(model), loss_of)


@pair(
    "f",
    "healthy",
    "layout-conversions",
    "plants' diseases learned by a net in channels_last whose pictures come in NCHW, so that only the first "
    "convolution converts; change: the pictures in channels_last too. Same layers",
)
def healthy_pictures(fixed: bool) -> Step:
    side, batch = size(128, 16), size(96, 2)
    widths = (8, 16) if TINY else (64, 64, 128, 128, 256, 256, 512, 512)
    model = conv_stack(widths).to(device()).to(memory_format=torch.channels_last)
    x, label = rand(batch, 3, side, side), whole(100, batch)
    x = last(x) if fixed else x

    def loss_of() -> Tensor:
        with autocast():
            return F.cross_entropy(model(x).float(), label)

    return trainer(model, sgd(model), loss_of)


class _Kept(Dataset):  # type: ignore[type-arg]
    """Small pictures that lie in memory, with their labels."""

    def __init__(self, side: int):
        self.pictures = torch.randint(0, 256, (2048, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pictures[index % 2048], index % 100


@pair(
    "f",
    "healthy",
    "input-bound",
    "handwriting read from memory by the training process itself, while the GPU is busy with a large net; "
    "change: by 4 workers. Same batches in the same order",
)
def healthy_process(fixed: bool) -> Step:
    workers = size(4, 1) if fixed else 0
    loader = DataLoader(
        _Kept(size(64, 8)),
        batch_size=size(192, 2),
        num_workers=workers,
        pin_memory=on_gpu(),
        persistent_workers=workers > 0,
    )
    batches = iter(loader)
    widths = (8,) if TINY else (128, 128, 256, 256, 256, 512, 512, 512)
    model = conv_stack(widths).to(device()).to(memory_format=torch.channels_last)

    def loss_of() -> Tensor:
        x, y = (part.to(device(), non_blocking=True) for part in next(batches))
        x = x.to(BF16, memory_format=torch.channels_last).div_(255)
        with autocast():
            return F.cross_entropy(model(x).float(), y)

    return trainer(model, sgd(model), loss_of)


@pair(
    "f",
    "healthy",
    "misaligned-gemm",
    "a tagger of sounds with 527 classes, an odd number, whose head is a hundredth of the work; change: 528, "
    "the new one without weight and left out of the loss. Same loss",
)
def harmless_classes(fixed: bool) -> Step:
    width, classes, batch, length = size(768, 32), size(527, 7), size(32, 2), size(512, 8)
    more = -classes % 8 if fixed else 0
    with torch.device(device()):
        body = blocks(size(6, 1), width, size(12, 2), fused=True).to(BF16)
    head = nn.Parameter(F.pad(rand(classes, width, dtype=BF16) * 0.03, (0, 0, 0, more)))
    model = nn.ModuleList([body, nn.ParameterList([head])])
    x = rand(batch, length, width, dtype=BF16)
    heard = (torch.rand(batch, length // 4, classes, device=device()) < 0.01).float()

    def loss_of() -> Tensor:
        frames = body(x).unflatten(1, (-1, 4)).mean(2)
        logits = F.linear(frames, head)[..., :classes].float()
        return F.binary_cross_entropy_with_logits(logits, heard)

    return trainer(model, adamw(model), loss_of)


@pair(
    "f",
    "healthy",
    "host-sync",
    "a large model of chats trained with gradients clipped under error_if_nonfinite, which waits for the norm "
    "in every step; change: without the question. The norm is finite: same training",
)
def harmless_question(fixed: bool) -> Step:
    width = size(2048, 32)
    with torch.device(device()):
        model = blocks(size(4, 1), width, size(16, 2), fused=True, causal=True).to(BF16)
    optimizer, x = adamw(model), rand(size(12, 1), size(1024, 6), width, dtype=BF16)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = _mean_square(model, x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=not fixed)
        optimizer.step()
        return loss.detach()

    return step
