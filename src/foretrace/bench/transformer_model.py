"""A decoder-only transformer: RMSNorm, rotary positions, SwiGLU, no biases; imported only where one is timed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from foretrace.bench.attention_math import attention_by
from foretrace.bench.transformer_sizes import Size

_ROTARY_BASE = 10_000.0


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Scales a vector to a mean square of 1, in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        """In the type of its input."""
        kept = x.dtype
        x = x if kept == torch.float64 else x.float()
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (normed * self.weight).to(kept)


class SelfAttention(nn.Module):  # type: ignore[misc]
    """Four products around attention with rotary positions; causal."""

    def __init__(self, size: Size, length: int, attention: str) -> None:
        super().__init__()
        self.heads = size.heads
        self.q, self.k, self.v, self.out = (
            nn.Linear(size.d_model, size.d_model, bias=False) for _ in range(4)
        )
        half = size.d_model // size.heads // 2
        angles = torch.arange(length)[:, None] * _ROTARY_BASE ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.attend: Any = None

    def forward(self, x: Any) -> Any:
        """Of a batch of sequences."""
        batch, length, width = x.shape
        q, k, v = (
            product(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for product in (self.q, self.k, self.v)
        )
        mixed = self.attend(self._rotated(q), self._rotated(k), v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def _rotated(self, x: Any) -> Any:
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a gated feed-forward part, each added to what goes by."""

    def __init__(self, size: Size, length: int, attention: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size.d_model), RMSNorm(size.d_model)
        self.attention = SelfAttention(size, length, attention)
        self.gate, self.up = (nn.Linear(size.d_model, size.d_ff, bias=False) for _ in range(2))
        self.down = nn.Linear(size.d_ff, size.d_model, bias=False)

    def forward(self, x: Any) -> Any:
        """Of the same shape."""
        x = x + self.attention(self.norm1(x))
        normed = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):  # type: ignore[misc]
    """Token ids to logits."""

    def __init__(self, size: Size, *, vocabulary: int, length: int, attention: str, device: Any) -> None:
        super().__init__()
        with torch.device(device):
            self.embedding = nn.Embedding(vocabulary, size.d_model)
            self.blocks = nn.ModuleList(Block(size, length, attention) for _ in range(size.layers))
            self.norm = RMSNorm(size.d_model)
            self.logits = nn.Linear(size.d_model, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        attend = attention_by(attention, causal=True, length=length, device=device)
        for block in self.blocks:
            block.attention.attend = attend

    def forward(self, ids: Any) -> Any:
        """Logits for each token."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))
