"""CUDA graphs: what replaying one takes the host, and what being in one takes the device."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Nanoseconds

LAUNCH_NS = Nanoseconds(
    15_000, of="the host to replay a graph from Python", source="measured beside an H200", devices="H200's host"
)  # fmt: skip
GUARDED_LAUNCH_NS = Nanoseconds(
    50_000, of="the host to replay a graph through torch.compile's guards and copies of its inputs, at most",
    source=JUDGEMENT, devices="H200's host",
)  # fmt: skip
GAP_NS = Nanoseconds(
    150, of="the device between two kernels of a graph, beyond their durations as recorded one by one",
    source="nine programs of benchmarks/pairs imply -0.2 to 0.5 µs, half of them less than 0.1", devices="H200",
)  # fmt: skip
# Adam that counts its steps on the device, as a graph needs it (capturable=True), launches twelve small kernels more.
CAPTURABLE_ADAM_NS = Nanoseconds(
    26_000, of="the device to count Adam's steps, for each parameter that is updated by itself",
    source="25 to 28 µs in imitation_promise and encoder_promise of benchmarks/pairs", devices="H200",
)  # fmt: skip
