"""Names of kernels as CUPTI and Nsight Compute spell them, in one form."""

from __future__ import annotations

import pytest

from foretrace.analyze.concepts.names.kernel_signatures import Signature, signature
from tests.analyze.nine_kernels import BF16, FILL, LAYER_NORM, MULTIPLY, REDUCE, TF32, TRANSPOSE

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, X)"


@pytest.mark.parametrize(
    ("cupti", "ncu"),
    [
        (
            LAYER_NORM,
            "void at::<unnamed>::vectorized_layer_norm_kernel<float, float, 0>(int, T2, const T1 *, const T1 *, const T1 *, T2 *)",
        ),
        (
            TRANSPOSE,
            "void at::elementwise_kernel<128, 2, void at::gpu_kernel_impl_nocast<at::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
            "[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)]>"
            "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
        ),
        (
            REDUCE,
            "void at::reduce_kernel<512, 1, at::ReduceOp<float, at::func_wrapper_t<float, at::sum_functor<float, float, float>::operator "
            "()(at::TensorIterator &)::[lambda(float, float) (instance 1)]>, unsigned int, float, 4, 4>>(T3)",
        ),
        (FILL, "void at::vectorized_elementwise_kernel<4, at::FillFunctor<float>, std::array<char *, 1>>(int, T2, T3)"),
        # Without its shortening of names, ncu puts a cast before each number.
        (
            FILL,
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, (unsigned long)1>>"
            "(int, T2, T3)",
        ),
        (LAYER_NORM, "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int, T2)"),
        (TF32, TF32),
        (BF16, BF16),
    ],
)  # fmt: skip
def test_both_spellings_have_one_signature(cupti: str, ncu: str) -> None:
    assert signature(cupti) == signature(ncu)


def test_other_kernels_have_another_signature() -> None:
    names = [
        LAYER_NORM,
        TRANSPOSE,
        REDUCE,
        FILL,
        MULTIPLY,
        TF32,
        BF16,
        ADD,
        ADD.replace("float", "double"),
        ADD.replace("<4", "<8"),
    ]
    names += [ADD.replace("3ul", "2ul"), LAYER_NORM.replace("false", "true"), TRANSPOSE.replace("#7", "#8")]
    assert len({signature(name) for name in names}) == len(names)


def test_a_bare_name_fits_every_instance_of_its_function() -> None:
    bare = signature("vectorized_elementwise_kernel")
    assert bare == Signature("vectorized_elementwise_kernel", None)
    assert bare.fits(signature(ADD))
    assert signature(FILL).fits(bare)
    assert not signature(FILL).fits(signature(ADD))
    assert not bare.fits(signature(REDUCE))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionE", "Kernel"),
        ("_Z10add_kernelPfi", "add_kernel"),
        ("_ZN99tooShort", "_ZN99tooShort"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("", ""),
        ("<<<", "<<<"),
        ("(" * 500, "(" * 500),
    ],
)
def test_functions_of_mangled_and_odd_names(name: str, function: str) -> None:
    assert signature(name).function == function
