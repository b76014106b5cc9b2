"""`pe_bench.train`, `evaluate`, `probe` and `results` do what the commands do, and raise what those print."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import yaml
from support.commands import Command, tiny_overrides

import pe_bench
from pe_bench import UserError
from pe_bench.cli.tables import tables_of_run
from pe_bench.runs.rows import COLUMNS
from pe_bench.training import trainer

OWN = """from pe_bench.encodings import LayerEncoding


class Short(LayerEncoding):
    def distance_bias(self, distance):
        assert distance.max() < 16, "beyond the training length"
        return -distance.expand(2, -1)
"""


@pytest.fixture
def made(folder: Path) -> Any:
    return pe_bench.train(*tiny_overrides(folder), encoding="rope")


def test_training_is_the_commands_and_the_run_knows_its_folder_and_its_scores(
    capsys: pytest.CaptureFixture[str], made: Any, train: Command, folder: Path
) -> None:
    printed = capsys.readouterr()
    assert printed.out == "" and "step" in printed.err, "progress is written on standard error"
    outcome = train("encoding=rope")
    assert outcome.code == 0 and "is already trained" in outcome.err
    assert [*(folder / "results" / "runs").iterdir()] == [made.path]
    assert str(made).splitlines()[:3] == outcome.out.splitlines()[:3]
    assert made.name.startswith("rope-s0-") and made.config["train"]["length"] == 16
    assert made.validation_loss > 0 and made.failure == "" and repr(made) == f"Run({str(made.path)!r})"
    scores = made.scores
    assert list(scores.columns) == list(COLUMNS) and list(scores["length"]) == [16, 32]
    numbers = ("accuracy", "exact", "chance", "depth", "nll", "peak_memory_mb")
    assert all(scores[name].dtype == float for name in numbers) and scores["accuracy"].isna().all()
    assert (scores["bits_per_byte"] > 0).all() and scores["stride"].isna().all()
    written = pandas.read_csv(folder / "results" / "results.csv")
    everything = written[written["slice"] == "all"]
    assert sorted(everything["bits_per_byte"]) == sorted(scores["bits_per_byte"])


def test_keys_may_be_named_and_grouped(folder: Path) -> None:
    run = pe_bench.train(
        *tiny_overrides(folder),
        encoding="t5",
        modifier=["logn"],
        train={"lr": np.float64(0.002), "betas": (0.8, 0.9)},
        eval={"lengths": [16, np.int64(24)]},
        seed=np.int64(3),
        **{"encoding.buckets": 8},
    )
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert config["seed"] == 3 and config["train"]["lr"] == 0.002 and config["train"]["betas"] == [0.8, 0.9]
    assert config["encoding"]["buckets"] == 8 and "logn" in config["encoding"]["modifiers"]
    assert config["eval"]["lengths"] == [16, 24]


@pytest.mark.parametrize(
    ("overrides", "keys", "message"),
    [
        (["rope"], {}, "cannot be read: write encoding=rope"),
        ([], {"encoding": ["rope", "alibi"]}, "a run has one encoding"),
        (
            [],
            {"encoding": "rope", "train": {}},
            "train is an empty dictionary, which sets nothing: leave it out",
        ),
        ([], {"encoding": "rope", "eval": {"lengths": []}}, "eval.lengths is an empty list: leave it out"),
        ([], {"encoding": "rope", "config_dir": "nowhere"}, "config-dir nowhere is not a folder"),
    ],
)
def test_a_mistake_is_a_user_error_before_anything_is_written(
    folder: Path, overrides: list[str], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as raised:
        pe_bench.train(*tiny_overrides(folder), *overrides, **keys)
    assert isinstance(raised.value, ValueError)
    assert not (folder / "results").exists()


def test_scores_at_which_a_custom_encoding_fails_are_named(folder: Path) -> None:
    own = folder / "own" / "encoding"
    own.mkdir(parents=True)
    (own / "short.py").write_text(OWN)
    (own / "short.yaml").write_text("name: short\nclass: short.py:Short\n")
    run = pe_bench.train(*tiny_overrides(folder), encoding="short", config_dir=folder / "own")
    assert list(run.scores["status"]) == ["ok", "failed"]
    assert "could not be scored at 32" in run.failure and "failure=" in repr(run)


def test_a_run_is_scored_at_other_lengths_and_under_other_encodings(made: Any, folder: Path) -> None:
    scored = pe_bench.evaluate(made, lengths=np.array([16, 48]), with_=["yarn factor=2", "rope_pi"])
    assert scored.path == made.path
    assert set(scored.scores["scored_with"]) >= {"rope", "yarn factor=2.0"}
    assert set(scored.scores["length"]) == {16, 48} and "48" in str(scored)
    gathered = pandas.read_csv(folder / "results" / "results.csv")
    assert 48 in set(gathered["length"]), "the results of the run's own folder"
    assert set(pe_bench.evaluate(made, "16,48").scores["length"]) == {16, 48}
    one = pe_bench.evaluate(made, lengths=np.int64(24), with_=None, code=None, targets=np.int64(6))
    assert 24 in set(one.scores["length"])


@pytest.mark.parametrize(
    ("lengths", "scored"),
    [
        (np.array([24, 40]), {8, 16, 24, 32, 40}),
        (np.array([24]), {8, 16, 24, 32}),
        (np.int64(24), {8, 16, 24, 32}),
        ("24, 28", {8, 16, 24, 28, 32}),
        (range(24, 32, 4), {8, 16, 24, 28, 32}),
    ],
)
def test_a_run_is_extended_at_lengths_of_numpy_and_of_text(
    made: Any, folder: Path, lengths: Any, scored: set[int]
) -> None:
    family = pe_bench.extend("rope", "2x", "yarn", lengths=lengths, results_dir=folder / "results")
    assert {length for line in family.tables[0].lines for length in line.records} == scored


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ("evaluate", {"key_tokens_of": "nobody"}, "no finished run 'nobody'"),
        ("evaluate", {"code": "nowhere.py"}, "nowhere.py is not a file"),
        ("evaluate", {"with_": "alibi", "force": "no"}, "force must be true or false, not 'no'"),
        ("evaluate", {"plain": 0}, "plain must be true or false, not 0"),
        ("evaluate", {"reference": 0}, "reference is for a Hugging Face model (hf:FOLDER): leave it out"),
        ("evaluate", {"config_dir": "nowhere"}, "--config-dir nowhere is not a folder"),
        ("evaluate", {"lengths": []}, "lengths is an empty list: leave it out, or give lengths such as"),
        ("evaluate", {"lengths": "far"}, "takes positive whole numbers such as 512,2048, not 'far'"),
        ("probe", {"lengths": np.array([])}, "lengths is an empty list: leave it out"),
        ("explain", {"by": "head,lawyer"}, "--by must be one of head, layer, not 'lawyer'"),
        ("explain", {"lengths": ()}, "lengths is an empty list: leave it out"),
        ("extend", {"lengths": []}, "lengths is an empty list: leave it out"),
        ("probe", {"force": "no"}, "force must be true or false, not 'no'"),
        ("probe", {"lengths": ["far"]}, "lengths must be a list, each item a whole number, not ['far']"),
        ("probe", {"lengths": [128, 64]}, "length 64 is too short for a probe: choose 128 tokens or more"),
        ("probe", {"plain": True}, "plain is for a Hugging Face model"),
        ("explain", {"targets": 0}, "eval.targets must be a whole number of at least 1, not 0"),
        ("results", {"margin": 3}, "must be above 0"),
        ("results", {"protocol": "slidin"}, "sliding"),
    ],
)
def test_what_cannot_work_is_a_user_error_before_anything_is_scored(
    begin: Command, folder: Path, call: str, options: dict[str, Any], message: str
) -> None:
    begin("encoding=rope")
    before = {path: path.read_bytes() for path in (folder / "results").rglob("eval.csv")}
    usual: dict[str, Any] = {}
    if call != "results":
        usual["runs" if call in ("explain", "extend") else "run"] = "rope"
        usual["lengths"] = 128 if call == "probe" else None
    with pytest.raises(UserError, match=re.escape(message)):
        getattr(pe_bench, call)(**{"results_dir": folder / "results", **usual, **options})
    assert {path: path.read_bytes() for path in (folder / "results").rglob("eval.csv")} == before


def test_a_run_is_found_from_another_working_folder_and_shown_as_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pe_bench.train(*tiny_overrides(folder), "results_dir=results", encoding="rope")
    assert repr(run) == f"Run('results/runs/{run.name}')"
    assert tables_of_run(run).runs == [Path("results/runs", run.name)], "what `train` prints"
    table = str(run)
    (folder / "work" / "sub").mkdir()
    monkeypatch.chdir("sub")
    scored = pe_bench.evaluate(run, [16, 48])
    assert set(scored.scores["length"]) == {16, 48}
    assert scored.path == run.path == folder / "work" / "results" / "runs" / run.name
    assert repr(scored) == f"Run({str(run.path)!r})" and len(run.losses) == 4
    assert str(run).splitlines()[:6] == table.splitlines()[:6]
    assert not [*(folder / "work" / "sub").iterdir()]
    monkeypatch.chdir("..")
    assert repr(run) == repr(pe_bench.evaluate(run, 48)) == f"Run('results/runs/{run.name}')"


def test_results_and_stretching_find_the_folder_of_a_run_from_another_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pe_bench.train(*tiny_overrides(folder), "results_dir=results", encoding="rope")
    before = pe_bench.results(runs=run)
    (folder / "work" / "sub").mkdir()
    monkeypatch.chdir("sub")
    for runs in (run, [run], (each for each in [run])):
        assert pe_bench.results(runs=runs).equals(before)
    family = pe_bench.extend(run, "2x", "yarn")
    assert [path.resolve() for path in family.runs] == [run.path]
    assert not [*(folder / "work" / "sub").iterdir()]


def test_columns_of_numbers_are_numbers_where_no_line_has_one(made: Any, folder: Path) -> None:
    frame = pe_bench.results(made.path.parent.parent)
    assert frame["difference"].isna().all()
    for name in frame.columns[frame.isna().all()]:
        assert str(frame[name].dtype) in ("float64", "Int64"), name


def test_a_run_is_probed_as_the_command_does(made: Any, folder: Path, command: Command) -> None:
    probed = pe_bench.probe(made, 128, "rope_pi factor=8", depths=np.int64(2), windows=6)
    assert probed.path == made.path
    assert set(probed.scores["scored_with"]) == {"rope", "rope_pi factor=8.0"}
    assert {*zip(probed.scores["depth"], probed.scores["control"], strict=True)} == {
        (depth, control) for depth in (0.0, 1.0) for control in ("none", "replaced")
    }
    small = ("--lengths", "128", "--depths", "2", "--windows", "6", "--with", "rope_pi factor=8")
    outcome = command("probe", *small, "--results-dir", "../results")
    assert outcome.code == 0 and "scored" not in outcome.err, "nothing is scored again"
    table = str(probed).rstrip("\n")
    assert "without  verdict" in table and outcome.out.startswith(table)


def test_results_are_the_numbers_of_the_report(made: Any, command: Command, folder: Path) -> None:
    pe_bench.train(*tiny_overrides(folder), encoding="alibi")
    frame = pe_bench.results(folder / "results", baseline="rope")
    outcome = command("report", "--all", "--baseline", "rope", "--csv", "-", "--results-dir", "../results")
    assert frame.to_csv(index=False, lineterminator="\n") == outcome.out
    assert {"rope", "alibi"} <= set(frame["encoding"])
    only = pe_bench.results(folder / "results", "alibi", where="length=32")
    assert set(only[~only["anchor"]]["encoding"]) == {"alibi"} and set(only["length"]) == {32}
    assert pe_bench.results(folder / "results", None, where=None, baseline="rope").equals(frame)


def test_explain_reads_names_and_lengths_from_a_text(made: Any) -> None:
    from_text = pe_bench.explain(made, "32,48", "head,layer", targets=2)
    assert from_text.lengths == (32, 48) and from_text.measures
    from_lists = pe_bench.explain(made, [32, 48], ["head", "layer"], targets=2)
    assert from_text.measures == from_lists.measures and from_text.effects == from_lists.effects


def test_calls_for_several_runs_take_runs_and_paths(made: Any, folder: Path) -> None:
    other = pe_bench.train(*tiny_overrides(folder), encoding="rope", seed=1)
    where = {"results_dir": folder / "results"}
    for runs in (made, made.path, [made], [made.path]):
        frame = pe_bench.results(runs=runs, **where)
        assert set(frame[~frame["anchor"]]["seeds"]) == {1}
    for runs in ([made, other], [made.path, other.path]):
        frame = pe_bench.results(runs=runs, **where)
        assert set(frame[~frame["anchor"]]["seeds"]) == {2}
    found = pe_bench.explain([made, other], 32, targets=2)
    assert [path.name for path in found.runs] == [made.name, other.name]
    assert pe_bench.extend(made, "2x", "yarn", **where).runs == [made.path]
    assert pe_bench.extend([made, other], "2x", "yarn", **where).runs == [made.path, other.path]
    assert pe_bench.import_runs(made, folder / "elsewhere").copied == [made.name]
    assert pe_bench.import_runs([made, other], folder / "elsewhere").copied == [other.name]


def test_an_interrupt_saves_the_step_and_the_same_call_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take_step, steps = trainer.Trainer.step, list[int]()

    def interrupted(self: Any, *arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(self, *arguments)

    monkeypatch.setattr(trainer.Trainer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 3 of 8, which is saved"):
        pe_bench.train(*tiny_overrides(folder), encoding="nope")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run = pe_bench.train(*tiny_overrides(folder), encoding="nope")
    assert len(steps) == 8 and "continues from step 3" in capsys.readouterr().err
    assert list(run.scores["status"]) == ["ok", "ok"]


def test_a_run_imports_neither_pytorchs_compiler_nor_sympy_which_are_slow_to_import(folder):
    program = "import sys; from pe_bench.cli.program import run; run(sys.argv[1:]); "
    program += "print({'torch._dynamo', 'sympy'} & {*sys.modules})"
    words = [sys.executable, "-c", program, "train", *tiny_overrides(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.endswith("\nset()\n"), done.stdout + done.stderr


def test_the_package_is_imported_in_no_time_and_offers_its_calls() -> None:
    heavy = "{'torch', 'pandas', 'hydra', 'typer'} & set(sys.modules)"
    code = f"import sys, pe_bench; print({heavy}, dir(pe_bench))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("set() ")
    assert all(name in done.stdout for name in pe_bench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = pe_bench.trian  # type: ignore[attr-defined]


WRONG_TYPES = [
    *("train(5)", "train(**{'train.steps': {}})", "train(train={'lr': {}})", "train(config_dir=5)"),
    *("evaluate(5)", "evaluate(None)", "evaluate('x', results_dir=None)", "probe(['x'])", "results(where=5)"),
    *("results(by=5)", "results(results_dir=5)", "results(margin='x')", "results(['rope', 5])"),
    *("extend(5)", "extend('x', tokens=0)", "extend('x', tokens='many')", "extend('x', with_=5)"),
    *("extend('x', overrides=5)", "extend('x', long='no')", "extend('x', results_dir=None)"),
    *("try_change(5)", "try_change('alibi', 5)", "try_change('alibi', lengths=[])", "import_runs(None)"),
    *("try_change('alibi', lengths=['a'])", "try_change('alibi', minutes='x')", "import_runs(['x', 5])"),
    *("try_change('alibi', against=None)", "try_change('alibi', confirm='no')", "import_runs(5)"),
    *(
        r"train(data={'source': 'files', 'path': 'caf\udce9'})",
        r"train('data=files', 'data.path=\"\udce9\"')",
    ),
    *("try_change('alibi', config_dir=['nowhere'])", "try_change('alibi', config_dir=5)"),
    *("try_change('alibi', results_dir=None)", "import_runs('x', results_dir=5)", "import_runs([])"),
]


@pytest.mark.parametrize("call", WRONG_TYPES)
def test_a_value_of_another_type_is_one_line_and_nothing_is_written(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pe_bench.UserError) as error:
        eval(f"pe_bench.{call}")
    assert len(str(error.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [pe_bench.explain, pe_bench.extend])
def test_an_empty_list_of_runs_is_a_user_error(call: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run is named: give seeds of one encoding"):
        call([], results_dir=tmp_path)
