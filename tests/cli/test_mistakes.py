"""Mistakes: one line that says what to do, exit code 2, and nothing written."""

import shlex

import pytest
from support.commands import Command, files_in, only_run

# What is typed, and what is told.
MISTAKES = r"""
trian -> No such command 'trian'. Did you mean 'train'?
train encoding=ropee -> unknown encoding 'ropee': did you mean 'rope'?
train foo=3 -> unknown key 'foo': there are: cache_dir, data,
train 'train={lr: 0.1, lrr: 3}' -> unknown key 'train.lrr': did you mean 'train.lr'?
train 'data={paht: x}' -> unknown key 'data.paht': did you mean 'data.path'?
train lenght=64 -> unknown key 'lenght': did you mean 'train.length'?
train =3 -> '=3' cannot be read: write KEY=VALUE, without spaces around =
train modifier=null -> unknown modifier 'null': there are: asentmax,
train ++encoding.foo=3 -> unknown option 'encoding.foo'
train encoding.base=abc -> encoding.base must be a number above 1, not 'abc'
train model.d_model=20 model.n_heads=4 -> model.d_head=5 is odd
train eval.lengths=512,2048 -> write 'eval.lengths=[512,2048]'
train encoding=[rope,alibi] -> a run has one encoding; say encoding=NAME, or -m encoding=NAME,NAME
train -m encoding=rope eval.lengths=64,256 -> write 'eval.lengths=[64,256]'
train -m train.betas=0.9,0.95 -> write 'train.betas=[0.9,0.95]'
train eval.lengths=[100000000] -> has the 100000000 tokens that are needed: the longest has
train encoding=rope,alibi -> is several values: -m encoding=rope,alibi makes a run for each
train train=3 -> train is a group of keys and cannot be 3: say train.length=VALUE
train rope -> 'rope' cannot be read: write encoding=rope
train seed=٣ -> 'seed=٣' cannot be read: put quotes around the value, as in 'seed="VALUE"'
train seed=99999999999999999999 -> seed must be at most 9223372036854775807, not 99999999999999999999
train results_dir=/dev/null -> results_dir=/dev/null: /dev/null is not a folder
train results_dir= -> results_dir is empty: give it a value, or remove it
train train.from=elsewhere -> no finished run 'elsewhere' in results/runs: see `pe-bench list runs`
train --config-dir nowhere -> --config-dir nowhere is not a folder: name the one with encoding/
train --plan none/plan -> --plan none/plan: there is no folder none; make it
train encoding=nope encoding.base=500 -> unknown key 'encoding.base': encoding has no options
train encoding=randomized encoding.real=true -> did you mean 'encoding.modifiers.randomized.real'?
train encoding=nope modifier=[sink] encoding.learned=false -> 'encoding.modifiers.sink.learned'?
train --dry-run seed=1 -> No such option: --dry-run; keys are KEY=VALUE: `pe-bench list keys`
train -m seed=0,1 --cfg=job -> say --cfg job, without -m and --plan: it prints
train --cfg job --plan plan -> say --cfg job, without -m and --plan: it prints
train hydra/launcher=joblib -> hydra/launcher is for the jobs of a sweep, which pe-bench train -m starts
train hydra.run.dir=x seed=1 -> hydra.run.dir is for the jobs of a sweep, which pe-bench train -m starts
train -m 'train.lr=interval(0.001,0.01)' -> has no list of values to train: name them with commas, as in
train -m 'encoding=glob(z*)' -> encoding=glob(z*) gives no values: name at least one
train -m seed=0,1 hydra/launcher=joblib hydra.launcher.n_job=2 -> Could not override 'hydra.launcher.n_job'
train encoding=my.py:Mine -> the encoding's file my.py was not found in: .
train encoding.name=alibi -> encoding.name=alibi changes only a name in tables: say encoding=alibi
train -m encoding.name=rope,rotary -> encoding.name=rope,rotary changes only a name in tables
train 'encoding.name="ALiBi"' -> changes only a name in tables: say encoding="ALiBi", or give a name of
train data.name=pg19 -> data.name=pg19 changes only a name in tables: say data=pg19
train model.name=small -> model.name=small changes only a name in tables: say model=small
try 'rope name=alibi' -> encoding.name=alibi changes only a name in tables: say encoding=alibi
train encoding.class=null -> encoding.class must be text such as file.py:Class, not null
train encoding.name=../../x -> must be letters, digits and the signs . + - _, not '../../x': it names the
train model=my.yaml -> model=my.yaml: there is no such file; `pe-bench list models` has names
train encoding=local_global 'encoding.global={name: rope, modifiers: [logn]}' -> must be a mapping
train experiment=drope -> give train.from=RUN
train model.n_heads=0 -> model.n_heads must be a whole number of at least 1, not 0
train model.n_heads=two -> model.n_heads must be a whole number of at least 1, not 'two'
train model.d_model=wide -> model.d_model must be a whole number of at least 1, not 'wide'
train model.d_model=inf -> model.d_model must be a whole number of at least 1, not inf
train model.n_kv_heads=3 -> n_heads=4 is not divisible by model.n_kv_heads=3
train data=pg19 data.source=files data.path=/nowhere -> data.path=/nowhere does not exist
train data.path=x -> data.path=x is not read with data=stdlib: say data=files
train data=files -> say data.path=DIR
train data.validation_fraction=1 -> data.validation_fraction=1 leaves no text to train on: give less than 1
train data.encoding=latin-x -> data.encoding=latin-x is no encoding of text: utf-8 is one
train tokenizer=hub -> tokenizer=hub needs a name: say tokenizer.name=gpt2
train ~tag -> ~tag takes nothing out of the configuration: leave it out
train ~modifier -> ~modifier takes nothing out of the configuration: leave it out
train ~seed=1 --cfg job -> ~seed takes nothing out of the configuration: leave it out
train -m ~tag seed=0,1 -> ~tag takes nothing out of the configuration: leave it out
train +encoding=rope -> +encoding would add a second encoding: say encoding=NAME, without +
train ++encoding=rope -> +encoding would add a second encoding: say encoding=NAME, without +
train -m +hydra/launcher=joblib -> say hydra/launcher=NAME, without +
train tag=a/b -> tag=a/b: a tag may contain only letters, digits and . + - _
train task=mqar task.symbols=3 -> the largest of task=mqar is 3: use shorter lengths, or raise task.symbols
train data=files 'data.path="~no_such_user/x"' -> data.path=~no_such_user/x: no user 'no_such_user' has
train data=files 'data.validation_path="~no_such_user"' data.path=. -> no user 'no_such_user' has a home
train 'results_dir="~no_such_user/x"' -> give the full path, or ./~no_such_user/x
train 'cache_dir="~no_such_user/x"' -> cache_dir=~no_such_user/x: no user 'no_such_user' has a home folder
train tokenizer=file 'tokenizer.name="~no_such_user/x"' -> tokenizer.name=~no_such_user/x: no user
eval hf:~no_such_user/x -> hf:~no_such_user/x: no user 'no_such_user' has a home folder
report --results-dir ~no_such_user/x -> --results-dir=~no_such_user/x: no user 'no_such_user'
train train.batch_tokens=4000 -> train.batch_tokens=4000 is not a multiple of train.length=128
train train.betas=[0.9,1] -> train.betas must be below 1, not (0.9, 1.0)
train threads=100000000000 -> threads must be auto or a whole number of at least 1 and at most 1024
train precision=fp8 -> precision must be one of auto, float32, bfloat16, not 'fp8'
train train.processes=3 -> train.processes=3 times train.micro_batches=1 does not divide the 8 windows
train train.sharding=fsdp -> train.sharding=fsdp has no effect in one process
train -m seed=0,1 hydra.launcher.nodes=2 -> hydra.launcher.nodes=2: a job uses one node: leave it out
train eval.lengths=256 -> eval.lengths must be a list, each item a whole number of at least 1
train eval.lengths=[] -> eval.lengths is an empty list: leave it out, or give lengths such as
train -m seed=0,1 eval.lengths=[] -> eval.lengths is an empty list: leave it out, or give lengths such as
train eval.lengths=[1] -> length 1 is too short for eval.protocol=paired: choose 2 tokens or more
eval -> no finished run
eval --lenghts 512 -> No such option: --lenghts (Possible options: --lengths, --max-length)
eval --lengths 5x -> --lengths takes positive whole numbers such as 512,2048, not '5x'
report -> no scored run in results/runs: make one with `pe-bench train encoding=rope`
report --csv - --markdown - -> choose one
report --html - -> name a file
report --plot - -> --plot - would print something other than text: name a file
report --markdown . -> --markdown . is not a regular file: name one in a folder
report --plot-of changes --plot a.png -> --plot-of must be one of levels, change, not 'changes'
report --probe --latex a.tex -> --latex has no probes: say --markdown, --html or --json
report --protocol pared -> protocol must be one of paired, nonoverlapping, sliding, task or null
report --csv nowhere/a.csv -> --csv nowhere/a.csv: there is no folder
report --plot a.jpg -> .png, .svg or .pdf
report --sort colour --json -> colour
list encoding -> unknown list 'encoding': did you mean 'encodings'?
list -> name what to list: encodings, modifiers, models, data, tasks, tokenizers,
report seed=0 -> hf:FOLDER; leave seed out, or say --where seed=0
eval 'train.lr>0.1' --lengths 64 -> in results/runs: say --where 'train.lr>0.1'
list encodings --family rotery -> unknown family 'rotery': did you mean 'rotary'?
list models --family bias -> --family and --papers are for pe-bench list encodings: leave them out
list models --tag x -> --tag is for pe-bench list runs: leave it out of list models
list runs -> no run in results/runs: make one with `pe-bench train encoding=rope`
rm rope -> no run 'rope' in results/runs: see `pe-bench list runs`
import nowhere -> has no runs: name a run, a folder of runs or a folder of results
show rope bass=500 -> unknown key 'bass': did you mean 'encoding.base'?
show rope alibi layuot=half -> did you mean 'encoding.layout'?
show base=3 -> name an encoding
show 'rope base=3' -> 'rope base=3': take the quotes away, so that each option is an argument
show task=mqar --plot a.png -> a task has no picture: leave --plot out
show hf:x hf:y -> show takes one Hugging Face model at a time, without --plot and --sample: leave out the rest
explain -> no finished run in results/runs: make one with `pe-bench train encoding=rope`
explain --lenghts 512 -> No such option: --lenghts (Possible options: --lengths
explain hf:x hf:y --lengths 64 -> give one Hugging Face model at a time, not hf:x, hf:y
explain hf:x -> hf:x has no default lengths to score: give them with --lengths
explain --csv - --json -> --csv - and --json both print instead of the table: choose one
explain --csv nowhere/a.csv -> --csv nowhere/a.csv: there is no folder
extend -> no run is named: say pe-bench extend rope
extend rope --plot nowhere/a.png -> --plot nowhere/a.png: there is no folder
extend hf:x --tokens 5 -> the further training needs text: say --text DIR
extend hf:x rope -> give one Hugging Face model at a time, not hf:x, rope
export rope --hf .. -> --hf .. is no name of a new folder
try -> name what to try
try rope --minutes 0 -> --minutes must be above 0, not 0
try --list alibi seed=1 -> --list reads finished tries, with --results-dir and --json alone: leave out alibi
try --list --against alibi --confirm -> and --json alone: leave out --against --confirm
try '' -> '' names no encoding; say my.py:RootBias, 'rope base=500000' or rope+logn
try 'rope fast' -> 'rope fast': fast is no option; say KEY=VALUE, such as base=500000
try nope seed=3 -> seed=3: a try chooses the seeds and the documents itself: leave it out
try nope modifier=[sink] -> modifier=[sink] is no part of a try: name both sides
try nope encoding=rope -> encoding=rope is no part of a try: name both sides
try nope eval.lengths=[128] -> eval.lengths=[128]: say --lengths
try nope results_dir=x -> results_dir=x: say --results-dir, where tries are counted too
try --list -> results has no tries
try alibi task=mqar -> task=mqar: a try compares bits per byte, which answers do not have
try rope task=majority --against alibi --confirm -> pe-bench train -m encoding=rope,alibi task=majority
reproduce windwed -> unknown study 'windwed': did you mean 'windowed'?
reproduce alibi train.lr=3 -> train.lr=3 would change the study
reproduce alibi kerple -> one study at a time: alibi, kerple; there are alibi,
reproduce alibi --stored --quick -> --stored trains nothing: leave out --quick and --write-table
reproduce alibi --text nowhere -> --text nowhere is neither stdlib nor a folder
reproduce gpu -> device=cuda was not found
check rope --all -> --all checks every encoding: leave out rope, or --all
check -> name an encoding, a file.py:Class, or say --all
check 'rope base=3' -> 'rope base=3': take the quotes away
check 'encoding=rope base=3' -> 'encoding=rope base=3': take the quotes away
speed nope 'rope base=3' -> 'rope base=3': take the quotes away
check rope train.length=64 -> check uses its own model: leave out train.length=64
check rope threads=1 -> check uses its own model: leave out threads=1
check partial_rope fraction=0.05 -> fraction=0.05 holds no pair: give at least 0.25 of a head of width 8
check fope train_length=6 -> no pair makes a full turn within encoding.train_length=6 tokens
check yarn beta_fast=1 -> beta_fast=1.0 must exceed encoding.beta_slow=1.0
check longrope long_factors=[1,1,1] -> long_factors must have 4 numbers, one a pair, not 3
check rope_clipped clipped=9 -> encoding.clipped must be a number of pairs from 0 to 4
check self_extend window=10 group_size=4 -> group_size=4 must divide encoding.window=10: try
check dca chunk_size=4 local_window=4 -> encoding.local_window=4 must leave room
check streaming cache=4 -> encoding.sinks=4 must leave room in encoding.cache=4
check temperature factor=[1,2] -> factor has 2 numbers, and not 1 or those of model.n_heads=4
check sandwich width=15 -> width must be even and positive, not 15
check deberta buckets=3 -> encoding.buckets must be null or even and at least 4, not 3
check llama3 high_frequency_factor=1 -> encoding.high_frequency_factor=1.0 must exceed low
check t5 max_distance=16 -> encoding.max_distance=16 must be at least 17
show darope encoding.train_length=0 -> encoding.train_length must be a whole number of at least 1, not 0
check tupe overflow=clamp positions=sinusoidal -> encoding.overflow=clamp is for
check dape threshold=8 -> encoding.threshold=8 is for encoding.inner=fire
check bipe "separators=['']" -> a separator has at least 1 character
check local_global 'global={name: p_rop}' -> unknown encoding 'p_rop': did you mean 'p_rope'?
check local_global global=nope -> encoding.global must be another encoding, such as {name: nope}, not 'nope'
check local_global 'global={name: sinusoidal}' -> encoding.global changes embeddings, which all layers share
check local_global 'local={name: randomized}' -> encoding.local changes position ids, which all layers share
speed rope --lengths 1 -> --lengths takes lengths of at least 2 tokens, and 1 is shorter
speed rope device=cuda:99 -> device=cuda:99 was not found (GPUs here:
"""
# The same where a run of rope is finished.
OF_A_RUN = r"""
eval --where seed=7 -> no run meets
eval --where train.lrr=1 -> did you mean 'train.lr'?
eval --where 'seed<<3' -> needs a number
eval --where length=32 -> --where length chooses scores, and this command chooses runs: leave it out
eval yarn -> no finished run 'yarn'
eval --config-dir nowhere -> --config-dir nowhere is not a folder: name the one with encoding/
eval rope --plain -> plain is for a Hugging Face model (hf:FOLDER): leave it out
report --probe -> nothing was probed here: make probes with `pe-bench probe RUN`
report --by '' -> --by is empty: name a key, such as --by seed or --by train.lr
report --protocol sliding -> no score under the protocol 'sliding': these runs were scored under paired; score
list runs --tag x -> has the tag x: tag=x gives it one
report --tag x -> has a tag; pe-bench train ... tag=x gives one
report --best train.lr --by train.lr -> --best train.lr and --by train.lr exclude each other: give one of them
probe --lengths 64 -> length 64 is too short for a probe: choose 128 tokens or more
probe --lengths 128,64 -> length 64 is too short for a probe: choose 128 tokens or more
probe --depths 100000 -> depths must be a whole number of at least 2 and at most 1000, not 100000
probe --depths 1 -> depths must be a whole number of at least 2 and at most 1000, not 1
probe rope --task vt -> is for a Hugging Face model (hf:FOLDER): leave it out
explain rope --by heads -> --by must be one of head, layer, not 'heads'
explain rope threads=1 -> results/runs: write --threads 1
eval rope --with 'yarn name=alibi' -> --with yarn name=alibi: name is no option of an encoding: leave it out
eval rope eval.lengths=[64,128] -> write --lengths 64,128
explain rope train.lr=1 -> KEY=VALUE is for training and for hf:FOLDER; leave train.lr out
explain rope --plot a.gif -> cannot draw a.gif: the name must end with .png, .svg or .pdf
explain rope --lengths 8,16 -> --lengths has no length above the training length, 16: give longer ones
explain rope data.path=x -> no finished run 'data.path=x'
explain rope data.path=x -> results/runs: write --data-path x
extend rope --to far -> --to far is no length past training
extend rope --to 16 -> --to 16 is not longer than train.length=16
extend rope train.lenght=3 --tokens 256 -> unknown key 'train.lenght': did you mean 'train.length'?
extend rope --long -> give --tokens
extend rope --with t5 -> do not fit t5
extend rope train.lr=0.1 -> train.lr=0.1 is for further training, and without --tokens there is none
"""


@pytest.mark.parametrize("case", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_line_and_exit_2_and_nothing_is_written(command, folder, case):
    refused(command, case)
    assert files_in(folder / "work") == []


def test_a_mistake_about_a_run_leaves_it_as_it_was(begin, command, folder):
    begin("encoding=rope")
    before = {path: path.read_bytes() for path in folder.rglob("*.csv")}
    for case in OF_A_RUN.strip().splitlines():
        refused(command, case, "--results-dir", str(folder / "results"))
    assert {path: path.read_bytes() for path in folder.rglob("*.csv")} == before


def refused(command: Command, case: str, *options: str) -> None:
    typed, message = case.split(" -> ")
    outcome = command(*shlex.split(typed), *options)
    assert (outcome.code, outcome.out) == (2, ""), (case, outcome.err)
    assert message in outcome.line
    assert "Traceback" not in outcome.err


def test_an_unfinished_and_a_damaged_run_are_refused_by_name(begin, command, folder):
    begin("encoding=rope")
    run = only_run(folder)
    results = ["--results-dir", str(folder / "results")]
    (run / "result.json").write_text("{")
    outcome = command("eval", run.name, *results)
    assert outcome.code == 1 and "result.json is damaged" in outcome.line
    (run / "result.json").unlink()
    for name in (run.name, "rope-s0", "rope"):
        outcome = command("eval", name, *results)
        assert outcome.code == 2
        assert f"{run} is not finished: repeat the command that trained it" in outcome.line


@pytest.mark.parametrize("arguments", [[], ["-m", "seed=0,1"]])
def test_a_folder_that_cannot_be_written_is_refused_with_a_way_out(train, folder, monkeypatch, arguments):
    monkeypatch.setattr("pe_bench.values.os.access", lambda path, mode: path != folder)
    outcome = train(*arguments, f"results_dir={folder / 'r'}")
    way_out = "say results_dir=FOLDER with one that can, or change its permissions"
    assert outcome.line == f"pe-bench: results_dir={folder / 'r'}: {folder} cannot be written: {way_out}"
    assert outcome.code == 2 and not (folder / "r").exists()


@pytest.mark.parametrize(
    "typed",
    [
        *(
            ["train", "data=files", 'data.path="caf\udce9"'],
            ["train", "data=files", "data.path=a", 'x="\udcff"'],
        ),
        *(
            ["train", 'results_dir="\udcff"'],
            ["eval", "--results-dir", "\udcff"],
            ["eval", "--code", "\udce9.py"],
        ),
        *(
            ["try", "alibi", "data=files", 'data.path="\udce9"'],
            ["probe", "hf:\udce9"],
            ["check", "\udce9.py:A"],
        ),
    ],
)
def test_a_byte_that_is_no_utf_8_is_refused_before_anything_is_written(command, folder, typed):
    outcome = command(*typed)
    assert outcome.code == 2 and "has a byte that is no UTF-8" in outcome.line
    assert files_in(folder / "work") == []


COMMANDS = (
    "eval rope",
    "probe rope",
    "explain rope",
    "extend rope",
    "try alibi",
    "reproduce x",
    "import x",
    "export rope --hf x",
)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_not_for_several_processes_says_so_to_torchrun(
    words: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = command(*words.split())
    name = words.split()[0]
    assert outcome.code == 2
    told = f"torchrun starts the processes of one training: start pe-bench {name} without it"
    assert outcome.line == f"pe-bench: {told}"


def test_a_sweep_is_not_for_several_processes_and_says_how_it_has_them(command, folder, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = command("train", "-m", "encoding=rope", "seed=0,1")
    assert outcome.code == 2
    told = "torchrun starts one run: start a sweep without it, with train.processes=N"
    assert outcome.line == f"pe-bench: {told}"
    assert files_in(folder / "work") == []


@pytest.mark.parametrize(("local_rank", "told"), [(0, True), (1, False)])
def test_the_first_process_of_each_machine_prints_a_mistake(
    command, folder, monkeypatch, local_rank: int, told: bool
) -> None:
    variables = {"RANK": 1, "LOCAL_RANK": local_rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1 + local_rank}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    outcome = command("train", "data=files", "data.path=only-on-the-other")
    assert outcome.code == 2
    is_told = "data.path=only-on-the-other does not exist" in outcome.err
    assert is_told == told and ("(rank 1 of 2 processes)" in outcome.err) == told
