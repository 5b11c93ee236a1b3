"""The code of fused attention that computes what an attention in pieces computes, and what of it must be checked."""

from __future__ import annotations

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Fix
from foretrace.diagnose.patterns.attention_seen import ADDED, FILLED, KEPT, MULTIPLIED, Seen
from foretrace.sourced import JUDGEMENT, Count

_TRANSFORMERS = "transformers/models/"
_HOW = {
    ADDED: "added to the scores",
    FILLED: "where scores are replaced",
    KEPT: "where scores are kept",
    MULTIPLIED: "multiplied with the scores",
}
_LINE = Count(50, "characters of arguments that stand on one line", JUDGEMENT)
FLASH_WIDTHS = Count(
    8, "of which the widths of heads are multiples in flash attention", "PyTorch's sdp_utils.cpp"
)
_MULTIHEAD = "multi_head_attention_forward"  # of torch/nn/functional.py, which nn.MultiheadAttention calls
_IMPLEMENTATION = 'from_pretrained(name, attn_implementation="sdpa")'


def fix(case: Case, seen: Seen) -> Fix:
    """What to write instead, for what the recording shows."""
    known = _within(case, file=_TRANSFORMERS)
    if _within(case, function=_MULTIHEAD):
        return Fix(
            "Ask nn.MultiheadAttention for no weights: it then calls fused attention.",
            "y, _ = self.attention(x, x, x, need_weights=False)   # True, the default, keeps the matrix of weights to return it",
        )
    if known:
        return Fix(
            "Let transformers call fused attention: it passes mask, scale and dropout on.",
            f"model = AutoModel.{_IMPLEMENTATION}   # the class as it is now\n"
            "# not where output_attentions=True is asked for, or the model has no such implementation",
        )
    if seen.alters:
        return Fix(
            "Compute scores, what is done to them, and softmax in one kernel.",
            "from torch.nn.attention.flex_attention import flex_attention\n"
            "y = torch.compile(flex_attention)(q, k, v, score_mod=change_scores, scale=scale)\n"
            f"# change_scores(score, b, h, q_idx, kv_idx): {', '.join(sorted(seen.alters))}, and the mask",
        )
    notes = [*_mask_notes(seen), *_scale_notes(seen), *_kernel_notes(seen)]
    if known is None:
        notes.append(f"in a model of transformers: {_IMPLEMENTATION} instead")
        notes.append("in nn.MultiheadAttention: need_weights=False instead")
    code = _call([", ".join(("q, k, v", *_mask(seen))), *_dropout(seen), *_scale(seen)])
    return Fix("Use fused attention.", "\n".join((code, *(f"# {note}" for note in notes))))


def _call(arguments: list[str]) -> str:
    """The call, on as many lines as are easy to read."""
    if sum(map(len, arguments)) <= _LINE:
        return f"y = F.scaled_dot_product_attention({', '.join(arguments)})"
    listed = ",\n    ".join(arguments)
    return f"y = F.scaled_dot_product_attention(\n    {listed},\n)"


def mask_in_words(seen: Seen) -> str:
    """The mask as the recording shows it."""
    if not seen.masks:
        return "none"
    words = " and ".join(f"{list(shape)} {_HOW[how]}" for how, shape in sorted(seen.masks.items()))
    return f"causal: {words}" if seen.causal else words


def unless(seen: Seen) -> str:
    """What would make the advice wrong."""
    whole = (
        ""
        if not seen.masks or seen.causal
        else ", or a row is masked as a whole, whose result is then another"
    )
    return f"the scores themselves are needed, or the mask is one that the fused kernels do not take{whole}."


def _mask(seen: Seen) -> list[str]:
    if not seen.masks:
        return []
    if seen.causal:
        return ["is_causal=True"]
    if len(seen.masks) > 1 or MULTIPLIED in seen.masks:
        return ["attn_mask=mask"]
    (how,) = seen.masks
    if how == FILLED:
        return ["attn_mask=~mask"]
    return [
        "attn_mask=mask.to(q.dtype)" if how == ADDED and seen.mask_dtype != seen.dtype else "attn_mask=mask"
    ]


def _mask_notes(seen: Seen) -> list[str]:
    if seen.causal:
        return ["the only mask seen is the triangle that the step cuts with tril or triu"]
    if not seen.masks:
        return []
    if len(seen.masks) > 1 or MULTIPLIED in seen.masks:
        notes = [f"mask: True where a score counts, for what is now {mask_in_words(seen)}"]
    elif FILLED in seen.masks:
        notes = ["mask as it is now, True where a score is replaced: attn_mask wants True where it counts"]
    elif KEPT in seen.masks:
        notes = ["mask as it is now, True where a score counts"]
    else:
        notes = ["mask as it is now, added to the scores"]
    if seen.perhaps_causal:
        notes.append(
            "is_causal=True instead, which is faster, only if this mask is the lower triangle and nothing else"
        )
    return notes


def _dropout(seen: Seen) -> list[str]:
    if not seen.dropout:
        return []
    probability = "p" if seen.dropout == "?" else seen.dropout
    return [f"dropout_p={probability} if self.training else 0.0"]


def _scale(seen: Seen) -> list[str]:
    if seen.alpha:
        return [f"scale={seen.alpha}"]
    return ["scale=scale"] if seen.scaled else ["scale=1.0"]


def _scale_notes(seen: Seen) -> list[str]:
    if seen.alpha:
        return []
    width = seen.attention.width
    if seen.scaled:
        return [
            f"scale: what the scores are multiplied by now; not needed where that is 1 / math.sqrt({width})"
        ]
    return [
        "scale=1.0: nothing scales the scores between product and softmax; q and k as they are multiplied now"
    ]


def _kernel_notes(seen: Seen) -> list[str]:
    notes = []
    if not seen.half:
        notes.append("in fp32 the memory-efficient kernel runs; flash attention needs bf16 or fp16")
    if seen.attention.width % FLASH_WIDTHS:
        notes.append(
            f"heads of {seen.attention.width} are padded: flash attention takes multiples of {FLASH_WIDTHS}"
        )
    if seen.dropout:
        notes.append("dropout draws other random numbers than now: the same in distribution")
    return notes


def _within(case: Case, *, file: str = "", function: str = "") -> bool | None:
    """Whether the softmaxes are called from such a file or function; None where no source was recorded."""
    for recorded in (case, case.rich):
        if recorded is None or not recorded.trace.stacks.height:
            continue
        stacks = recorded.trace.stacks.select("id", "parent_id", "file", "function")
        frames = {
            frame: (parent, function in called if function else file in (path or "").replace("\\", "/"))
            for frame, parent, path, called in stacks.iter_rows()
        }
        ops = recorded.trace.ops.select("stack_id", name=recorded.op_names(recorded.trace.ops["span_id"]))
        called = ops.drop_nulls("stack_id").filter(pl.col("name").str.contains("softmax"))
        return any(_reaches(frames, stack) for stack in called["stack_id"].unique())
    return None


def _reaches(frames: dict[int, tuple[int | None, bool]], stack: int | None) -> bool:
    while stack is not None:
        stack, fits = frames[stack]
        if fits:
            return True
    return False
