"""Set p, continued, and set t: what is promised beside the fault that a program was written for, with that change made.

A program that is already good in one way is promised a gain in another; so is a faulty one, before or behind its fault (p).
And a diagnosis says what all its fixes together would bring (t).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import fresh
import held_h
import held_i
import held_out
import programs
import torch
import unseen
from programs import Step, autocast, compiled, device, graphed, pair, rand, size
from torch import Tensor, nn


@pair(
    "p",
    "unfused-elementwise",
    "unfused-elementwise",
    "the corpus's nchw_conv.fixed, as its recording shows it (8 times convolution, batch norm, ReLU; autocast, "
    "channels_last, gradients added up); change: its model compiled, same work",
)
def nchw_conv_fixed(fixed: bool) -> Step:
    width, side = size(256, 8), size(56, 8)
    net = nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(size(8, 1))
        )
    )
    net = net.to(device()).to(memory_format=torch.channels_last)
    x = rand(size(32, 2), width, side, side).contiguous(memory_format=torch.channels_last)
    model = compiled(net) if fixed else net

    def step() -> Tensor:
        with autocast():
            y = model(x)
        loss: Tensor = y.float().mean()
        loss.backward()
        return loss

    return step


@pair(
    "p",
    "launch-bound",
    "launch-bound",
    "healthy_adapters; change: the whole step, optimizer included, as a CUDA graph, same work",
)
def adapters_promise(fixed: bool) -> Step:
    return _captured(fresh.adapters, fixed)


@pair(
    "p", "unfused-elementwise", "unfused-elementwise", "grasp_points; change: its model compiled, same work"
)
def grasp_promise(fixed: bool) -> Step:
    return held_h.grasps(casts=True, wrap=compiled if fixed else lambda model: model)


@pair(
    "p", "unfused-elementwise", "unfused-elementwise", "residue_pairs; change: its step compiled, same work"
)
def residue_promise(fixed: bool) -> Step:
    step = held_h.residue_pairs(False)
    return compiled(step) if fixed else step


@pair(
    "p", "unfused-elementwise", "unfused-elementwise", "loaded_in_8bit; change: its step compiled, same work"
)
def eight_bit_promise(fixed: bool) -> Step:
    step = held_i.loaded_in_8bit(False)
    return compiled(step) if fixed else step


@pair(
    "p", "unfused-elementwise", "unfused-elementwise", "turned_shards; change: its step compiled, same work"
)
def shards_promise(fixed: bool) -> Step:
    step = held_i.turned_shards(False)
    return compiled(step) if fixed else step


@pair(
    "p",
    "launch-bound",
    "launch-bound",
    "imitation_adam; change: the whole step, optimizer included, as a CUDA graph, same work",
)
def imitation_promise(fixed: bool) -> Step:
    return _captured(held_h.imitation, fixed, foreach=False)


@pair(
    "p",
    "launch-bound",
    "launch-bound",
    "cross_encoder; change: the whole step, optimizer included, as a CUDA graph, same work",
)
def encoder_promise(fixed: bool) -> Step:
    return _captured(held_i.cross, fixed, foreach=False)


def _captured(make: Callable[..., Step], captured: bool, **optimizing: Any) -> Step:
    """The training step, or all of it as one CUDA graph; its optimizer must count on the GPU then."""
    if captured and device() == "cuda":
        optimizing["capturable"] = True
    step = make(**optimizing)
    return graphed(step) if captured else step


# ------------------------------------------------------------------------------------------------ set t: fixes together


def _compiled_too(make: Callable[[bool], Step], both: bool) -> Step:
    """An inference step as it is, or without its fault and compiled."""
    return compiled(make(True)) if both else make(False)


def _captured_too(make: Callable[[bool], Step], both: bool) -> Step:
    """A training step as it is, or without its fault and, optimizer included, as one CUDA graph."""
    if not both or device() == "cpu":
        return make(both)
    before = torch.optim.Adam, torch.optim.AdamW
    torch.optim.Adam, torch.optim.AdamW = (partial(each, capturable=True) for each in before)  # type: ignore[misc]
    try:
        return graphed(make(True))
    finally:
        torch.optim.Adam, torch.optim.AdamW = before  # type: ignore[misc]


def _together(make: Callable[[bool], Step], how: Callable[[Callable[[bool], Step], bool], Step]) -> None:
    """Registers a program with all fixes that it is promised a gain by, made together."""
    name = f"{make.__name__}_and_more"

    def both(fixed: bool) -> Step:
        return how(make, fixed)

    both.__name__ = name
    more = "compiled" if how is _compiled_too else "as a CUDA graph"
    pair("t", "together", "together", f"{make.__name__}; fixed: without its fault, and {more}")(both)


for _each in (
    programs.cast_pingpong, programs.diffusion_attention, unseen.mixer_transpose, unseen.norms_in_fp32,
    held_out.fp8_stored, held_h.residue_pairs, held_i.loaded_in_8bit, held_i.turned_shards,
):  # fmt: skip
    _together(_each, _compiled_too)
for _each in (
    programs.adamw_loop, programs.sgd_loop, fresh.adapters_checkpoint, held_out.forecast_stacks,
    held_out.latent_transformer, held_h.imitation_adam, held_i.cross_encoder, held_i.borrowed_recipe,
):  # fmt: skip
    _together(_each, _captured_too)


@pair("t", "together", "together", "grasp_points; fixed: without casts, and its model compiled")
def grasp_points_and_more(fixed: bool) -> Step:
    return held_h.grasps(casts=not fixed, wrap=compiled if fixed else lambda model: model)
