"""Convolutions: how near they come to what the tensor cores can do."""

from __future__ import annotations

from foretrace.sourced import Share

PEAK_SHARE = Share(
    0.65, of="the tensor cores' peak, reached by convolutions", source="benchmarks/pairs", devices="H200"
)
