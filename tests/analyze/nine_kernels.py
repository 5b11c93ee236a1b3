"""The program whose nine kernels tests/traces/ncu holds, as torch.profiler would record it: names as CUPTI spells them.

The names are those of the same kernels in recordings of an H200; operators and shapes are what those kernels' counters imply
(2 x 4096^3 operations of tensor cores are a product of 4096 x 4096 matrices).
"""

from __future__ import annotations

from pathlib import Path

from tests.builders import Recording
from tests.diagnose.kernels import Op, recorded

FILES = Path(__file__).parents[1] / "traces" / "ncu"
RAW, DETAILS = FILES / "kernels.raw.csv.gz", FILES / "kernels.details.csv.gz"

_ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul> >"
    "(int, at::native::CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul>)"
)
_COPY = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}"
_SUM = "at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4, 4>"
_MUL = "at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*, "
    "float const*, float const*, float*, float*, float*)"
)
TRANSPOSE = (
    f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{_COPY}>(at::TensorIteratorBase&, "
    f"{_COPY} const&)::{{lambda(int)#1}}>(int, at::native::gpu_kernel_impl_nocast<{_COPY}>(at::TensorIteratorBase&, "
    f"{_COPY} const&)::{{lambda(int)#1}})"
)
REDUCE = f"void at::native::reduce_kernel<512, 1, {_SUM} >({_SUM})"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x256x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"
FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
    "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
BF16 = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
MULTIPLY = f"void at::native::vectorized_elementwise_kernel<4, {_MUL}, std::array<char*, 2ul> >(int, {_MUL}, std::array<char*, 2ul>)"
_WIDE = [65536, 1024]


def _op(
    name: str,
    kernel: str,
    dur_us: float,
    shapes: list[list[int]],
    grid: list[int],
    block: list[int],
    dtype: str = "float",
) -> Op:
    return Op(name, kernel, dur_us, shapes, [dtype] * len(shapes), args={"grid": grid, "block": block})


# In the order in which ncu profiled them; durations near to those that it measured.
OPS = [
    _op("aten::native_layer_norm", LAYER_NORM, 190, [_WIDE, [1], [1024], [1024]], [65536, 1, 1], [32, 4, 1]),
    _op("aten::copy_", TRANSPOSE, 450, [_WIDE, _WIDE], [262144, 1, 1], [128, 1, 1]),
    _op("aten::sum", REDUCE, 60, [_WIDE, []], [1, 528, 1], [512, 1, 1]),
    _op("aten::mm", TF32, 48, [[2048, 2048], [2048, 2048]], [64, 2, 1], [384, 1, 1]),
    _op("aten::fill_", FILL, 2, [[1], []], [1, 1, 1], [128, 1, 1]),
    _op("aten::add_", _ADD, 2, [[1], []], [1, 1, 1], [128, 1, 1]),
    _op("aten::mm", BF16, 170, [[4096, 4096], [4096, 4096]], [2, 66, 1], [384, 1, 1], "c10::BFloat16"),
    _op("aten::mul", MULTIPLY, 120, [_WIDE, []], [65536, 1, 1], [128, 1, 1]),
    _op("aten::add_", _ADD, 120, [_WIDE, []], [65536, 1, 1], [128, 1, 1]),
]  # fmt: skip


def recording() -> Recording:
    """Four steps of the program."""
    return recorded(OPS)
