"""The encodings that a config can name."""

from bam_jax.encodings.absolute import Learned, Sinusoidal
from bam_jax.encodings.base import Encoding
from bam_jax.encodings.context import CABLE, CABLENW, KCABLE, ForgettingTransformer
from bam_jax.encodings.prior import BAM, FIRE, T5, ALiBi, KerpleLog, KerplePower, NoPE, T5Distance
from bam_jax.encodings.rotary import RoPE

ENCODINGS: dict[str, type[Encoding]] = {
    "nope": NoPE,
    "alibi": ALiBi,
    "bam": BAM,
    "kerple_log": KerpleLog,
    "kerple_power": KerplePower,
    "fire": FIRE,
    "t5": T5,
    "t5_distance": T5Distance,
    "cable": CABLE,
    "cable_nw": CABLENW,
    "k_cable": KCABLE,
    "fox": ForgettingTransformer,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": RoPE,
}
