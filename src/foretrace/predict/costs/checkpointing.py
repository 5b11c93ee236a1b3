"""Activation checkpointing: what torch.utils.checkpoint costs the host, beyond computing the forward pass again.

checkpoint(use_reentrant=False) calls Python for every tensor that autograd saves, and again when it is needed. Other forms
save nothing.
"""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share

_MEASURED = "7 to 16 µs for both together, by what is saved, with torch 2.13"
PACK_NS = Nanoseconds(6_000, "the host, for each tensor saved in the forward pass", _MEASURED)
UNPACK_NS = Nanoseconds(4_000, "the host, for each saved tensor in the backward pass", _MEASURED)
SAVED = Count(
    2, "tensors saved for each launch that is repeated", "a linear layer saves two, a norm four, a sum none"
)
SAVED_LEAST = Count(1, "the same, at least on average", JUDGEMENT)
SAVED_MOST = Count(3, "the same, at most on average", JUDGEMENT)
MOST_OF_GAPS = Share(0.5, "the host's time between launches, taken by that at most", JUDGEMENT)
ENTERING_NS = Nanoseconds(250_000, "one call of checkpoint() itself, as recorded, at most", JUDGEMENT)
_OF_A_BLOCK = "the host's time for a block's forward pass, added where it is checkpointed, besides that of computing it again"
_BLOCKS = "blocks of GPT 2.2, ViT 3.3 and ResNet-50 5.4 with torch 2.11 on an H200, worked out from the steps that benchmarks/memory_predictions.py timed"
OVERHEAD = Factor(3.3, _OF_A_BLOCK, _BLOCKS)
OVERHEAD_LEAST = Factor(2.2, _OF_A_BLOCK, _BLOCKS)
OVERHEAD_MOST = Factor(5.4, _OF_A_BLOCK, _BLOCKS)
