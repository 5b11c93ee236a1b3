"""The build strings of matrix multiplies and convolutions, decoded.

Sources: CUTLASS's profiler.md for procedural names (s16816 is an fp32 sum over 16x8x16 tensor-core steps),
Tensile's name fields for Cijk kernels (MI is the matrix instruction), and recordings whose operators say
which types went in: `nvjet_sm90_tst` ran for bf16 operators only, `hsh` for fp16 only.
"""

from __future__ import annotations

import re
from dataclasses import replace

from foretrace.analyze.concepts.names.kernel_facts import CONVOLUTION, GEMM, KernelName, direction_of

_NVJET_LETTERS = {"h": "fp16", "t": "bf16", "s": "fp32", "d": "fp64", "q": "fp8", "i": "int8"}
_HALVES = {"fp16", "bf16", "fp8", "fp4", "int8"}


def nvjet(name: str, match: re.Match[str]) -> KernelName:
    """cuBLAS's kernels for Hopper and later; the letters are input (twice where A and B differ), sum, output."""
    letters = match["letters"]
    kinds = [_NVJET_LETTERS.get(letter) for letter in letters]
    known = len(kinds) >= 3
    source, total, target = (kinds[0], kinds[-2], kinds[-1]) if known else (None, None, None)
    if source == "fp32" and total == "fp32":
        source = "tf32"  # fp32 without tensor cores stays with the older sgemm kernels
    return _gemm(
        name, "nvjet", layout=match["layout"][:2].lower() if match["layout"] else None,
        tile=match["tile"], input_dtype=source, accumulate_dtype=total, output_dtype=target, tensor_cores=True,
        stages=_number(match["stages"]), depth=match["depth"],
    )  # fmt: skip


_TENSILE_TYPES = {"S": "fp32", "D": "fp64", "H": "fp16", "B": "bf16", "I": "int32", "I8": "int8", "X": "tf32"}
_TENSILE_TYPES |= {"F8": "fp8", "F8N": "fp8", "B8": "bf8", "B8N": "bf8", "F8B8": "fp8", "C": "complex64"}


def tensile(name: str, match: re.Match[str]) -> KernelName:
    """rocBLAS's and hipBLASLt's kernels: Ailk is A as it lies (n), Alik transposed (t)."""
    a, b = match["a"], match["b"]
    layout = ("t" if a == "lik" else "n") + ("t" if b == "jlk" else "n")
    # BBS_BH and B_BS_BH both read: bf16 in, bf16 out, fp32 sums, beta, high-precision accumulate.
    types = re.match(r"(F8N?|B8N?|I8|[SDHBIXC])", match["types"].replace("_", ""))
    source = _TENSILE_TYPES.get(types.group()) if types else None
    matrix = re.search(r"_MI(\d+)x(\d+)x(\d+)", name)
    thread_tile = re.search(r"_TT\d+_\d+", name)
    total = "fp32" if source in _HALVES | {"fp32", "tf32"} else source
    return _gemm(
        name, "hipBLASLt" if "UserArgs" in name else "Tensile", layout=layout, tile=match["tile"],
        input_dtype=source, accumulate_dtype=total, output_dtype=source if source in {"fp32", "fp64"} else None,
        tensor_cores=True if matrix else (False if thread_tile else None),
    )  # fmt: skip


_XMMA_TYPES = {"f32": "fp32", "tf32": "tf32", "f16": "fp16", "bf16": "bf16", "f64": "fp64", "e4m3": "fp8"}
_XMMA_TYPES |= {"e5m2": "fp8", "i8": "int8", "s8": "int8"}


def xmma(name: str, match: re.Match[str]) -> KernelName:
    """cuBLAS's and cuDNN's generated kernels: types are A and B as stored, then as multiplied and summed."""
    stored, multiplied, total, target = (match[part] for part in ("stored", "multiplied", "total", "target"))
    source = _XMMA_TYPES.get(multiplied) or _XMMA_TYPES.get(stored)
    tile, stage = re.search(r"tilesize(\d+x\d+x\d+)", name), re.search(r"_stage(\d+)", name)
    # ffma is the plain fp32 multiply-add of the CUDA cores.
    cores = "ffma" not in name and (source != "fp32" or "tensor" in name)
    decoded = _gemm(
        name, "cuDNN" if "cudnn" in name else "cuBLAS", layout=match["layout"],
        tile=tile.group(1) if tile else None, stages=_number(stage.group(1)) if stage else None,
        input_dtype=source, accumulate_dtype=_XMMA_TYPES.get(total), output_dtype=_XMMA_TYPES.get(target),
        tensor_cores=cores,
    )  # fmt: skip
    return _as_convolution(decoded) if match["conv"] else decoded


_MMA = re.compile(r"(?<![a-z\d])([shdi])(16816|1688|884|161616|16832|8816|64\d+16|64x\d+x\d+)(?=[a-z_]|$)")
_SUMS = {"s": "fp32", "h": "fp16", "d": "fp64", "i": "int32"}
_STORED = re.compile(r"(?<![a-z\d])(bf16|fp16|f16|tf32|fp32|f32|int8|s8|e4m3|e5m2)(?![\d])")
_BUILT = {"f16": "fp16", "f32": "fp32", "s8": "int8", "e4m3": "fp8", "e5m2": "fp8"}
_PLAIN = re.compile(r"(?<![a-z])(?:simt_)?([sdhcz]|gc)gemm(?![a-z])|(?<![a-z])(s)cudnn")
_PLAIN_TYPES = {"s": "fp32", "d": "fp64", "h": "fp16", "c": "complex64", "z": "complex128", "gc": "complex64"}
_TILE = re.compile(r"_(\d+x\d+(?:x\d+)?)(?=_|$|>|::)")
_STAGES = re.compile(r"(?:stages_|_\d+x\d+_)(\d+)x(\d+)(?=_|$)")
_LAYOUT = re.compile(r"_(nn|nt|tn|tt)(?=_|$|n_|\d|>|:)")


def blas(name: str, match: re.Match[str]) -> KernelName:
    """Kernels of cuBLAS, cuDNN and CUTLASS named in CUTLASS's way."""
    core = match.group()
    mma, plain = _MMA.search(core), _PLAIN.search(core)
    source, total = _stored_type(core, mma), _SUMS[mma.group(1)] if mma else None
    cores: bool | None = True if mma or re.search(r"tensorop|hmma|wmma", core) else None
    if plain and not mma:
        kind = plain.group(1) or plain.group(2)
        source, total = source or _PLAIN_TYPES[kind], _PLAIN_TYPES[kind]
        # dgemm and hgemm have both kinds of kernels.
        cores = None if kind in {"d", "h", "z"} or cores else False
    if "simt" in core:
        cores = False
    tile, stages, layout = _TILE.search(core), _STAGES.search(core), _LAYOUT.search(core)
    decoded = _gemm(
        name, "cutlass" if "cutlass" in core else "cuDNN" if "cudnn" in core else "cuBLAS",
        layout=layout.group(1) if layout else None, tile=tile.group(1) if tile else None,
        stages=_number(stages.group(2)) if stages else None,
        depth=stages.group(1) if stages else None,
        input_dtype=source, accumulate_dtype=total, tensor_cores=cores,
    )  # fmt: skip
    convolves = re.search(r"fprop|dgrad|wgrad|conv|[shi]\d*cudnn", core)
    return _as_convolution(decoded) if convolves else decoded


def _stored_type(core: str, mma: re.Match[str] | None) -> str | None:
    """The type of the matrices as the name says it, or as the instruction leaves only one."""
    if stored := _STORED.search(core):
        return _BUILT.get(stored.group(1), stored.group(1))
    if mma is None:
        return None
    if mma.group(1) == "h":
        return "fp16"
    if mma.group(2) == "1688":
        # Without a type: fp16 on Turing, which has no other; TF32 among the kernels for sm80.
        return "fp16" if "turing" in core or "_75_" in core else "tf32" if "_80_" in core else None
    known = {"884": "fp64" if mma.group(1) == "d" else "fp16", "8816": "int8", "16832": "int8"}
    return known.get(mma.group(2))


def template(name: str, _: re.Match[str]) -> KernelName:
    """A CUTLASS kernel whose template is spelled out, often mangled."""
    shape = re.search(r"GemmShape(?:ILi(\d+)ELi(\d+)ELi(\d+)E|<(\d+), (\d+), (\d+)>)", name)
    parts = [size for size in shape.groups() if size] if shape else []
    source = next(
        (dtype for word, dtype in _TEMPLATE_TYPES if word in name),
        None,
    )
    plain = "OpClassSimt" in name or "Simt" in name
    cores = False if plain else True if "TensorOp" in name or "Mma" in name or source else None
    decoded = _gemm(
        name, "cutlass", tile="x".join(parts) or None, input_dtype=source, accumulate_dtype=None,
        tensor_cores=cores,
    )  # fmt: skip
    return _as_convolution(decoded) if "onvolution" in name or "Conv2d" in name else decoded


_TEMPLATE_TYPES = (
    ("float_e4m3", "fp8"), ("float_e5m2", "fp8"), ("float8", "fp8"), ("e2m1", "fp4"), ("bfloat16", "bf16"),
    ("tfloat32", "tf32"), ("half_t", "fp16"),
)  # fmt: skip


def trtllm(name: str, match: re.Match[str]) -> KernelName:
    """TensorRT-LLM's generated kernels: output type, then A's and B's, then that of the sum."""
    kinds = {
        "Bfloat16": "bf16",
        "Fp16": "fp16",
        "Fp32": "fp32",
        "E4m3": "fp8",
        "E2m1": "fp4",
        "MxE4m3": "mxfp8",
    }
    kinds |= {"MxE2m1": "mxfp4", "MxE2m1MxE4m3": "mxfp4 and mxfp8", "E2m1E2m1": "nvfp4"}
    return _gemm(
        name, "TensorRT-LLM", layout=match["layout"].lower(), tile=match["tile"], stages=_number(match["stages"]),
        input_dtype=kinds.get(match["source"]), accumulate_dtype=kinds.get(match["total"]),
        output_dtype=kinds.get(match["target"]), tensor_cores=True,
    )  # fmt: skip


def triton_matmul(name: str, match: re.Match[str]) -> KernelName:
    """triton_kernels' matrix multiply: types of output, A and B, then the tile."""
    source = match["a"] if match["a"] == match["b"] else f"{match['a']} and {match['b']}"
    return _gemm(name, "Triton", tile=match["tile"], input_dtype=source, tensor_cores=None)


def _number(text: str | None) -> int | None:
    return int(text) if text else None


def _gemm(
    name: str, family: str, *, layout: str | None = None, tile: str | None = None, stages: int | None = None,
    depth: str | None = None, input_dtype: str | None = None, accumulate_dtype: str | None = None,
    output_dtype: str | None = None, tensor_cores: bool | None,
) -> KernelName:  # fmt: skip
    """A matrix multiply, with its words."""
    if tile and depth and tile.count("x") == 1:
        tile = f"{tile}x{depth}"
    split = bool(re.search(r"(?i)split_?k|_GSU(?:[2-9]|\d\d)", name))
    units = "matrix cores" if family in {"Tensile", "hipBLASLt", "CK"} else "tensor cores"
    plain = "vector units" if units == "matrix cores" else "CUDA cores"
    on = {True: f"on {units}", False: f"on {plain}, without {units}", None: f"perhaps on {units}"}[
        tensor_cores
    ]
    parts = [f"{input_dtype} matrix multiply {on}" if input_dtype else f"matrix multiply {on}"]
    if tile:
        parts.append(f"{tile} tile")
    if stages:
        parts.append(f"{stages} stages")
    if layout:
        parts.append(f"layout {layout}")
    if accumulate_dtype and accumulate_dtype != input_dtype:
        parts.append(f"sums in {accumulate_dtype}")
    if split:
        parts.append("split along k")
    return KernelName(
        name=name, family=family, role=GEMM, text=", ".join(parts), layout=layout, tile=tile, stages=stages,
        input_dtype=input_dtype, accumulate_dtype=accumulate_dtype, output_dtype=output_dtype,
        tensor_cores=tensor_cores, split_k=split,
    )  # fmt: skip


def _as_convolution(gemm: KernelName) -> KernelName:
    """The same kernel, as a convolution."""
    what = "convolution"
    for word, part in (
        ("dgrad", "input gradient"),
        ("wgrad", "weight gradient"),
        ("Wgrad", "weight gradient"),
    ):
        if word in gemm.name:
            what = f"{part} of a convolution"
    family = "cuDNN" if "cudnn" in gemm.name else gemm.family
    text = gemm.text.replace("matrix multiply", what)
    return replace(gemm, role=CONVOLUTION, family=family, text=text, direction=direction_of(gemm.name))
