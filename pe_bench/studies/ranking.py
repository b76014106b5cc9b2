"""Do our encodings come in the paper's order? Kendall's tau-b, from four encodings on."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pe_bench.report.statistics import Bounds, student_interval
from pe_bench.studies.definition import MIN_RANKED, Ranking
from pe_bench.studies.measurements import Measurements, Series


@dataclass(frozen=True)
class Agreement:
    """Kendall's tau-b between our order and the paper's: 1 the same, -1 the reverse. bounds: over seeds."""

    ranking: Ranking
    length: int
    encodings: tuple[str, ...]
    seeds: int
    tau: float
    bounds: Bounds


def agreement(ranking: Ranking, found: Measurements) -> Agreement | None:
    """Return the mean over seeds with its interval; None where it is undefined.

    It is undefined for fewer than four encodings. Encodings that have not learned are not ranked, because
    they have nothing to lose.
    """
    from scipy.stats import kendalltau  # imported here: it takes longer than a report

    length = round(ranking.at * found.length)
    ours = {name: found.by_seed(Series(name), length, ranking.measure) for name in ranking.numbers}
    ours = {name: numbers for name, numbers in ours.items() if numbers and not found.unlearned(Series(name))}
    if len(ours) < MIN_RANKED:
        return None
    seeds = sorted(set.intersection(*(set(numbers) for numbers in ours.values())))
    paper = [ranking.numbers[name] for name in ours]
    taus: list[float] = []
    for seed in seeds:
        result: Any = kendalltau(paper, [own[seed] for own in ours.values()])  # scipy has no types
        taus.append(float(result.statistic))
    if not taus or any(map(math.isnan, taus)):  # all of them equal
        return None
    low, high = student_interval(np.array(taus))
    return Agreement(
        ranking, length, tuple(ours), len(seeds), float(np.mean(taus)), (max(-1.0, low), min(1.0, high))
    )
