"""The share of intervals that contain the true mean accuracy, for simulated seeds: the tables of docs/statistics.md.

Command:  python experiments/coverage.py
Hardware: a CPU, seconds.
Expected: the two tables, then how often a test at .025 wrongly finds an accuracy above its bound.
"""

import numpy as np
from scipy import stats

SEEDS, DRAWS = 8, 20_000
PROMPTS = (20, 100)
PLAIN = (0.5, 0.9, 0.95, 0.98, 0.99, 0.995)
MEANS = (0.5, 0.8, 0.9, 0.95, 0.98)
CORRELATIONS = (0.02, 0.1, 0.3)
ADDED = {"no floor": None, "one added": 1, "two added, as here": 2}
SIZES = ((8, 0.3, 0.8), (10, 0.3, 0.97))
"""Seeds, correlation of two prompts of a seed, and the accuracy, which is the bound as well."""


def draw(mean: float, correlation: float, prompts: int, seeds: int = SEEDS) -> np.ndarray:
    """Accuracies of seeds, [draws, seeds], whose shares follow a beta distribution; `correlation` is of two prompts of a seed."""
    rng = np.random.default_rng(0)
    times = 1 / correlation - 1 if correlation else 0
    share = rng.beta(mean * times, (1 - mean) * times, (DRAWS, seeds)) if correlation else mean
    return rng.binomial(prompts, share, (DRAWS, seeds)) / prompts


def errors(accuracies: np.ndarray, prompts: int, added: int | None = 2) -> np.ndarray:
    """Standard errors of means of seeds, [draws], whose binomial floor adds successes and as many failures; None: no floor."""
    seeds = accuracies.shape[1]
    spread = accuracies.std(1, ddof=1) / seeds**0.5
    if added is None:
        return spread
    count = seeds * prompts + 2 * added
    share = (accuracies.mean(1) * seeds * prompts + added) / count
    return np.maximum(spread, np.sqrt(share * (1 - share) / count))


def covered(mean: float, correlation: float, prompts: int, added: int | None = 2) -> float:
    """The share of draws whose two-sided interval at 95% contains the mean."""
    accuracies = draw(mean, correlation, prompts)
    reach = stats.t.ppf(0.975, SEEDS - 1) * errors(accuracies, prompts, added)
    return float(np.mean(np.abs(accuracies.mean(1) - mean) <= reach + 1e-12))


def size(seeds: int, correlation: float, bound: float) -> float:
    """The share of draws that a test at .025 finds above a bound which is their mean, with the less favourable prompts."""
    shares = []
    for prompts in PROMPTS:
        accuracies = draw(bound, correlation, prompts, seeds)
        least = accuracies.mean(1) - stats.t.ppf(0.975, seeds - 1) * errors(accuracies, prompts)
        shares.append(float(np.mean(least > bound)))
    return max(shares)


def row(head: str, numbers: list[float]) -> str:
    """A row of a table."""
    return f"| {head} | " + " | ".join(f"{x:.2f}" for x in numbers) + " |"


if __name__ == "__main__":
    print("| true accuracy | " + " | ".join(f"{mean:g}" for mean in PLAIN) + " |")
    for name, added in ADDED.items():
        print(row(name, [covered(mean, 0.0, PROMPTS[0], added) for mean in PLAIN]))
    print("\n| correlation | " + " | ".join(f"{mean:g}" for mean in MEANS) + " |")
    for correlation in CORRELATIONS:
        least = [min(covered(mean, correlation, prompts) for prompts in PROMPTS) for mean in MEANS]
        print(row(f"{correlation:g}", least))
    for seeds, correlation, bound in SIZES:
        print(f"\n{seeds} seeds, correlation {correlation:g}, bound {bound:g}: {size(seeds, correlation, bound):.2f}")
