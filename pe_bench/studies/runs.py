"""The runs of a study: a sweep of each of its parts, and more scores of what it trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.config.compose import compose_config
from pe_bench.config.overrides import parse_override, quote
from pe_bench.errors import RunError
from pe_bench.studies.study import STDLIB, Progress, ScoringStep, Step, Sweep, Variant
from pe_bench.system.terminal import say

MACHINE_KEYS = ("threads", "device", "cache_dir")  # beside Hydra's keys; none changes a result
QUICK_TOKENS = 4096  # scored by the toy size, with protocols other than paired


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study in a folder of results. machine: overrides that change no result."""

    variant: Variant
    machine: Sequence[str]
    progress: Progress

    def check(self) -> None:
        """Raise `UserError` for a scoring with an unknown encoding, before anything is trained."""
        from pe_bench.scoring.other_encodings import read_with

        for scoring in self.variant.study.scorings:
            if scoring.scored_with:
                read_with(scoring.scored_with, self.variant.search)

    def steps(self) -> Iterator[Step]:
        """Yield all steps of the study; do each that is not done yet."""
        for sweep in self.variant.study.sweeps:
            key = self.variant.key(sweep)
            trained = self.progress.find(key) or self._train(sweep)
            yield trained
            for scoring in self.variant.study.scorings:
                key_of_scoring = f"{key} | {scoring}"
                step = self.progress.find(key_of_scoring)
                if step is None:
                    step = self._score(scoring, sweep, trained)
                    self.progress.add(key_of_scoring, step)
                yield step

    def _train(self, sweep: Sweep) -> Step:
        """Run a sweep, note its runs, and raise `RunError` or `Stopped` where it is not done."""
        from pe_bench.sweep.run import launch, require_done
        from pe_bench.sweep.show import print_summary

        count = len(sweep.encodings) * self.variant.seeds
        name = f"{self.variant.study.name} {sweep.name}".strip()
        say(f"{name}: {count} {'run' if count == 1 else 'runs'}, {', '.join(sweep.encodings)}")
        results = f"results_dir={quote(str(self.progress.results_dir))}"
        summary = launch((*self.variant.overrides(sweep), *self.machine, results), self.variant.search)
        print_summary(summary)
        runs = dict.fromkeys(Path(state.run).name for state in summary.states if state.run is not None)
        keys = dict.fromkeys(tuple(key) for state in summary.states for key in state.keys)
        step = Step(sweep.name, tuple(runs), tuple(keys), summary.is_done)
        self.progress.add(self.variant.key(sweep), step)
        require_done(summary)
        return step

    def _score(self, scoring: ScoringStep, sweep: Sweep, trained: Step) -> Step:
        """Score the runs of a sweep once more, as `eval` does.

        The runs may come from another study or a plain `train`. Their own configuration may then differ, for
        example in `eval.max_length`, which changes the set of targets.
        """
        from pe_bench.scored import prepare

        variant, is_paired = self.variant, scoring.protocol == "paired"
        machine = [text for text in self.machine if parse_override(text).key in MACHINE_KEYS]
        config = compose_config([*variant.overrides_of_one(sweep), *machine], variant.search)
        is_short = variant.is_quick and not is_paired
        evaluation = replace(config.eval, tokens=QUICK_TOKENS) if is_short else config.eval
        options = {
            "lengths": variant.lengths(scoring.times),
            "protocol": scoring.protocol,
            "controls": scoring.controls if is_paired else None,
            "with_": scoring.scored_with,
            "config_dir": variant.search if scoring.scored_with else (),
            "code": [path for folder in variant.search for path in folder.glob("encoding/*.py")],
            "data_path": None if variant.text == STDLIB or sweep.task else variant.text,
            "results_dir": self.progress.results_dir,
            **{parse_override(text).key: getattr(config, parse_override(text).key) for text in machine},
        }
        what = ", ".join(scoring.scored_with or [f"{scoring.protocol} windows"])
        keys: dict[tuple[str, ...], None] = {}
        for number, run in enumerate(trained.runs, 1):
            say(f"{run}: {what} ({number} of {len(trained.runs)})")
            scored = prepare(self.progress.runs / run, options, evaluation, waits=say)()
            if scored.failure:
                raise RunError(scored.failure)
            keys |= dict.fromkeys(row.key for row in scored.scored)
        return Step(sweep.name, trained.runs, tuple(keys))
