"""`pe-bench eval --with` refuses what cannot be scored before anything is written."""

import pytest
import torch
from support.commands import only_run
from support.other_scores import encoded, hashes, labels

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("trained", "spec", "line"),
    [
        (
            "alibi",
            "yarn",
            "yarn works on weights trained with p_rope, partial_rope or rope; this run used alibi "
            "(compatible: sliding_window, temperature)",
        ),
        (
            "rope",
            "alibi",
            "alibi works on no other encoding's weights; this run used rope (compatible: dca, leaky_rerope, ",
        ),
        ("xpos", "sliding_window", "; this run used xpos (compatible: none)"),
        ("rope", "rope base=500", "rope base=10000.0, and base cannot change to 500.0 after training"),
    ],
)
def test_an_incompatible_encoding_is_refused_before_anything_is_written(
    begin, evaluate, folder, trained, spec, line
):
    begin(f"encoding={trained}")
    before = hashes(folder / "results")
    outcome = evaluate("--lengths", "64", "--with", spec)
    assert outcome.code == 2 and outcome.line.startswith(
        f"pe-bench: --with {spec}, {only_run(folder).name}: "
    )
    assert line in outcome.line and "--force scores it anyway" in outcome.line
    assert hashes(folder / "results") == before


def test_force_scores_it_and_labels_the_row(begin, evaluate, folder):
    begin("encoding=rope")
    outcome = evaluate("--with", "alibi", "--force")
    assert outcome.code == 0, outcome.err
    assert labels(folder) == ["alibi (forced)", "rope"]
    assert "rope -> alibi (forced)" in encoded(outcome)
    evaluate("--with", "yarn factor=2", "--force")
    assert "yarn factor=2.0" in labels(folder), "a compatible encoding is not labelled"


def test_weights_that_do_not_fit_are_refused_with_both_names(begin, evaluate, folder):
    begin("encoding=rope")
    before = hashes(folder / "results")
    outcome = evaluate("--lengths", "64", "--with", "t5", "--force")
    assert outcome.code == 2
    assert "weights trained with rope do not fit t5: " in outcome.line and "missing there" in outcome.line
    assert hashes(folder / "results") == before


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("yran", "--with: unknown encoding 'yran': did you mean 'yarn'?"),
        ("yarn+lgon", "--with: unknown encoding 'lgon': did you mean 'logn'?"),
        ("yarn facter=4", "unknown key 'encoding.facter': did you mean 'encoding.factor'?"),
        ("sliding_window windw=4", "did you mean 'encoding.modifiers.sliding_window.window'?"),
        ("yarn factor=0.5", "encoding.factor must be at least 1"),
        ("yarn factor=much", "encoding.factor must be a number or null, not 'much'"),
        ("rope_dynamic_ntk factor=auto", "encoding.factor must be a number, not 'auto'"),
        ("longrope", "longrope has no default factors"),
        ("yarn,rope_pi factor=4", "commas are for names without options; repeat --with for each encoding"),
        ("yarn rope_pi", "name encodings with commas between, or one with its options"),
        ("factor=4 yarn", "the name of an encoding comes first, and then factor=4"),
        ("yarn factor=4 fast", "'fast' is no option; say KEY=VALUE"),
        ("logn+yarn", "yarn is no modifier, and only one encoding can be the base"),
    ],
)
def test_a_mistake_is_one_line(begin, evaluate, folder, spec, line):
    begin("encoding=rope")
    before = hashes(folder / "results")
    outcome = evaluate("--with", spec)
    assert outcome.code == 2 and line in outcome.line
    assert hashes(folder / "results") == before


@pytest.mark.parametrize(
    ("arguments", "more"), [(["--force"], " and for --code"), (["--config-dir", "."], "")]
)
def test_an_option_that_nothing_would_read_is_refused(begin, evaluate, arguments, more):
    begin("encoding=rope")
    outcome = evaluate(*arguments)
    assert outcome.code == 2 and f"{arguments[0]} is for the encodings of --with{more}: name" in outcome.line


def test_the_last_run_is_checked_before_the_first_is_scored(begin, evaluate, folder):
    begin("encoding=rope")
    begin("encoding=alibi")
    runs = sorted((folder / "results" / "runs").iterdir(), reverse=True)
    before = hashes(folder / "results")
    outcome = evaluate(*(run.name for run in runs), "--lengths", "64", "--with", "yarn")
    assert outcome.code == 2 and runs[1].name.startswith("alibi") and runs[1].name in outcome.line
    assert hashes(folder / "results") == before
    outcome = evaluate(*(run.name for run in runs), "--lengths", "64", "--with", "sliding_window")
    assert outcome.code == 0, outcome.err
