"""Attention in several ways, over tensors of shape (..., length, width): written out, or by one of torch's fused kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from foretrace.errors import unknown

# "sdpa" leaves the choice to torch.
BACKENDS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
IMPLEMENTATIONS = ("naive", "sdpa", *BACKENDS)

Attention = Callable[[Any, Any, Any], Any]  # of queries, keys and values


def check(names: tuple[str, ...]) -> None:
    """Raises UsageError for a name that is none."""
    for name in names:
        if name not in IMPLEMENTATIONS:
            raise unknown(f"no attention {name!r}", name, IMPLEMENTATIONS)


def attention_by(name: str, *, causal: bool, length: int, device: Any) -> Attention:
    """The function; a mask is made once, here."""
    if name == "naive":
        return _naive(causal=causal, length=length, device=device)
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = torch.nn.functional.scaled_dot_product_attention

    def chosen(q: Any, k: Any, v: Any) -> Any:
        if name == "sdpa":
            return fused(q, k, v, is_causal=causal)
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[name])):
            return fused(q, k, v, is_causal=causal)

    return chosen


def _naive(*, causal: bool, length: int, device: Any) -> Attention:
    import torch

    hidden = torch.ones(length, length, dtype=torch.bool, device=device).triu(1) if causal else None

    def written_out(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    return written_out


def naive_bytes(*, batch: int, length: int, width: int, element_bytes: int, causal: bool = False) -> int:
    """What tensors hold before the backward pass of naive attention with one head.

    Eight tensors of batch x length x width: queries, keys and values, which the products save for their backward, the three
    gradients of these, which training keeps, the result and its gradient. One of batch x length x length: the probabilities, which
    the softmax and the second product both save, and which are one tensor; the scores before them are freed, since neither a
    division by a number nor a softmax needs its input again. With a mask, that too, one byte an element.
    """
    small = 8 * batch * length * width * element_bytes
    square = batch * length * length * element_bytes
    return small + square + (length * length if causal else 0)
