"""Steps of a program with some tens of parameters, for rules about what is done to each of them."""

from __future__ import annotations

from tests.builders import Recording

PARAMETERS, OPS = 40, ("aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")
EVERY, FORWARD = 10.0, 400.0
SHAPES = ([1000], [40, 25], [25, 40])


def products(recording: Recording, at: float) -> None:
    """400 µs of launching products, which take the device 40 µs."""
    for start in range(round(at), round(at + FORWARD), round(EVERY)):
        recording.op("aten::mm", start, start + EVERY)
        recording.launch(start + EVERY - 2, "gemm", start + EVERY, start + EVERY + 1, call=1.5)
