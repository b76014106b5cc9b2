"""The verdict on one interval alone."""

from pe_bench.report.statistics import MARGIN, Interval, Verdict, corrected_verdicts


def uncorrected_verdict(interval: Interval, margin: float = MARGIN) -> Verdict:
    [verdict] = corrected_verdicts([interval], margin)
    return verdict
