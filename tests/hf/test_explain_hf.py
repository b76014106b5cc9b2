"""`explain` of Hugging Face models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.hf_models import write_hf_model

import pe_bench
from pe_bench.commands.evaluate import Evaluation
from pe_bench.commands.explain.changes import changed_model, layer_changes
from pe_bench.commands.explain.explain import load_bench
from pe_bench.errors import UserError
from pe_bench.scoring.protocols import scores_of


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text", "mistral"])
def test_layers_below_a_change_are_computed_once_with_the_same_levels(
    architecture: str, folder: Path
) -> None:
    write_hf_model(folder / "model", architecture)
    keys = ("data=files", f"data.path={folder / 'corpus'}")
    request = Evaluation(lengths=[64], targets=6, overrides=keys, results_dir=folder / "results")
    bench = load_bench(f"hf:{folder / 'model'}", request)
    assert bench.job.model.has_parts
    plan = bench.plans[64]
    for layer in (2, 3, 1):
        for change in layer_changes(32):
            changed = changed_model(bench.subject(64), change, [layer])
            if isinstance(changed, str):
                continue
            scored = bench.score(changed, plan)
            whole = scores_of(plan, bench.job.data.validation, scored.nll).by_cluster()[1]
            assert np.array_equal(bench.levels(changed, 64), whole), change.name
    plain = bench.score(bench.job.model, plan).nll
    assert np.array_equal(bench.score(bench.job.model, plan).nll, plain)


def test_a_window_in_all_layers_of_an_hf_model_is_the_control(folder: Path) -> None:
    write_hf_model(folder / "llama", "llama")
    keys = ("data=files", f"data.path={folder / 'corpus'}")
    request = Evaluation(lengths=[64], targets=6, overrides=keys, results_dir=folder / "results")
    bench = load_bench(f"hf:{folder / 'llama'}", request)
    window = next(change for change in layer_changes(32) if change.name == "window")
    model = changed_model(bench.subject(64), window, range(4), is_all=True)
    assert not isinstance(model, str)
    plan = bench.plans[64]
    nll = bench.score(model, plan).nll
    assert np.array_equal(nll, bench.score(bench.job.model, replace(plan, limit=32)).nll)
    assert not np.array_equal(nll, bench.score(bench.job.model, plan).nll)


def test_a_scored_run_of_an_hf_model_is_refused_before_the_model_is_loaded(folder: Path) -> None:
    write_hf_model(folder / "llama", "llama")
    where: dict[str, Any] = {"results_dir": folder / "results"}
    keys = ["data=files", f"data.path={folder / 'corpus'}"]
    run = pe_bench.evaluate(
        f"hf:{folder / 'llama'}", [32], targets=4, controls="none", overrides=keys, **where
    )
    (folder / "llama").rename(folder / "gone")
    with pytest.raises(UserError, match="use pe-bench explain hf:FOLDER"):
        pe_bench.explain(run, [64], **where)
