"""One step's gradient in the narrow dtype of accelerators, beside that in float32."""

import jax
import numpy as np
import pytest
from flax import nnx

from bam_jax import config as configs
from bam_jax.models import transformer
from bam_jax.training.step import make_gradient

VOCAB, ROWS, CONTEXT = 64, 8, 512


def gradients(family, encoding, dtype):
    config = configs.from_dict(
        {
            "encoding": encoding,
            "context": CONTEXT,
            "batch": ROWS,
            "model": {
                "family": family,
                "causal": family != "bert",
                "dtype": dtype,
                **{"layers": 1, "width": 32, "heads": 2, "hidden": 32, "vocab": VOCAB},
            },
        }
    )
    graph, tree = transformer.split(transformer.build(config, vocab=VOCAB, rngs=nnx.Rngs(0)))
    # Tokens as often as those of a text: a few of them make up most of it.
    often = 1 / np.arange(1, VOCAB + 1)
    text = np.random.default_rng(0).choice(VOCAB, (ROWS, CONTEXT + 1), p=often / often.sum()).astype(np.int32)
    batch = {"tokens": text[:, :-1], "targets": text[:, 1:], "weights": np.ones((ROWS, CONTEXT), np.float32)}
    # Each row starts elsewhere: with one start for all, the gradients of a table of positions are no sums over rows.
    batch["position"] = np.maximum(np.arange(CONTEXT) - 7 * np.arange(ROWS)[:, None], 0).astype(np.int32)
    _, gradient = jax.jit(make_gradient(config, graph))(tree["params"], tree["frozen"], batch)
    return dict(jax.tree.leaves_with_path(jax.tree.map(np.float64, gradient)))


@pytest.mark.parametrize(("family", "encoding"), [("llama", "bam"), ("bert", "learned")], ids=lambda x: x)
def test_gradients_in_bfloat16_are_those_in_float32_where_thousands_are_summed(family, encoding):
    wide, narrow = (gradients(family, encoding, dtype) for dtype in ("float32", "bfloat16"))
    size = {path: np.linalg.norm(x) for path, x in wide.items()}
    # What a softmax does not see, as one number more for all keys, has a gradient of 0 and rounding.
    seen = [path for path in wide if size[path] > 1e-4 * max(size.values())]
    assert len(seen) > len(wide) - 5, set(wide) - set(seen)
    errors = {jax.tree_util.keystr(path): np.linalg.norm(narrow[path] - wide[path]) / size[path] for path in seen}
    assert max(errors.values()) < 0.02, errors
