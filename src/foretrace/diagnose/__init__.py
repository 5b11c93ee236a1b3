"""Results become Findings: one rule per file. The imports below are the list of rules, in the order in which they run.

A specific rule stands before the general one whose calls it may explain.
"""

# ruff: noqa: F401, I001

from __future__ import annotations

from foretrace.diagnose.rule import Rule
from foretrace.errors import unknown

from foretrace.diagnose.rules.fusion.unfused_attention import unfused_attention
from foretrace.diagnose.rules.copies.layout_conversions import layout_conversions
from foretrace.diagnose.rules.precision.fp64_compute import fp64_compute
from foretrace.diagnose.rules.precision.no_tensor_cores import no_tensor_cores
from foretrace.diagnose.rules.fusion.unfused_elementwise import unfused_elementwise
from foretrace.diagnose.rules.fusion.spelled_out_operators import spelled_out_operators
from foretrace.diagnose.rules.precision.misaligned_gemm import misaligned_gemm
from foretrace.diagnose.rules.precision.weight_casts import weight_casts
from foretrace.diagnose.rules.precision.fp32_island import fp32_island
from foretrace.diagnose.rules.precision.dtype_casts import dtype_casts
from foretrace.diagnose.rules.precision.explicit_casts import explicit_casts
from foretrace.diagnose.rules.copies.growing_cat import growing_cat
from foretrace.diagnose.rules.copies.one_hot_matmul import one_hot_matmul
from foretrace.diagnose.rules.copies.shifted_logits import shifted_logits
from foretrace.diagnose.rules.copies.redundant_copies import redundant_copies
from foretrace.diagnose.rules.copies.repeated_elements import repeated_elements
from foretrace.diagnose.rules.fusion.loop_optimizer import loop_optimizer
from foretrace.diagnose.rules.fusion.parameter_loop import parameter_loop
from foretrace.diagnose.rules.fusion.penalty_loop import penalty_loop
from foretrace.diagnose.rules.fusion.zeroed_gradients import zeroed_gradients
from foretrace.diagnose.rules.device.recompute import recompute
from foretrace.diagnose.rules.device.low_occupancy import low_occupancy
from foretrace.diagnose.rules.device.latency_bound_kernels import latency_bound_kernels
from foretrace.diagnose.rules.device.uncoalesced_access import uncoalesced_access
from foretrace.diagnose.rules.copies.pageable_copy import pageable_copy
from foretrace.diagnose.rules.host.host_stall import host_stall
from foretrace.diagnose.rules.host.serial_loop import serial_loop
from foretrace.diagnose.rules.host.launch_bound import launch_bound
from foretrace.diagnose.rules.host.input_bound import input_bound
from foretrace.diagnose.rules.host.anomaly_mode import anomaly_mode
from foretrace.diagnose.rules.host.waiting_loop import waiting_loop
from foretrace.diagnose.rules.host.host_sync import host_sync
from foretrace.diagnose.rules.copies.tiny_copies import tiny_copies
from foretrace.diagnose.rules.host.allocator_churn import allocator_churn
from foretrace.diagnose.rules.host.recompilation import recompilation
from foretrace.diagnose.rules.device.small_batch import small_batch
from foretrace.diagnose.rules.device.gradient_accumulation import gradient_accumulation
from foretrace.diagnose.rules.device.low_utilisation import low_utilisation
from foretrace.diagnose.rules.recording.cold_start import cold_start
from foretrace.diagnose.rules.recording.long_gap import long_gap
from foretrace.diagnose.rules.copies.exposed_copies import exposed_copies
from foretrace.diagnose.rules.ranks.data_parallel import data_parallel
from foretrace.diagnose.rules.ranks.host_collectives import host_collectives
from foretrace.diagnose.rules.ranks.slow_link import slow_link
from foretrace.diagnose.rules.ranks.exposed_communication import exposed_communication
from foretrace.diagnose.rules.ranks.straggler import straggler
from foretrace.diagnose.rules.device.memory_pressure import memory_pressure
from foretrace.diagnose.rules.memory.uncheckpointed_blocks import uncheckpointed_blocks
from foretrace.diagnose.rules.memory.fp32_activations import fp32_activations
from foretrace.diagnose.rules.memory.fp32_parameters import fp32_parameters
from foretrace.diagnose.rules.memory.foreach_temporaries import foreach_temporaries
from foretrace.diagnose.rules.memory.fp32_optimizer_state import fp32_optimizer_state
from foretrace.diagnose.rules.memory.kept_gradients import kept_gradients
from foretrace.diagnose.rules.memory.kept_references import kept_references
from foretrace.diagnose.rules.memory.split_segments import split_segments
from foretrace.diagnose.rules.cpu.crowded_threads import crowded_threads
from foretrace.diagnose.rules.cpu.fp32_on_cpu import fp32_on_cpu
from foretrace.diagnose.rules.cpu.needless_autograd import needless_autograd
from foretrace.diagnose.rules.cpu.optimizer_loop import optimizer_loop
from foretrace.diagnose.rules.cpu.python_stretches import python_stretches
from foretrace.diagnose.rules.cpu.copied_tensors import copied_tensors
from foretrace.diagnose.rules.cpu.eager_operators import eager_operators
from foretrace.diagnose.rules.recording.profiler_overhead import profiler_overhead

RULES: tuple[Rule, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Rule))


def find(name: str) -> Rule:
    """The rule of that name."""
    for rule in RULES:
        if rule.name == name:
            return rule
    raise unknown(f"no rule named {name!r}", name, (rule.name for rule in RULES))
