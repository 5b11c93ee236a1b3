"""The state of Adam: what rules about it share."""

from __future__ import annotations

from foretrace.sourced import Count

ADAM = r"^Optimizer\.step#(?:Adam|AdamW)\."
STATES = Count(
    2, "values of state that Adam keeps for each element", "torch.optim.Adam: exp_avg and exp_avg_sq"
)
STATE = "the optimizer's state"  # as changes of memory name it
