"""Commands as a person types them: what they print, their exit codes, and mistakes."""

import json
import os
import re
import subprocess
import sys

import pytest
from support.commands import files_in, only_run, tiny_overrides, write_corpus

from pe_bench.runs.rows import read_rows


def test_training_prints_the_table_and_says_where_things_are(train, folder):
    outcome = train("encoding=alibi")
    assert outcome.code == 0, outcome.err
    assert "alibi" in outcome.out and "bits per byte" in outcome.out
    assert str(only_run(folder)) in outcome.err
    assert "step 8 of 8" in outcome.err and "tokens/s" in outcome.err


def test_training_leaves_a_run_with_all_its_files_and_nothing_in_the_current_folder(train, folder):
    train("encoding=rope")
    assert files_in(only_run(folder)) == [
        "checkpoints/step-00000006/meta.json",
        "checkpoints/step-00000006/optimizer.safetensors",
        "checkpoints/step-00000006/weights.safetensors",
        "checkpoints/step-00000008/meta.json",
        "checkpoints/step-00000008/optimizer.safetensors",
        "checkpoints/step-00000008/weights.safetensors",
        "commands.json",
        "config.yaml",
        "environment.json",
        "eval.csv",
        "lock",
        "result.json",
        *sorted(path for path in files_in(only_run(folder)) if path.startswith("scores/")),
        "train.csv",
    ]
    assert len(files_in(only_run(folder) / "scores")) == 2
    assert files_in(folder / "work") == []


def test_repeating_a_command_does_nothing_again(train, folder):
    first = train("encoding=rope")
    run = only_run(folder)
    before = {path: (run / path).stat().st_mtime_ns for path in files_in(run)}
    again = train("encoding=rope")
    assert "is already trained" in again.err
    assert again.out == first.out
    assert {path: (run / path).stat().st_mtime_ns for path in files_in(run)} == before


def test_repeating_with_more_lengths_scores_only_those(train, folder):
    train("encoding=rope")
    run = only_run(folder)
    scores = {path: (run / "scores" / path).stat().st_mtime_ns for path in files_in(run / "scores")}
    outcome = train("encoding=rope", "eval.lengths=[16,32,64]")
    assert outcome.code == 0 and "64" in outcome.out
    assert [row.length for row in read_rows(run / "eval.csv")] == [16, 32, 64]
    assert {path: (run / "scores" / path).stat().st_mtime_ns for path in scores} == scores


def test_arguments_are_taken_in_any_order(train, folder):
    train("encoding=rope", "seed=3")
    assert train("--config-dir", str(folder), "seed=3", "encoding=rope").code == 0
    assert only_run(folder).name.startswith("rope-s3-")


def test_a_sweep_makes_every_run_and_prints_each_table(train, folder):
    outcome = train("-m", "encoding=rope,nope", "seed=0,1")
    assert outcome.code == 0, outcome.err
    names = sorted(path.name.rsplit("-", 1)[0] for path in (folder / "results" / "runs").iterdir())
    assert names == ["nope-s0", "nope-s1", "rope-s0", "rope-s1"]
    assert outcome.out.count("works to") == 1, "one table of all"
    assert sorted(re.findall("^(?:rope|nope)(?= )", outcome.out, re.MULTILINE)) == ["nope", "rope"]
    assert len(read_rows(folder / "results" / "results.csv")) == 8
    assert outcome.err.startswith("sweep: checking every value before the first job starts\n")


def test_a_failing_job_does_not_stop_a_sweep_and_is_told_in_one_line(train, folder):
    outcome = train("-m", "encoding=rope", "train.lr=1e30,3e-3")
    assert outcome.code == 1
    assert "not finite" in outcome.err
    assert "2 jobs: 1 done, 1 failed" in outcome.err
    assert (
        "pe-bench: the sweep is not done; fix what failed, then the same command does what is missing"
        in outcome.line
    )
    assert "  failed: train.lr=1e+30: " in outcome.err, "a job is named by what is swept over alone"
    assert len(list((folder / "results" / "runs").glob("*/result.json"))) == 1


def test_eval_takes_the_newest_finished_run_and_says_which(train, command, folder):
    train("encoding=nope")
    train("encoding=rope")
    results = ["--results-dir", str(folder / "results")]
    outcome = command("eval", "--lengths", "32,64", *results)
    assert outcome.code == 0, outcome.err
    assert "the newest finished run" in outcome.err and "rope-s0" in outcome.err
    assert {row.length for row in read_rows(folder / "results" / "results.csv")} == {16, 32, 64}


@pytest.mark.parametrize("protocol", ["paired", "nonoverlapping", "sliding"])
def test_eval_scores_under_each_protocol(begin, command, folder, protocol):
    begin("encoding=alibi")
    arguments = ["--lengths", "32,64", "--protocol", protocol, "--results-dir", str(folder / "results")]
    outcome = command("eval", only_run(folder).name, *arguments)
    assert outcome.code == 0, outcome.err
    said = "change against 16" if protocol == "paired" else f"{protocol} protocol"
    assert said in outcome.out
    rows = [row for row in read_rows(only_run(folder) / "eval.csv") if row.protocol == protocol]
    assert [row.length for row in rows] == [16, 32, 64]


def test_eval_options_change_what_is_scored(begin, command, folder):
    begin("encoding=alibi")
    results = ["--results-dir", str(folder / "results")]

    def rows(*arguments: str):
        assert command("eval", "--lengths", "32", *arguments, *results).code == 0
        return {row.key: row for row in read_rows(only_run(folder) / "eval.csv")}

    before = rows().keys()
    for arguments in (["--targets", "3"], ["--max-length", "48"], ["--protocol", "sliding"]):
        after = rows(*arguments).keys()
        assert len(after) > len(before), arguments
        before = after
    strided = rows("--protocol", "sliding", "--stride", "4")
    assert strided.keys() > before, "rows of two strides stand beside each other"
    outcome = command("eval", "--stride", "4", *results)
    assert (
        outcome.code == 2
        and "--stride has no effect with --protocol paired: remove it, or say --protocol sliding"
        in outcome.line
    )
    outcome = command("eval", "--targets", "4", "--protocol", "nonoverlapping", *results)
    assert (
        outcome.code == 2
        and "--targets has no effect with --protocol nonoverlapping: remove it, or say --protocol paired"
        in outcome.line
    )


def test_an_argument_that_nothing_would_obey_is_refused_before_anything_is_written(train, folder):
    for arguments in (["eval.stride=4"], ["-m", "eval.stride=4,8"], ["-m", "eval.stride=4", "seed=0,1"]):
        outcome = train("encoding=nope", *arguments)
        assert outcome.code == 2 and "eval.stride=4 has no effect with eval.protocol=paired" in outcome.line
    assert not (folder / "results").exists()


def test_a_run_is_scored_under_another_protocol_than_the_one_its_arguments_were_for(train, command, folder):
    assert train("encoding=nope", "eval.targets=192", "eval.protocol=sliding", "eval.stride=4").code == 0
    outcome = command(
        "eval", "--protocol", "paired", "--targets", "4", "--results-dir", str(folder / "results")
    )
    assert outcome.code == 0, outcome.err
    assert {row.protocol for row in read_rows(only_run(folder) / "eval.csv")} == {"paired", "sliding"}


def test_learned_past_its_table_is_undefined_and_the_run_goes_on(train, folder):
    outcome = train("encoding=learned", "eval.lengths=[16,32,64]")
    assert outcome.code == 0
    rows = {row.length: row for row in read_rows(only_run(folder) / "eval.csv")}
    assert [rows[length].status for length in (16, 32, 64)] == ["ok", "undefined", "undefined"]
    assert rows[32].bits_per_byte is None and "max_position=16" in rows[32].reason
    assert re.search(r"^learned +[\d.]+ +- +- +not at all", outcome.out, re.MULTILINE)


def test_report_shows_all_runs_and_writes_every_format(begin, command, folder):
    for arguments in (("encoding=rope",), ("encoding=nope",), ("encoding=rope", "seed=1")):
        begin(*arguments)
    results = ["--results-dir", str(folder / "results")]
    files = {"--csv": "a.csv", "--markdown": "a.md", "--plot": "a.png"}
    outcome = command("report", *results, *(argument for pair in files.items() for argument in pair))
    assert outcome.code == 0, outcome.err
    assert "rope" in outcome.out and "nope" in outcome.out
    work = folder / "work"
    header, *lines = (work / "a.csv").read_text().splitlines()
    assert "encoding" in header.split(",") and {"rope", "nope"} <= {
        w for line in lines for w in line.split(",")
    }
    assert (work / "a.md").read_text().count("|") > 10
    assert (work / "a.png").read_bytes().startswith(b"\x89PNG")
    assert command("report", "--markdown", "-", *results).out.count("|") > 10


def test_lists_name_what_there_is(begin, command, folder):
    begin("encoding=rope")
    assert "stick_breaking" in command("list", "encodings").out
    assert "gpt2" in command("list", "models").out
    assert "wikitext103" in command("list", "data").out
    outcome = command("list", "runs", "--results-dir", str(folder / "results"))
    assert only_run(folder).name in outcome.out and "finished" in outcome.out


def test_the_version_is_the_packages(command):
    from importlib.metadata import version

    assert command("--version").out.strip() == f"pe-bench {version('pe-bench')}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train", "encoding=ropee"], "unknown encoding 'ropee': did you mean 'rope'?"),
        (["train", "modifier=[lgn]"], "unknown modifier 'lgn': did you mean 'logn'?"),
        (["train", "trian.lr=3"], "unknown key 'trian.lr': did you mean 'train.lr'?"),
        (["train", "train.leng=3"], "unknown key 'train.leng': did you mean 'train.length'?"),
        (["train", "encoding=rope", "encoding.bse=3"], "did you mean 'encoding.base'?"),
        (["train", "+foo=3"], "unknown key 'foo'"),
        (["train", "++encoding.foo=3"], "unknown option 'encoding.foo'"),
        (["train", "--multirum", "seed=1"], "unknown option '--multirum': did you mean '--multirun'?"),
        (["train", "train.lr=abc"], "train.lr must be a number, not 'abc'"),
        (["train", "encoding.base=abc"], "encoding.base must be a number, not 'abc'"),
        (["train", "encoding.layout=thirds"], "encoding.layout must be one of half, interleaved"),
        (["train", "model.d_model=130"], "model.d_model=130 is not divisible by model.n_heads=4"),
        (["train", "model.n_heads=abc"], "model.n_heads=abc must be positive whole numbers"),
        (["train", "model.d_model=20", "model.n_heads=4"], "model.d_head=5 is odd"),
        (["train", "eval.lengths=[0,512]"], "positive whole numbers, and 0 is not"),
        (["train", "eval.lengths=[1.5]"], "eval.lengths must be"),
        (["train", "eval.lengths=512,2048"], "'eval.lengths=[512,2048]' is a list"),
        (["train", "eval.lengths=[100000000]"], "has the 100000000 tokens that are needed: the longest has"),
        (["train", "train.steps=3", "train.tokens=9"], "give one of them"),
        (["train", "encoding=[rope,alibi]"], "a run has one encoding"),
        (["train", "encoding=rope,alibi"], "is several values: -m encoding=rope,alibi makes a run for each"),
        (["train", "encoding=null"], "unknown encoding 'null': there are: alibi"),
        (["train", "-m", "encoding=rope,3"], "unknown encoding '3': there are: alibi"),
        (["train", "modifier=null"], "modifier=[] for none"),
        (["train", "data={a:b}"], "data={a:b} is not a name: say data=NAME"),
        (
            ["train", "encoding.name=null"],
            "encoding.name must be letters, digits and the signs . + - _, not null",
        ),
        (["train", "encoding.name=../../../esc"], "and the signs . + - _, not '../../../esc'"),
        (["train", "encoding.class=null"], "encoding.class must be text such as module:Class"),
        (["train", "train=3"], "train is a group of keys and cannot be 3: say train.length=VALUE"),
        (["train", "=3"], "'=3' cannot be read: say KEY=VALUE"),
        (["train", "é=3"], "'é=3' cannot be read: say KEY=VALUE"),
        (["train", " "], "' ' cannot be read: say KEY=VALUE"),
        (
            ["train", "seed=٣"],
            """'seed=٣' cannot be read: say KEY=VALUE with quotes around the value, such as 'seed="٣"'""",
        ),
        (["train", "results_dir=~/x"], """such as 'results_dir="~/x"'"""),
        (["train", "results_dir="], "results_dir is empty"),
        (["train", "data=files", "data.path=x", "data.validation_path="], "data.validation_path is empty"),
        (["train", "train.lr=1" + "0" * 400], "train.lr must be a number, not 1000"),
        (["train", "threads=100000000000"], "up to 1024, not 100000000000"),
        (["train", "encoding"], "'encoding' has no value: say encoding=NAME, such as encoding=rope"),
        (["train", "encoding="], "'encoding=' has no value: say encoding=NAME"),
        (["train", "rope"], "'rope' cannot be read: say encoding=rope"),
        (["train", "small"], "say model=small"),
        (["train", "train.dtype=fp16"], "unknown key 'train.dtype': did you mean 'precision'?"),
        (
            ["train", "encoding=alibi", "encoding.base=500"],
            "unknown key 'encoding.base': alibi has encoding.slope_scale",
        ),
        (["train", "encoding=nope", "encoding.base=500"], "unknown key 'encoding.base': nope has no options"),
        (["train", "--resume"], "--resume is no option of train: not needed: the same command continues"),
        (["train", "--dry-run", "seed=1"], "--cfg job prints every key and trains nothing"),
        (["report", "--json"], "unknown option '--json': there are: --all, --baseline, --by"),
        (["train", "-sc"], "unknown option '-s'"),
        (["train", "--experimental-rerun", "x"], "unknown option '--experimental-rerun'"),
        (["train", "--cfg=jobb"], "--cfg prints one of job, hydra, all, not 'jobb'"),
        (["train", "--multirun=3"], "'--multirun' does not take a value"),
        (["train", "--cfg", "job", "-m"], "-m and --cfg exclude each other"),
        (["train", "--resolve"], "--resolve works only with --cfg: add --cfg job"),
        (["train", "-m", "encoding=glob(z*)"], "encoding=glob(z*) gives no values: name at least one"),
        (["train", "-m", "seed=0,1", "encoding.foo=3"], "unknown key 'encoding.foo'"),
        (
            ["train", "-m", "encoding=rope,", "alibi"],
            "'encoding=rope, alibi': no space is allowed after the comma",
        ),
        (
            ["train", "-m", "seed=0,1", "hydra.launcher.n_jobs=2"],
            "hydra.launcher.n_jobs is not an option of the basic launcher: name the launcher it belongs to",
        ),
        (
            ["train", "-m", "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_job=2"],
            "unknown key 'hydra.launcher.n_job': did you mean 'hydra.launcher.n_jobs'?",
        ),
        (
            ["train", "-m", "encoding=rope,alibi", "data=files", "data.path=/nowhere"],
            "data.path=/nowhere does not exist",
        ),
        (["train", "-m", "seed=0,1", "results_dir=/dev/null/x"], "/dev/null is not a folder"),
        (["train", "results_dir=/dev/null"], "results_dir=/dev/null: /dev/null is not a folder"),
        (["train", "-m", "seed=0,1", "results_dir=/proc/nobody"], "/proc/nobody/sweeps"),
        (["report", "--results-dir", "/dev/null/x"], "--results-dir=/dev/null/x: /dev/null is not a folder"),
        (["report", "--results-dir", ""], "--results-dir is empty: name a folder"),
        (["train", "--cfg", "jobb"], "--cfg prints one of job, hydra, all, not 'jobb'"),
        (
            ["train", "--info", "nothing"],
            "--info prints one of all, config, defaults, defaults-tree, plugins,",
        ),
        (
            ["train", "encoding=my.py:Mine"],
            "name it in a file FOLDER/encoding/NAME.yaml with 'class: my.py:Mine'",
        ),
        (["train", "--config-dir"], "'--config-dir' requires an argument"),
        (["train", "--config-dir", "/nowhere"], "--config-dir /nowhere is not a folder"),
        (["train", "-m", "encoding=rope,alibii"], "unknown encoding 'alibii': did you mean 'alibi'?"),
        (["train", "-m", "encoding=rope,alibi", "train.lr=abc"], "train.lr must be a number"),
        (["train", "train.from=elsewhere"], "no run 'elsewhere'"),
        (["train", "encoding=stick_breaking", "modifier=[x]"], "unknown modifier 'x'"),
        (["train", "data=files", "data.path=/nowhere"], "data.path=/nowhere does not exist"),
        (["train", "data=files"], "say data.path=DIR"),
        (["train", "data=pg19"], "data=stdlib"),
        (["train", "tokenizer=hub", "tokenizer.name=gpt2"], "tokenizer=b"),
        (["eval"], "no finished run"),
        (["eval", "nothing"], "no run 'nothing'"),
        (["eval", "--lenghts", "512"], "unknown option '--lenghts': did you mean '--lengths'?"),
        (["eval", "--lengths", "5x"], "positive whole numbers, and '5x' is not one"),
        (["eval", "--lengths", "-3"], "positive whole numbers, and '-3' is not one"),
        (["eval", "--targets", "many"], "'many' is not a positive whole number"),
        (["report"], "no scored run"),
        (["report", "--protocol", "pared"], "--protocol must be one of paired"),
        (["list", "encoding"], "unknown list 'encoding': did you mean 'encodings'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2_and_nothing_is_written(command, folder, arguments, message):
    outcome = command(*arguments)
    assert outcome.code == 2, outcome.err
    assert message in outcome.line
    assert "Traceback" not in outcome.err
    assert files_in(folder / "work") == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("report results_dir=X", "--results-dir X"),
        ("list runs results_dir=X", "--results-dir X"),
        ("list family=rotary", "--family rotary"),
        ("eval threads=2 eval.lengths=64", "--threads 2 --lengths 64"),
        ("eval per_position=true", "--per-position"),
        ("eval data.path=X", "--data-path X"),
        ("show rope plot=X.png", "--plot X.png"),
        ("speed nope lengths=16", "--lengths 16"),
        ("train config_dir=X", "--config-dir X"),
        ("report seed=0,1", "--where seed=0,1"),
        ("train --results-dir X", "results_dir=X"),
        ("train --results_dir=X --seed 3 encoding=rope", "results_dir=X seed=3"),
        ("train --lr", "train.lr=VALUE"),
        ("train --base 500 --train.steps 3", "encoding.base=500 train.steps=3"),
        ("speed --threads 2", "threads=2"),
        ("check rope --base 500", "encoding.base=500"),
    ],
)
def test_an_argument_in_the_spelling_of_another_command_is_told_in_that_of_this_one(
    command, folder, typed, meant
):
    outcome = command(*typed.split())
    assert outcome.code == 2 and outcome.line.endswith(f": say {meant}"), outcome.err
    assert files_in(folder / "work") == []


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("speed --length 512", "unknown option '--length': did you mean '--lengths'?"),
        ("train --sede 3", "unknown option '--sede': did you mean seed=3?"),
        ("train --lenght=64", "unknown option '--lenght': did you mean train.length=64?"),
        ("train lenght=64", "unknown key 'lenght': did you mean 'train.length'?"),
        ("train lerning_rate=0.1", "unknown key 'lerning_rate': did you mean 'train.lr'?"),
        ("train encoding=my.py", "'class: my.py:CLASS', and say encoding=NAME --config-dir FOLDER"),
        ("report --margin abc", "'abc' is not a number"),
        ("train --multirn", "unknown option '--multirn': did you mean '--multirun'?"),
        ("eval --encoding rope", "unknown option '--encoding': there are: "),
        ("show rope threads=1 factor=2", "unknown key 'encoding.factor': did you mean"),
        ("eval elsewhere threads=2", "no run 'elsewhere'"),
        ("elsewhere --seed 3", "No such command 'elsewhere'"),
    ],
)
def test_another_mistake_is_told_as_it_is(command, folder, typed, told):
    outcome = command(*typed.split())
    assert outcome.code == 2 and told in outcome.line, outcome.err


@pytest.mark.parametrize("arguments", [[], ["-m", "seed=0,1"]])
def test_a_folder_of_results_that_cannot_be_written_is_refused_with_a_way_out(
    train, folder, monkeypatch, arguments
):
    monkeypatch.setattr("pe_bench.config.checks.os.access", lambda path, mode: path != folder)
    outcome = train(*arguments, f"results_dir={folder / 'r'}")
    way_out = "say results_dir=FOLDER with one that can, or change its permissions"
    assert outcome.line == f"pe-bench: results_dir={folder / 'r'}: {folder} cannot be written: {way_out}"
    assert outcome.code == 2 and not (folder / "r").exists()


@pytest.mark.parametrize("content", [b"", b"\x00\x01\xff\xfe" * 40])
def test_empty_and_binary_data_are_refused_with_their_path(command, folder, content):
    (folder / "bad.txt").write_bytes(content)
    outcome = command("train", "data=files", f"data.path={folder / 'bad.txt'}")
    assert outcome.code == 2 and "bad.txt" in outcome.line
    assert files_in(folder / "work") == []


def test_an_unfinished_and_a_damaged_run_are_refused_by_name(begin, command, folder):
    begin("encoding=rope")
    run = only_run(folder)
    results = ["--results-dir", str(folder / "results")]
    weights = run / "checkpoints" / "step-00000008" / "weights.safetensors"
    good = weights.read_bytes()

    for old in (run / "checkpoints" / "step-00000006").iterdir():
        old.unlink()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    outcome = command("eval", run.name, *results)
    assert outcome.code == 2 and "no whole checkpoint" in outcome.line
    weights.write_bytes(good)

    (run / "config.yaml").write_text("encoding: [")
    outcome = command("eval", run.name, *results)
    assert outcome.code == 2 and "config.yaml is missing or damaged" in outcome.line

    (run / "result.json").write_text("{")
    outcome = command("eval", run.name, *results)
    assert outcome.code == 2 and "result.json is damaged" in outcome.line

    (run / "result.json").unlink()
    outcome = command("eval", run.name, *results)
    assert outcome.code == 2 and "is not finished" in outcome.line


def test_two_processes_on_one_run_are_refused_with_exit_1(train, folder):
    from pe_bench.runs.lock import locked

    train("encoding=rope")
    with locked(only_run(folder)):
        outcome = train("encoding=rope", "eval.lengths=[16,32,64]")
    assert outcome.code == 1 and "another process is working on" in outcome.line
    assert train("encoding=rope", "eval.lengths=[16,32,64]").code == 0


def test_a_full_disk_is_one_line_and_exit_1_and_nothing_is_lost(train, folder, monkeypatch):
    assert train("encoding=rope").code == 0
    before = files_in(only_run(folder))
    monkeypatch.setattr(os, "fsync", _no_space)
    outcome = train("encoding=rope", "eval.lengths=[16,32,64]")
    assert outcome.code == 1 and "No space left on device" in outcome.line
    monkeypatch.undo()
    assert files_in(only_run(folder)) == before


def _no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(train, folder, monkeypatch):
    from pe_bench.training.trainer import Trainer

    step = Trainer.step

    def interrupted(self, number, seconds):
        if number == 5:
            raise KeyboardInterrupt
        return step(self, number, seconds)

    monkeypatch.setattr(Trainer, "step", interrupted)
    outcome = train("encoding=rope")
    assert outcome.code == 130 and "continues from" in outcome.line
    monkeypatch.undo()
    assert train("encoding=rope").code == 0


@pytest.mark.parametrize("arguments", [["--help"], ["list", "models"], ["train", "--cfg", "job"]])
def test_a_reader_that_is_gone_ends_a_command_without_a_word(arguments):
    done = subprocess.Popen(
        [sys.executable, "-m", "pe_bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stdout is not None and done.stderr is not None
    done.stdout.close()
    assert done.stderr.read() == ""
    done.stderr.close()
    assert done.wait() in (0, 1)


def test_an_error_of_the_system_is_said_in_plain_words(train, folder, monkeypatch):
    def not_there(*arguments):
        raise NotADirectoryError(20, "Not a directory", "afile/runs")

    monkeypatch.setattr("pe_bench.experiment.run.run_experiment", not_there)
    outcome = train("encoding=rope")
    assert (outcome.code, outcome.line) == (1, "pe-bench: afile/runs: not a directory")


def test_help_imports_nothing_heavy():
    heavy = ("torch", "datasets", "pandas", "hydra", "omegaconf", "matplotlib", "scipy", "numpy", "yaml")
    commands = ["train", "eval", "report", "speed"]
    program = (
        "import sys; from pe_bench.cli.program import run; "
        "codes = [run(['--help']), *(run([name, '--help']) for name in sys.argv[1:])]; "
        f"print(codes, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, *commands], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0] []", done.stderr
    assert done.stdout.count("Examples") == len(commands)


def test_cfg_shows_the_configuration_and_trains_nothing(command, folder):
    outcome = command("train", "--cfg", "job", "encoding=alibi")
    assert outcome.code == 0
    assert "name: alibi" in outcome.out and "batch_tokens: 4096" in outcome.out
    assert files_in(folder / "work") == []


def test_a_run_records_its_environment(begin, folder):
    begin("encoding=rope")
    found = json.loads((only_run(folder) / "environment.json").read_text())
    assert found["threads"] == 1 and found["torch"] and found["python"]


def test_a_folder_with_few_documents_is_enough(command, folder):
    arguments = tiny_overrides(folder)
    write_corpus(folder / "one", documents=1, words=600)
    outcome = command("train", *arguments, f"data.path={folder / 'one' / '00.txt'}", "encoding=rope")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_is_shown_line_by_line_however_it_is_asked_for(command, arguments):
    outcome = command(*arguments)
    assert outcome.code == 0 and outcome.err == ""
    assert "\nCommands:\n" in outcome.out


@pytest.mark.parametrize(
    ("ends", "code", "told"),
    [
        ("atexit.register(print, 'written') and 3", 3, "written\n"),
        ("1 / 0", 1, ""),
    ],
)
def test_a_command_ends_with_its_code_and_with_all_that_was_left_to_do(ends, code, told):
    lines = ("import atexit", "from pe_bench.cli import program", f"program.run = lambda _: {ends}")
    program = "\n".join((*lines, "program.main()"))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, told)
    assert ("ZeroDivisionError" in ended.stderr) == (code == 1)


@pytest.mark.parametrize(
    "arguments", [["eval", "a\0b"], ["report", "a\0b"], ["train", "train.from=a\0b"], ["list", "a\0b"]]
)
def test_an_argument_with_a_zero_byte_is_refused_in_one_line(command, arguments):
    outcome = command(*arguments)
    assert outcome.code == 2
    assert "a\\x00b' has a zero byte" in outcome.line and "\0" not in outcome.err
