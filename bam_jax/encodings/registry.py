"""The encodings that a config can name."""

from bam_jax.encodings.absolute import Learned, Sinusoidal
from bam_jax.encodings.base import Encoding
from bam_jax.encodings.context_aware import CABLE, CABLENW, KCABLE, ContextualBAM, ForgettingTransformer
from bam_jax.encodings.prior import (
    BAM,
    FIRE,
    NAPE,
    T5,
    AdditiveDecay,
    ALiBi,
    Gaussian,
    KerpleLog,
    KerplePower,
    LearnedALiBi,
    NoPE,
    Sandwich,
    StudentT,
    T5Distance,
)
from bam_jax.encodings.rotary import NTK, PartialRoPE, PositionInterpolation, RoPE, YaRN
from bam_jax.encodings.rowwise import DAPECABLE, CoPE, DAPEKerple

ENCODINGS: dict[str, type[Encoding]] = {
    "nope": NoPE,
    "alibi": ALiBi,
    "alibi_learned": LearnedALiBi,
    "nape": NAPE,
    "bam": BAM,
    "bam_contextual": ContextualBAM,
    "gaussian": Gaussian,
    "student_t": StudentT,
    "kerple_log": KerpleLog,
    "kerple_power": KerplePower,
    "additive_decay": AdditiveDecay,
    "sandwich": Sandwich,
    "fire": FIRE,
    "t5": T5,
    "t5_distance": T5Distance,
    "cable": CABLE,
    "cable_nw": CABLENW,
    "k_cable": KCABLE,
    "fox": ForgettingTransformer,
    "dape_kerple": DAPEKerple,
    "dape_cable": DAPECABLE,
    "cope": CoPE,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": RoPE,
    "p_rope": PartialRoPE,
    "rope_pi": PositionInterpolation,
    "rope_ntk": NTK,
    "rope_yarn": YaRN,
}
"""The package's encodings by the names that `--config.encoding` takes."""
