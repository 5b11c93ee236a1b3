"""A Device is one accelerator as torch sees it: its peaks, each with its source.

Every peak is dense and at boost clock. NVIDIA prints sparse figures for newer parts; those are halved here.
Tensor peaks accumulate in fp32, as torch does. A null peak means that the device has no such unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from foretrace.errors import UsageError

MEASURED = "measured by the user"

# Vendors print "80GB" and mean 80 GiB: an H100 reports 79.2 GiB, an H200 ("141GB") 139.8, an MI300X 191.98.
_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator: flops are per second, bandwidths are bytes per second in one direction."""

    name: str
    vendor: str
    compute_capability: str
    fp32_flops: float
    tf32_flops: float | None
    fp16_flops: float
    bf16_flops: float | None
    fp8_flops: float | None
    memory_bandwidth_bytes: float
    memory_bytes: int
    sm_count: int
    l2_bytes: int
    max_threads_per_sm: int
    pcie_bytes: float
    nvlink_bytes: float | None
    reported_names: tuple[str, ...] = field(repr=False)
    sources: Mapping[str, str] = field(repr=False, hash=False)


_TEXTS = ("name", "vendor", "compute_capability", "reported_names", "sources")
NUMBERS = tuple(column.name for column in fields(Device) if column.name not in _TEXTS)

_DTYPES = {
    "fp32": "fp32_flops",
    "tf32": "tf32_flops",
    "fp16": "fp16_flops",
    "bf16": "bf16_flops",
    "fp8": "fp8_flops",
}


def match(name: str, *, memory_bytes: int | None = None, sm_count: int | None = None) -> Device | None:
    """The device that reports this name, or None when none or more than one fits what was recorded."""
    wanted = _normalised(name)
    if sm_count is not None:  # a virtual function may be a part of the card: only its unit count says which
        wanted = wanted.removesuffix(" vf")
    found = [
        device
        for device in DEVICES
        if wanted in {_normalised(known) for known in (device.name, *device.reported_names)}
        and (memory_bytes is None or _holds(device, memory_bytes))
        and (sm_count is None or sm_count == device.sm_count)
    ]
    return found[0] if len(found) == 1 else None


def override(device: Device, **peaks: float) -> Device:
    """The device with the user's measured numbers in place of the datasheet's."""
    for name, value in peaks.items():
        if name not in NUMBERS:
            raise UsageError(f"{device.name} has no number named {name}; choose from {', '.join(NUMBERS)}")
        if not value > 0:
            raise UsageError(f"{name} must be above zero, not {value}")
    changes: dict[str, Any] = dict(peaks)
    sources = {**device.sources, **dict.fromkeys(peaks, MEASURED)}
    return replace(device, sources=sources, **changes)


def peak_flops(device: Device, dtype: str) -> float | None:
    """The dense peak for fp32, tf32, fp16, bf16 or fp8; None when the device has no such unit."""
    if dtype not in _DTYPES:
        raise UsageError(f"no peak is kept for dtype {dtype}; choose from {', '.join(_DTYPES)}")
    flops: float | None = getattr(device, _DTYPES[dtype])
    return flops


def ridge(device: Device, dtype: str) -> float | None:
    """Flops per byte above which this dtype is compute-bound; None when the device has no such unit."""
    flops = peak_flops(device, dtype)
    return None if flops is None else flops / device.memory_bandwidth_bytes


def _normalised(name: str) -> str:
    """The name in one spelling: older drivers leave out the leading NVIDIA."""
    return " ".join(name.casefold().replace("/", " / ").split()).removeprefix("nvidia ")


def _holds(device: Device, memory_bytes: int) -> bool:
    """Whether this device can report that much: ECC and the driver keep up to 8% (A10: 22.1 of 24)."""
    return 0.88 * device.memory_bytes <= memory_bytes <= 1.01 * device.memory_bytes


def _cite(document: str, **exceptions: str) -> Mapping[str, str]:
    """Sources for every number of a device: the document, except where another is named."""
    return {**dict.fromkeys(NUMBERS, document), **exceptions}


def _revise(device: Device, **sources: str) -> Mapping[str, str]:
    """The device's sources with some replaced."""
    return {**device.sources, **sources}


# Sixteen lanes, 128b/130b coding, 8, 16 and 32 GT/s a lane. Datasheets print both directions, rounded up.
_PCIE = "PCI Express Base Specification: GT/s x 16 lanes x 128/130, https://pcisig.com/specifications"
_PCIE_3_BYTES = 8e9 * 16 * 128 / 130 / 8
_PCIE_4_BYTES = 2 * _PCIE_3_BYTES
_PCIE_5_BYTES = 4 * _PCIE_3_BYTES

_CUDA_GUIDE = (
    "CUDA C++ Programming Guide, technical specifications per compute capability, "
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities"
)
_NVIDIA = {"max_threads_per_sm": _CUDA_GUIDE, "pcie_bytes": _PCIE}


# Volta: fp16 tensor cores only, so no tf32, bf16 or fp8 peak.
_V100 = (
    "NVIDIA V100 datasheet, "
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_VOLTA = (
    "NVIDIA Tesla V100 GPU Architecture whitepaper, "
    "https://images.nvidia.com/content/volta-architecture/pdf/volta-architecture-whitepaper.pdf"
)
_DGX_STATION = (
    "NVIDIA DGX Station datasheet (four V100: 500 TFLOP/s fp16, four NVLinks of 25 GB/s a GPU), "
    "https://images.nvidia.com/content/newsletters/email/pdf/DGX-Station-WS.pdf"
)
_V100_SXM2_16GB = Device(
    name="V100 SXM2 16GB",
    vendor="NVIDIA",
    compute_capability="7.0",
    fp32_flops=15.7e12,
    tf32_flops=None,
    fp16_flops=125e12,
    bf16_flops=None,
    fp8_flops=None,
    memory_bandwidth_bytes=900e9,
    memory_bytes=16 * _GIB,
    sm_count=80,
    l2_bytes=6 * _MIB,
    max_threads_per_sm=2048,
    pcie_bytes=_PCIE_3_BYTES,
    nvlink_bytes=300e9 / 2,
    reported_names=("Tesla V100-SXM2-16GB",),
    sources=_cite(_V100, sm_count=_VOLTA, l2_bytes=_VOLTA, **_NVIDIA),
)
_V100_SXM2_32GB = replace(
    _V100_SXM2_16GB,
    name="V100 SXM2 32GB",
    memory_bytes=32 * _GIB,
    reported_names=("Tesla V100-SXM2-32GB",),
)
_V100_DGXS_16GB = replace(
    _V100_SXM2_16GB,
    name="V100 DGX Station 16GB",
    nvlink_bytes=4 * 25e9,
    reported_names=("Tesla V100-DGXS-16GB",),
    sources=_revise(_V100_SXM2_16GB, fp16_flops=_DGX_STATION, nvlink_bytes=_DGX_STATION),
)
_V100_DGXS_32GB = replace(
    _V100_DGXS_16GB,
    name="V100 DGX Station 32GB",
    memory_bytes=32 * _GIB,
    reported_names=("Tesla V100-DGXS-32GB",),
)
_V100_PCIE_16GB = replace(
    _V100_SXM2_16GB,
    name="V100 PCIe 16GB",
    fp32_flops=14e12,
    fp16_flops=112e12,
    nvlink_bytes=None,
    reported_names=("Tesla V100-PCIE-16GB",),
)
_V100_PCIE_32GB = replace(
    _V100_PCIE_16GB,
    name="V100 PCIe 32GB",
    memory_bytes=32 * _GIB,
    reported_names=("Tesla V100-PCIE-32GB",),
)
_V100S_PCIE_32GB = replace(
    _V100_PCIE_32GB,
    name="V100S PCIe 32GB",
    fp32_flops=16.4e12,
    fp16_flops=130e12,
    memory_bandwidth_bytes=1134e9,
    reported_names=("Tesla V100S-PCIE-32GB",),
)


# Ampere.
_A100 = (
    "NVIDIA A100 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_AMPERE = (
    "NVIDIA A100 Tensor Core GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
)
_A100_PCIE = (
    "NVIDIA A100 PCIe product brief, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/A100-PCIE-Prduct-Brief.pdf"
)
_A10 = "NVIDIA A10 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
_GA102 = (
    "NVIDIA Ampere GA102 GPU Architecture whitepaper, "
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
# PG509 is the SXM4 board of either size, whose name some drivers report instead of the product's.
_A100_SXM4_40GB = Device(
    name="A100 SXM4 40GB",
    vendor="NVIDIA",
    compute_capability="8.0",
    fp32_flops=19.5e12,
    tf32_flops=156e12,
    fp16_flops=312e12,
    bf16_flops=312e12,
    fp8_flops=None,
    memory_bandwidth_bytes=1555e9,
    memory_bytes=40 * _GIB,
    sm_count=108,
    l2_bytes=40 * _MIB,
    max_threads_per_sm=2048,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=600e9 / 2,
    reported_names=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PG509-200"),
    sources=_cite(_AMPERE, **_NVIDIA),
)
_A100_PCIE_40GB = replace(
    _A100_SXM4_40GB,
    name="A100 PCIe 40GB",
    reported_names=("NVIDIA A100-PCIE-40GB",),
    sources=_revise(
        _A100_SXM4_40GB, memory_bandwidth_bytes=_A100_PCIE, nvlink_bytes=f"with a bridge, {_A100_PCIE}"
    ),
)
_A100_SXM4_80GB = replace(
    _A100_SXM4_40GB,
    name="A100 SXM4 80GB",
    memory_bandwidth_bytes=2039e9,
    memory_bytes=80 * _GIB,
    reported_names=("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB", "NVIDIA A100-PG509-200"),
    sources=_cite(_A100, sm_count=_AMPERE, l2_bytes=_AMPERE, **_NVIDIA),
)
_A100_PCIE_80GB = replace(
    _A100_SXM4_80GB,
    name="A100 PCIe 80GB",
    memory_bandwidth_bytes=1935e9,
    reported_names=("NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-80GB"),
    sources=_revise(_A100_SXM4_80GB, nvlink_bytes=f"with a bridge, {_A100}"),
)
_A10_24GB = Device(
    name="A10",
    vendor="NVIDIA",
    compute_capability="8.6",
    fp32_flops=31.2e12,
    tf32_flops=62.5e12,
    fp16_flops=125e12,
    bf16_flops=125e12,
    fp8_flops=None,
    memory_bandwidth_bytes=600e9,
    memory_bytes=24 * _GIB,
    sm_count=72,
    l2_bytes=6 * _MIB,
    max_threads_per_sm=1536,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=None,
    reported_names=("NVIDIA A10",),
    sources=_cite(_A10, sm_count=f"9216 CUDA cores of 128 an SM, {_GA102}", l2_bytes=_GA102, **_NVIDIA),
)
_RTX_3090 = Device(
    name="GeForce RTX 3090",
    vendor="NVIDIA",
    compute_capability="8.6",
    fp32_flops=35.6e12,
    tf32_flops=35.6e12,
    fp16_flops=71e12,
    bf16_flops=71e12,
    fp8_flops=None,
    memory_bandwidth_bytes=936e9,
    memory_bytes=24 * _GIB,
    sm_count=82,
    l2_bytes=6 * _MIB,
    max_threads_per_sm=1536,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=112.5e9 / 2,
    reported_names=("NVIDIA GeForce RTX 3090",),
    sources=_cite(_GA102, **_NVIDIA),
)


# Ada.
_ADA = (
    "NVIDIA Ada GPU Architecture whitepaper v2.1, "
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
_L4 = "NVIDIA L4 datasheet, https://www.nvidia.com/en-us/data-center/l4/"
_L4_HALVED = f"half of the sparse figure, {_L4}"
_L40S = "NVIDIA L40S datasheet, dense column, https://www.nvidia.com/en-us/data-center/l40s/"
_L4_24GB = Device(
    name="L4",
    vendor="NVIDIA",
    compute_capability="8.9",
    fp32_flops=30.3e12,
    tf32_flops=120e12 / 2,
    fp16_flops=242e12 / 2,
    bf16_flops=242e12 / 2,
    fp8_flops=485e12 / 2,
    memory_bandwidth_bytes=300e9,
    memory_bytes=24 * _GIB,
    sm_count=58,
    l2_bytes=48 * _MIB,
    max_threads_per_sm=1536,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=None,
    reported_names=("NVIDIA L4",),
    sources=_cite(
        _L4,
        tf32_flops=_L4_HALVED,
        fp16_flops=_L4_HALVED,
        bf16_flops=_L4_HALVED,
        fp8_flops=_L4_HALVED,
        sm_count=_ADA,
        l2_bytes=_ADA,
        **_NVIDIA,
    ),
)
_L40S_48GB = Device(
    name="L40S",
    vendor="NVIDIA",
    compute_capability="8.9",
    fp32_flops=91.6e12,
    tf32_flops=183e12,
    fp16_flops=362.05e12,
    bf16_flops=362.05e12,
    fp8_flops=733e12,
    memory_bandwidth_bytes=864e9,
    memory_bytes=48 * _GIB,
    sm_count=142,
    l2_bytes=96 * _MIB,
    max_threads_per_sm=1536,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=None,
    reported_names=("NVIDIA L40S",),
    sources=_cite(_L40S, sm_count=f"18176 CUDA cores of 128 an SM, {_L40S}", l2_bytes=_ADA, **_NVIDIA),
)
_RTX_4090 = Device(
    name="GeForce RTX 4090",
    vendor="NVIDIA",
    compute_capability="8.9",
    fp32_flops=82.6e12,
    tf32_flops=82.6e12,
    fp16_flops=165.2e12,
    bf16_flops=165.2e12,
    fp8_flops=330.3e12,
    memory_bandwidth_bytes=1008e9,
    memory_bytes=24 * _GIB,
    sm_count=128,
    l2_bytes=72 * _MIB,
    max_threads_per_sm=1536,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=None,
    reported_names=("NVIDIA GeForce RTX 4090",),
    sources=_cite(_ADA, **_NVIDIA),
)


# Hopper. The SXM parts' 989 and 494 are halves of 1979 and 989, rounded down (whitepaper: 989.4, 494.7).
_H100 = (
    "NVIDIA H100 datasheet, https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
)
_HOPPER = (
    "NVIDIA H100 Tensor Core GPU Architecture whitepaper, "
    "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
)
_H200 = "NVIDIA H200 datasheet, https://www.nvidia.com/en-us/data-center/h200/"
_TENSOR = ("tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops")
_H100_HALVED = dict.fromkeys(_TENSOR, f"half of the sparse figure, {_H100}")
_H200_HALVED = dict.fromkeys(_TENSOR, f"half of the sparse figure, {_H200}")
_H200_DRIVER = "driver of an H200, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 62914560 (Nsight Compute)"
_H100_SXM = Device(
    name="H100 SXM",
    vendor="NVIDIA",
    compute_capability="9.0",
    fp32_flops=67e12,
    tf32_flops=494e12,
    fp16_flops=989e12,
    bf16_flops=989e12,
    fp8_flops=3958e12 / 2,
    memory_bandwidth_bytes=3.35e12,
    memory_bytes=80 * _GIB,
    sm_count=132,
    l2_bytes=50 * _MIB,
    max_threads_per_sm=2048,
    pcie_bytes=_PCIE_5_BYTES,
    nvlink_bytes=900e9 / 2,
    reported_names=("NVIDIA H100 80GB HBM3",),
    sources=_cite(_H100, sm_count=_HOPPER, l2_bytes=_HOPPER, **_H100_HALVED, **_NVIDIA),
)
_H100_PCIE = replace(
    _H100_SXM,
    name="H100 PCIe",
    fp32_flops=51.2e12,
    tf32_flops=378e12,
    fp16_flops=756e12,
    bf16_flops=756e12,
    fp8_flops=1513e12,
    memory_bandwidth_bytes=2039e9,
    sm_count=114,
    nvlink_bytes=600e9 / 2,
    reported_names=("NVIDIA H100 PCIe",),
    sources=_cite(_HOPPER, nvlink_bytes=f"with a bridge, {_H100}", **_NVIDIA),
)
_H100_NVL = replace(
    _H100_SXM,
    name="H100 NVL",
    fp32_flops=60e12,
    tf32_flops=835e12 / 2,
    fp16_flops=1671e12 / 2,
    bf16_flops=1671e12 / 2,
    fp8_flops=3341e12 / 2,
    memory_bandwidth_bytes=3.9e12,
    memory_bytes=94 * _GIB,
    l2_bytes=60 * _MIB,
    nvlink_bytes=600e9 / 2,
    reported_names=("NVIDIA H100 NVL",),
    sources=_revise(
        _H100_SXM,
        l2_bytes=f"inferred: six memory stacks as on the H200, {_H200_DRIVER}",
        nvlink_bytes=f"with a bridge, {_H100}",
    ),
)
_H200_SXM = replace(
    _H100_SXM,
    name="H200",
    memory_bandwidth_bytes=4.8e12,
    memory_bytes=141 * _GIB,
    l2_bytes=60 * _MIB,
    reported_names=("NVIDIA H200",),
    sources=_cite(_H200, sm_count=_HOPPER, l2_bytes=_H200_DRIVER, **_H200_HALVED, **_NVIDIA),
)
_H200_NVL = replace(
    _H100_NVL,
    name="H200 NVL",
    memory_bandwidth_bytes=4.8e12,
    memory_bytes=141 * _GIB,
    nvlink_bytes=900e9 / 2,
    reported_names=("NVIDIA H200 NVL",),
    sources=_revise(
        _H200_SXM,
        l2_bytes=f"inferred: the H200's memory, {_H200_DRIVER}",
        nvlink_bytes=f"with a bridge, {_H200}",
    ),
)


# Blackwell. The 2.5 PFLOP/s bf16 often quoted is the GB200 superchip's, a different part at 1200 W.
_HGX_B200 = "NVIDIA HGX B200 specifications, per GPU, https://www.nvidia.com/en-us/data-center/hgx/"
_BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief, HGX B200, https://resources.nvidia.com/en-us-blackwell-architecture"
_BLACKWELL_HALVED = dict.fromkeys(_TENSOR, f"half of the sparse figure, {_BLACKWELL}")
_BLACKWELL_TUNING = "NVIDIA Blackwell Tuning Guide, https://docs.nvidia.com/cuda/blackwell-tuning-guide/"
_DGX_B200 = "NVIDIA DGX B200 datasheet, an eighth of the system, https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet"
_RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_B200 = Device(
    name="B200",
    vendor="NVIDIA",
    compute_capability="10.0",
    fp32_flops=80e12,
    tf32_flops=2200e12 / 2,
    fp16_flops=4500e12 / 2,
    bf16_flops=4500e12 / 2,
    fp8_flops=9000e12 / 2,
    memory_bandwidth_bytes=64e12 / 8,
    memory_bytes=180 * _GIB,
    sm_count=148,
    l2_bytes=126 * _MIB,
    max_threads_per_sm=2048,
    pcie_bytes=_PCIE_5_BYTES,
    nvlink_bytes=1.8e12 / 2,
    reported_names=("NVIDIA B200",),
    sources=_cite(
        _BLACKWELL,
        memory_bandwidth_bytes=_DGX_B200,
        memory_bytes=_DGX_B200,
        sm_count="driver of a B200, numSms in a Kineto trace",
        l2_bytes=_BLACKWELL_TUNING,
        nvlink_bytes=_HGX_B200,
        **_BLACKWELL_HALVED,
        **_NVIDIA,
    ),
)
_RTX_5090 = Device(
    name="GeForce RTX 5090",
    vendor="NVIDIA",
    compute_capability="12.0",
    fp32_flops=104.8e12,
    tf32_flops=104.8e12,
    fp16_flops=209.5e12,
    bf16_flops=209.5e12,
    fp8_flops=419e12,
    memory_bandwidth_bytes=1792e9,
    memory_bytes=32 * _GIB,
    sm_count=170,
    l2_bytes=96 * _MIB,
    max_threads_per_sm=1536,
    pcie_bytes=_PCIE_5_BYTES,
    nvlink_bytes=None,
    reported_names=("NVIDIA GeForce RTX 5090",),
    sources=_cite(_RTX_BLACKWELL, **_NVIDIA),
)


# CDNA. fp32 is the matrix cores' peak, twice the vector peak on CDNA 2, since fp32 GEMMs run there.
# sm_count counts compute units; nvlink_bytes is Infinity Fabric to other packages.
_ROCM = "AMD GPU specifications, https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
_MI250_ARCHITECTURE = (
    "AMD Instinct MI250 microarchitecture, 50 GB/s a link, "
    "https://rocm.docs.amd.com/en/latest/reference/gpu-arch/mi250.html"
)
_WAVES = (
    "4 SIMDs x 8 waves x 64 lanes; maxThreadsPerMultiprocessor in Kineto traces of an MI250 and an MI300X"
)
_AMD = {"sm_count": _ROCM, "l2_bytes": _ROCM, "max_threads_per_sm": _WAVES, "pcie_bytes": _PCIE}
_MI210_PAGE = "AMD Instinct MI210, https://www.amd.com/en/products/accelerators/instinct/mi200/mi210.html"
_MI250_PAGE = (
    "half of the AMD Instinct MI250, https://www.amd.com/en/products/accelerators/instinct/mi200/mi250.html"
)
_MI250X_PAGE = (
    "half of the AMD Instinct MI250X, https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html"
)
_MI300X_PAGE = "AMD Instinct MI300X, https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"
_MI325X_PAGE = "AMD Instinct MI325X, https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html"
_MI355X_PAGE = "AMD Instinct MI355X, https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html"
_MI210 = Device(
    name="AMD Instinct MI210",
    vendor="AMD",
    compute_capability="gfx90a",
    fp32_flops=45.3e12,
    tf32_flops=None,
    fp16_flops=181e12,
    bf16_flops=181e12,
    fp8_flops=None,
    memory_bandwidth_bytes=1638.4e9,
    memory_bytes=64 * _GIB,
    sm_count=104,
    l2_bytes=8 * _MIB,
    max_threads_per_sm=2048,
    pcie_bytes=_PCIE_4_BYTES,
    nvlink_bytes=3 * 50e9,
    reported_names=(),
    sources=_cite(_MI210_PAGE, **_AMD),
)
# torch sees each of the two dies (GCDs) of an MI250 or MI250X as its own device, with half of everything.
# PCI id 740c reports one name for both; the compute units, 110 or 104 a die, tell them apart.
_MI250X_GCD = replace(
    _MI210,
    name="AMD Instinct MI250X (one GCD of two)",
    fp32_flops=95.7e12 / 2,
    fp16_flops=383e12 / 2,
    bf16_flops=383e12 / 2,
    memory_bandwidth_bytes=3276.8e9 / 2,
    memory_bytes=128 * _GIB // 2,
    sm_count=220 // 2,
    l2_bytes=16 * _MIB // 2,
    nvlink_bytes=8 * 50e9 / 2,
    reported_names=("AMD Instinct MI250X", "AMD Instinct MI250X / MI250"),
    sources=_cite(_MI250X_PAGE, **{**_AMD, "nvlink_bytes": f"eight links a package, {_MI250_ARCHITECTURE}"}),
)
_MI250_GCD = replace(
    _MI250X_GCD,
    name="AMD Instinct MI250 (one GCD of two)",
    fp32_flops=90.5e12 / 2,
    fp16_flops=362.1e12 / 2,
    bf16_flops=362.1e12 / 2,
    sm_count=208 // 2,
    nvlink_bytes=6 * 50e9 / 2,
    reported_names=("AMD Instinct MI250", "AMD Instinct MI250X / MI250"),
    sources=_cite(_MI250_PAGE, **{**_AMD, "nvlink_bytes": f"six links a package, {_MI250_ARCHITECTURE}"}),
)
# ROCm reports the L2 of one die (4 MiB); the eight dies of an MI300 or MI350 hold eight times that.
_MI300X = Device(
    name="AMD Instinct MI300X",
    vendor="AMD",
    compute_capability="gfx942",
    fp32_flops=163.4e12,
    tf32_flops=653.7e12,
    fp16_flops=1307.4e12,
    bf16_flops=1307.4e12,
    fp8_flops=2614.9e12,
    memory_bandwidth_bytes=5.3e12,
    memory_bytes=192 * _GIB,
    sm_count=304,
    l2_bytes=8 * 4 * _MIB,
    max_threads_per_sm=2048,
    pcie_bytes=_PCIE_5_BYTES,
    nvlink_bytes=7 * 128e9 / 2,
    reported_names=(),
    sources=_cite(_MI300X_PAGE, **_AMD),
)
_MI325X = replace(
    _MI300X,
    name="AMD Instinct MI325X",
    memory_bandwidth_bytes=6e12,
    memory_bytes=256 * _GIB,
    sources=_cite(_MI325X_PAGE, **_AMD),
)
# CDNA 4 dropped TF32 from its matrix cores.
_MI355X = replace(
    _MI300X,
    name="AMD Instinct MI355X",
    compute_capability="gfx950",
    fp32_flops=157.3e12,
    tf32_flops=None,
    fp16_flops=2516.6e12,
    bf16_flops=2516.6e12,
    fp8_flops=5033.2e12,
    memory_bandwidth_bytes=8e12,
    memory_bytes=288 * _GIB,
    sm_count=256,
    nvlink_bytes=7 * 153.6e9 / 2,
    sources=_cite(_MI355X_PAGE, **_AMD),
)

DEVICES = (
    _V100_SXM2_16GB,
    _V100_SXM2_32GB,
    _V100_DGXS_16GB,
    _V100_DGXS_32GB,
    _V100_PCIE_16GB,
    _V100_PCIE_32GB,
    _V100S_PCIE_32GB,
    _A100_SXM4_40GB,
    _A100_PCIE_40GB,
    _A100_SXM4_80GB,
    _A100_PCIE_80GB,
    _A10_24GB,
    _RTX_3090,
    _L4_24GB,
    _L40S_48GB,
    _RTX_4090,
    _H100_SXM,
    _H100_PCIE,
    _H100_NVL,
    _H200_SXM,
    _H200_NVL,
    _B200,
    _RTX_5090,
    _MI210,
    _MI250X_GCD,
    _MI250_GCD,
    _MI300X,
    _MI325X,
    _MI355X,
)
