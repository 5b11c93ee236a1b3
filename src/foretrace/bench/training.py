"""A transformer ready to be run: forward, forward and backward, or a whole step of training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from foretrace.bench import precisions
from foretrace.bench.sweep import Case
from foretrace.bench.transformer_sizes import VOCABULARY, size_of
from foretrace.errors import unknown

MODES = ("fwd", "fwd_bwd", "train")
_PASSES = {
    "fwd": 1,
    "fwd_bwd": 3,
    "train": 3,
}  # a backward pass has two products for each one of the forward pass


def check_modes(names: tuple[str, ...]) -> None:
    """Raises UsageError for a name that is none."""
    for name in names:
        if name not in MODES:
            raise unknown(f"no mode {name!r}", name, MODES)


def flops(case: Case) -> int:
    """Floating-point operations of one call, as the model needs them; what is computed twice counts once."""
    size = size_of(case["size"])
    forward = size.forward_flops(batch=case["batch"], length=case["ctx"], vocabulary=VOCABULARY)
    return forward * _PASSES[case["mode"]]


def autocast(precision: str, device: Any) -> AbstractContextManager[None]:
    """Where products run in bf16 or fp16; the weights stay fp32."""
    import torch

    if precision in ("fp32", "tf32"):
        return nullcontext()
    made: AbstractContextManager[None] = torch.autocast(device.type, dtype=precisions.dtype_of(precision))
    return made


def build(case: Case, device: Any) -> tuple[Any, Any]:
    """The model of a case, and token ids for it."""
    import torch

    from foretrace.bench.transformer_model import Transformer

    model = Transformer(
        size_of(case["size"]), vocabulary=VOCABULARY, length=case["ctx"], attention=case["attention"], device=device
    )  # fmt: skip
    ids = torch.randint(VOCABULARY, (case["batch"], case["ctx"] + 1), device=device)
    return model, ids


def loss_of(model: Any, ids: Any) -> Any:
    """Cross-entropy of each next token, in fp32 or fp64."""
    import torch

    logits = model(ids[:, :-1])
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def step_of(case: Case, model: Any, ids: Any, device: Any) -> Callable[[], object]:
    """One call of the chosen mode; `fwd` keeps what a backward pass would need, as in training."""
    import torch

    precision, mode = case["precision"], case["mode"]
    if case["compile"]:
        torch.compiler.reset()
        model.compile(dynamic=False)

    def forward() -> Any:
        with autocast(precision, device):
            return loss_of(model, ids)

    def forward_backward() -> None:
        model.zero_grad(set_to_none=True)
        forward().backward()

    if mode == "fwd":
        return forward
    if mode == "fwd_bwd":
        return forward_backward
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(forward()).backward()
        scaler.step(optimizer)
        scaler.update()

    return train
