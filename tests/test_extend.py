"""`extend`: a family of runs from one command, in one table and one picture."""

from pathlib import Path

import pytest
from support.commands import Command

import pe_bench
from pe_bench.errors import UserError
from pe_bench.runs.folder import read_config
from pe_bench.runs.rows import read_rows

SEEDS = ("seed=0", "seed=1")
SCORED = ("eval.lengths=null", "eval.max_length=256")


def extended(command: Command, folder: Path, *arguments: str):
    return command("extend", "rope", "threads=1", *arguments, "--results-dir", str(folder / "results"))


def test_a_family_is_scored_tuned_and_trained_from_the_start_and_all_of_it_is_reused(
    train: Command, command: Command, folder: Path
) -> None:
    for seed in SEEDS:
        assert train("encoding=rope", seed, *SCORED).code == 0
    arguments = ("--to", "2x", "--with", "yarn,nope", "--with", "rope base=500", "--tokens", "256", "--long")
    outcome = extended(command, folder, *arguments)
    assert outcome.code == 0, outcome.err
    runs = sorted((folder / "results" / "runs").iterdir())
    assert len(runs) == 10
    [table] = pe_bench.extend("rope", "2x", results_dir=folder / "results").tables
    assert all(line.seeds == 2 for line in table.lines)
    family = pe_bench.extend(
        "rope",
        "2x",
        ["yarn,nope", "rope base=500"],
        tokens=256,
        long=True,
        overrides="threads=1",
        results_dir=folder / "results",
    )
    assert sorted(runs) == sorted((folder / "results" / "runs").iterdir()), "nothing was trained again"
    [table] = family.tables
    assert {line.label: (line.seeds, line.longest) for line in table.lines} == {
        "rope": (2, 0),
        "rope -> yarn factor=2.0": (2, 0),
        "rope -> nope": (2, 0),
        "rope -> rope base=500.0 (forced)": (2, 0),
        "rope -> rope_ntk factor=2.0": (2, 0),
        "rope -> rope_pi factor=2.0": (2, 0),
        "rope, then yarn x2 at 32 (256)": (2, 32),
        "rope, then nope at 32 (256)": (2, 32),
        "rope, then rope base=500.0 at 32 (256)": (2, 32),
        "rope, trained at 32 (768)": (2, 32),
    }
    rows = [row for run in runs for row in read_rows(run / "eval.csv")]
    assert len({row.target_hash for row in rows}) == 1, "all lines are of the same targets"
    for run in runs:
        config = read_config(run)
        assert config.seed == int(run.name.split("-s")[1][0])
        source = config.train.from_run or config.train.beside
        assert source is None or f"-s{config.seed}-" in source
    family.plot(folder / "family.png")
    assert (folder / "family.png").stat().st_size > 1_000 and (folder / "results" / "extend.png").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--to", "far"), "--to far is no length"),
        (("--to", "1x"), "--to 1x is not longer"),
        (("--to", "16"), "--to 16 is not longer than train.length=16"),
        (("--long",), "give --tokens"),
        (("--with", "yarn nothing=1"), "nothing"),
        (("--with", "t5"), "do not fit t5"),
        (("train.lenght=3",), "unknown key 'train.lenght': did you mean 'train.length'?"),
        (("train.lenght=3", "--tokens", "256"), "unknown key 'train.lenght'"),
        (("train.lr=0.1",), "train.lr=0.1 is for further training, and without --tokens there is none"),
    ],
)
def test_what_cannot_be_extended_is_refused(
    begin: Command, command: Command, folder: Path, arguments: tuple[str, ...], told: str
) -> None:
    assert begin("encoding=rope").code == 0
    outcome = extended(command, folder, *arguments)
    assert outcome.code == 2 and told in outcome.line, outcome.err
    with pytest.raises(UserError, match="a checkpoint of Hugging Face is scored alone"):
        pe_bench.extend("hf:x", tokens=5)


def test_longrope_s_factors_are_searched_and_none_does_better_that_was_tried(
    begin: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pe_bench.scoring import stages

    monkeypatch.setattr(stages, "ROUNDS", 4)
    assert begin("encoding=rope", *SCORED).code == 0
    family = pe_bench.extend("rope", "2x", "longrope", results_dir=folder / "results")
    [table] = family.tables
    [label] = [line.label for line in table.lines if line.label != "rope"]
    assert label.startswith("rope -> longrope factor=2.0 long_factors=[")
    again = pe_bench.extend("rope", "2x", "longrope", results_dir=folder / "results")
    assert [line.label for line in again.tables[0].lines] == [line.label for line in table.lines]
