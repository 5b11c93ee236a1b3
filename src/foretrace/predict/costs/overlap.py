"""Overlap: how much of copies and collectives is hidden once computation runs beside them."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Count, Share

# Apart from the lower clock: see costs/clock.py.
COPIES_HIDDEN = Share(
    0.67,
    "copies beside kernels: gradients sent as they come are hidden by 0.65 to 0.7",
    "the pairs of docs/accuracy.md",
    devices="H200",
)
COPIES_HIDDEN_LEAST = Share(0.25, "copies beside kernels, at least", JUDGEMENT)
MANY_COPIES_HIDDEN_LEAST = Share(
    0.4, "many copies that computation outlasts, at least: only the last must be waited for", JUDGEMENT
)
FETCHES_HIDDEN = Share(
    0.85,
    "copies from the host, such as weights fetched one layer ahead",
    "the pairs of docs/accuracy.md",
    devices="H200",
)
MANY_FETCHES_HIDDEN_LEAST = Share(
    0.55, "many copies from the host that computation outlasts, at least", JUDGEMENT
)
MANY_COPIES = Count(4, "copies a step", JUDGEMENT)
COLLECTIVES_HIDDEN = Share(
    0.5, "exposed collectives: one recording does not tell transfer from waiting for a slower rank", JUDGEMENT
)
