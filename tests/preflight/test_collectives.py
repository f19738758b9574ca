"""Collectives of an HLO text written by hand."""

import pytest

from bam_jax.preflight.collectives import Collective, collectives
from bam_jax.preflight.compiled import arguments

TEXT = """HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%fused_start (p: bf16[4,32]) -> (bf16[4,32], bf16[16,32], u32[]) {
  %p = bf16[4,32]{1,0:T(8,128)(2,1)} parameter(0)
  %gather.1 = bf16[16,32]{1,0:T(8,128)(2,1)} all-gather(%p), channel_id=3, replica_groups=mesh['a'=2,'b'=4] {'b'}
  ROOT %started = (bf16[4,32]{1,0}, bf16[16,32]{1,0}, u32[]{:S(2)}) custom-call(%gather.1), custom_call_target="Start"
}

%fused_done (q: bf16[4,32]) -> bf16[16,32] {
  %q = bf16[4,32]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %gather.2 = bf16[16,32]{1,0:T(8,128)(2,1)} all-gather(%q), channel_id=3, replica_groups=mesh['a'=2,'b'=4] {'b'}
}

%all-reduce-scatter.7 (i: f32[64,8]) -> f32[16,8] {
  %i = f32[64,8]{1,0} parameter(0)
  %reduce.1 = f32[64,8]{1,0} all-reduce(%i), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %zero = u32[] constant(0)
  ROOT %part = f32[16,8]{1,0} dynamic-slice(%reduce.1, %zero, %zero), dynamic_slice_sizes={16,8}
}

%inner_condition (c: (s32[], s32[], f32[8])) -> pred[] {
  %c = (s32[]{:T(128)}, s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %limit = s32[]{:T(128)} get-tuple-element(%c), index=1
  %n = s32[]{:T(128)} get-tuple-element(%c), index=0
  ROOT %less = pred[]{:T(512)} compare(%n, %limit), direction=LT, backend_config={"flag_configs":[]}
}

%inner_body (b: (s32[], s32[], f32[8])) -> (s32[], s32[], f32[8]) {
  %b = (s32[]{:T(128)}, s32[]{:T(128)}, f32[8]{0}) parameter(0)
  %m = s32[] get-tuple-element(%b), index=0
  %k = s32[] get-tuple-element(%b), index=1
  %v = f32[8]{0} get-tuple-element(%b), index=2
  %go = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%v), channel_id=1
  %gone = f32[8]{0} collective-permute-done(%go)
  ROOT %again = (s32[], s32[], f32[8]{0}) tuple(%m, %k, %gone)
}

%cheap (w: f32[8]) -> f32[8] {
  ROOT %w = f32[8]{0} parameter(0)
}

%dear (w2: f32[8]) -> f32[8] {
  %w2 = f32[8]{0} parameter(0)
  %part = f32[8]{0} all-reduce(%w2), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %total = f32[8]{0} all-reduce(%part), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add
}

%condition (d: (s32[], bf16[4,32], f32[8])) -> pred[] {
  %twelve = s32[]{:T(128)} constant(12)
  %d = (s32[]{:T(128)}, bf16[4,32]{1,0}, /*index=2*/f32[8]{0}) parameter(0)
  %at = s32[]{:T(128)} get-tuple-element(%d), index=0
  ROOT %lt = pred[]{:T(512)} compare(%at, %twelve), direction=LT
}

%body (e: (s32[], bf16[4,32], f32[8])) -> (s32[], bf16[4,32], f32[8]) {
  %e = (s32[]{:T(128)}, bf16[4,32]{1,0}, f32[8]{0}) parameter(0)
  %at = s32[] get-tuple-element(%e), index=0
  %w = bf16[4,32]{1,0} get-tuple-element(%e), index=1
  %f = f32[8]{0} get-tuple-element(%e), index=2
  %fusion.1 = (bf16[4,32]{1,0}, bf16[16,32]{1,0}, u32[]{:S(2)}) fusion(%w), kind=kCustom, calls=%fused_start
  %fusion.2 = bf16[16,32]{1,0} fusion(%w), kind=kCustom, calls=%fused_done
  %zero = s32[] constant(0)
  %three = s32[] constant(3)
  %same = s32[] copy(%three)
  %carry = (s32[], s32[], f32[8]{0}) tuple(%zero, %same, %f)
  %while.2 = (s32[], s32[], f32[8]{0}) while(%carry), condition=%inner_condition, body=%inner_body
  %either = f32[8]{0} conditional(%at, %f, %f), branch_computations={%cheap, %dear}
  ROOT %next = (s32[], bf16[4,32]{1,0}, f32[8]{0}) tuple(%at, %w, %either)
}

ENTRY %main (a: bf16[4,32], g: f32[64,8]) -> f32[16,8] {
  %a = bf16[4,32]{1,0} parameter(0)
  %g = f32[64,8]{1,0} parameter(1)
  %start = (s32[], bf16[4,32]{1,0}, f32[8]{0}) custom-call(), custom_call_target="Make"
  %while.1 = (s32[], bf16[4,32]{1,0}, f32[8]{0}) while(%start), condition=%condition, body=%body
  %both = (f32[2,4]{1,0}, bf16[8]{0}) all-to-all(%g, %g), channel_id=1
  ROOT %scattered = f32[16,8]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.7
}
"""


def test_loops_parts_and_branches():
    found, unknown = collectives(TEXT, devices=8)
    assert not unknown
    assert sorted(found, key=lambda each: each.kind) == [
        Collective("all-gather", 12 * 16 * 32 * 2 * 3 / 4, 12),
        *[Collective("all-reduce", 12 * 2 * 8 * 4 / 2, 12)] * 2,  # what shard_map makes has one channel
        Collective("all-to-all", (8 * 4 + 8 * 2) * 7 / 8, 1),
        Collective("collective-permute", 12 * 3 * 8 * 4, 36),
        Collective("reduce-scatter", 64 * 8 * 4 * 3 / 4, 1),
    ]


def test_turns_that_the_compiler_knows():
    known = TEXT.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"},"known_init_step":{}}')
    found, _ = collectives(known, devices=8)
    assert {each.kind: each.times for each in found}["collective-permute"] == 15


def test_turns_that_are_not_known_are_said():
    found, unknown = collectives(TEXT.replace("constant(12)", "partition-id()"), devices=8)
    assert unknown == ["while.1"]
    assert {each.kind: each.times for each in found}["all-gather"] == 1


@pytest.mark.parametrize(("kind", "shape", "times"), [("all-gather", "16", 3 / 4), ("reduce-scatter", "4", 3)])
def test_what_gathering_and_scattering_send_is_the_same(kind, shape, times):
    text = f"""ENTRY %main (a: f32[4]) -> f32[{shape}] {{
  %a = f32[4]{{0}} parameter(0)
  ROOT %r = f32[{shape}]{{0}} {kind}(%a), channel_id=1, replica_groups={{{{0,1,2,3}}}}
}}
"""
    (found,), _ = collectives(text, devices=8)
    assert found.bytes == 16 * 4 * 3 / 4 == int(shape) * 4 * times


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("f32[3,200]{1,0:T(8,128)}", 8 * 256 * 4),
        ("f32[3,200]{0,1:T(8,128)}", 200 * 128 * 4),
        ("bf16[2,3,200]{2,1,0:T(8,128)(2,1)}", 2 * 8 * 256 * 2),
        ("s32[]{:T(128)}", 512),
        ("f32[3,200]{1,0}", 2400),
    ],
)
def test_arguments_are_filled_up_to_tiles(layout, size):
    name = r"""op_name="state[\'optimizer\'][1].mu[\'model\']" """
    text = f"HloModule m\n\nENTRY %main (x: f32[]) -> f32[] {{\n  %x = {layout} parameter(0), metadata={{{name}}}\n}}\n"
    assert arguments(text) == {"parameters": 0, "optimizer": size, "batch": 0}
