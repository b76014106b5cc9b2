"""The runs of a study: a sweep of each of its parts, and more scores of what it trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_bench.config.compose import compose_config
from pe_bench.config.overrides import parse_override, quote
from pe_bench.config.schema import MACHINE_KEYS
from pe_bench.errors import RunError
from pe_bench.studies.pieces import Piece, pieces_of
from pe_bench.studies.study import STDLIB, ScoringStep, Step, Study, Sweep
from pe_bench.system.terminal import say

QUICK_TOKENS = 4096  # scored by the toy size, with protocols other than paired


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study in a folder of results. machine: overrides that change no result."""

    study: Study
    machine: Sequence[str]
    results_dir: Path

    def steps(self) -> Iterator[Step]:
        """Yield all steps of the study; finished work is reused. Raise `UserError` before the first."""
        self.check()
        runs_of: dict[str, Sequence[str]] = {"": ()}
        for sweep in self.study.sweeps:
            trained = self._train(sweep, runs_of[sweep.source])
            runs_of[sweep.name] = trained.runs
            yield trained
            yield from self._scorings(sweep, trained)

    def check(self) -> None:
        """Raise `UserError` for an encoding of the study that is unknown."""
        from pe_bench.scoring.other_encodings import read_with

        encodings = [name for sweep in self.study.sweeps for name in sweep.encodings]
        scored_with = [text for scoring in self.study.scorings for text in scoring.scored_with or []]
        read_with([*encodings, *scored_with], self.study.search)

    def make(self, piece: Piece) -> list[Step]:
        """Return the steps of one piece, and of no other; finished work is reused."""
        sweep = next(each for each in self.study.sweeps if piece in pieces_of(self.study, each))
        trained = self._train(replace(sweep, encodings=[piece.encoding]), self._sources(sweep))
        return [trained, *self._scorings(sweep, trained)]

    def _sources(self, sweep: Sweep) -> Sequence[str]:
        """Return the runs that those of a sweep go on from or stand beside; train the missing ones."""
        if not sweep.source:
            return ()
        source = next(each for each in self.study.sweeps if each.name == sweep.source)
        return self._train(source, self._sources(source)).runs

    def _scorings(self, sweep: Sweep, trained: Step) -> Iterator[Step]:
        for scoring in self.study.scorings:
            if not scoring.of or sweep.name in scoring.of:
                yield self._score(scoring, sweep, trained)

    def _train(self, sweep: Sweep, sources: Sequence[str]) -> Step:
        """Run a sweep. Raises `RunError` or `Stopped` where it is not done."""
        from pe_bench.sweep.run import launch

        name = f"{self.study.name} {sweep.name}".strip()
        say(f"{name}: {', '.join(sweep.encodings)}, seeds: {self.study.seeds_of(sweep)}")
        results = f"results_dir={quote(str(self.results_dir))}"
        summary = launch((*self.study.of_sweep(sweep, sources), *self.machine, results), self.study.search)
        summary.end()
        runs = dict.fromkeys(Path(state.run).name for state in summary.states if state.run is not None)
        keys = {tuple(key) for state in summary.states for key in state.keys}
        return Step(sweep.name, tuple(runs), keys)

    def _score(self, scoring: ScoringStep, sweep: Sweep, trained: Step) -> Step:
        """Score the runs of a sweep once more, as `eval` does.

        The runs may come from another study or a plain `train`. Their own configuration may then differ, for
        example in `eval.max_length`, which changes the set of targets.
        """
        from pe_bench.scored import prepare

        study, is_paired = self.study, scoring.protocol == "paired"
        machine = [text for text in self.machine if parse_override(text).key in MACHINE_KEYS]
        overrides = [*study.of_each(sweep), f"encoding={sweep.encodings[0]}", *machine]
        config = compose_config(overrides, study.search)
        tokens = QUICK_TOKENS if study.size == "quick" else config.eval.tokens
        first_length = study.length if sweep.source else None
        evaluation = replace(config.eval, tokens=tokens, first_length=first_length)
        options = {
            "lengths": study.lengths(scoring.times),
            "protocol": scoring.protocol,
            "controls": scoring.controls if is_paired else None,
            "with_": scoring.scored_with,
            "config_dir": study.search if scoring.scored_with else (),
            "code": [path for folder in study.search for path in folder.glob("encoding/*.py")],
            "data_path": None if study.text == STDLIB or sweep.task else study.text,
            "results_dir": self.results_dir,
            **{key: getattr(config, key) for key in MACHINE_KEYS},
        }
        what = ", ".join(scoring.scored_with or [f"{scoring.protocol} windows"])
        keys: set[tuple[str, ...]] = set()
        for number, run in enumerate(trained.runs, 1):
            say(f"{run}: {what} ({number} of {len(trained.runs)})")
            scored = prepare(self.results_dir / "runs" / run, options, evaluation, waits=say)()
            if scored.failure:
                raise RunError(scored.failure)
            keys |= {row.key for row in scored.scored}
        return Step(sweep.name, trained.runs, keys)
