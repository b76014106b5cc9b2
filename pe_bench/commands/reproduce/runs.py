"""The runs of a study: its sweeps, and more scores of their runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_bench.commands.reproduce.hf_models import require_hf_models, score_hf_model
from pe_bench.commands.reproduce.pieces import Piece, pieces_of
from pe_bench.commands.reproduce.study import STDLIB, FinishedStep, ScoringStep, Study, Sweep
from pe_bench.config.arguments import overrides_in
from pe_bench.config.schema import Config
from pe_bench.config.sweeps import PlannedJob, SortedOverrides, label_of, plan_job, plan_jobs, sort_by_use
from pe_bench.errors import RunError
from pe_bench.runs.folder import read_config
from pe_bench.system.terminal import say

if TYPE_CHECKING:
    from pe_bench.commands.evaluate import Evaluation

QUICK_TOKENS = 4096  # scored by the toy size, with protocols other than paired


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study in a folder of results."""

    study: Study
    machine: Sequence[str]  # overrides that change no result
    results_dir: Path
    models: Path | None = None  # the folder with the folders of the study's Hugging Face models

    def steps(self) -> Iterator[FinishedStep]:
        """Make all steps that are not finished, and yield each. Raise `UserError` before the first."""
        self.check()
        runs_of_sweeps: dict[str, Sequence[str]] = {"": ()}
        for sweep in self.study.sweeps:
            if sweep.hf_model:
                yield self._score_hf_model(sweep, sweep.scored_with)
                continue
            trained = self._train_sweep(sweep, runs_of_sweeps[sweep.parent_sweep])
            runs_of_sweeps[sweep.name] = trained.runs
            yield trained
            yield from self._score_again(sweep, trained)

    def check(self) -> None:
        """Raise `UserError` for an unknown encoding of the study, and for a missing Hugging Face model."""
        from pe_bench.scoring.other_encodings import read_with

        encodings: list[str] = []
        for sweep in self.study.sweeps:
            encodings += sweep.run_encodings
        for scoring in self.study.scorings:
            encodings += scoring.scored_with or []
        read_with(encodings, self.study.search)
        require_hf_models(self.study, self.models)

    def make_piece(self, piece: Piece) -> list[FinishedStep]:
        """Make the runs of one piece that are not stored, and return its steps; finished work is reused."""
        plain = replace(piece, runs=())
        sweep = next(each for each in self.study.sweeps if plain in pieces_of(self.study, each))
        if sweep.hf_model:
            others = [] if piece.encoding in sweep.encodings else [piece.encoding]
            return [self._score_hf_model(sweep, others)]
        one = replace(sweep, encodings=[piece.encoding])
        trained = self._train_sweep(one, self._runs_of_parent(sweep), stored=len(piece.runs))
        return [trained, *self._score_again(one, trained)]

    def _score_hf_model(self, sweep: Sweep, scored_with: Sequence[str]) -> FinishedStep:
        assert self.models is not None, "checked before"
        return score_hf_model(self.study, sweep, scored_with, self.machine, self.models, self.results_dir)

    def _runs_of_parent(self, sweep: Sweep) -> Sequence[str]:
        """Train the missing runs of the parent sweep, and return the names of its runs; empty without one."""
        if not sweep.parent_sweep:
            return ()
        parent = self.study.sweep(sweep.parent_sweep)
        return self._train_sweep(parent, self._runs_of_parent(parent)).runs

    def _score_again(self, sweep: Sweep, trained: FinishedStep) -> Iterator[FinishedStep]:
        """Score a sweep's trained runs by each scoring of the study, and yield a step for each."""
        for scoring in self.study.scorings_of(sweep):
            yield self._score_sweep(scoring, sweep, self._runs_of_encodings(scoring, sweep, trained))

    def _runs_of_encodings(self, scoring: ScoringStep, sweep: Sweep, trained: FinishedStep) -> FinishedStep:
        """Return the step with only the runs of the encodings that a scoring names."""
        runs = [run for run in trained.runs if scoring.applies_to(sweep, trained.encodings[run])]
        return replace(trained, runs=tuple(runs))

    def _train_sweep(self, sweep: Sweep, parents: Sequence[str], stored: int = 0) -> FinishedStep:
        """Run a sweep from the first seed that is not stored. stored: the number of stored seeds.

        parents: the runs of the parent sweep. Raises `RunError` or `Stopped` if a run fails or is stopped.
        """
        from pe_bench.commands.sweep.run import launch

        name = f"{self.study.name} {sweep.name}".strip()
        seeds = f"seeds: {self.study.seeds_of(sweep)}"
        if stored:
            seeds += f" ({stored} stored)"
        say(f"{name}: {', '.join(sweep.encodings)}, {seeds}")
        jobs = self._jobs(sweep, parents, stored)
        all_jobs = [*chain.from_iterable(jobs.values())]
        summary = launch(all_jobs, self._sorted_overrides(sweep).launcher_overrides)
        summary.end()
        encoding_of_job: list[str] = []
        for encoding, own_jobs in jobs.items():
            encoding_of_job += [encoding] * len(own_jobs)
        encodings: dict[str, str] = {}
        for state in summary.states:
            if state.run is not None:
                encodings[Path(state.run).name] = encoding_of_job[state.number]
        keys = chain.from_iterable(state.keys for state in summary.states)
        return FinishedStep(sweep.name, tuple(encodings), set(map(tuple, keys)), encodings)

    def _sorted_overrides(self, sweep: Sweep) -> SortedOverrides:
        """Return the overrides that all runs of a sweep share, sorted by use."""
        return sort_by_use([*self.study.shared_overrides(sweep), *self.machine])

    def _jobs(self, sweep: Sweep, parents: Sequence[str], stored: int) -> dict[str, list[PlannedJob]]:
        """Return, by encoding, a job for each parent run of a sweep, or for each seed that is not stored.

        parents, stored: as in `_values_of_runs`.
        """
        overrides = self._sorted_overrides(sweep).job_overrides
        values_of_each = self._values_of_runs(sweep, parents, stored)
        jobs: dict[str, list[PlannedJob]] = {}
        for encoding in sweep.encodings:
            choice = overrides_in(encoding)
            for word, values in values_of_each.items():
                values["results_dir"] = str(self.results_dir)
                for job in plan_jobs(overrides, self.study.search, choice=choice, values=values):
                    words = [*job.swept]
                    if len(sweep.encodings) > 1:
                        words += choice
                    if len(values_of_each) > 1:
                        words.append(word)
                    named = replace(job, label=label_of(words, encoding))
                    jobs.setdefault(encoding, []).append(named)
        return jobs

    def _values_of_runs(self, sweep: Sweep, parents: Sequence[str], stored: int) -> dict[str, dict[str, Any]]:
        """Return the values of each run of an encoding, by the override that names the run, such as `seed=1`.

        parents: the runs of the parent sweep. stored: the number of stored seeds, which are left out.
        """
        if not sweep.parent_sweep:
            seeds = range(stored, self.study.seeds_of(sweep))
            return {f"seed={seed}": {"seed": seed} for seed in seeds}
        key = "train.from" if sweep.after else "train.beside"
        values = {}
        for parent in parents:
            seed = read_config(self.results_dir / "runs" / parent).seed
            values[f"{key}={parent}"] = {key: parent, "seed": seed}
        return values

    def _sweep_config(self, sweep: Sweep) -> Config:
        """Return the configuration of a sweep's runs, with its first encoding."""
        choice = overrides_in(sweep.encodings[0])
        return plan_job(self._sorted_overrides(sweep).job_overrides, self.study.search, choice=choice).config

    def evaluation_of(self, sweep: Sweep) -> "Evaluation":
        """Return the request to score a sweep's runs: their text, code and machine, without lengths."""
        from pe_bench.commands.evaluate import Evaluation

        study = self.study
        config = self._sweep_config(sweep)
        code = chain.from_iterable(folder.glob("encoding/*.py") for folder in study.search)
        has_own_text = study.text != STDLIB and not sweep.task
        return Evaluation(
            code=tuple(code),
            data_path=study.text if has_own_text else None,
            results_dir=self.results_dir,
            device=config.device,
            threads=config.threads,
            cache_dir=config.cache_dir,
        )

    def _score_sweep(self, scoring: ScoringStep, sweep: Sweep, trained: FinishedStep) -> FinishedStep:
        """Score the runs of a sweep once more, as `eval` does.

        The runs may come from another study or a plain `train`. Their own configuration may then differ, for
        example in `eval.max_length`, which changes the set of targets. Raises `UserError`, `RunError`.
        """
        from pe_bench.commands.evaluate import prepare
        from pe_bench.scoring.other_encodings import read_with

        study = self.study
        first_length = study.length if sweep.parent_sweep else None
        evaluation = replace(self._sweep_config(sweep).eval, first_length=first_length)
        if study.size == "quick":
            evaluation = replace(evaluation, tokens=QUICK_TOKENS)
        lengths = study.lengths(scoring.times)
        request = replace(self.evaluation_of(sweep), lengths=lengths, protocol=scoring.protocol)
        if scoring.protocol == "paired":
            request = replace(request, controls=scoring.controls)
        if scoring.scored_with:
            others = tuple(read_with(scoring.scored_with, study.search))
            request = replace(request, with_=others, config_dir=study.search)
        about = ", ".join(scoring.scored_with or [f"{scoring.protocol} windows"])
        row_keys: set[tuple[str, ...]] = set()
        runs = len(trained.runs)
        for number, run in enumerate(trained.runs, 1):
            say(f"{run}: {about} ({number} of {runs})")
            prepared = prepare(self.results_dir / "runs" / run, request, evaluation, waits=say)
            scored = prepared.score()
            if scored.failure:
                raise RunError(scored.failure)
            row_keys |= {row.key for row in scored.scored}
        return FinishedStep(sweep.name, trained.runs, row_keys)
