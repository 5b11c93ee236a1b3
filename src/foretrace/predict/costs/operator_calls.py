"""What it costs the host to call operators that a fix adds."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Nanoseconds

VIEW_NS = Nanoseconds(2_000, "a view, such as a slice: an operator that launches nothing", JUDGEMENT)
_MEASURED = "nanoGPT and timm's ConvNeXt under autocast, their hosts fitted to the measured step"
CAST_NS = Nanoseconds(
    17_000, "a cast that autocast adds before an operator", _MEASURED, devices="an H200's host"
)
CAST_BACK_NS = Nanoseconds(
    33_000, "the cast of a gradient, with its step of the backward pass", _MEASURED, devices="an H200's host"
)
