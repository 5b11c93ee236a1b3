"""The first recorded step paid for loading, compiling or allocating."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foretrace.analyze.cold_start import COLD_RATIO, SIGN_SHARE  # noqa: F401  # named on the page
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import healthy, rule

_SIGNS = ("compiling", "loading", "initialisation", "allocation")


def _no_issue(values: Mapping[str, Any]) -> str | None:
    return "the first step is like the others" if values.get("verdict") == "warm" else None


@healthy("cold-start", _no_issue)
@rule("The first steps are warming up", "Cold start", see="cold-start")
def cold_start(case: Case) -> Iterator[Finding]:
    """A first recorded step that takes at least {COLD_RATIO} times as long as the others, and shows why.

    Compares the first whole step with the median of the others, on the host's and the GPU's clock. It is cold if loading of
    modules, compiling, set-up and allocation explain at least {SIGN_SHARE} of the excess.

    Slow
        with profile() as profiler:
            for batch in loader:
                step(batch)

    Fast
        with profile(schedule=torch.profiler.schedule(wait=1, warmup=3, active=3)) as profiler:
            for batch in loader:
                step(batch)
                profiler.step()

    Why
    It is paid once. An average over few steps that includes it says nothing about the steps to come.

    How the worth is predicted
    It is not: later steps do not get faster. Leave the first steps out of averages.

    When not
    The program runs for a few steps only: then this is its time.
    """
    values = case.result("cold-start").values
    if values["verdict"] != "cold":
        return
    first, others = int(values["first_host_ns"] or 0), int(values["others_host_ns"] or 0)
    signs = {f"{sign}_ns": values[f"{sign}_ns"] for sign in _SIGNS if values[f"{sign}_ns"]}
    most = max(signs, key=lambda name: int(signs[name] or 0)).removesuffix("_ns")
    yield Finding(
        says=f"The first recorded step took {first / 1e6:.3g} ms on the host, the others {others / 1e6:.3g} ms: it paid for "
        f"{most}.",
        why="It is paid once, and says nothing about the steps to come.",
        fix=Fix("Record after warm-up.", "schedule = torch.profiler.schedule(wait=1, warmup=3, active=3)"),
        evidence={
            "first_host_ns": first,
            "others_host_ns": others,
            "excess_ns": values["excess_ns"],
            "explained_pct": values["explained_pct"],
            **signs,
        },
        unless="the program runs for a few steps only: then this is its time.",
    )
