"""CUDA graphs: what replaying one takes the host, and what being in one takes the device."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Nanoseconds

LAUNCH_NS = Nanoseconds(
    15_000, "the host to replay a graph from Python", "measured beside an H200", devices="H200's host"
)
GUARDED_LAUNCH_NS = Nanoseconds(
    50_000,
    "the host to replay a graph through torch.compile's guards and copies of its inputs, at most",
    JUDGEMENT,
    devices="H200's host",
)
GAP_NS = Nanoseconds(
    150,
    "the device between two kernels of a graph, beyond their durations as recorded one by one",
    "nine pairs of docs/accuracy.md imply -0.2 to 0.5 µs, half of them less than 0.1",
    devices="H200",
)
# Adam that counts its steps on the device, as a graph needs it (capturable=True), launches twelve small kernels more.
CAPTURABLE_ADAM_NS = Nanoseconds(
    26_000,
    "the device to count Adam's steps, for each parameter that is updated by itself",
    "25 to 28 µs in imitation_promise and encoder_promise of the pairs of docs/accuracy.md",
    devices="H200",
)
