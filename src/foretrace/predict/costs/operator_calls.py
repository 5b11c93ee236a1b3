"""What it costs the host to call operators that a fix adds."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Nanoseconds

VIEW_NS = Nanoseconds(2_000, "a view, such as a slice: an operator that launches nothing", JUDGEMENT)
AUTOCAST_NS = Nanoseconds(20_000, "two operators: autocast casts both operands of a product", JUDGEMENT)
