"""`pe-bench eval --with`: trained weights under other encodings, through the command."""

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.commands import only_run

from pe_bench.config.compose import compose_config, resolve_encodings
from pe_bench.config.groups import names_in
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.errors import UserError
from pe_bench.runs.rows import Row, read_rows
from pe_bench.scoring.other_encodings import find_others, incompatibility, read_with
from pe_bench.scoring.protocols import Plan
from pe_bench.scoring.scorer import Scored, Scorer


def rows_of(folder: Path) -> list[Row]:
    return [row for row in read_rows(only_run(folder) / "eval.csv") if row.control == "none"]


def levels(folder: Path) -> dict[tuple[str, int], float | None]:
    return {(row.scored_with, row.length): row.nll for row in rows_of(folder)}


def labels(folder: Path) -> list[str]:
    return sorted({row.scored_with for row in rows_of(folder)})


def test_a_scaling_without_a_factor_adds_one_line_that_is_tuned_to_each_length(begin, evaluate, folder):
    begin("encoding=rope")
    outcome = evaluate("--lengths", "32", "--with", "yarn", "--with", "rope_pi")
    assert outcome.code == 0, outcome.err
    assert labels(folder) == ["rope", "rope_pi factor=auto", "yarn factor=auto"]


def test_a_scaling_is_tuned_to_each_length_or_has_one_factor_in_one_table(begin, evaluate, folder):
    begin("encoding=rope")
    outcome = evaluate("--lengths", "32", "--with", "rope_pi", "--with", "rope_pi factor=fixed")
    assert outcome.code == 0, outcome.err
    assert all(f"rope -> rope_pi factor={factor}" in outcome.out for factor in ("4.0", "auto"))
    assert labels(folder) == ["rope", "rope_pi factor=4.0", "rope_pi factor=auto"]
    assert {row.encoding for row in rows_of(folder)} == {"rope"}
    assert len({row.target_hash for row in rows_of(folder)}) == 1
    assert {row.length for row in rows_of(folder) if row.scored_with != "rope"} == {16, 32}
    nll = levels(folder)
    assert nll["rope_pi factor=auto", 16] == nll["rope", 16] != nll["rope_pi factor=4.0", 16]
    assert len({nll[label, 32] for label in labels(folder)}) == 3
    before = (only_run(folder) / "eval.csv").read_text()
    evaluate("--with", "rope_pi factor=4")
    assert (only_run(folder) / "eval.csv").read_text() == before, "fixed is its number"


def test_lengths_at_which_a_scaling_changes_nothing_take_over_the_scores_of_the_run(
    begin, evaluate, folder, monkeypatch
):
    begin("encoding=rope")
    passes: list[tuple[str, int]] = []
    score = Scorer.score

    def counted(scorer: Scorer, plan: Plan) -> Scored:
        passes.append((type(scorer.model.encoding.layer(0)).__name__, plan.length))
        return score(scorer, plan)

    monkeypatch.setattr(Scorer, "score", counted)
    names = ("yarn factor=auto", "rope_dynamic_ntk", "rope_ntk factor=2", "sliding_window window=4")
    options = [word for name in names for word in ("--with", name)]
    done = evaluate("--lengths", "8,24", "--controls", "none", *options)
    assert done.code == 0, done.err
    scored = {name for name, length in passes if length < 24}
    assert scored.isdisjoint({"YaRN", "RopeDynamicNTK"}) and {"RopeNTK", "Stack"} <= scored
    nll = levels(folder)
    for length in (8, 16):
        assert nll["yarn factor=auto", length] == nll["rope_dynamic_ntk", length] == nll["rope", length]
        assert nll["rope_ntk factor=2.0", length] != nll["rope", length]
    assert len({nll[label, 24] for label in labels(folder)}) == len(labels(folder)) == 5


def test_string_shortens_distances_of_a_rope_run_within_its_training_length_too(begin, evaluate, folder):
    begin("encoding=rope")
    plain, short = "string shift_from=99 attention_factor=1.0", "string attention_factor=1.0"
    outcome = evaluate("--lengths", "8,32", "--with", plain, "--with", short, "--with", "string")
    assert outcome.code == 0, outcome.err
    nll = levels(folder)
    for length in (8, 16, 32):
        assert nll[plain, length] == pytest.approx(nll["rope", length], abs=1e-6), "no distance is so large"
        assert len({nll["rope", length], nll[short, length], nll["string", length]}) == 3


def test_scores_equal_those_of_a_run_of_that_encoding_with_the_same_weights(begin, evaluate, folder):
    begin("encoding=rope", "encoding.base=500")
    run = only_run(folder)
    evaluate("--lengths", "32", "--with", "yarn factor=4 beta_fast=16")
    mine = {row.length: row for row in rows_of(folder) if row.scored_with != row.encoding}
    assert {row.scored_with for row in mine.values()} == {"yarn factor=4.0 beta_fast=16.0 base=500.0"}
    shutil.move(run, folder / "rope")
    begin("encoding=yarn", "encoding.base=500", "encoding.factor=4", "encoding.beta_fast=16")
    other = only_run(folder)
    shutil.rmtree(other / "checkpoints")
    shutil.copytree(folder / "rope" / "checkpoints", other / "checkpoints")
    (other / "eval.csv").unlink()
    assert evaluate("--lengths", "32").code == 0
    for row in rows_of(folder):
        assert (row.nll, row.target_hash) == (mine[row.length].nll, mine[row.length].target_hash)


def labels_of(trained: list[str], *texts: str) -> list[str]:
    """Return the labels of encodings on weights of a run with these overrides."""
    lengths = ["train.length=16", "eval.max_length=64", "eval.lengths=[16,64]"]
    config = compose_config([*trained, *lengths])
    return [other.label for other in find_others(read_with(texts), "run", config)]


def test_common_options_and_what_a_fraction_means_are_those_of_training():
    for name, spelled in (("partial_rope", ""), ("p_rope", " fraction_of=frequencies")):
        trained = [f"encoding={name}", "encoding.fraction=0.5", "encoding.base=500"]
        assert labels_of(trained, "rope_pi factor=fixed", "yarn factor=2 base=100") == [
            f"rope_pi factor=4.0 base=500.0 fraction=0.5{spelled}",
            f"yarn factor=2.0 base=100.0 fraction=0.5{spelled}",
        ]


def test_the_run_s_modifiers_stay_and_others_can_be_added_to_a_scaling():
    texts = ["yarn factor=fixed", "rope_pi+temperature factor=2", "sliding_window", "+temperature"]
    own = ["rope+logn,rotary", "rope base=10000"]  # the run's own, by other spellings
    assert labels_of(["encoding=rope", "modifier=[logn]"], *texts, *own) == [
        "yarn+logn factor=4.0",
        "rope_pi+logn+temperature factor=2.0",
        "rope+logn+sliding_window",
        "rope+logn+temperature",
    ]
    assert labels_of(["encoding=learned"], "learned overflow=clamp") == ["learned overflow=clamp"]
    nested = "encoding.global={name: rope, base: 500, modifiers: {logn: {}}}"
    assert labels_of(["encoding=local_global", nested], "local_global global={name: yarn, factor: 4}") == [
        "local_global local=rope global=yarn+logn(factor=4.0 base=500.0)"
    ]
    with pytest.raises(UserError, match="global: this run was trained with rope base=500.0"):
        labels_of(["encoding=local_global", nested], "local_global global={name: rope, base: 600}")


def test_an_incompatible_encoding_is_refused_before_anything_is_written(begin, evaluate, folder):
    begin("encoding=rope")
    begin("encoding=alibi")
    runs = sorted((folder / "results" / "runs").iterdir(), reverse=True)
    before = [path for path in folder.rglob("*") if path.suffix != ".csv"]
    outcome = evaluate(*(run.name for run in runs), "--lengths", "64", "--with", "yarn")
    refusal = (
        f"--with yarn, {runs[1].name}: yarn works on weights of p_rope or partial_rope or rope, and this "
        "run used alibi (--force scores it anyway and labels the rows)"
    )
    assert outcome.code == 2 and outcome.line.startswith(f"pe-bench: {refusal}")
    after = [path for path in folder.rglob("*") if path.suffix != ".csv"]
    assert after == before, "the last run is checked before the first is scored"
    outcome = evaluate(*(run.name for run in runs), "--lengths", "32", "--with", "yarn factor=2", "--force")
    assert outcome.code == 0, outcome.err
    told = {(row.scored_with, row.forced) for run in runs for row in read_rows(run / "eval.csv")}
    assert told == {("alibi", False), ("rope", False), ("yarn factor=2.0", True), ("yarn factor=2.0", False)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("t5 --force", "weights trained with rope do not fit t5: "),
        ("alibi", "alibi works on weights of no other encoding, and this run used rope"),
        ("rope base=500", "rope base=10000.0, and base cannot change to 500.0 after training"),
        ("yran", "unknown encoding 'yran': did you mean 'yarn'?"),
        ("sliding_window windw=4", "did you mean 'encoding.modifiers.sliding_window.window'?"),
        ("yarn,rope_pi factor=4", "name encodings with commas between, or one with its options"),
        ("yarn factor=[1,", "'factor=[1,' cannot be read: put quotes around the value"),
        ("yarn factor=2,4", "factor=2,4 is several values: 'factor=[2,4]' is a list"),
        ("yarn encoding=nope", "unknown key 'encoding.encoding'"),
        ("logn+yarn", "yarn is no modifier, and only one encoding can be the base"),
    ],
)
def test_a_mistake_is_one_line_that_names_what_was_typed(text, line):
    config = compose_config(["encoding=rope"])
    force = "--force" in text
    with pytest.raises(UserError) as error:
        find_others(read_with([text.removesuffix(" --force")]), "run", config, force=force)
    assert line in str(error.value) and "\n" not in str(error.value)


OWN = """
from pe_bench.encodings.scalings.rope_pi import RopePI

class Half(RopePI):
    def __init__(self, d_head: int, train_length: int):
        super().__init__(d_head, train_length, 2.0)
"""


def test_a_custom_scaling_is_scored_from_its_folder(begin, evaluate, folder):
    own = folder / "mine" / "encoding"
    own.mkdir(parents=True)
    options = "d_head: ${model.d_head}\ntrain_length: ${train.length}\n"
    (own / "mine.yaml").write_text(f"name: mine\nclass: mine.py:Half\n{options}")
    (own / "mine.py").write_text(OWN)
    begin("encoding=rope")
    outcome = evaluate("--with", "mine", "--with", "rope_pi factor=2", "--config-dir", str(own.parent))
    assert outcome.code == 0, outcome.err
    label = next(label for label in labels(folder) if re.match("mine@.* train_length=16", label))
    nll = levels(folder)
    assert all(nll[label, length] == nll["rope_pi factor=2.0", length] for length in (16, 32))


@pytest.mark.parametrize("requested", ["rope+mylogn", "mylogn", "yarn+mylogn factor=2"])
def test_a_changed_formula_of_a_users_own_modifier_is_scored_anew(begin, evaluate, folder, requested):
    own = folder / "mine" / "modifier"
    own.mkdir(parents=True)
    begin("encoding=rope")
    options = ("--with", requested, "--config-dir", str(own.parent))
    for length in ("${quotient:${train.length},2}", "4"):
        text = f"class: pe_bench.encodings.logits.logn:LogN\ntrain_length: {length}\n"
        (own / "mylogn.yaml").write_text(f"# @package encoding.modifiers.mylogn\n{text}")
        outcome = evaluate(*options)
        assert outcome.code == 0, outcome.err
    nll = levels(folder)
    of_8, of_4 = (
        next(label for label in labels(folder) if f"mylogn.train_length={length}" in label)
        for length in (8, 4)
    )
    assert nll[of_8, 32] != nll[of_4, 32]


# The encodings that trained weights can be scored with: the catalogue's table against the classes

NAMES = names_in("encoding", [])
MODIFIERS = names_in("modifier", [])

# The catalogue's section 3, line by line: trained with, may be evaluated with.
LENGTHENED = frozenset(
    {
        *("rope_pi", "rope_ntk", "rope_dynamic_ntk", "rope_ntk_by_parts", "yarn", "llama3", "longrope"),
        "rope_clipped",
        *("rerope", "leaky_rerope", "self_extend", "dca", "lm_infinite", "streaming", "string"),
        "sliding_window",
        *("logn", "log_steps", "temperature", "nope"),
    }
)
ITSELF = ("alibi", "kerple_log", "kerple_power", "sandwich", "t5", "fire", "fox", "cope", "shaw")
WHITELIST = {
    **dict.fromkeys(("rope", "partial_rope", "p_rope"), LENGTHENED),
    "sinusoidal": {"sliding_window", "logn", "log_steps"},
    "learned": {"sliding_window"},
    "nope": {"temperature", "logn", "log_steps", "sliding_window"},
    **dict.fromkeys((*ITSELF, "transformer_xl", "deberta"), frozenset({"sliding_window", "temperature"})),
}
# With other options: ids / s, clamp and interpolate, slope_scale, random and even and arange.
CHANGES = {
    "sinusoidal": {"factor=4.0"},
    "learned": {"overflow=clamp", "overflow=interpolate"},
    "alibi": {"slope_scale=0.5"},
    "randomized": {"scored_with=arange", "scored_with=even"},
}
# Modifiers of a trained model that leave the meaning of its weights as it is; the others have made them learn
# other positions (randomized, pose, shape, cape, bipe) or have parameters of their own (ssmax).
NEUTRAL = {"logn", "log_steps", "sliding_window", "temperature"}


@cache
def shipped_encodings() -> dict[str, dict[str, Any]]:
    return resolve_encodings(NAMES, compose_config([]))


@cache
def spec(name: str, *overrides: str) -> EncodingSpec:
    if overrides:
        return EncodingSpec(compose_config([f"encoding={name}", *overrides]).encoding)
    return EncodingSpec(shipped_encodings()[name])


def scored_with(trained: EncodingSpec, name: str) -> EncodingSpec:
    """A modifier on top of what was trained, any other encoding in the place of its base."""
    kept = trained.values.get("modifiers") or {}
    if name in MODIFIERS:
        return EncodingSpec({**trained.values, "modifiers": {**kept, **spec(name).values["modifiers"]}})
    return EncodingSpec({**spec(name).values, "modifiers": kept})


def allowed(trained: str, name: str) -> bool:
    """Return whether the table above allows it; an encoding's own weights always can."""
    base, kept = spec(trained).base.name, set(spec(trained).modifiers)
    if name == spec(trained).values["name"] or name in kept:
        return True
    return name in WHITELIST.get(base, set()) and kept <= NEUTRAL


def test_compatible_encodings_are_those_of_the_catalogues_table() -> None:
    for trained in NAMES:
        before = spec(trained)
        may = {name for name in NAMES if incompatibility(before, scored_with(before, name)) is None}
        assert may == {name for name in NAMES if allowed(trained, name)}, trained


def test_only_the_options_of_the_catalogue_may_change_after_training() -> None:
    changeable = {}
    for name in NAMES:
        part = spec(name).modifiers.get(name, spec(name).base)
        changeable[name] = set(part.encoding_class.changeable_after_training)
        for override in CHANGES.get(name, ()):
            key = f"encoding.modifiers.{name}" if name in MODIFIERS else "encoding"
            assert incompatibility(spec(name), spec(name, f"{key}.{override}")) is None
    changes = {name: {override.partition("=")[0] for override in CHANGES[name]} for name in CHANGES}
    assert {name: options for name, options in changeable.items() if options} == changes


def test_an_encoding_whose_rows_would_be_called_like_the_run_s_own_is_refused(begin, evaluate, folder):
    (folder / "work" / "encoding").mkdir()
    (folder / "work" / "encoding" / "fast.yaml").write_text(
        "name: rope\nclass: pe_bench.encodings.nope:NoPE\n"
    )
    begin("encoding=rope")
    before = rows_of(folder)
    outcome = evaluate("--with", "fast", "--config-dir", ".", "--force")
    assert outcome.code == 2
    assert "its rows would be called rope like the run's own: give it another name" in outcome.line
    assert rows_of(folder) == before
