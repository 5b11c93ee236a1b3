"""Short names: a span's name as the page shows it, the whole being one click away."""

from __future__ import annotations

import re
from functools import lru_cache

from foretrace.analyze.concepts.names.kernel_facts import ATTENTION, COMMUNICATION, GEMM
from foretrace.analyze.concepts.names.kernel_names import decode

LONGEST = 60
_LOOKED_AT = 4096
_FUNCTORS = (
    re.compile(r"(\w+?)_kernel_(?:cuda|impl)\b"),
    re.compile(r"\b(?!elementwise)(\w+?)_kernel\("),
    re.compile(r"(\w+?)(?:CUDAKernelImpl|_cuda_out)\("),
    re.compile(r"\b(sum|mean|prod|norm|max|min|argmax|argmin)_functor\b"),
    re.compile(r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+?)\b"),
    re.compile(r"\b(?:BinaryFunctor|AUnaryFunctor|BUnaryFunctor).*?\b(\w+?)Functor<"),
    re.compile(r"\b(\w+?)Functor\b"),
    re.compile(r"\b(\w+?)Ops?<"),
)
_GENERIC = re.compile(
    r"(?:vectorized_|unrolled_|legacy_)?elementwise_kernel|gpu_kernel_impl|reduce_kernel|multi_tensor_apply"
)
_NOISE = re.compile(r"\(anonymous namespace\)::|^void |\b(?:at|native|cuda|c10|cub|std|cutlass|cudnn)::")
_FILL = {
    "direct_copy": "copy",
    "Fill": "fill",
    "float16_copy": "cast to fp16",
    "bfloat16_copy": "cast to bf16",
}
_COPIES = {"Memcpy HtoD": "copy to device", "Memcpy DtoH": "copy to host", "Memcpy DtoD": "copy in device"}
_FILE = re.compile(r"^(?:.*/)?([^/]+\.py\(\d+\): .*)$")


@lru_cache(maxsize=65536)
def short(name: str, kind: str) -> str:
    """The name in a few words; `kind` is the span's kind in the schema."""
    if kind in ("kernel", "copy", "set"):
        text = _device(name[:_LOOKED_AT])
    elif kind == "op":
        text = _operator(name)
    elif kind == "python":
        text = _python(name)
    else:
        text = name
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _operator(name: str) -> str:
    text = name.removeprefix("autograd::engine::evaluate_function: ")
    return text.removeprefix("aten::")


def _python(name: str) -> str:
    if name.startswith("nn.Module: "):
        return name.removeprefix("nn.Module: ")
    found = _FILE.match(name)
    return found[1] if found else name


def _device(name: str) -> str:
    for prefix, text in _COPIES.items():
        if name.startswith(prefix):
            return text
    decoded = decode(name)
    if decoded.role in (GEMM, ATTENTION, COMMUNICATION):
        return _stem(name)
    if _GENERIC.search(name) and (word := _functor(name)):
        return word
    return _stem(name)


def _functor(name: str) -> str | None:
    for pattern in _FUNCTORS:
        if found := pattern.search(name):
            word = _FILL.get(found[1], found[1])
            return word.lower() if word not in ("at", "native", "func") else None
    return None


def _stem(name: str) -> str:
    """Without return type, scopes, template arguments and parameters."""
    text = _NOISE.sub("", name)
    depth, kept = 0, []
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">":
            depth = max(depth - 1, 0)
        elif not depth:
            if character == "(":
                break
            kept.append(character)
    stem = "".join(kept).strip()
    return stem.rsplit("::", 1)[-1] or text or name
