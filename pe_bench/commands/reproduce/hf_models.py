"""The sweeps of a study that score a Hugging Face model under several encodings, and train nothing."""

from collections.abc import Sequence
from pathlib import Path

from pe_bench.commands.reproduce.study import FinishedStep, Study, Sweep
from pe_bench.errors import RunError, require
from pe_bench.system.terminal import say


def require_hf_models(study: Study, models: Path | None) -> None:
    """Raise `UserError` where the folder `models` lacks a Hugging Face model of the study.

    The error says how to get the model. A folder is an error too if the study has no such model.
    """
    sweeps = [sweep for sweep in study.sweeps if sweep.hf_model]
    require(
        bool(sweeps) or models is None,
        f"--models has no effect on {study.name}, which has no Hugging Face models",
    )
    for sweep in sweeps:
        way_out = f"get it with `{sweep.get}`, where MODELS is that folder" if sweep.get else "put it there"
        needs = f"{study.name} needs the Hugging Face model {sweep.hf_model}"
        require(models is not None, f"{needs} in a folder that --models names: {way_out}")
        assert models is not None
        is_there = (models / sweep.hf_model).is_dir()
        require(is_there, f"{needs}, and {models / sweep.hf_model} is no folder: {way_out}")


def score_hf_model(
    study: Study,
    sweep: Sweep,
    scored_with: Sequence[str],
    machine: Sequence[str],
    models: Path,
    results_dir: Path,
) -> FinishedStep:
    """Score a sweep's Hugging Face model as it is and under other encodings; finished work is reused.

    Changes are measured from the study's length, which may be below the model's training length. Returns the
    step with the run and its rows.

    machine: overrides that change no result. models: the folder that has the model's folder. Raises
    `RunError` where a score fails.
    """
    from pe_bench.commands.evaluate import Evaluation, prepare
    from pe_bench.scoring.other_encodings import read_with

    request = Evaluation(
        with_=tuple(read_with(scored_with, study.search)),
        config_dir=study.search if scored_with else (),
        results_dir=results_dir,
        reference=study.length,
        overrides=(*study.shared_overrides(sweep), *machine),
    )
    say(f"{study.name} {sweep.hf_model}: {', '.join(scored_with) or 'unchanged'}")
    scored = prepare(f"hf:{models / sweep.hf_model}", request, waits=say).score()
    if scored.failure:
        raise RunError(scored.failure)
    return FinishedStep(sweep.name, (scored.path.name,), {row.key for row in scored.scored})
