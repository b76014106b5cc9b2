"""A person's own encoding: one file and one YAML, outside the package."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import yaml
from support.commands import only_run

from pe_bench.cli.completion import complete_word
from pe_bench.encodings import LayerEncoding
from pe_bench.encodings.signatures import options_of
from pe_bench.encodings.source import digest, sources

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


def test_its_options_are_checked_and_show_in_the_table(train, own):
    outcome = train("--config-dir", str(own), "encoding=mine", "encoding.strength=0.25")
    assert re.search(r"^mine@[0-9a-f]{4} strength=0.25 ", outcome.out, re.MULTILINE)
    outcome = train("--config-dir", str(own), "encoding=mine", "encoding.strength=strong")
    assert outcome.code == 2 and "encoding.strength must be a number, not 'strong'" in outcome.line
    outcome = train("--config-dir", str(own), "encoding=mine", "encoding.strenght=1")
    assert outcome.code == 2 and "did you mean 'encoding.strength'?" in outcome.line


def test_other_code_under_the_same_name_is_another_run(train, folder, own):
    train("--config-dir", str(own), "encoding=mine")
    (own / "encoding" / "mine.py").write_text(CODE + "\n# changed\n")
    train("--config-dir", str(own), "encoding=mine")
    assert len(list((folder / "results" / "runs").iterdir())) == 2


def test_scoring_its_run_imports_the_code_only_when_the_user_names_it(train, command, folder, own):
    train("--config-dir", str(own), "encoding=mine")
    arguments = ["eval", "--lengths", "64", "--results-dir", str(folder / "results")]
    file = own / "encoding" / "mine.py"

    outcome = command(*arguments)
    assert outcome.code == 2 and "--code FILE.py" in outcome.line
    outcome = command(*arguments, "--code", str(file))
    assert outcome.code == 0, outcome.err

    file.write_text(CODE + "\nraise SystemError('must not run')\n")
    outcome = command(*arguments, "--code", str(file))
    assert outcome.code == 2 and "with hash" in outcome.line
    assert (
        f"{file} has " in outcome.line and "give the file as it was when the run was trained" in outcome.line
    )


def test_a_runs_configuration_cannot_name_code_to_import(train, command, folder):
    train("encoding=rope")
    path = only_run(folder) / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["encoding"]["class"] = "antigravity:Anything"
    path.write_text(yaml.safe_dump(values))
    outcome = command("eval", "--lengths", "64", "--results-dir", str(folder / "results"))
    assert outcome.code == 2 and "from outside pe-bench" in outcome.line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("mine.py:RootBias", "gone.py:RootBias"), "gone.py was not found in"),
        (("mine.py:RootBias", "mine.py:Gone"), "names no encoding: Gone"),
        (("mine.py:RootBias", "no_such_module:Gone"), "no_such_module could not be imported"),
        (("mine.py:RootBias", "not_installed"), "is module:Class or file.py:Class"),
        (("mine.py:RootBias", "json:JSONDecoder"), "names no encoding: JSONDecoder"),
        (("n_heads: ${model.n_heads}\n", "n_heads: ???\n"), "encoding needs a value for n_heads"),
    ],
)
def test_a_wrong_class_is_one_line(train, folder, own, change, message):
    (own / "encoding" / "mine.yaml").write_text(YAML.replace(*change))
    outcome = train("--config-dir", str(own), "encoding=mine")
    assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    "name",
    ["pe_bench.encodings.evil.py:RoPE", "pe_bench.encodings./evil.py:RoPE", "pe_bench.encodings.evil:x.py"],
)
def test_no_spelling_of_a_class_makes_a_runs_directory_run_its_code(
    train, command, folder, monkeypatch, name
):
    train("encoding=rope")
    run = only_run(folder)
    evil = "import pathlib\npathlib.Path('RAN').touch()\nclass RoPE: pass\n"
    (run / "pe_bench.encodings.evil.py").write_text(evil)
    (run / "pe_bench.encodings.").mkdir()
    (run / "pe_bench.encodings." / "evil.py").write_text(evil)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["encoding"]["class"] = name
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(run)
    outcome = command("eval", ".", "--lengths", "64")
    assert outcome.code == 2 and "from outside pe-bench" in outcome.line
    assert not (run / "RAN").exists()


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
    assert outcome.code == 2 and "(with roots.py, which it imports)" in outcome.line
    assert command(*score[:-1], str(only_run(folder) / "code" / "mine.py")).code == 0
    assert before in outcome.line and digest(own / "encoding" / "mine.py") in outcome.line
    train("--config-dir", str(own), "encoding=mine")
    assert len(list((folder / "results" / "runs").iterdir())) == 2


def test_sources_are_files_of_the_folder_that_are_imported_by_each_other(folder):
    files = {
        "mine.py": "import json, torch, near\nfrom pack import inner\n",
        "near.py": "def f():\n    import far\n",
        "far.py": "",
        "unused.py": "",
        "json.py": "",
        "pack/__init__.py": "",
        "pack/other.py": "",
        "pack/inner.py": "from . import other\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    names = [str(path.relative_to(folder)) for path in sources(folder / "mine.py")]
    assert names == ["mine.py", "far.py", "near.py", "pack/__init__.py", "pack/inner.py", "pack/other.py"]


CLASSES = """
class Silent(BaseException):
    def __str__(self):
        raise ValueError("no text")


"""


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise SystemExit", "SystemExit"),
        ("raise Silent", "Silent: Silent"),
        ("raise GeneratorExit('enough')", "GeneratorExit: enough"),
    ],
)
def test_a_hook_that_ends_the_program_in_training_is_a_failed_run(train, folder, own, statement, message):
    body = f"if torch.is_grad_enabled():\n            {statement}\n        return -self"
    code = CODE.replace("class RootBias", f"{CLASSES}class RootBias").replace("return -self", body)
    (own / "encoding" / "mine.py").write_text(code)
    outcome = train("--config-dir", str(own), "encoding=mine")
    assert outcome.code == 1 and outcome.line.endswith(message)
    assert "mine.py:" in (only_run(folder) / "error.txt").read_text()


SET = 'frozenset({"shift_invariant", "prefix_consistent", "decaying"})'
RETURNED = "-self.strength[:, None] * distance.sqrt()"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("import torch", "import torch\n1 / 0", "mine.py:5: ZeroDivisionError"),
        ("import torch", "raise SystemExit", "mine.py:4: SystemExit"),
        ("__init__()", "__init__()\n        raise SystemExit", "mine.py:14: SystemExit"),
        ("distance):", "distance):\n        raise SystemExit", "mine.py:17: SystemExit"),
        (
            "def distance_bias",
            "def distance_bais",
            "RootBias overrides no hook, and would do nothing: define",
        ),
        (
            "(self, distance)",
            "(self)",
            "mine.py: a hook cannot be used: TypeError: RootBias.distance_bias() takes 1",
        ),
        (
            "shift_invariant",
            "shift_invarient",
            "unknown claim 'shift_invarient': did you mean 'shift_invariant'?",
        ),
        (SET, "'text'", "RootBias.claims must be a set of texts, not 'text'"),
        ("self.strength =", "self.claims = 'text'; self.strength =", "a set of texts, not 'text'"),
        ("self.strength =", "self.past_training = 'odd'; self.strength =", "unknown past_training 'odd'"),
        (
            "sqrt()",
            "log()",
            "the encoding gives values that are not finite in a window of 16 tokens",
        ),
        (
            RETURNED,
            "-distance.sqrt().expand(7, -1)",
            "a hook cannot be used: RuntimeError: The exp",
        ),
        ("return ", "self.a = torch.nn.Parameter(torch.ones(1)); return ", "the encoding makes a in a hook"),
    ],
)
def test_code_that_cannot_work_is_one_line_before_anything_is_written(
    train, folder, own, before, after, message
):
    code = CODE.replace(before, after, 1)
    (own / "encoding" / "mine.py").write_text(code)
    outcome = train("--config-dir", str(own), "encoding=mine")
    assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()


def test_a_class_in_a_file_is_taken_as_a_shipped_name_is(train, command, folder, own):
    folder_of_runs = folder / "results" / "runs"
    name = f"{own / 'encoding' / 'mine.py'}:RootBias"
    outcome = train("-m", f"encoding={name}", "encoding.strength=0.25,1.0")
    assert outcome.code == 0, outcome.err
    assert re.search(r"^RootBias@[0-9a-f]{4} strength=0.25 ", outcome.out, re.MULTILINE)
    assert {path.name.split("-s0-")[0] for path in folder_of_runs.iterdir()} == {"RootBias"}
    sweep = train("-m", f"encoding={name},rope", "modifier=[logn]")
    assert sweep.code == 0, sweep.err

    composed = command("train", f"encoding={name}", "--cfg", "job").out
    assert "n_heads: ${model.n_heads}" in composed and "strength: 0.5" in composed
    assert complete_word("encoding.str", [f"encoding={name}"]) == ["encoding.strength="]
    outcome = train(f"encoding={name}", "encoding.strenght=1")
    assert outcome.code == 2 and "did you mean 'encoding.strength'?" in outcome.line
    outcome = train(f"encoding={name.partition(':')[0]}")
    assert outcome.code == 2 and outcome.line.endswith(f"is a file: say {name}")


def test_a_class_may_be_of_a_module_that_python_does_not_list(folder):
    (folder / "own.py").write_text(CODE)
    spec = spec_from_file_location("not_listed", folder / "own.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "not_listed" not in sys.modules
    assert [kind for kind in vars(module).values() if kind in LayerEncoding.__subclasses__()]


def test_options_are_read_without_running_the_code(folder):
    file = folder / "mine.py"
    file.write_text(f"raise SystemError\n{CODE}")
    assert [option.name for option in options_of(f"{file}:RootBias")] == ["n_heads", "strength"]
    file.write_text(CODE.replace("strength: float = 0.5", "strength: float = 2 ** -1"))
    assert options_of(f"{file}:RootBias")[1].default == 0.5
