"""Instructions for each logit, counted in a disassembly."""

from benchmarks import sass

# Two tiles a turn would be two loops; this is one, with a mask that a tile without hidden pairs jumps over.
DISASSEMBLY = """
.text.forward_mosaic_gpu_kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   SYNCS.PHASECHK.TRANS64 P0, [UR4], R2 ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   HGMMA.64x8x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0040*/              @!P1 BRA `(.L_x_3) ;
        /*0050*/                   ISETP.GT.AND P2, PT, R3, R4, PT ;
        /*0060*/                   FSEL R24, R24, R5, P2 ;
.L_x_3:
        /*0070*/                   FFMA R24, R24, R6, R7 ;
        /*0080*/                   FADD R25, R25, R7 ;
        /*0090*/                   LDS.64 R8, [R9+0x10] ;
        /*00a0*/                   MUFU.EX2 R24, R24 ;
        /*00b0*/                   HGMMA.64x64x16.F32.BF16 R32, R24, gdesc[UR12], R32 ;
        /*00c0*/               @P3 BRA `(.L_x_2) ;
        /*00d0*/                   EXIT ;
"""


def test_the_shortest_path_through_the_loop_over_tiles_is_counted():
    """Eight columns of 64 rows are four logits for each of 128 threads."""
    counted = sass.per_logit(DISASSEMBLY)
    expected = {"special": 1, "fused": 2, "memory": 1, "tensor": 2, "other": 2}
    assert counted == {"instructions": 2.0, **{pipe: count / 4 for pipe, count in expected.items()}}
    assert sass.per_logit(DISASSEMBLY, 16)["instructions"] == 1.0


def test_of_two_loops_over_tiles_the_one_without_a_mask_is_counted():
    masked = DISASSEMBLY[DISASSEMBLY.index(".L_x_2:") : DISASSEMBLY.index("EXIT")]
    for old, new in ((".L_x_2", ".L_x_4"), (".L_x_3", ".L_x_5"), ("@!P1 BRA `(.L_x_5) ;", "     NOP ;")):
        assert old in masked
        masked = masked.replace(old, new)
    ahead, whole = DISASSEMBLY.split(".L_x_2:")
    assert sass.per_logit(f"{ahead}{masked}NOP ;\n.L_x_2:{whole}") == sass.per_logit(DISASSEMBLY)
