"""Logits are copied without the rows that have no label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from foretrace.diagnose import removal
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import shifted_logits as pattern
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.sourced import JUDGEMENT, Share

LEAST_SHARE = Share(0.02, "GPU time", JUDGEMENT)
LEFT_OUT = Share(0.1, "the rows, at most: the loss then computes these as well", JUDGEMENT)


@needs(KERNELS)
@rule("Logits are copied to leave out a row without a label", "Shifted logits", see="roles")
def shifted_logits(case: Case) -> Iterator[Finding]:
    """Logits copied without the last few rows of each text, only for a loss to read.

    Finds copies of a tensor without at most {LEFT_OUT} of its rows that a cross entropy, log softmax or negative log
    likelihood reads first, by their shape and strides. With what autograd does to give all rows a gradient, zeros and
    a copy back, they must take at least {LEAST_SHARE} of GPU time.

    Slow
        loss = F.cross_entropy(logits[:, :-1].contiguous().flatten(0, 1), labels[:, 1:].flatten())

    Fast
        labels = F.pad(labels[:, 1:], (0, 1), value=-100)  # the label that the loss ignores
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    Why
    Logits are the largest tensor of most language models. The slice is no view in the shape that the loss wants, so that
    all of it is copied, and its gradient is copied back.

    How the worth is predicted
    The copies go, forward and backward, with the zeros that the gradient is copied into. The loss takes longer in
    proportion to the rows that it computes in addition.

    When not
    The copy is used for more than the loss.
    """
    shifted = pattern.shifted_copies(case, left_out=LEFT_OUT)
    if not shifted:
        return
    copies = pattern.copying(case, shifted)
    if too_little(case, "logits are copied without rows that have no label", copies.gpu_share, LEAST_SHARE):
        return
    yield Finding(
        says=f"Logits are copied without the rows that have no label: {copies.gpu_pct:.0f} % of GPU time, with the "
        "gradient's copy back.",
        why="The loss itself leaves out rows whose label is to be ignored.",
        fix=Fix(
            "Shift the labels, not the logits.",
            "labels = F.pad(labels[:, 1:], (0, 1), value=-100)   # not logits[:, :-1].contiguous()\n"
            "loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())   # -100: its ignore_index, or the one in use",
        ),
        evidence={**copies.evidence("copies"), "copies_per_step_count": len(shifted) / case.step_count},
        where=case.places([copy.op for copy in shifted]),
        change=Change(
            "labels shifted in place of rows",
            replace(removal.without_work(copies), stretched=pattern.longer_losses(case, shifted)),
        ),
        unless="the copy is used for more than the loss.",
    )
