"""Random rankings with many ties, of which the tests and the script of golden values make the same."""

import numpy as np

RUNS = 1000


def random_run(seed):
    """The scores of some documents and the grades of some, by name; a few judged ones are in no ranking."""
    rng = np.random.default_rng(seed)
    names = [f"{'dD'[rng.integers(2)]}{number}" for number in rng.permutation(int(rng.integers(1, 150)))]
    scores = {name: float(rng.integers(0, 8)) / 4 - 1 for name in names}
    judged = [name for name in [*names, "absent", "é"] if rng.random() < 0.2]
    return scores, {name: int(rng.integers(-1, 4)) for name in judged}
