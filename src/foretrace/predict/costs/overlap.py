"""Overlap: how much of copies and collectives is hidden once computation runs beside them."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Count, Share

# Apart from the lower clock: see costs/clock.py.
COPIES_HIDDEN = Share(
    0.67, of="copies beside kernels: gradients sent as they come are hidden by 0.65 to 0.7",
    source="benchmarks/pairs", devices="H200",
)  # fmt: skip
COPIES_HIDDEN_LEAST = Share(0.25, of="copies beside kernels, at least", source=JUDGEMENT)
MANY_COPIES_HIDDEN_LEAST = Share(
    0.4, of="many copies that computation outlasts, at least: only the last must be waited for", source=JUDGEMENT
)  # fmt: skip
FETCHES_HIDDEN = Share(
    0.85, of="copies from the host, such as weights fetched one layer ahead", source="benchmarks/pairs", devices="H200"
)  # fmt: skip
MANY_FETCHES_HIDDEN_LEAST = Share(
    0.55, of="many copies from the host that computation outlasts, at least", source=JUDGEMENT
)
MANY_COPIES = Count(4, of="copies a step", source=JUDGEMENT)
COLLECTIVES_HIDDEN = Share(
    0.5, of="exposed collectives: one recording does not tell transfer from waiting for a slower rank", source=JUDGEMENT
)  # fmt: skip
