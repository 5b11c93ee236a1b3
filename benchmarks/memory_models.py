"""The models of memory_predictions.py: repeated blocks between a stem and a head, checkpointed or not. Needs torch alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CLASSES = 1000
Batches = Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # inputs and labels of so many items


class Block(nn.Module):
    """A block of GPT or of a ViT: attention and an MLP, norms before both."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.heads = causal, heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, given: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.one, self.two, self.three = (
            nn.Sequential(nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b))
            for a, b, size, step in ((given, inner, 1, 1), (inner, inner, 3, stride), (inner, out, 1, 1))
        )
        self.relu = nn.ReLU(inplace=True)
        down = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.down = None if stride == 1 and given == out else down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.three(self.relu(self.two(self.relu(self.one(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class Pooled(nn.Module):
    """Classes of the mean over all but the batch and the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x.mean((2, 3)) if x.dim() == 4 else x.mean(1))


class Patches(nn.Module):
    """An image as a row of patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)


class Net(nn.Module):
    """A stem, repeated blocks, and a head."""

    def __init__(
        self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module, *, checkpointed: bool
    ) -> None:
        super().__init__()
        self.stem, self.blocks, self.head, self.checkpointed = stem, nn.ModuleList(blocks), head, checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def _labelled(*shape: int) -> Batches:
    return lambda batch: (torch.randn(batch, *shape), torch.randint(0, CLASSES, (batch,)))


def _tokens(length: int, vocabulary: int) -> Batches:
    def made(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(0, vocabulary, (batch, length + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return made


def _convolutions(*, small: bool) -> list[nn.Module]:
    blocks, given = [], 64
    for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(1 if small else count):
            blocks.append(Bottleneck(given, inner, stride if place == 0 else 1))
            given = 4 * inner
    return blocks


def parts(name: str, *, small: bool) -> tuple[nn.Module, list[nn.Module], nn.Module, Batches]:
    """The stem, the blocks and the head of a model, and what makes its batches."""
    width, depth, length, heads, side = (64, 2, 32, 4, 64) if small else (768, 12, 512, 12, 224)
    if name == "encoder":
        layers = [nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True) for _ in range(depth)]
        return nn.Identity(), layers, Pooled(width), _labelled(length, width)
    if name == "gpt":
        vocabulary = 1000 if small else 32_000
        blocks = [Block(width, heads, causal=True) for _ in range(depth)]
        head = nn.Linear(width, vocabulary, bias=False)
        return nn.Embedding(vocabulary, width), blocks, head, _tokens(2 * length, vocabulary)
    if name == "vit":
        blocks = [Block(width // 2, heads // 2, causal=False) for _ in range(depth)]
        return Patches(width // 2), blocks, Pooled(width // 2), _labelled(3, side, side)
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    )
    return stem, _convolutions(small=small), Pooled(2048), _labelled(3, side, side)


def training(
    name: str, batch: int, device: str, *, bf16: bool, checkpointed: bool = False, small: bool = False
) -> Callable[[], None]:
    """A step of the model, from a batch in the host's memory to the update."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    stem, blocks, head, batches = parts(name, small=small)
    net = Net(stem, blocks, head, checkpointed=checkpointed).to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=device != "cpu")
    given = [part if device == "cpu" else part.pin_memory() for part in batches(batch)]

    def step() -> None:
        x, y = (part.to(device, non_blocking=True) for part in given)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(net(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
