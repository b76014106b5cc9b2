"""The outcomes of a finished study: its judged claims, its ranking, and its levels beside the table's."""

from collections.abc import Sequence
from dataclasses import dataclass

from pe_bench.errors import RunError
from pe_bench.studies.claims import Judged, judge_claim
from pe_bench.studies.measurements import Measurements
from pe_bench.studies.ranking import Agreement, agreement
from pe_bench.studies.table import Comparison, Level, compare, levels_of, read_table, write_table
from pe_bench.studies.variant import Variant


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a study. agreement: None without a ranking, or with too few encodings to rank."""

    variant: Variant
    judged: Sequence[Judged]
    agreement: Agreement | None
    comparison: Comparison
    ours: Sequence[Level]

    def write_table(self) -> None:
        """Make our levels those of the table. Raise `RunError` where one lacks seeds."""
        path = self.variant.study.table
        seeds = self.variant.seeds
        for level in self.ours:
            if level.seeds < seeds:
                raise RunError(
                    f"{path} is not written: the level of {level.encoding} at {level.length} "
                    f"({level.protocol}) has {level.seeds} seeds instead of {seeds}: "
                    f"`pe-bench report {level.encoding} --details` says which scores failed"
                )
        write_table(path, self.ours)


def judge_study(variant: Variant, found: Measurements) -> Outcomes:
    ours, ranking = levels_of(found.rows, variant.name), variant.study.ranking
    return Outcomes(
        variant,
        [judge_claim(claim, found) for claim in variant.study.claims],
        agreement(ranking, found) if ranking is not None else None,
        compare(ours, read_table(variant.study.table)),
        ours,
    )
