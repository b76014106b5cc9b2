"""`extend hf:...` with `--tokens`: a model trained a little further, as transformers would train it."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.commands import Command, write_corpus
from support.hf_models import TRAIN_LENGTH, VOCABULARY, opened, write_hf_model

import pe_bench
from pe_bench.config.schema import TrainConfig
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.hf import training
from pe_bench.hf.export import rescaled_config
from pe_bench.hf.source import Source, load_config, load_model
from pe_bench.hf.training import FurtherTraining, Settings, mean_loss
from pe_bench.report.build import build_tables
from pe_bench.report.groups import Selection
from pe_bench.runs.rows import read_rows
from pe_bench.training.group import SINGLE_PROCESS

YARN = {
    "name": "yarn",
    "class": "pe_bench.encodings.scalings.yarn:YaRN",
    "factor": 2.0,
    "train_length": TRAIN_LENGTH,
    "ramp": "index",
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": None,
}


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2"])
def test_gradients_are_those_of_transformers_own_model_with_the_written_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    monkeypatch.setattr(training, "MAX_LOGIT_ELEMENTS", 7 * VOCABULARY)  # the loss is that of many chunks
    folder = write_hf_model(tmp_path / "base", architecture)
    ours = opened(folder, begin=(1, 2))
    spec = EncodingSpec({**ours.encoding, **YARN})
    written = rescaled_config(Source(f"hf:{folder}", folder), ours, spec, TRAIN_LENGTH)
    model = ours.model.with_encoding(spec.build(ours.size.n_layers))
    settings = Settings(TrainConfig(length=2 * TRAIN_LENGTH), 0, None, torch.float32)
    FurtherTraining(model, settings, None, SINGLE_PROCESS)  # pyright: ignore[reportArgumentType]
    tokens = torch.randint(VOCABULARY, (2, 2 * TRAIN_LENGTH + 1), generator=torch.Generator().manual_seed(0))
    loss = mean_loss(model, tokens)
    assert model.state is not None
    model.state.is_neutral = True
    loss.backward()

    again = shutil.copytree(folder, tmp_path / "again")
    (again / "config.json").write_text(json.dumps(written))
    source = Source(f"hf:{again}", again)
    theirs = load_model(source, load_config(source))
    inputs = torch.cat([torch.tensor([[1, 2]] * 2), tokens[:, 2:]], 1)
    logits = theirs(inputs[:, :-1], use_cache=False).logits[:, 1:]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 2:].flatten())
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in model.causal.named_parameters():
        gradient = gradients[name]
        assert parameter.grad is not None and gradient is not None, name
        largest = float(gradient.abs().max())
        assert torch.allclose(parameter.grad, gradient, rtol=0, atol=1e-4 * largest), name


SETTINGS = ("threads=1", "train.batch_tokens=512", "train.lr=0.003", "precision=float32")
STEPS = 4


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The words of a command that trains a tiny Llama for four steps at twice its training length."""
    write_hf_model(tmp_path / "llama", "llama")
    text = ["--text", str(write_corpus(tmp_path / "corpus"))]
    where = [f"cache_dir={tmp_path / 'cache'}", "--results-dir", str(tmp_path / "results")]
    length = ["--to", "2x", "--with", "yarn", "--tokens", "2k", "--targets", "6"]
    return [f"hf:{tmp_path / 'llama'}", *length, *text, *SETTINGS, *where]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def trained_folder(tmp_path: Path) -> Path:
    [folder] = (tmp_path / "results" / "models").iterdir()
    return folder


def test_a_trained_hf_model_is_a_folder_and_a_line_beside_the_untrained_one_and_is_reused(
    tmp_path: Path, command: Command, arguments: list[str]
) -> None:
    done = command("extend", *arguments)
    assert done.code == 0, done.err
    folder = trained_folder(tmp_path)
    with (folder / "train.csv").open() as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert len(losses) == STEPS and losses[-1] < losses[0] - 0.1
    config = json.loads((folder / "config.json").read_text())
    assert (config["rope_parameters"]["rope_type"], config["dtype"]) == ("yarn", "float32")
    assert config["max_position_embeddings"] == 2 * TRAIN_LENGTH
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    for label in (
        f"yarn factor=2.0 of {folder.name} (Llama, 0.05M)",
        "rope of llama (Llama, 0.05M)",
        "rope -> yarn factor=2.0 of llama (Llama, 0.05M)",
    ):
        assert any(line.startswith(label) for line in lines), done.out

    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    options = {
        "tokens": 2_048,
        "targets": 6,
        "text": tmp_path / "corpus",
        "results_dir": tmp_path / "results",
    }
    overrides = [*SETTINGS, f"cache_dir={tmp_path / 'cache'}"]
    family = pe_bench.extend(f"hf:{tmp_path / 'llama'}", "2x", "yarn", overrides=overrides, **options)
    assert times == {path: path.stat().st_mtime_ns for path in folder.iterdir()}, "it was trained again"
    [table] = family.tables
    levels = {line.label: line.records[TRAIN_LENGTH].level for line in table.lines}
    assert len(levels) == 3 and min(levels, key=levels.__getitem__).startswith("yarn")
    scored = command("eval", f"hf:{folder}", f"data.path={tmp_path / 'corpus'}", *arguments[-3:])
    assert scored.code == 0, scored.err


def test_a_training_that_was_stopped_goes_on_to_the_same_weights(
    tmp_path: Path, command: Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("extend", *arguments).code == 0
    whole = weights_of(trained_folder(tmp_path))
    shutil.rmtree(tmp_path / "results")
    steps: list[int] = []
    step = FurtherTraining.step

    def stopped(self: FurtherTraining, number: int, seconds: float):
        steps.append(number)
        if steps == [0, 1, 2]:
            raise KeyboardInterrupt
        return step(self, number, seconds)

    monkeypatch.setattr(FurtherTraining, "step", stopped)
    often = [*arguments, "train.checkpoint_every=1"]
    assert command("extend", *often).code == 130
    [workplace] = (tmp_path / "results" / "models").iterdir()
    assert workplace.name.endswith(".training")
    assert command("extend", *often).code == 0
    assert steps == [0, 1, 2, 2, 3]
    again = weights_of(trained_folder(tmp_path))
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


def test_a_killed_training_leaves_no_folder_of_weights_behind(
    tmp_path: Path, command: Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("extend", *arguments).code == 0
    folder = trained_folder(tmp_path)
    workplace = folder.with_name(f"{folder.name}.training")
    unfinished = folder.with_name(f".partial-0123abcd-{folder.name}")
    for leftover in (workplace / "checkpoints", unfinished):  # killed before the workplace was deleted
        leftover.mkdir(parents=True)
    assert command("extend", *arguments).code == 0
    assert trained_folder(tmp_path) == folder, "it is the only folder"
    shutil.rmtree(folder)
    unfinished.mkdir()  # killed while the folder was written
    assert command("extend", *arguments).code == 0
    assert trained_folder(tmp_path) == folder


def test_a_scaling_that_is_named_twice_is_trained_and_scored_once(
    command: Command, arguments: list[str]
) -> None:
    done = command("extend", *arguments, "--with", "yarn factor=2")
    assert done.code == 0, done.err
    assert "already trained" not in done.err and done.err.count("yarn factor=2.0, measured from") == 1


@pytest.mark.parametrize("batch", ["1.024k", "'1.024k'"])
def test_a_batch_in_thousands_of_tokens_trains_on_as_many_tokens(
    tmp_path: Path, command: Command, arguments: list[str], batch: str
) -> None:
    outcome = command("extend", *arguments, f"train.batch_tokens={batch}")
    assert outcome.code == 0, outcome.err
    training = json.loads((trained_folder(tmp_path) / "training.json").read_text())
    assert (training["batch_tokens"], training["steps"], training["warmup_steps"]) == (1024, 2, 0)


def test_weights_that_a_step_made_infinite_are_blamed_on_the_learning_rate(
    command: Command, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FurtherTraining.step

    def diverging(self: FurtherTraining, number: int, seconds: float):
        state = step(self, number, seconds)
        if state.step == self.settings.train.total_steps:
            with torch.no_grad():
                next(iter(self.trained.values())).fill_(torch.inf)
        return state

    monkeypatch.setattr(FurtherTraining, "step", diverging)
    failed = command("extend", *arguments)
    assert failed.code == 1 and "not finite: lower train.lr=" in failed.line


def test_only_the_last_layers_are_trained_where_that_is_asked(
    tmp_path: Path, command: Command, arguments: list[str]
) -> None:
    done = command("extend", *arguments, "--train-layers", "1")
    assert done.code == 0, done.err
    before, after = weights_of(tmp_path / "llama"), weights_of(trained_folder(tmp_path))
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name in before if ".layers.3." in name}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--train-layers", "5"], "--train-layers 5: this model has 4 layers"),
        (["--with", "self_extend"], "these can be exported"),
        (["--long"], "--long trains a run from the start"),
        (["--to", "64"], "say how many times longer"),
        (["--tokens", "many"], "tokens must be a whole number of at least 1, not 'many'"),
        (["train.optimizer=muon"], "train.optimizer=muon has no effect on a Hugging Face model"),
        (["train.batch_tokens=100"], "train.batch_tokens=100 is not a multiple of train.length=64"),
        (["--to", "1000x", "train.batch_tokens=32000"], "and one window of train.length=32000 needs 32001"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_writes_nothing(
    tmp_path: Path, command: Command, arguments: list[str], more: list[str], reason: str
) -> None:
    outcome = command("extend", *arguments, *more)
    assert outcome.code == 2 and reason in outcome.line
    assert not (tmp_path / "results").exists()


def test_results_of_an_hf_model_are_refused_among_the_files_of_the_text(
    tmp_path: Path, command: Command, arguments: list[str]
) -> None:
    model, corpus = f"hf:{tmp_path / 'llama'}", tmp_path / "corpus"
    text = ("data=files", f"data.path={corpus}", f"cache_dir={tmp_path / 'cache'}")
    for words in (["extend", *arguments], ["eval", model, "--lengths", "48", *text]):
        outcome = command(*words, "--results-dir", str(corpus / "results"))
        assert outcome.code == 2 and "the folder of results" in outcome.line, outcome.err
        assert not (corpus / "results").exists()
    # explain writes nothing there.
    outcome = command("explain", model, "--lengths", "48", *text, "--results-dir", str(corpus / "results"))
    assert outcome.code == 0, outcome.err


def test_text_and_layers_to_train_are_for_hf_models_that_are_trained(
    tmp_path: Path, command: Command, arguments: list[str]
) -> None:
    where = arguments[-2:]
    outcome = command("extend", "rope", "--text", str(tmp_path), *where)
    assert outcome.code == 2 and "--text and --train-layers are for hf:FOLDER" in outcome.line
    outcome = command("extend", arguments[0], "--train-layers", "1", *where)
    assert outcome.code == 2 and "--train-layers has no effect without --tokens" in outcome.line
    outcome = command("extend", arguments[0], "--tokens", "2k", *where)
    assert outcome.code == 2 and "needs text: say --text DIR" in outcome.line


@pytest.mark.full
def test_processes_of_torchrun_train_one_hf_model_together(
    tmp_path: Path, command: Command, arguments: list[str]
) -> None:
    assert command("extend", *arguments).code == 0
    alone = weights_of(trained_folder(tmp_path))
    shutil.rmtree(tmp_path / "results")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "pe_bench")
    words = [sys.executable, *launcher, "extend", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("measured from 32 tokens") == 1, f"the first process alone prints: {done.stdout}"
    together = weights_of(trained_folder(tmp_path))
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=0, atol=1e-4)


def test_an_hf_model_too_is_stretched_at_chosen_lengths_with_fewer_targets(
    tmp_path: Path, command: Command
) -> None:
    write_hf_model(tmp_path / "llama", "llama")
    corpus = write_corpus(tmp_path / "corpus")
    results = tmp_path / "results"
    overrides = [f"cache_dir={tmp_path / 'cache'}", "threads=1"]
    words = ("extend", f"hf:{tmp_path / 'llama'}", "--to", "2x", "--with", "yarn", "--text", str(corpus))
    words = (*words, *overrides, "--results-dir", str(results))
    assert command(*words, "--targets", "4").code == 0
    [run] = (results / "runs").glob("hf-*")
    lengths = {row.length for row in read_rows(run / "eval.csv")}
    assert max(lengths) == 4 * TRAIN_LENGTH and 2 * TRAIN_LENGTH in lengths
    outcome = command(*words, "--targets", "4", "--lengths", "40")
    assert outcome.code == 0, outcome.err
    assert 40 in {row.length for row in read_rows(run / "eval.csv")}


def test_the_lengths_of_a_trained_hf_model_have_the_quarter_that_reports_read(
    tmp_path: Path, command: Command, arguments: list[str]
) -> None:
    arguments.remove("train.batch_tokens=512")
    done = command("extend", *arguments, "train.length=30", "train.batch_tokens=480")
    assert done.code == 0, done.err
    for run in (tmp_path / "results" / "runs").glob("hf-*"):
        assert {row.length for row in read_rows(run / "eval.csv")} == {8, 30, 60}, run.name
    assert "a quarter of the training length" not in done.out


@pytest.mark.parametrize(("to", "lengths"), [("2x", ()), ("4x", ("--lengths", "48,64"))])
def test_the_line_of_a_trained_hf_model_is_judged_for_its_use_of_context(
    tmp_path: Path, arguments: list[str], command: Command, to: str, lengths: tuple[str, ...]
) -> None:
    done = command("extend", *arguments, "--to", to, *lengths)
    assert done.code == 0, done.err
    longest = int(to.removesuffix("x")) * TRAIN_LENGTH
    name = trained_folder(tmp_path).name
    [table] = build_tables(tmp_path / "results", selection=Selection(by=("model",)))
    [line] = [line for line in table.lines if name in line.label]
    use = line.records[longest].use
    assert use is not None and use.swap_gain is not None and use.window_gain is not None
    # What it answers of four steps of training may be that they were too few, and nothing else.
    assert use.uses_context or "improve from 8 to 32 tokens" in use.missing, use


@pytest.mark.parametrize("key", ["eval.targets=3", "eval.lengths=[32]", "+eval.lengths=[32]"])
@pytest.mark.parametrize("tokens", [(), ("--tokens", "2k")])
def test_keys_of_what_is_scored_are_refused_for_an_hf_model_as_for_a_run(
    tmp_path: Path, command: Command, key: str, tokens: tuple[str, ...]
) -> None:
    results = tmp_path / "results"
    outcome = command("extend", f"hf:{tmp_path}", "--to", "2x", *tokens, key, "--results-dir", str(results))
    option = "--lengths" if "lengths" in key else "--targets"
    assert outcome.code == 2 and f"say {option}, which is for all" in outcome.line
    assert not results.exists()
