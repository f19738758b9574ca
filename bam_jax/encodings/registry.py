"""The encodings that a config can name."""

from bam_jax.encodings import absolute, context_aware, mixture, prior, rotary, rowwise, turning
from bam_jax.encodings.base import Encoding

ENCODINGS: dict[str, type[Encoding]] = {
    "nope": prior.NoPE,
    "alibi": prior.ALiBi,
    "alibi_learned": prior.LearnedALiBi,
    "nape": prior.NAPE,
    "bam": prior.BAM,
    "bam_contextual": context_aware.ContextualBAM,
    "bam_mixture": mixture.BAMMixture,
    "gaussian": prior.Gaussian,
    "student_t": prior.StudentT,
    "kerple_log": prior.KerpleLog,
    "kerple_power": prior.KerplePower,
    "additive_decay": prior.AdditiveDecay,
    "sandwich": prior.Sandwich,
    "fire": prior.FIRE,
    "t5": prior.T5,
    "t5_distance": prior.T5Distance,
    "cable": context_aware.CABLE,
    "cable_nw": context_aware.CABLENW,
    "k_cable": context_aware.KCABLE,
    "fox": context_aware.ForgettingTransformer,
    "inkling": mixture.Inkling,
    "dape_kerple": rowwise.DAPEKerple,
    "dape_cable": rowwise.DAPECABLE,
    "cope": rowwise.CoPE,
    "shaw": rowwise.Shaw,
    "sinusoidal": absolute.Sinusoidal,
    "learned": absolute.Learned,
    "rope": rotary.RoPE,
    "p_rope": rotary.PartialRoPE,
    "rope_pi": rotary.PositionInterpolation,
    "rope_ntk": rotary.NTK,
    "rope_yarn": rotary.YaRN,
    "rope_llama3": rotary.Llama3,
    "xpos": turning.XPos,
    "pope": turning.PoPE,
    "selective_rope": turning.SelectiveRoPE,
}
"""The package's encodings by the names that `--config.encoding` takes."""
