"""Set p, continued: what a rule promises beside the one that a program was written for, with that change made.

A program that is already good in one way is promised a gain in another; so is a faulty one, before or behind its fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fresh
import held_h
import held_i
import torch
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
