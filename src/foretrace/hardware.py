"""A Device is one accelerator as torch sees it: its peaks, each with its source.

Every peak is dense and at boost clock. NVIDIA prints sparse figures for newer parts; those are halved here.
Tensor peaks accumulate in fp32, as torch does. A null peak means that the device has no such unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from foretrace.errors import unknown

# What ROCm calls a device that its list of names lacks.
_ANY_AMD = "amd radeon graphics"
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
    if wanted == _ANY_AMD:
        return _by_size(memory_bytes, sm_count)
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


def _by_size(memory_bytes: int | None, sm_count: int | None) -> Device | None:
    """The one AMD device of that size, or the first of several whose peaks differ by less than a hundredth."""
    if memory_bytes is None or sm_count is None:
        return None
    found = [
        each
        for each in DEVICES
        if each.vendor == "AMD" and each.sm_count == sm_count and _holds(each, memory_bytes)
    ]
    rates = ("fp32_flops", "fp16_flops", "memory_bandwidth_bytes")
    alike = all(
        abs(getattr(each, rate) / getattr(found[0], rate) - 1) < 0.01 for each in found for rate in rates
    )
    return found[0] if found and alike else None


def peak_flops(device: Device, dtype: str) -> float | None:
    """The dense peak for fp32, tf32, fp16, bf16 or fp8; None when the device has no such unit."""
    if dtype not in _DTYPES:
        raise unknown(f"no peak is kept for dtype {dtype}", dtype, _DTYPES, listed="choose from")
    flops: float | None = getattr(device, _DTYPES[dtype])
    return flops


def _normalised(name: str) -> str:
    """The name in one spelling: older drivers leave out the leading NVIDIA."""
    return " ".join(name.casefold().replace("/", " / ").split()).removeprefix("nvidia ")


def _holds(device: Device, memory_bytes: int) -> bool:
    """Whether this device can report that much: ECC and the driver keep up to 8% (A10: 22.1 of 24)."""
    return 0.88 * device.memory_bytes <= memory_bytes <= 1.01 * device.memory_bytes


def _cite(document: str, **exceptions: str) -> Mapping[str, str]:
    """Sources for every number of a device: the document, except where another is named."""
    return {**dict.fromkeys(NUMBERS, document), **exceptions}


def _halved(document: str) -> Mapping[str, str]:
    """Sources for the tensor peaks of a device whose vendor prints sparse figures."""
    return dict.fromkeys(_TENSOR, f"half of the sparse figure, {document}")


_TENSOR = ("tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops")
# Sixteen lanes, 128b/130b coding, 8, 16 and 32 GT/s a lane. Datasheets print both directions, rounded up.
_PCIE = "PCI Express Base Specification: GT/s x 16 lanes x 128/130, https://pcisig.com/specifications"
_PCIE_3_BYTES = 8e9 * 16 * 128 / 130 / 8
PCIE_BYTES = {"3": _PCIE_3_BYTES, "4": 2 * _PCIE_3_BYTES, "5": 4 * _PCIE_3_BYTES}  # by generation
_BUSES = {**PCIE_BYTES, "C2C": 450e9}  # to the host: a superchip's CPU is reached over NVLink-C2C

_CUDA_GUIDE = (
    "CUDA C++ Programming Guide, technical specifications per compute capability, "
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities"
)
_NVIDIA = {"max_threads_per_sm": _CUDA_GUIDE, "pcie_bytes": _PCIE}

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
_ADA = (
    "NVIDIA Ada GPU Architecture whitepaper v2.1, "
    "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
)
_T4 = (
    "NVIDIA T4 datasheet, https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/"
    "t4-tensor-core-datasheet-951643.pdf"
)
_TURING = (
    "NVIDIA Turing GPU Architecture whitepaper, https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/"
    "technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_L4 = "NVIDIA L4 datasheet, https://www.nvidia.com/en-us/data-center/l4/"
_L40S = "NVIDIA L40S datasheet, dense column, https://www.nvidia.com/en-us/data-center/l40s/"
_L40 = "NVIDIA L40 datasheet, dense column, https://www.nvidia.com/en-us/data-center/l40/"
_H100 = (
    "NVIDIA H100 datasheet, https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
)
_HOPPER = (
    "NVIDIA H100 Tensor Core GPU Architecture whitepaper, "
    "https://resources.nvidia.com/en-us-tensor-core/gtc22-whitepaper-hopper"
)
_H200 = "NVIDIA H200 datasheet, https://www.nvidia.com/en-us/data-center/h200/"
_H200_DRIVER = "driver of an H200, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 62914560 (Nsight Compute)"
# NVIDIA publishes no datasheet of the parts made for China: what their buyers and users write of them.
_H20 = "Will It Run AI, NVIDIA H20 96 GB: 148 TFLOP/s fp16, 4.0 TB/s, NVLink 900 GB/s, https://willitrunai.com/es/gpus/h20-96gb"
_H20_UNITS = "Geekbench 6 of an H20 (78 SMs), with 44 and 74 TFLOP/s of fp32 and tf32, https://zangshuxian.com/new/674733024499207168"
_H20_L2 = "H20 GPU memory specs: 60 MB of L2, https://ke60.top/article/1471031.html"
_H800 = (
    "Philisun, H800 vs H100: the same die, memory and low-precision rates, NVLink cut from 900 to 400 GB/s, "
    "https://www.philisun.com/technical-analysis/nvidia-h800-vs-h100-a-technical-deep-dive-into-politically-defined-ai-chips/"
)
_L20 = "TopCPU, NVIDIA L20 (AD102 with 92 SMs at 2520 MHz), https://www.topcpu.net/en/gpu-c/a40-pcie-vs-l20"
# NVIDIA's own tables of the superchips could not be opened when these were checked.
_GB200 = (
    "AI Wiki, GB200 NVL72, a 72nd of the rack: 720 PFLOP/s of sparse fp8, 13.4 TB, NVLink 1.8 TB/s a GPU, "
    "https://aiwiki.ai/wiki/nvidia_gb200_nvl72"
)
_GB200_HALVES = (
    f"half (fp16, bf16) or a quarter (tf32) of fp8; Verda's table has a tenth less, as of a B200; {_GB200}"
)
_GB200_BANDWIDTH = (
    "GPU Blog, GB200 NVL72: 8 TB/s; Verda's table has 7.7, https://gpu.blog/gpus/nvidia-gb200-nvl72"
)
_GB200_FP32 = (
    "Cornell CAC, the GPU of a GB200: twice its 40 TFLOP/s of fp64, "
    "https://cvw.cac.cornell.edu/gpu-architecture/horizon-gpus-blackwell-b200/blackwell_b200"
)
_GB300 = "Verda, GB300 NVL72, per GPU and without sparsity, https://verda.com/blog/gb300-nvl72-architecture"
_GB300_UNITS = "driver of a GB300, multiProcessorCount = 152, as users report it; no source of it was opened"
_GB200_UNITS = "driver of a GB200, multiProcessorCount = 152, as users report it; no source of it was opened"
_C2C = "NVLink-C2C to the Grace CPU in place of PCIe, 900 GB/s of both directions, https://www.elprocus.com/nvidia-gb200-ai-chip"
_HGX_B200 = "NVIDIA HGX B200 specifications, per GPU, https://www.nvidia.com/en-us/data-center/hgx/"
_BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief, HGX B200, https://resources.nvidia.com/en-us-blackwell-architecture"
_BLACKWELL_TUNING = "NVIDIA Blackwell Tuning Guide, https://docs.nvidia.com/cuda/blackwell-tuning-guide/"
_DGX_B200 = "NVIDIA DGX B200 datasheet, an eighth of the system, https://resources.nvidia.com/en-us-dgx-systems/dgx-b200-datasheet"
_RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
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
# AMD's own pages of these two could not be opened when they were checked.
_MI300A_PAGE = (
    "AMD's data sheet of the MI300A, as quoted in https://vengineer.hatenablog.com/entry/2023/12/11/080000"
)
_MI300A_MEMORY = (
    "128 GB and 5.3 TB/s as of its launch, https://estaterule.ru/news/amd-vypuskaet-samyj-bolshoj-i-slozhnyj-v-mire-gpu-so-192-gb-"
    "pamjati-i-gigantskij-apu-so-128-gb-na-rynok-vyhodjat-chipy-instinct-mi300a-i-instinct-mi300x"
)
_MI300_ARCHITECTURE = "AMD Instinct MI300 microarchitecture: six dies of 4 MB of L2, https://rocm.docs.amd.com/en/docs-6.2.2/conceptual/gpu-arch/mi300.html"
_MI325X_PAGE = "AMD Instinct MI325X, https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html"
_MI350X_CLOCK = (
    "256 units at 2.2 GHz (Hot Chips 2025, https://wccftech.com/amd-instinct-mi350-gpuai-hardware-powerhouse-3nm-3d-chiplet-cdna-4-185-"
    "billion-transistors-1400w-tbp-over-4000b-llm-support/)"
)
_MI350X_FP8 = f"8192 fp8 FLOPs a clock and unit (ISSCC 2026, https://www.world-today-news.com/?p=7253162) x {_MI350X_CLOCK}"
_MI350X_MEMORY = "288 GB and 8 TB/s, https://hyper.ai/en/headlines/169ff361450497c12f72fbad896041aa"
_MI350X_LINKS = "seven links of 153.6 GB/s of both directions, https://humeconsulting.co/amd-mi355x-strong-node-level-inference-but-not-yet-rack-scale"
_MI355X_PAGE = "AMD Instinct MI355X, https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html"

# TFLOP/s of fp32, tf32, fp16, bf16 and fp8; GB/s and GiB of memory; SMs; MiB of L2; threads per SM; PCIe generation; GB/s
# to other packages over NVLink or Infinity Fabric, in one direction (vendors print both); then the names that drivers
# report, where they are not the first column. A dash: the device has none.
#
# Volta has fp16 tensor cores only. PG509 is the SXM4 board of either A100, whose name some drivers report instead.
# Hopper SXM: 989 and 494 are halves of 1979 and 989, rounded down (whitepaper: 989.4, 494.7). The 2.5 PFLOP/s bf16 often
# quoted for Blackwell is the GB200 superchip's, a different part at 1200 W. Turing: fp16 with fp32 accumulation, which GeForce
# parts do at half speed; the 2080 Ti is the reference card, not the Founders Edition. CDNA: fp32 is the matrix cores' peak, twice
# the vector peak on CDNA 2, since fp32 GEMMs run there; CDNA 4 dropped tf32; SMs are compute units. torch sees each of the
# two dies (GCDs) of an MI250 or MI250X as its own device, with half of everything; PCI id 740c reports one name for both,
# and the compute units, 110 or 104 a die, tell them apart. ROCm reports the L2 of one die (4 MiB); the eight dies of an
# MI300 or MI350 hold eight times that.
_TABLE = """
V100 SXM2 16GB          7.0     15.7     -     125       -       -    900   16   80    6  2048  3    150  Tesla V100-SXM2-16GB
V100 SXM2 32GB          7.0     15.7     -     125       -       -    900   32   80    6  2048  3    150  Tesla V100-SXM2-32GB
V100 DGX Station 16GB   7.0     15.7     -     125       -       -    900   16   80    6  2048  3    100  Tesla V100-DGXS-16GB
V100 DGX Station 32GB   7.0     15.7     -     125       -       -    900   32   80    6  2048  3    100  Tesla V100-DGXS-32GB
V100 PCIe 16GB          7.0       14     -     112       -       -    900   16   80    6  2048  3      -  Tesla V100-PCIE-16GB
V100 PCIe 32GB          7.0       14     -     112       -       -    900   32   80    6  2048  3      -  Tesla V100-PCIE-32GB
V100S PCIe 32GB         7.0     16.4     -     130       -       -   1134   32   80    6  2048  3      -  Tesla V100S-PCIE-32GB
T4                      7.5      8.1     -      65       -       -    320   16   40    4  1024  3      -  Tesla T4, NVIDIA T4
GeForce RTX 2080 Ti     7.5     13.4     -    53.8       -       -    616   11   68  5.5  1024  3     50  NVIDIA GeForce RTX 2080 Ti
A100 SXM4 40GB          8.0     19.5   156     312     312       -   1555   40  108   40  2048  4    300  NVIDIA A100-SXM4-40GB, NVIDIA A100-PG509-200
A100 PCIe 40GB          8.0     19.5   156     312     312       -   1555   40  108   40  2048  4    300  NVIDIA A100-PCIE-40GB
A100 SXM4 80GB          8.0     19.5   156     312     312       -   2039   80  108   40  2048  4    300  NVIDIA A100-SXM4-80GB, NVIDIA A100-SXM-80GB, NVIDIA A100-PG509-200
A100 PCIe 80GB          8.0     19.5   156     312     312       -   1935   80  108   40  2048  4    300  NVIDIA A100 80GB PCIe, NVIDIA A100-PCIE-80GB
A10                     8.6     31.2  62.5     125     125       -    600   24   72    6  1536  4      -  NVIDIA A10
GeForce RTX 3090        8.6     35.6  35.6      71      71       -    936   24   82    6  1536  4  56.25  NVIDIA GeForce RTX 3090
RTX A6000               8.6     38.7  77.4   154.8   154.8       -    768   48   84    6  1536  4  56.25  NVIDIA RTX A6000
L4                      8.9     30.3    60     121     121   242.5    300   24   58   48  1536  4      -  NVIDIA L4
L20                     8.9    59.35 59.35   118.7   118.7   237.4    864   48   92   96  1536  4      -  NVIDIA L20
L40                     8.9     90.5  90.5  181.05  181.05     362    864   48  142   96  1536  4      -  NVIDIA L40
L40S                    8.9     91.6   183  362.05  362.05     733    864   48  142   96  1536  4      -  NVIDIA L40S
GeForce RTX 4090        8.9     82.6  82.6   165.2   165.2   330.3   1008   24  128   72  1536  4      -  NVIDIA GeForce RTX 4090
H100 SXM                9.0       67   494     989     989    1979   3350   80  132   50  2048  5    450  NVIDIA H100 80GB HBM3
H100 PCIe               9.0     51.2   378     756     756    1513   2039   80  114   50  2048  5    300  NVIDIA H100 PCIe
H100 NVL                9.0       60 417.5   835.5   835.5  1670.5   3900   94  132   60  2048  5    300  NVIDIA H100 NVL
H800 SXM                9.0       67   494     989     989    1979   3350   80  132   50  2048  5    200  NVIDIA H800
H20                     9.0       44    74     148     148     296   4000   96   78   60  2048  5    450  NVIDIA H20
H200                    9.0       67   494     989     989    1979   4800  141  132   60  2048  5    450  NVIDIA H200
H200 NVL                9.0       60 417.5   835.5   835.5  1670.5   4800  141  132   60  2048  5    450  NVIDIA H200 NVL
B200                    10.0      80  1100    2250    2250    4500   8000  180  148  126  2048  5    900  NVIDIA B200
GB200                   10.0      80  1250    2500    2500    5000   8000  186  152  126  2048  C2C  900  NVIDIA GB200
GB300                   10.3      80  1250    2500    2500    5000   8000  279  152  126  2048  C2C  900  NVIDIA GB300
GeForce RTX 5090        12.0   104.8 104.8   209.5   209.5     419   1792   32  170   96  1536  5      -  NVIDIA GeForce RTX 5090
AMD Instinct MI210      gfx90a  45.3     -     181     181       - 1638.4   64  104    8  2048  4    150
AMD Instinct MI250X (one GCD of two)  gfx90a  47.85  -  191.5   191.5   -  1638.4  64  110  8  2048  4  200  AMD Instinct MI250X, AMD Instinct MI250X / MI250
AMD Instinct MI250 (one GCD of two)   gfx90a  45.25  -  181.05  181.05  -  1638.4  64  104  8  2048  4  150  AMD Instinct MI250, AMD Instinct MI250X / MI250
AMD Instinct MI300X     gfx942 163.4 653.7  1307.4  1307.4  2614.9   5300  192  304   32  2048  5    448
AMD Instinct MI300A     gfx942 122.6 490.3   980.6   980.6  1961.2   5300  128  228   24  2048  5    384
AMD Instinct MI325X     gfx942 163.4 653.7  1307.4  1307.4  2614.9   6000  256  304   32  2048  5    448
AMD Instinct MI350X     gfx950 144.2     -  2306.9  2306.9  4613.7   8000  288  256   32  2048  5  537.6
AMD Instinct MI355X     gfx950 157.3     -  2516.6  2516.6  5033.2   8000  288  256   32  2048  5  537.6
"""

_V100_SOURCES = _cite(_V100, sm_count=_VOLTA, l2_bytes=_VOLTA, **_NVIDIA)
_DGXS_SOURCES = {**_V100_SOURCES, "fp16_flops": _DGX_STATION, "nvlink_bytes": _DGX_STATION}
_A100_40_SOURCES = _cite(_AMPERE, **_NVIDIA)
_A100_80_SOURCES = _cite(_A100, sm_count=_AMPERE, l2_bytes=_AMPERE, **_NVIDIA)
_H100_SOURCES = _cite(_H100, sm_count=_HOPPER, l2_bytes=_HOPPER, **_halved(_H100), **_NVIDIA)
_H200_SOURCES = _cite(_H200, sm_count=_HOPPER, l2_bytes=_H200_DRIVER, **_halved(_H200), **_NVIDIA)
_SOURCES: Mapping[str, Mapping[str, str]] = {
    "V100 SXM2 16GB": _V100_SOURCES,
    "V100 SXM2 32GB": _V100_SOURCES,
    "V100 DGX Station 16GB": _DGXS_SOURCES,
    "V100 DGX Station 32GB": _DGXS_SOURCES,
    "V100 PCIe 16GB": _V100_SOURCES,
    "V100 PCIe 32GB": _V100_SOURCES,
    "V100S PCIe 32GB": _V100_SOURCES,
    "T4": _cite(_T4, sm_count=f"2560 CUDA cores of 64 an SM, {_T4}", l2_bytes=_TURING, **_NVIDIA),
    "GeForce RTX 2080 Ti": _cite(_TURING, nvlink_bytes=f"with a bridge, {_TURING}", **_NVIDIA),
    "A100 SXM4 40GB": _A100_40_SOURCES,
    "A100 PCIe 40GB": {
        **_A100_40_SOURCES,
        "memory_bandwidth_bytes": _A100_PCIE,
        "nvlink_bytes": f"with a bridge, {_A100_PCIE}",
    },
    "A100 SXM4 80GB": _A100_80_SOURCES,
    "A100 PCIe 80GB": {**_A100_80_SOURCES, "nvlink_bytes": f"with a bridge, {_A100}"},
    "A10": _cite(_A10, sm_count=f"9216 CUDA cores of 128 an SM, {_GA102}", l2_bytes=_GA102, **_NVIDIA),
    "GeForce RTX 3090": _cite(_GA102, **_NVIDIA),
    "RTX A6000": _cite(_GA102, nvlink_bytes=f"with a bridge, {_GA102}", **_NVIDIA),
    "L20": _cite(_L20, **dict.fromkeys(_TENSOR, f"as many times its fp32 as on the L40, {_L20}"), **_NVIDIA),
    "L40": _cite(_L40, sm_count=f"18176 CUDA cores of 128 an SM, {_L40}", l2_bytes=_ADA, **_NVIDIA),
    "L4": _cite(_L4, **_halved(_L4), sm_count=_ADA, l2_bytes=_ADA, **_NVIDIA),
    "L40S": _cite(_L40S, sm_count=f"18176 CUDA cores of 128 an SM, {_L40S}", l2_bytes=_ADA, **_NVIDIA),
    "GeForce RTX 4090": _cite(_ADA, **_NVIDIA),
    "H100 SXM": _H100_SOURCES,
    "H100 PCIe": _cite(_HOPPER, nvlink_bytes=f"with a bridge, {_H100}", **_NVIDIA),
    "H100 NVL": {
        **_H100_SOURCES,
        "l2_bytes": f"inferred: six memory stacks as on the H200, {_H200_DRIVER}",
        "nvlink_bytes": f"with a bridge, {_H100}",
    },
    "H800 SXM": {**_H100_SOURCES, "nvlink_bytes": _H800, "fp32_flops": f"as the H100 SXM, {_H800}"},
    "H20": _cite(
        _H20,
        fp32_flops=_H20_UNITS,
        tf32_flops=_H20_UNITS,
        sm_count=_H20_UNITS,
        fp8_flops=f"twice fp16, as its int8, {_H20_UNITS}",
        l2_bytes=_H20_L2,
        **_NVIDIA,
    ),
    "H200": _H200_SOURCES,
    "H200 NVL": {
        **_H200_SOURCES,
        "l2_bytes": f"inferred: the H200's memory, {_H200_DRIVER}",
        "nvlink_bytes": f"with a bridge, {_H200}",
    },
    "B200": _cite(
        _BLACKWELL,
        memory_bandwidth_bytes=_DGX_B200,
        memory_bytes=_DGX_B200,
        sm_count="driver of a B200, numSms in a Kineto trace",
        l2_bytes=_BLACKWELL_TUNING,
        nvlink_bytes=_HGX_B200,
        **_halved(_BLACKWELL),
        **_NVIDIA,
    ),
    "GB200": _cite(
        _GB200,
        sm_count=_GB200_UNITS,
        l2_bytes=_BLACKWELL_TUNING,
        fp32_flops=_GB200_FP32,
        memory_bandwidth_bytes=_GB200_BANDWIDTH,
        **{**dict.fromkeys(_TENSOR, _GB200_HALVES), "fp8_flops": f"half of the sparse figure, {_GB200}"},
        max_threads_per_sm=_CUDA_GUIDE,
        pcie_bytes=_C2C,
    ),
    "GB300": _cite(
        _GB300,
        sm_count=_GB300_UNITS,
        l2_bytes=_BLACKWELL_TUNING,
        max_threads_per_sm=_CUDA_GUIDE,
        pcie_bytes=_C2C,
    ),
    "GeForce RTX 5090": _cite(_RTX_BLACKWELL, **_NVIDIA),
    "AMD Instinct MI210": _cite(_MI210_PAGE, **_AMD),
    "AMD Instinct MI250X (one GCD of two)": _cite(
        _MI250X_PAGE, nvlink_bytes=f"eight links a package, {_MI250_ARCHITECTURE}", **_AMD
    ),
    "AMD Instinct MI250 (one GCD of two)": _cite(
        _MI250_PAGE, nvlink_bytes=f"six links a package, {_MI250_ARCHITECTURE}", **_AMD
    ),
    "AMD Instinct MI300X": _cite(_MI300X_PAGE, **_AMD),
    "AMD Instinct MI300A": _cite(
        _MI300A_PAGE,
        tf32_flops=f"half of fp16, as on the MI300X, {_MI300X_PAGE}",
        fp8_flops=f"as int8, {_MI300A_PAGE}",
        memory_bandwidth_bytes=_MI300A_MEMORY,
        memory_bytes=_MI300A_MEMORY,
        nvlink_bytes="six links of 64 GB/s to three other APUs; AMD's page was not opened: "
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300a.html",
        **{**_AMD, "sm_count": _MI300A_PAGE, "l2_bytes": _MI300_ARCHITECTURE},
    ),
    "AMD Instinct MI325X": _cite(_MI325X_PAGE, **_AMD),
    "AMD Instinct MI350X": _cite(
        _MI350X_FP8,
        fp16_flops=f"half of fp8: {_MI350X_FP8}",
        bf16_flops=f"half of fp8: {_MI350X_FP8}",
        fp32_flops=f"256 FLOPs a clock and unit, as on the MI300X ({_MI300X_PAGE}), x {_MI350X_CLOCK}",
        memory_bandwidth_bytes=_MI350X_MEMORY,
        memory_bytes=_MI350X_MEMORY,
        nvlink_bytes=_MI350X_LINKS,
        **_AMD,
    ),
    "AMD Instinct MI355X": _cite(_MI355X_PAGE, **_AMD),
}


def _device(line: str) -> Device:
    """One line of the table, with its sources."""
    name = next(known for known in sorted(_SOURCES, key=len, reverse=True) if line.startswith(f"{known} "))
    numbers = line.removeprefix(name).split(maxsplit=13)
    capability, fp32, tf32, fp16, bf16, fp8, bandwidth, memory, sms, l2, threads, pcie, nvlink = numbers[:13]
    return Device(
        name=name,
        vendor="AMD" if capability.startswith("gfx") else "NVIDIA",
        compute_capability=capability,
        fp32_flops=float(f"{fp32}e12"),
        tf32_flops=_times(tf32, "e12"),
        fp16_flops=float(f"{fp16}e12"),
        bf16_flops=_times(bf16, "e12"),
        fp8_flops=_times(fp8, "e12"),
        memory_bandwidth_bytes=float(f"{bandwidth}e9"),
        memory_bytes=int(memory) * _GIB,
        sm_count=int(sms),
        l2_bytes=int(float(l2) * _MIB),
        max_threads_per_sm=int(threads),
        pcie_bytes=_BUSES[pcie],
        nvlink_bytes=_times(nvlink, "e9"),
        reported_names=tuple(numbers[13].split(", ")) if len(numbers) > 13 else (),
        sources=_SOURCES[name],
    )


def _times(number: str, exponent: str) -> float | None:
    return None if number == "-" else float(number + exponent)


DEVICES = tuple(_device(line) for line in _TABLE.strip().splitlines())
