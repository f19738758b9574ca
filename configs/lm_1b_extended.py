"""256 further steps at context 1024 for the paper's 1.1B model, trained at 512 (BAM, appendices C and H.5).

    python -m bam_jax.train --config=configs/lm_1b_extended.py --config.start=runs/lm_1b --workdir=runs/lm_1b_extended

Another size: --config=configs/lm_120m.py, with the fields of `get_config` below as overrides. The paper does not state the
learning rate of these steps. Here it is the last rate of the training, a tenth of the peak, and stays constant.

Hardware: that of configs/lm_1b.py, for an hour and a half instead of days.

Expected: passkey accuracy 1 to 204K tokens and .7 at 512K, where it finds a tenth at most before (the paper's Table 7).
"""

import runpy
from pathlib import Path

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields that differ from the defaults of `bam_jax.config.Config`."""
    config = runpy.run_path(str(Path(__file__).with_name("lm_1b.py")))["get_config"]()
    config.update({"context": 1024, "batch": 576, "steps": 256, "checkpoint_every": 64})
    config.optimizer.update({"rate": config.optimizer.rate / 10, "final": 1.0})
    return config
