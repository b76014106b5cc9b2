"""A person's own encoding: one file and one YAML, outside the package."""

import re

import pytest
import yaml
from support.commands import only_run

from pe_bench.cli.completion import complete_word
from pe_bench.encodings.signatures import options_of
from pe_bench.encodings.source import digest

CODE = '''
"""A penalty that grows with the root of the distance."""

import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    family = "bias"
    claims = frozenset({"shift_invariant", "prefix_consistent", "decaying"})

    def __init__(self, n_heads: int, strength: float = 0.5):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.full((n_heads,), strength))

    def distance_bias(self, distance):
        return -self.strength[:, None] * distance.sqrt()
'''
YAML = "name: mine\nclass: mine.py:RootBias\nn_heads: ${model.n_heads}\nstrength: 0.5\n"


@pytest.fixture
def own(folder):
    """A configuration folder with encoding/mine.yaml and its code beside."""
    directory = folder / "mine" / "encoding"
    directory.mkdir(parents=True)
    (directory / "mine.yaml").write_text(YAML)
    (directory / "mine.py").write_text(CODE)
    return directory.parent


def test_scoring_its_run_imports_the_code_only_when_the_user_names_it(train, command, folder, own):
    outcome = train("--config-dir", str(own), "encoding=mine", "encoding.strength=0.25")
    assert re.search(r"^mine@[0-9a-f]{4} strength=0.25 ", outcome.out, re.MULTILINE)
    arguments = ["eval", "--lengths", "64", "--results-dir", str(folder / "results")]
    file = own / "encoding" / "mine.py"
    outcome = command(*arguments)
    assert outcome.code == 2 and "--code FILE.py" in outcome.line
    outcome = command(*arguments, "--code", str(file))
    assert outcome.code == 0, outcome.err
    file.write_text(CODE + "\nraise SystemError('must not run')\n")
    outcome = command(*arguments, "--code", str(file))
    assert outcome.code == 2 and "with hash" in outcome.line
    assert "give the file as it was when the run was trained" in outcome.line


def test_no_spelling_of_a_class_makes_a_runs_directory_run_its_code(train, command, folder, monkeypatch):
    train("encoding=rope")
    run = only_run(folder)
    evil = "import pathlib\npathlib.Path('RAN').touch()\nclass RoPE: pass\n"
    (run / "pe_bench.encodings.").mkdir()
    for file in ("pe_bench.encodings.evil.py", "pe_bench.encodings./evil.py", "evil.py"):
        (run / file).write_text(evil)
    values = yaml.safe_load((run / "config.yaml").read_text())
    monkeypatch.chdir(run)
    for location in (
        "pe_bench.encodings.evil.py",
        "pe_bench.encodings./evil.py",
        "pe_bench.encodings.evil",
        "evil",
    ):
        values["encoding"]["class"] = f"{location}:RoPE"
        (run / "config.yaml").write_text(yaml.safe_dump(values))
        outcome = command("eval", ".", "--lengths", "64")
        assert outcome.code == 2 and not (run / "RAN").exists()


def test_a_file_that_the_code_imports_belongs_to_it(train, command, folder, own):
    helper = own / "encoding" / "roots.py"
    # A copy in UTF-8 with line feeds would have another hash.
    helper.write_bytes(b"# coding: latin-1\r\n# \xe9\r\ndef root(x):\r\n    return x.sqrt()\r\n")
    code = CODE.replace("import torch\n", "import torch\nfrom roots import root\n")
    (own / "encoding" / "mine.py").write_text(code.replace("distance.sqrt()", "root(distance)"))
    train("--config-dir", str(own), "encoding=mine")
    before = digest(own / "encoding" / "mine.py")
    score = ["eval", "--lengths", "64", "--results-dir", str(folder / "results")]
    score += ["--code", str(own / "encoding" / "mine.py")]
    assert command(*score).code == 0
    helper.write_text("def root(x):\n    return x / 10\n")
    outcome = command(*score)
    assert outcome.code == 2
    assert before in outcome.line and digest(own / "encoding" / "mine.py") in outcome.line
    assert command(*score[:-1], str(only_run(folder) / "code" / "mine.py")).code == 0
    train("--config-dir", str(own), "encoding=mine")
    assert len(list((folder / "results" / "runs").iterdir())) == 2, "other code is another run"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("mine.py:RootBias", "gone.py:RootBias"), "gone.py was not found in"),
        (
            ("mine.py:RootBias", "no_such_module:Gone"),
            "name an encoding's class as file.py:Class, not no_such_module:Gone",
        ),
        (("mine.py:RootBias", "not_installed"), "as file.py:Class, not not_installed"),
        (("mine.py:RootBias", "mine.py:torch"), "names no encoding: torch"),
        (("strength: 0.5", "strength: strong"), "encoding.strength must be a number, not 'strong'"),
    ],
)
def test_a_wrong_class_is_one_line(train, folder, own, change, message):
    (own / "encoding" / "mine.yaml").write_text(YAML.replace(*change))
    outcome = train("--config-dir", str(own), "encoding=mine")
    assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()


def test_a_hook_that_ends_the_program_in_training_is_a_failed_run(train, folder, own):
    body = "if torch.is_grad_enabled():\n            raise SystemExit\n        return -self"
    (own / "encoding" / "mine.py").write_text(CODE.replace("return -self", body))
    outcome = train("--config-dir", str(own), "encoding=mine")
    assert outcome.code == 1 and outcome.line.endswith("SystemExit")
    assert "mine.py:" in (only_run(folder) / "error.txt").read_text()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("import torch", "import torch\n1 / 0", "mine.py:5: ZeroDivisionError"),
        ("__init__()", "__init__()\n        raise SystemExit", "mine.py:14: SystemExit"),
        ("distance):", "distance):\n        raise SystemExit", "mine.py:17: SystemExit"),
        (
            "def distance_bias",
            "def distance_bais",
            "RootBias overrides no hook, and would do nothing: define",
        ),
        ("(self, distance)", "(self)", "a hook cannot be used: TypeError: RootBias.distance_bias() takes 1"),
        ("shift_invariant", "shift_invarient", "unknown claim 'shift_invarient': did you mean"),
        ("sqrt()", "log()", "the encoding gives values that are not finite in a window of 16 tokens"),
        ("-self.strength[:, None]", "torch.ones(7, 1)", "a hook cannot be used: RuntimeError: The exp"),
        ("return ", "self.a = torch.nn.Parameter(torch.ones(1)); return ", "the encoding makes a in a hook"),
    ],
)
def test_code_that_cannot_work_is_one_line_before_anything_is_written(
    train, folder, own, before, after, message
):
    (own / "encoding" / "mine.py").write_text(CODE.replace(before, after, 1))
    outcome = train("--config-dir", str(own), "encoding=mine")
    assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()


def test_a_class_in_a_file_is_taken_as_a_shipped_name_is(train, command, folder, own):
    name = f"{own / 'encoding' / 'mine.py'}:RootBias"
    outcome = train("-m", f"encoding={name}", "encoding.strength=0.25,1.0")
    assert outcome.code == 0, outcome.err
    assert re.search(r"^RootBias@[0-9a-f]{4} strength=0.25 ", outcome.out, re.MULTILINE)
    runs = (folder / "results" / "runs").iterdir()
    assert {path.name.split("-s0-")[0] for path in runs} == {"RootBias"}
    composed = command("train", f"encoding={name}", "--cfg", "job").out
    assert "n_heads: ${model.n_heads}" in composed and "strength: 0.5" in composed
    assert complete_word("encoding.str", [f"encoding={name}"]) == ["encoding.strength="]
    outcome = train(f"encoding={name}", "encoding.strenght=1")
    assert outcome.code == 2 and "did you mean 'encoding.strength'?" in outcome.line
    outcome = train(f"encoding={name.partition(':')[0]}")
    assert outcome.code == 2 and outcome.line.endswith(f"is a file: say {name}")


def test_options_are_read_without_running_the_code(folder):
    file = folder / "mine.py"
    file.write_text(f"raise SystemError\n{CODE}")
    assert [option.name for option in options_of(f"{file}:RootBias")] == ["n_heads", "strength"]
    file.write_text(CODE.replace("strength: float = 0.5", "strength: float = 2 ** -1"))
    assert options_of(f"{file}:RootBias")[1].default == 0.5
