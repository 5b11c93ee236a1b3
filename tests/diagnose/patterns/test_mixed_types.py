"""Which operators raise where autocast gives them bf16: torch itself is asked, for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from foretrace.diagnose.patterns.mixed_types import REFUSES_BF16, REFUSES_MIXED

CALLED_BY_OTHERS = {"aten::_index_put_impl_", "aten::_pdist_forward", "aten::cross"}
# Accepted under autocast: converted, promoted, or computed in two types.
ACCEPTS = {
    "add_", "copy_", "cat", "stack", "where", "addcmul", "mse_loss", "layer_norm", "index_copy", "prelu", "einsum",
    "masked_fill_", "slice",
}  # fmt: skip


def calls() -> Mapping[str, Callable[[], Any]]:
    """By the name of the operator, a call that has one tensor in fp32 and another in bf16, or all in bf16."""
    import torch
    from torch.nn import functional

    def half(*size: int) -> torch.Tensor:
        return torch.rand(*size).to(torch.bfloat16)

    wide, rows, places = torch.rand, torch.tensor([0, 1, 2]), torch.zeros(3, 4, dtype=torch.long)
    mask = torch.tensor([[True, False, True, False]] * 3)
    return {
        "index_add": lambda: wide(3, 4).index_add(0, rows, half(3, 4)),
        "index_add_": lambda: wide(3, 4).index_add_(0, rows, half(3, 4)),
        "index_copy_": lambda: wide(3, 4).index_copy_(0, rows, half(3, 4)),
        "index_reduce": lambda: wide(3, 4).index_reduce(0, rows, half(3, 4), "amax"),
        "index_reduce_": lambda: wide(3, 4).index_reduce_(0, rows, half(3, 4), "amax"),
        "index_put": lambda: wide(3, 4).index_put((rows,), half(3, 4)),
        "index_put_": lambda: wide(3, 4).index_put_((rows,), half(3, 4), accumulate=True),
        "put": lambda: wide(3, 4).put(rows, half(3)),
        "put_": lambda: wide(3, 4).put_(rows, half(3)),
        "scatter": lambda: wide(3, 4).scatter(0, places, half(3, 4)),
        "scatter_": lambda: wide(3, 4).scatter_(0, places, half(3, 4)),
        "scatter_add": lambda: wide(3, 4).scatter_add(0, places, half(3, 4)),
        "scatter_add_": lambda: wide(3, 4).scatter_add_(0, places, half(3, 4)),
        "scatter_reduce": lambda: wide(3, 4).scatter_reduce(0, places, half(3, 4), "amax"),
        "scatter_reduce_": lambda: wide(3, 4).scatter_reduce_(0, places, half(3, 4), "amax"),
        "masked_scatter": lambda: wide(3, 4).masked_scatter(mask, half(6)),
        "masked_scatter_": lambda: wide(3, 4).masked_scatter_(mask, half(6)),
        "lerp": lambda: torch.lerp(wide(3), half(3), 0.5),
        "lerp_": lambda: wide(3).lerp_(half(3), 0.5),
        "dot": lambda: torch.dot(wide(3), half(3)),
        "vdot": lambda: torch.vdot(wide(3), half(3)),
        "inner": lambda: torch.inner(wide(3), half(3)),
        "mv": lambda: torch.mv(wide(3, 3), half(3)),
        "addmv": lambda: torch.addmv(wide(3), wide(3, 3), half(3)),
        "tensordot": lambda: torch.tensordot(wide(3, 3), half(3, 3)),
        "linalg_multi_dot": lambda: torch.linalg.multi_dot([wide(3, 3), half(3, 3)]),
        "linalg_cross": lambda: torch.linalg.cross(wide(3), half(3)),
        "bilinear": lambda: functional.bilinear(wide(3, 4), half(3, 4), wide(2, 4, 4)),
        "embedding_bag": lambda: functional.embedding_bag(
            rows[None], wide(5, 4), per_sample_weights=half(1, 3), mode="sum"
        ),
        "isclose": lambda: torch.isclose(wide(3), half(3)),
        "allclose": lambda: torch.allclose(wide(3), half(3)),
        "complex": lambda: torch.complex(half(3), half(3)),
        "linalg_det": lambda: torch.linalg.det(half(3, 3)),
        "linalg_slogdet": lambda: torch.linalg.slogdet(half(3, 3)),
        "add_": lambda: wide(3).add_(half(3)),
        "copy_": lambda: wide(3).copy_(half(3)),
        "cat": lambda: torch.cat([wide(3), half(3)]),
        "stack": lambda: torch.stack([wide(3), half(3)]),
        "where": lambda: torch.where(mask, wide(3, 4), half(3, 4)),
        "addcmul": lambda: torch.addcmul(wide(3), half(3), half(3)),
        "mse_loss": lambda: functional.mse_loss(wide(3), half(3)),
        "layer_norm": lambda: functional.layer_norm(half(3, 4), (4,), wide(4), wide(4)),
        "index_copy": lambda: wide(3, 4).index_copy(0, rows, half(3, 4)),
        "prelu": lambda: functional.prelu(half(3, 4), wide(1)),
        "einsum": lambda: torch.einsum("ij,jk->ik", wide(3, 3), half(3, 3)),
        "masked_fill_": lambda: wide(3, 4).masked_fill_(mask, half(1)[0]),
        "slice": lambda: wide(3, 4).__setitem__(slice(0, 2), half(2, 4)),
    }


@pytest.mark.slow
def test_torch_refuses_what_is_listed_and_accepts_the_rest() -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the list is of torch 2.13")
    listed = {name.removeprefix("aten::") for name in {*REFUSES_MIXED, *REFUSES_BF16} - CALLED_BY_OTHERS}
    assert set(calls()) == listed | ACCEPTS
    refused = set()
    for name, call in calls().items():
        try:
            with torch.autocast("cpu", torch.bfloat16):
                call()
        except (RuntimeError, NotImplementedError):
            refused.add(name)
    assert refused == listed
