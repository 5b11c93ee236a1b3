"""Peaks come out as the vendors print them, dense, and a name matches one device or none."""

from itertools import pairwise

import pytest

from foretrace.hardware import DEVICES, NUMBERS, Device, match, peak_flops

GIB = 2**30


def device(name: str) -> Device:
    found = match(name)
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12}),
        ("NVIDIA GeForce RTX 3090", {"fp32": 35.6e12, "tf32": 35.6e12, "bf16": 71e12, "fp8": None}),
        ("NVIDIA GeForce RTX 4090", {"fp32": 82.6e12, "tf32": 82.6e12, "fp16": 165.2e12, "fp8": 330.3e12}),
        ("NVIDIA GeForce RTX 5090", {"fp32": 104.8e12, "tf32": 104.8e12, "bf16": 209.5e12, "fp8": 419e12}),
        ("NVIDIA H200", {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp8": 1979e12}),
        ("NVIDIA H100 80GB HBM3", {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp8": 1979e12}),
        ("NVIDIA H100 PCIe", {"fp32": 51.2e12, "tf32": 378e12, "bf16": 756e12, "fp8": 1513e12}),
        ("NVIDIA L4", {"fp32": 30.3e12, "tf32": 60e12, "bf16": 121e12, "fp8": 242.5e12}),
        ("Tesla T4", {"fp32": 8.1e12, "tf32": None, "fp16": 65e12, "bf16": None, "fp8": None}),
        ("NVIDIA GeForce RTX 2080 Ti", {"fp32": 13.4e12, "fp16": 53.8e12, "bf16": None}),
        ("NVIDIA RTX A6000", {"fp32": 38.7e12, "tf32": 77.4e12, "bf16": 154.8e12, "fp8": None}),
        ("NVIDIA L40", {"fp32": 90.5e12, "tf32": 90.5e12, "bf16": 181.05e12, "fp8": 362e12}),
        ("NVIDIA L20", {"fp32": 59.35e12, "tf32": 59.35e12, "bf16": 118.7e12, "fp8": 237.4e12}),
        ("NVIDIA H20", {"fp32": 44e12, "tf32": 74e12, "bf16": 148e12, "fp8": 296e12}),
        ("NVIDIA H800", {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp8": 1979e12}),
        ("NVIDIA GB200", {"fp32": 80e12, "tf32": 1250e12, "bf16": 2500e12, "fp8": 5000e12}),
        ("NVIDIA GB300", {"fp32": 80e12, "tf32": 1250e12, "bf16": 2500e12, "fp8": 5000e12}),
        ("AMD Instinct MI300A", {"fp32": 122.6e12, "tf32": 490.3e12, "bf16": 980.6e12, "fp8": 1961.2e12}),
        ("AMD Instinct MI350X", {"fp32": 144.2e12, "tf32": None, "bf16": 2306.9e12, "fp8": 4613.7e12}),
        ("NVIDIA L40S", {"fp32": 91.6e12, "tf32": 183e12, "bf16": 362.05e12, "fp8": 733e12}),
        ("NVIDIA B200", {"fp32": 80e12, "tf32": 1100e12, "bf16": 2250e12, "fp8": 4500e12}),
        ("Tesla V100-SXM2-16GB", {"fp32": 15.7e12, "fp16": 125e12, "tf32": None, "bf16": None, "fp8": None}),
        ("AMD Instinct MI250X", {"fp32": 47.85e12, "tf32": None, "bf16": 191.5e12, "fp8": None}),
        ("AMD Instinct MI300X", {"fp32": 163.4e12, "tf32": 653.7e12, "bf16": 1307.4e12, "fp8": 2614.9e12}),
        ("AMD Instinct MI355X", {"fp32": 157.3e12, "tf32": None, "bf16": 2516.6e12, "fp8": 5033.2e12}),
    ],
)
def test_dense_peaks_are_the_vendors(name: str, expected: dict[str, float | None]) -> None:
    assert {dtype: peak_flops(device(name), dtype) for dtype in expected} == expected


@pytest.mark.parametrize(
    ("name", "bandwidth_bytes"),
    [
        ("NVIDIA A100-SXM4-40GB", 1.555e12),
        ("NVIDIA A100-PCIE-40GB", 1.555e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12),
        ("NVIDIA A100 80GB PCIe", 1.935e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12),
        ("NVIDIA H200", 4.8e12),
        ("NVIDIA B200", 8e12),
        ("AMD Instinct MI250X", 1.6384e12),
        ("AMD Instinct MI325X", 6e12),
    ],
)
def test_memory_bandwidth(name: str, bandwidth_bytes: float) -> None:
    assert device(name).memory_bandwidth_bytes == bandwidth_bytes


@pytest.mark.parametrize("each", DEVICES, ids=lambda each: each.name)
def test_peaks_are_dense_and_ordered(each: Device) -> None:
    """A sparse figure taken for a dense one doubles one of these ratios."""
    tensor = [each.tf32_flops, each.bf16_flops, each.fp8_flops]
    for wide, narrow in pairwise(tensor):
        assert wide is None or narrow is None or narrow / wide == pytest.approx(2, rel=0.05)
    assert each.bf16_flops in (None, each.fp16_flops)
    assert each.fp32_flops <= (each.tf32_flops or each.fp16_flops) <= each.fp16_flops


@pytest.mark.parametrize("each", DEVICES, ids=lambda each: each.name)
def test_every_number_is_positive_and_has_a_source(each: Device) -> None:
    assert set(each.sources) == set(NUMBERS)
    for name in NUMBERS:
        value = getattr(each, name)
        assert value is None or value > 0, name
        source = each.sources[name]
        assert "https://" in source or "driver" in source or "Kineto" in source, (name, source)


def test_names_are_unique() -> None:
    assert len({each.name for each in DEVICES}) == len(DEVICES)
    assert [match(each.name) for each in DEVICES] == list(DEVICES)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla V100-DGXS-32GB", "V100 DGX Station 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe 32GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "GeForce RTX 3090"),
        ("GeForce RTX 3090", "GeForce RTX 3090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 5090", "GeForce RTX 5090"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI210", "AMD Instinct MI210"),
        ("AMD Instinct MI250X", "AMD Instinct MI250X (one GCD of two)"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("AMD Instinct MI325X", "AMD Instinct MI325X"),
        ("AMD Instinct MI355X", "AMD Instinct MI355X"),
    ],
)
def test_match_by_name(reported: str, expected: str) -> None:
    assert device(reported).name == expected


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "NVIDIA",
        "AMD Radeon Graphics",
        "Tesla V100",
        "Tesla V100-SXM3-32GB",
        "NVIDIA A10G",
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA H100",
        "NVIDIA GH200 480GB",
        "AMD Instinct MI308X",
        "AMD Instinct MI300X VF",
    ],
)
def test_other_parts_match_nothing(reported: str) -> None:
    assert match(reported) is None


@pytest.mark.parametrize(
    ("reported", "memory_bytes", "sm_count", "expected"),
    [
        ("Tesla V100-DGXS-32GB", 34084028416, 80, "V100 DGX Station 32GB"),
        ("Tesla V100-SXM2-32GB", 34079637504, 80, "V100 SXM2 32GB"),
        ("NVIDIA A100-PG509-200", 42297524224, 108, "A100 SXM4 40GB"),
        ("NVIDIA H100 80GB HBM3", 85045477376, 132, "H100 SXM"),
        ("NVIDIA H100 NVL", 99456909312, 132, "H100 NVL"),
        ("NVIDIA H200", 150109880320, 132, "H200"),
        ("NVIDIA B200", 191503138816, 148, "B200"),
        ("AMD Instinct MI300X", 206141652992, 304, "AMD Instinct MI300X"),
        ("AMD Instinct MI250X / MI250", 68702699520, 104, "AMD Instinct MI250 (one GCD of two)"),
        ("AMD Instinct MI250X / MI250", 68702699520, 110, "AMD Instinct MI250X (one GCD of two)"),
    ],
)
def test_match_with_what_drivers_report(
    reported: str, memory_bytes: int, sm_count: int, expected: str
) -> None:
    found = match(reported, memory_bytes=memory_bytes, sm_count=sm_count)
    assert found is not None
    assert found.name == expected


def test_a_name_two_parts_share_needs_what_tells_them_apart() -> None:
    assert match("NVIDIA A100-PG509-200") is None
    assert match("NVIDIA A100-PG509-200", memory_bytes=80 * GIB) is match("NVIDIA A100-SXM4-80GB")
    assert match("AMD Instinct MI250X / MI250") is None


def test_a_slice_of_a_device_is_not_the_device() -> None:
    assert match("NVIDIA H200", memory_bytes=18 * GIB) is None
    assert match("AMD Instinct MI300X", sm_count=38) is None


def test_a_virtual_function_is_its_card_where_it_has_all_of_its_units() -> None:
    whole = match("AMD Instinct MI300X VF", sm_count=304)
    assert whole is not None
    assert whole.name == "AMD Instinct MI300X"
    assert match("AMD Instinct MI300X VF", sm_count=38) is None


def test_a_nameless_amd_device_is_told_by_its_size() -> None:
    """An MI210 and a die of an MI250 have the same peaks; an MI350X and an MI355X have not."""
    found = match("AMD Radeon Graphics", memory_bytes=68_702_699_520, sm_count=104)
    assert found is not None
    assert (found.fp16_flops, found.memory_bandwidth_bytes) == (181e12, 1.6384e12)
    large = match("AMD Radeon Graphics", memory_bytes=192 * GIB, sm_count=304)
    assert large is not None
    assert large.name == "AMD Instinct MI300X"
    assert match("AMD Radeon Graphics", memory_bytes=288 * GIB, sm_count=256) is None
    assert match("AMD Radeon Graphics", memory_bytes=16 * GIB, sm_count=60) is None
    assert match("AMD Radeon Graphics", sm_count=104) is None
