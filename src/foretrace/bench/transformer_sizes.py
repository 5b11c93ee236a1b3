"""Sizes of the transformer by name, and the work of one pass over it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from foretrace.errors import UsageError, unknown

VOCABULARY = 10_000


@dataclass(frozen=True)
class Size:
    """Width, width of the feed-forward part, layers, heads."""

    d_model: int
    d_ff: int
    layers: int
    heads: int

    def product_weights(self, vocabulary: int) -> int:
        """Elements of all matrices that tokens are multiplied with; the embedding is looked up, not multiplied."""
        layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff
        return self.layers * layer + self.d_model * vocabulary

    def forward_flops(self, *, batch: int, length: int, vocabulary: int) -> int:
        """Of one forward pass: two for each weight and token, and the two products of attention over the whole square.

        A causal mask leaves half of that square unused; it is counted whole, as others do (PaLM, appendix B).
        """
        tokens = batch * length
        return tokens * (2 * self.product_weights(vocabulary) + 4 * self.layers * length * self.d_model)


SIZES = {
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(1600, 6400, 48, 25),
    "2.7B": Size(2560, 10240, 32, 32),
    "10B": Size(4608, 12288, 50, 36),
}


def size_of(text: str) -> Size:
    """A size by name, or as "256x1024x4x4": d_model, d_ff, layers, heads."""
    named = {name.lower(): size for name, size in SIZES.items()}
    if text.lower() in named:
        return named[text.lower()]
    if not re.fullmatch(r"\d+x\d+x\d+x\d+", text):
        sizes = (*SIZES, "d_model x d_ff x layers x heads as in 256x1024x4x4")
        raise unknown(f"no size {text!r}", text, sizes)
    size = Size(*map(int, text.split("x")))
    if not all((size.d_model, size.d_ff, size.layers, size.heads)) or size.d_model % (2 * size.heads):
        raise UsageError(f"size {text}: d_model must be a multiple of twice the heads, and nothing 0")
    return size
