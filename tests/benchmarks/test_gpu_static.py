"""What a compiled program starts, reads and writes."""

import pytest

from benchmarks import gpu_static

PROGRAM = """
HloModule jit_f, is_scheduled=true

%fused_add (x: bf16[4,8], y: f32[]) -> (f32[4], bf16[4,8]) {
  %x = bf16[4,8]{1,0} parameter(0)
}

ENTRY %main.7 (x.1: bf16[4,8], y.1: f32[]) -> bf16[4,8] {
  %x.1 = bf16[4,8]{1,0} parameter(0), metadata={op_name="x"}
  %y.1 = f32[] parameter(1), metadata={op_name="y"}
  %fusion = (f32[4]{0}, bf16[4,8]{1,0}) fusion(%x.1, /*index=1*/%y.1), kind=kLoop, calls=%fused_add
  %first = f32[4]{0} get-tuple-element(%fusion), index=0
  %bitcast.2 = f32[2,2]{1,0} bitcast(%first)
  ROOT %kernel = bf16[4,8]{1,0} custom-call(%bitcast.2), custom_call_target="mosaic_gpu_v2"
}
"""


def test_each_kernel_reads_its_operands_and_writes_its_results():
    assert gpu_static.launches(PROGRAM) == 2
    assert gpu_static.traffic(PROGRAM) == (64 + 4) + (16 + 64) + 16 + 64


def test_bytes_of_loops_are_not_guessed():
    with pytest.raises(ValueError, match="not one kernel after another: ROOT %loop"):
        gpu_static.traffic(PROGRAM.replace("%kernel = bf16[4,8]{1,0} custom-call", "%loop = bf16[4,8]{1,0} while"))
