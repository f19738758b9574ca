"""What a compiled program starts, reads and writes."""

import pytest

from benchmarks.hlo import Program

LINES = """
HloModule jit_f, is_scheduled=true

%fused_add (x: bf16[4,8], y: f32[]) -> (f32[4], bf16[4,8]) {
  %x = bf16[4,8]{1,0} parameter(0)
  %y = f32[] parameter(1)
  %wide = bf16[4,8]{1,0} broadcast(%y), dimensions={}
  ROOT %add = bf16[4,8]{1,0} add(%x, %wide)
}

%fused_row (all: f32[6,100], at: s32[]) -> f32[1,100] {
  %all = f32[6,100]{1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %row = f32[1,100]{1,0} dynamic-slice(%all, %at), dynamic_slice_sizes={1,100}
}

%fused_put (kept: f32[6,100], new: f32[1,100], to: s32[]) -> f32[6,100] {
  %kept = f32[6,100]{1,0} parameter(0)
  %new = f32[1,100]{1,0} parameter(1)
  %to = s32[] parameter(2)
  ROOT %put = f32[6,100]{1,0} dynamic-update-slice(%kept, %new, %to)
}

%body (state: (s32[], f32[6,100])) -> (s32[], f32[6,100]) {
  %state = (s32[], f32[6,100]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %table = f32[6,100]{1,0} get-tuple-element(%state), index=1
  %start = ((f32[6,100]{1,0}, s32[]), f32[1,100]{1,0}, u32[]) fusion-start(%table, %n), kind=kLoop, calls=%fused_row
  %done = f32[1,100]{1,0} fusion-done(%start)
  %written = f32[6,100]{1,0} fusion(%table, %done, %n), kind=kLoop, calls=%fused_put
  ROOT %next = (s32[], f32[6,100]{1,0}) tuple(%n, %written)
}

%small (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %copy = f32[8]{0} copy(%a)
}

%large (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  %kernel = f32[8]{0} custom-call(%b), custom_call_target="mosaic_gpu_v2"
  ROOT %again = f32[8]{0} custom-call(%kernel), custom_call_target="mosaic_gpu_v2"
}

ENTRY %main.7 (x.1: bf16[4,8], y.1: f32[]) -> bf16[4,8] {
"""
START = """  %x.1 = bf16[4,8]{1,0} parameter(0), metadata={op_name="x"}
  %y.1 = f32[] parameter(1), metadata={op_name="y"}
"""


def program(*lines):
    return Program(LINES + START + "".join(f"  {line}\n" for line in lines) + "}\n")


def test_each_kernel_reads_its_operands_and_writes_its_results():
    made = program(
        "%fusion = (f32[4]{0}, bf16[4,8]{1,0}) fusion(%x.1, /*index=1*/%y.1), kind=kLoop, calls=%fused_add",
        "%first = f32[4]{0} get-tuple-element(%fusion), index=0",
        "%bitcast.2 = f32[2,2]{1,0} bitcast(%first)",
        'ROOT %kernel = bf16[4,8]{1,0} custom-call(%bitcast.2), custom_call_target="mosaic_gpu_v2"',
    )
    assert made.launches() == 2
    assert made.traffic() == (64 + 4) + (16 + 64) + 16 + 64


LOOP = (
    "%table.1 = f32[6,100]{1,0} constant({...})",
    "%one = (s32[], f32[6,100]{1,0}) tuple(%y.1, %table.1)",
    "ROOT %loop = (s32[], f32[6,100]{1,0}) while(%one), condition=%less, body=%body, "
    'metadata={op_name="jit(f)/while"}, backend_config={"known_trip_count":{"n":"6"}}',
)


def test_a_loop_counts_as_often_as_it_runs_and_a_slice_as_what_it_takes():
    made = program(*LOOP)
    each = (400 + 4 + 400) + (400 + 4 + 400)  # a row is read and written, then read and written into its place
    assert (made.launches(), made.traffic()) == (6 * 2, 6 * each)
    assert made.loops() == [{"source": "jit(f)/while", "rounds": 6, "launches": 12, "traffic": 6 * each}]


def test_a_condition_counts_as_its_largest_branch():
    vector, choose = "%v = f32[8]{0} constant({...})", "ROOT %c = f32[8]{0} conditional(%y.1, %v, %v), "
    for branches in (
        "true_computation=%small, false_computation=%large",
        "branch_computations={%large, %small}, metadata={}",
    ):
        made = program(vector, choose + branches)
        assert (made.launches(), made.traffic()) == (2, 4 * 32)


def test_a_loop_of_unknown_length_is_not_guessed():
    made = program(*LOOP[:2], LOOP[2].replace("known_trip_count", "unknown"))
    for count in (made.launches, made.traffic, made.loops):
        with pytest.raises(ValueError, match="a loop of unknown length: ROOT %loop"):
            count()
