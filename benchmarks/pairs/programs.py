"""Small PyTorch programs with one known fault each, and the same programs without it.

Every function takes `fixed` and returns a step: a call without arguments that does one step's work and waits for
nothing that the program itself does not wait for. `PAIRS_TINY=1` makes everything small enough for a CPU test.
Nothing here touches CUDA on import, so that a driver may fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

Step = Callable[[], Any]
TINY = bool(os.environ.get("PAIRS_TINY"))
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Pair:
    """One program: what is wrong with it, and what its two variants are."""

    name: str
    half: str  # "a": measured while the rules were written; "b": after they were frozen
    label: str
    rule: str | None
    note: str
    make: Callable[[bool], Step]
    same_work: bool = True


PAIRS: dict[str, Pair] = {}


def pair(half: str, label: str, rule: str | None, note: str) -> Callable[[Callable[[bool], Step]], Any]:
    """Registers a program."""

    def register(make: Callable[[bool], Step]) -> Callable[[bool], Step]:
        PAIRS[make.__name__] = Pair(make.__name__, half, label, rule, note, make)
        return make

    return register


@cache
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def size(full: int, tiny: int) -> int:
    return tiny if TINY else full


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=device(), dtype=dtype)


def autocast() -> Any:
    return torch.autocast(device(), dtype=BF16)


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    return call if TINY else torch.compile(call)


def graphed(call: Step) -> Step:
    """The call as one CUDA graph."""
    if device() == "cpu":
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Step:
    """A plain training step."""

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return step


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device() == "cuda")


class Attention(nn.Module):
    """Self-attention, written out or fused."""

    def __init__(self, width: int, heads: int, *, fused: bool, causal: bool = False, copies: bool = False):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.fused, self.causal, self.copies = heads, fused, causal, copies

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        if self.copies:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            if self.causal:
                mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(mask, float("-inf"))
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, **attention: Any):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, **attention)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def blocks(count: int, width: int, heads: int, **attention: Any) -> nn.Sequential:
    return nn.Sequential(*(Block(width, heads, **attention) for _ in range(count)))


class Residual(nn.Module):
    """Two convolutions with group norm, as in a diffusion UNet."""

    def __init__(self, inner: int, outer: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """Two levels down, two up; attention at the bottom where asked for."""

    def __init__(self, width: int, *, attention: bool, fused: bool = True):
        super().__init__()
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down1, self.down2 = Residual(width, width), Residual(width, 2 * width)
        self.middle = nn.ModuleList(Residual(2 * width, 2 * width) for _ in range(2))
        heads = max(1, 2 * width // 64)
        self.attention = nn.ModuleList(
            Attention(2 * width, heads, fused=fused) for _ in range(2 if attention else 0)
        )
        self.up1, self.up2 = Residual(4 * width, width), Residual(2 * width, width)
        self.head = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(self.stem(x))
        second = self.down2(F.avg_pool2d(first, 2))
        h = second
        for place, layer in enumerate(self.middle):
            h = layer(h)
            if len(self.attention):
                flat = h.flatten(2).transpose(1, 2)
                h = h + self.attention[place](flat).transpose(1, 2).reshape(h.shape)
        h = F.interpolate(self.up1(torch.cat([h, second], 1)), scale_factor=2)
        return self.head(self.up2(torch.cat([h, first], 1)))


def conv_stack(widths: tuple[int, ...], inputs: int = 3) -> nn.Sequential:
    """Convolution, batch norm and ReLU; a pool wherever the width grows."""
    layers: list[nn.Module] = []
    for width in widths:
        if layers and width != inputs:
            layers.append(nn.MaxPool2d(2))
        layers += [
            nn.Conv2d(inputs, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))


# ------------------------------------------------------------------------------------------------ syncs


@pair(
    "a", "sync", "host-sync", "a finiteness check with .item() after every layer; fixed: one check at the end"
)
def layer_item(fixed: bool) -> Step:
    width, rows = size(2048, 32), size(4096, 16)
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(size(24, 3))).to(device(), BF16)
    x0 = rand(rows, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Any:
        x, checks = x0, []
        for layer in layers:
            x = F.gelu(layer(x))
            good = torch.isfinite(x.abs().max())
            if fixed:
                checks.append(good)
            elif not good.item():
                raise ValueError("not finite")
        return torch.stack(checks).all().item() if fixed else None

    return step


@pair(
    "a",
    "sync",
    "host-sync",
    "experts in a loop, their tokens found by nonzero(); fixed: by one argsort, same loop",
)
def moe_loop(fixed: bool) -> Step:
    width, tokens, experts = size(1024, 32), size(8192, 64), size(16, 4)
    ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(experts)).to(device(), BF16)
    downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(experts)).to(device(), BF16)
    x0 = rand(tokens, width, dtype=BF16)
    assigned = (torch.arange(tokens, device=device()) * 7) % experts  # balanced, as a good router's
    each = tokens // experts

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for _ in range(2):
            y = torch.empty_like(x)
            order = assigned.argsort() if fixed else None
            for expert in range(experts):
                if order is not None:
                    mine = order[expert * each : (expert + 1) * each]
                else:
                    mine = (assigned == expert).nonzero().squeeze(1)
                h = downs[expert](F.gelu(ups[expert](x.index_select(0, mine))))
                y.index_copy_(0, mine, h)
            x = x + y
        return x

    return step


@pair("b", "sync", "host-sync", "rows picked by a boolean mask in a loop; fixed: the mask multiplied in")
def mask_loop(fixed: bool) -> Step:
    width, rows = size(1536, 32), size(8192, 32)
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(size(20, 3))).to(device(), BF16)
    x0 = rand(rows, width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x, total = x0, torch.zeros(width, device=device(), dtype=BF16)
        for layer in layers:
            x = torch.tanh(layer(x))
            keep = x[:, 0] > 0
            total = total + ((x * keep.unsqueeze(1)) if fixed else x[keep]).sum(0)
        return total

    return step


@pair(
    "b",
    "sync",
    "host-sync",
    "loss.item() after each of 8 micro-steps; fixed: the losses are added on the GPU",
)
def accumulate_item(fixed: bool) -> Step:
    width, length = size(768, 32), size(256, 8)
    model = blocks(size(4, 1), width, size(12, 2), fused=True, causal=True).to(device(), BF16)
    optimizer = adamw(model)
    data = [rand(size(16, 2), length, width, dtype=BF16) for _ in range(8)]

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        total: Any = 0.0
        for x in data:
            loss = model(x).square().mean() / len(data)
            loss.backward()
            total = total + (loss.detach() if fixed else loss.item())
        optimizer.step()
        return float(total)

    return step


# ------------------------------------------------------------------------------------------------ overlap


@pair(
    "a",
    "exposed copies",
    None,
    "gradients copied to the host after the backward pass; fixed: as each is ready, on a side stream",
)
def grads_serial(fixed: bool) -> Step:
    width, rows = size(4096, 32), size(8192, 16)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6))).to(device(), BF16)
    x = rand(rows, width, dtype=BF16)
    pin = device() == "cuda"
    buffers = {p: torch.empty(p.shape, dtype=BF16, pin_memory=pin) for p in model.parameters()}
    side = torch.cuda.Stream() if pin else None

    def send(p: Tensor) -> None:
        if side is None:
            buffers[p].copy_(p.grad)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            buffers[p].copy_(p.grad, non_blocking=True)

    if fixed:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(send)

    def step() -> None:
        for p in model.parameters():
            p.grad = None if p.grad is None else p.grad.zero_()
        model(x).square().mean().backward()
        if fixed and side is not None:
            torch.cuda.current_stream().wait_stream(side)
        elif not fixed:
            for p in model.parameters():
                buffers[p].copy_(p.grad, non_blocking=True)

    return step


# ------------------------------------------------------------------------------------------------ launch-bound


@pair(
    "a",
    "launch-bound",
    "launch-bound",
    "a ranking model that serves 128 requests at a time; fixed: CUDA graph",
)
def ranker_serve(fixed: bool) -> Step:
    width, rows, batch = 64, size(50_000, 100), size(128, 4)
    tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(size(26, 4))).to(device(), BF16)
    many = len(tables) * width
    cross = nn.ModuleList(nn.Linear(many, many) for _ in range(size(6, 1))).to(device(), BF16)
    top = nn.Sequential(nn.Linear(many, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
    top = top.to(device(), BF16)
    ids = torch.randint(0, rows, (len(tables), batch), device=device())

    @torch.no_grad()
    def step() -> Tensor:
        x0 = torch.cat([table(ids[place]) for place, table in enumerate(tables)], 1)
        x = x0
        for layer in cross:
            x = x0 * layer(x) + x
        return torch.sigmoid(top(x))

    return graphed(step) if fixed else step


@pair(
    "b",
    "launch-bound",
    "launch-bound",
    "a text encoder that serves two short requests at a time; fixed: CUDA graph",
)
def encoder_serve(fixed: bool) -> Step:
    model = blocks(size(12, 1), size(768, 32), size(12, 2), fused=True).to(device(), BF16).eval()
    x = rand(2, size(64, 8), size(768, 32), dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return graphed(step) if fixed else step


# ------------------------------------------------------------------------------------------------ layout


def _vision(model: nn.Module, x: Tensor, *, last: bool) -> Step:
    model = model.to(device())
    if last:
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=device() == "cuda")

    def loss_of() -> Tensor:
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, optimizer, loss_of)


@pair("a", "layout", "layout-conversions", "a VGG-like net under autocast in NCHW; fixed: channels_last")
def vgg_nchw(fixed: bool) -> Step:
    widths = (8, 8, 16) if TINY else (64, 64, 128, 128, 256, 256, 256, 512, 512)
    side = size(128, 16)
    return _vision(conv_stack(widths), rand(size(64, 2), 3, side, side), last=fixed)


@pair(
    "b",
    "layout",
    "layout-conversions",
    "a UNet for segmentation under autocast in NCHW; fixed: channels_last",
)
def segment_nchw(fixed: bool) -> Step:
    side = size(128, 16)
    return _vision(UNet(size(64, 8), attention=False), rand(size(16, 1), 4, side, side), last=fixed)


# ------------------------------------------------------------------------------------------------ attention


@pair(
    "a",
    "unfused attention",
    "unfused-attention",
    "a ViT with attention written out, autocast training; fixed: SDPA",
)
def vit_naive(fixed: bool) -> Step:
    width = size(768, 32)
    model = blocks(size(6, 1), width, size(12, 2), fused=fixed).to(device())
    optimizer, x = adamw(model), rand(size(64, 2), size(197, 70), width)

    def loss_of() -> Tensor:
        with autocast():
            return model(x).float().square().mean()

    return trainer(model, optimizer, loss_of)


@pair(
    "b",
    "unfused attention",
    "unfused-attention",
    "a diffusion UNet whose inner attention is written out; fixed: SDPA",
)
def diffusion_attention(fixed: bool) -> Step:
    side = size(64, 16)
    model = UNet(size(160, 8), attention=True, fused=fixed).to(device(), BF16)
    model = model.to(memory_format=torch.channels_last).eval()
    x = rand(size(16, 1), 4, side, side, dtype=BF16).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


@pair(
    "b",
    "unfused attention",
    "unfused-attention",
    "causal attention over 8192 tokens written out; fixed: SDPA",
)
def long_context(fixed: bool) -> Step:
    width, length = size(1024, 32), size(8192, 80)
    model = blocks(size(2, 1), width, size(8, 2), fused=fixed, causal=True).to(device(), BF16)
    return trainer(model, adamw(model), partial(_mean_square, model, rand(1, length, width, dtype=BF16)))


def _mean_square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


# ------------------------------------------------------------------------------------------------ tensor cores


def _tf32(on: bool) -> None:
    torch.backends.cudnn.allow_tf32 = on
    torch.backends.cuda.matmul.allow_tf32 = on


@pair("a", "no tensor cores", "no-tensor-cores", "a diffusion UNet in fp32 with TF32 off; fixed: TF32 on")
def diffusion_fp32(fixed: bool) -> Step:
    _tf32(fixed)
    side = size(64, 16)
    model = UNet(size(128, 8), attention=True).to(device())
    return trainer(model, adamw(model), partial(_mean_square, model, rand(size(8, 1), 4, side, side)))


@pair("b", "no tensor cores", "no-tensor-cores", "a wide MLP trained in fp32; fixed: TF32 on")
def wide_fp32(fixed: bool) -> Step:
    _tf32(fixed)
    width = size(4096, 32)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU()))).to(device())
    return trainer(model, adamw(model), partial(_mean_square, model, rand(size(3072, 16), width)))


@pair("a", "misaligned", "misaligned-gemm", "products of odd sizes, 1001 and 4003; fixed: 1024 and 4096")
def odd_sizes(fixed: bool) -> Step:
    narrow, wide = ((1024, 4096) if fixed else (1001, 4003)) if not TINY else (24, 40)
    layers = (m for _ in range(4) for m in (nn.Linear(narrow, wide), nn.ReLU(), nn.Linear(wide, narrow)))
    model = nn.Sequential(*layers).to(device(), BF16)
    return trainer(
        model, adamw(model), partial(_mean_square, model, rand(size(8192, 16), narrow, dtype=BF16))
    )


@pair("b", "misaligned", "misaligned-gemm", "a language model's head of 50257 words; fixed: padded to 50304")
def vocabulary_pad(fixed: bool) -> Step:
    width, words = size(768, 32), (50304 if fixed else 50257) if not TINY else 101
    model = nn.Sequential(
        *blocks(size(4, 1), width, size(12, 2), fused=True, causal=True), nn.Linear(width, words, bias=False)
    )
    model = model.to(device(), BF16)
    x, target = (
        rand(size(8, 1), size(1024, 8), width, dtype=BF16),
        torch.randint(0, 100, (size(8192, 8),), device=device()),
    )
    return trainer(model, adamw(model), lambda: F.cross_entropy(model(x).flatten(0, 1), target))


# ------------------------------------------------------------------------------------------------ optimizer


@pair("a", "loop optimizer", "loop-optimizer", "AdamW one tensor at a time; fixed: fused")
def adamw_loop(fixed: bool) -> Step:
    model = blocks(size(10, 1), size(512, 32), size(8, 2), fused=True).to(device(), BF16)
    kind = {"fused": True} if fixed and device() == "cuda" else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **kind)
    x = rand(size(8, 2), size(256, 8), size(512, 32), dtype=BF16)
    return trainer(model, optimizer, partial(_mean_square, model, x))


@pair("b", "loop optimizer", "loop-optimizer", "SGD with momentum one tensor at a time; fixed: foreach")
def sgd_loop(fixed: bool) -> Step:
    layers = (m for _ in range(size(40, 2)) for m in (nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()))
    model = nn.Sequential(*layers).to(device())
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=fixed
    )
    return trainer(model, optimizer, partial(_mean_square, model, rand(512, 256)))


# ------------------------------------------------------------------------------------------------ copies and casts


@pair(
    "a",
    "dtype casts",
    "dtype-casts",
    "activations go to fp32 and back between layers; fixed: they stay in bf16",
)
def cast_pingpong(fixed: bool) -> Step:
    width = size(2048, 32)
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(size(12, 2))).to(device(), BF16)
    x0 = rand(size(16384, 16), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for layer in layers:
            x = F.relu(layer(x))
            if not fixed:
                x = x.to(torch.float32).to(BF16)
        return x

    return step


@pair("b", "copies", "redundant-copies", "q, k and v made contiguous before SDPA; fixed: passed as they are")
def contiguous_heads(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(6, 1), width, size(16, 2), fused=True, copies=not fixed).to(device(), BF16).eval()
    x = rand(size(16, 1), size(1024, 8), width, dtype=BF16)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return step


@pair(
    "b",
    "host-device copies",
    "pageable-copy",
    "frames copied from pageable memory; fixed: pinned, non_blocking",
)
def pageable_frames(fixed: bool) -> Step:
    side = size(512, 16)
    model = conv_stack((16, 16) if TINY else (32, 64, 128)).to(device(), BF16)
    model = model.to(memory_format=torch.channels_last).eval()
    frames = [torch.randint(0, 255, (size(32, 1), 3, side, side), dtype=torch.uint8) for _ in range(2)]
    if fixed and device() == "cuda":
        frames = [each.pin_memory() for each in frames]
    count = 0

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal count
        count += 1
        x = frames[count % 2].to(device(), non_blocking=fixed)
        x = x.to(BF16, memory_format=torch.channels_last).div_(255).sub_(0.5)
        return model(x)

    return step


@pair(
    "a", "tiny copies", "tiny-copies", "a scalar tensor built on the host for every layer; fixed: built once"
)
def scalar_tensors(fixed: bool) -> Step:
    width = size(1024, 32)
    layers = nn.ModuleList(nn.Linear(width, width) for _ in range(size(32, 3))).to(device(), BF16)
    x0 = rand(size(2048, 8), width, dtype=BF16)
    ready = [torch.tensor(1 / (n + 1), device=device(), dtype=BF16) for n in range(len(layers))]

    @torch.no_grad()
    def step() -> Tensor:
        x = x0
        for n, layer in enumerate(layers):
            scale = ready[n] if fixed else torch.tensor(1 / (n + 1), device=device(), dtype=BF16)
            x = F.relu(layer(x)) * scale
        return x

    return step


@pair("a", "allocator churn", "allocator-churn", "torch.cuda.empty_cache() in every step; fixed: without it")
def empty_cache(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True).to(device(), BF16)
    train = trainer(
        model, adamw(model), partial(_mean_square, model, rand(size(8, 1), size(512, 8), width, dtype=BF16))
    )

    def step() -> None:
        train()
        if not fixed:
            torch.cuda.empty_cache()

    return step


# ------------------------------------------------------------------------------------------------ host


class _Pictures(Dataset):  # type: ignore[type-arg]
    """Pictures that cost the host some work each, as decoding and cropping do."""

    def __init__(self, rounds: int):
        self.rounds = rounds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        noise = np.random.default_rng(index).random((3, 64, 64), dtype=np.float32)
        for _ in range(self.rounds):
            noise = np.sqrt(noise * noise + 0.01)
        return noise


def _from_loader(workers: int, rounds: int, widths: tuple[int, ...], *, graph: bool = False) -> Step:
    pin = device() == "cuda"
    loader = DataLoader(
        _Pictures(rounds),
        batch_size=size(24, 2),
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
    )
    batches: Iterator[Tensor] = iter(loader)
    model = conv_stack(widths).to(device()).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=pin)

    def loss_of(x: Tensor) -> Tensor:
        with autocast():
            return model(x.contiguous(memory_format=torch.channels_last)).float().square().mean()

    if not graph:
        return trainer(model, optimizer, lambda: loss_of(next(batches).to(device(), non_blocking=True)))
    kept = next(batches).to(device())
    replay = graphed(trainer(model, optimizer, lambda: loss_of(kept)))

    def step() -> Any:
        kept.copy_(next(batches), non_blocking=True)
        return replay()

    return step


@pair("a", "data loading", "input-bound", "pictures made in the training process; fixed: num_workers=6")
def loader_serial(fixed: bool) -> Step:
    return _from_loader(size(6, 1) if fixed else 0, 40, (8,) if TINY else (64, 64, 128, 128))


@pair("b", "python gap", "host-stall", "texts split into words by Python in every step; fixed: split ahead")
def tokenise(fixed: bool) -> Step:
    width = size(1024, 32)
    words = [f"word{n}" for n in range(1000)]
    vocabulary = {word: n for n, word in enumerate(words)}
    text = " ".join(words[n * n % 1000] for n in range(size(4096, 16)))
    table = nn.Embedding(1000, width).to(device(), BF16)
    model = blocks(size(4, 1), width, size(16, 2), fused=True, causal=True).to(device(), BF16).eval()

    def split() -> Tensor:
        ids: list[int] = []
        for _ in range(size(8, 1)):
            ids += [vocabulary.get(word.strip().lower(), 0) for word in text.split()]
        return torch.tensor(ids, dtype=torch.long)

    ahead = split()

    @torch.no_grad()
    def step() -> Tensor:
        ids = ahead if fixed else split()
        return model(table(ids.to(device())).view(size(16, 2), -1, width))

    return step


# ------------------------------------------------------------------------------------------------ recompute, fusion


@pair("b", "recompute", "recompute", "every block checkpointed though memory is plenty; fixed: none")
def checkpointed(fixed: bool) -> Step:
    width = size(1024, 32)
    model = blocks(size(6, 1), width, size(16, 2), fused=True, causal=True).to(device(), BF16)
    x = rand(size(16, 1), size(1024, 8), width, dtype=BF16)

    def loss_of() -> Tensor:
        h = x
        for block in model:
            h = block(h) if fixed else checkpoint(block, h, use_reentrant=False)
        return h.float().square().mean()

    return trainer(model, adamw(model), loss_of)


@pair(
    "a",
    "unfused elementwise",
    "unfused-elementwise",
    "RMS norm, rotation and SwiGLU written out; fixed: torch.compile",
)
def swiglu_chain(fixed: bool) -> Step:
    width = size(4096, 32)
    x0, gate = rand(size(8192, 16), width, dtype=BF16), rand(size(8192, 16), width, dtype=BF16)
    weight, turn = rand(width, dtype=BF16), rand(size(8192, 16), width // 2, dtype=BF16)

    @torch.no_grad()
    def step(x: Tensor, gate: Tensor) -> Tensor:
        for _ in range(4):
            h = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5).to(BF16) * weight
            left, right = h.chunk(2, -1)
            cos, sin = torch.cos(turn), torch.sin(turn)
            h = torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
            x = x + h * torch.sigmoid(gate) * gate * 0.5
        return x

    return partial(compiled(step) if fixed else step, x0, gate)


@pair(
    "b",
    "unfused elementwise",
    "unfused-elementwise",
    "fp8 products with their quantisation written out; fixed: torch.compile",
)
def fp8_quantise(fixed: bool) -> Step:
    width, rows = size(4096, 32), size(8192, 32)
    fp8 = torch.float8_e4m3fn
    weights = [rand(width, width).mul_(0.02).to(fp8) for _ in range(size(6, 1))]
    x0, one = rand(rows, width, dtype=BF16), torch.ones((), device=device())

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        for weight in weights:
            scale = x.abs().amax().float() / 448
            small = (x.float() / scale).clamp(-448, 448).to(fp8)
            h = torch._scaled_mm(small, weight.t(), scale_a=scale, scale_b=one, out_dtype=BF16)
            x = x + F.gelu(h)
        return x

    return partial(compiled(step) if fixed else step, x0)


# ------------------------------------------------------------------------------------------------ healthy


@pair("a", "healthy", "unfused-elementwise", "a bf16 MLP of large products; change: torch.compile")
def healthy_mlp(fixed: bool) -> Step:
    width = size(4096, 32)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU()))).to(
        device(), BF16
    )
    loss = compiled(_mean_square) if fixed else _mean_square
    return trainer(model, adamw(model), partial(loss, model, rand(size(16384, 16), width, dtype=BF16)))


@pair("a", "healthy", "host-sync", "a large training step that logs its loss once; change: it does not")
def healthy_logging(fixed: bool) -> Step:
    width = size(2048, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True, causal=True).to(device(), BF16)
    train = trainer(
        model, adamw(model), partial(_mean_square, model, rand(size(8, 1), size(1024, 8), width, dtype=BF16))
    )

    def step() -> Any:
        loss = train()
        return None if fixed else loss.item()

    return step


_LOADER_WIDTHS = (8,) if TINY else (128, 128, 256, 256, 256, 512, 512, 512)


@pair("a", "healthy", "input-bound", "a loader whose workers keep up; change: twice as many workers")
def healthy_loader(fixed: bool) -> Step:
    return _from_loader(size(8 if fixed else 4, 1), 2, _LOADER_WIDTHS)


@pair(
    "p",
    "launch-bound",
    "launch-bound",
    "healthy_loader; change: its step, optimizer included, as a CUDA graph into which each batch is copied, same work",
)
def loader_promise(fixed: bool) -> Step:
    return _from_loader(size(4, 1), 2, _LOADER_WIDTHS, graph=fixed)


@pair(
    "b", "healthy", "unfused-elementwise", "a decoder with SDPA, bf16 and fused AdamW; change: torch.compile"
)
def healthy_decoder(fixed: bool) -> Step:
    width = size(2048, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True, causal=True).to(device(), BF16)
    loss = compiled(_mean_square) if fixed else _mean_square
    return trainer(
        model, adamw(model), partial(loss, model, rand(size(8, 1), size(1024, 8), width, dtype=BF16))
    )


@pair(
    "b", "healthy", "launch-bound", "a convolution net in channels_last at a large batch; change: CUDA graph"
)
def healthy_convnet(fixed: bool) -> Step:
    side = size(128, 16)
    model = conv_stack((8, 16) if TINY else (64, 64, 128, 128, 256, 256, 512, 512)).to(device(), BF16)
    model = model.to(memory_format=torch.channels_last).eval()
    x = rand(size(128, 2), 3, side, side, dtype=BF16).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def step() -> Tensor:
        return model(x)

    return graphed(step) if fixed else step


@pair("b", "healthy", "no-tensor-cores", "a TF32 training step; change: none that matters (cudnn.benchmark)")
def healthy_tf32(fixed: bool) -> Step:
    _tf32(True)
    torch.backends.cudnn.benchmark = fixed
    width = size(2048, 32)
    model = blocks(size(4, 1), width, size(16, 2), fused=True).to(device())
    return trainer(model, adamw(model), partial(_mean_square, model, rand(size(8, 1), size(512, 8), width)))
