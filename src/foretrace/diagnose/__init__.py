"""Results become Findings: one rule per file, all of them listed in RULES."""

from __future__ import annotations

from foretrace.diagnose.allocator_churn import allocator_churn
from foretrace.diagnose.cold_start import cold_start
from foretrace.diagnose.dtype_casts import dtype_casts
from foretrace.diagnose.exposed_communication import exposed_communication
from foretrace.diagnose.finding import Rule
from foretrace.diagnose.host_stall import host_stall
from foretrace.diagnose.host_sync import host_sync
from foretrace.diagnose.input_bound import input_bound
from foretrace.diagnose.launch_bound import launch_bound
from foretrace.diagnose.layout_conversions import layout_conversions
from foretrace.diagnose.loop_optimizer import loop_optimizer
from foretrace.diagnose.low_occupancy import low_occupancy
from foretrace.diagnose.memory_pressure import memory_pressure
from foretrace.diagnose.misaligned_gemm import misaligned_gemm
from foretrace.diagnose.no_tensor_cores import no_tensor_cores
from foretrace.diagnose.pageable_copy import pageable_copy
from foretrace.diagnose.profiler_overhead import profiler_overhead
from foretrace.diagnose.recompilation import recompilation
from foretrace.diagnose.recompute import recompute
from foretrace.diagnose.redundant_copies import redundant_copies
from foretrace.diagnose.small_batch import small_batch
from foretrace.diagnose.straggler import straggler
from foretrace.diagnose.tiny_copies import tiny_copies
from foretrace.diagnose.unfused_attention import unfused_attention
from foretrace.diagnose.unfused_elementwise import unfused_elementwise

RULES: tuple[Rule, ...] = (
    unfused_attention,
    layout_conversions,
    no_tensor_cores,
    unfused_elementwise,
    misaligned_gemm,
    dtype_casts,
    redundant_copies,
    loop_optimizer,
    recompute,
    low_occupancy,
    pageable_copy,
    host_stall,
    launch_bound,
    input_bound,
    host_sync,
    tiny_copies,
    allocator_churn,
    recompilation,
    small_batch,
    cold_start,
    exposed_communication,
    straggler,
    memory_pressure,
    profiler_overhead,
)
