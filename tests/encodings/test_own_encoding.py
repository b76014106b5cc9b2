"""A person's own encoding: one file and one YAML, outside the package."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from support.commands import only_run
from support.shown import ROOT_BIAS

from pe_bench.cli.completion import complete_word
from pe_bench.encodings.load import find_code
from pe_bench.encodings.signatures import options_of
from pe_bench.encodings.source import digest, named_files, own_and_imported_files
from pe_bench.errors import UserError

YAML = "name: mine\nclass: mine.py:RootBias\nn_heads: ${model.n_heads}\nstrength: 0.5\n"


@pytest.fixture
def own(folder):
    """The file of a class, beside encoding/mine.yaml in a folder that the command gets."""
    directory = folder / "mine" / "encoding"
    directory.mkdir(parents=True)
    (directory / "mine.yaml").write_text(YAML)
    (directory / "mine.py").write_text(ROOT_BIAS)
    return directory / "mine.py"


@pytest.fixture
def train_own(train, own):
    return lambda *arguments: train("--config-dir", str(own.parent.parent), "encoding=mine", *arguments)


def test_scoring_its_run_imports_the_code_only_when_the_user_names_it(train_own, command, folder, own):
    helper = own.parent / "roots.py"
    # A copy in UTF-8 with line feeds would have another hash.
    helper.write_bytes(b"# coding: latin-1\r\n# \xe9\r\ndef root(x):\r\n    return x.sqrt()\r\n")
    code = ROOT_BIAS.replace("import torch\n", "import torch\nfrom roots import root\n")
    own.write_text(code.replace("distance.sqrt()", "root(distance)"))
    outcome = train_own("encoding.strength=0.25")
    assert re.search(r"^mine@[0-9a-f]{4} strength=0.25 ", outcome.out, re.MULTILINE)
    score = ["eval", "--lengths", "64", "--results-dir", str(folder / "results")]
    outcome = command(*score)
    assert outcome.code == 2 and "--code FILE.py" in outcome.line
    outcome = command(*score, "--code", str(own))
    assert outcome.code == 0, outcome.err
    before = digest(own)
    helper.write_text("raise SystemError('must not run')\n")
    outcome = command(*score, "--code", str(own))
    assert outcome.code == 2 and before in outcome.line and digest(own) in outcome.line
    assert "give the file as it was when the run was trained" in outcome.line
    assert command(*score, "--code", str(only_run(folder) / "code" / "mine.py")).code == 0
    helper.write_text("def root(x):\n    return x / 10\n")
    train_own()
    assert len(list((folder / "results" / "runs").iterdir())) == 2, "other code is another run"


def test_files_of_the_folder_are_those_that_an_import_runs(tmp_path):
    texts = {
        "mine.py": "import torch, random, a.b\nfrom pkg import sub\nfrom . import late",
        "a/b.py": "from roots import root",
        "pkg/__init__.py": "",
        "pkg/sub.py": "from .deep import x\n1/",
        "pkg/deep.py": "",
        "roots.py": "1 +",
        "random.py": "",
        "unused.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    read = [str(path.relative_to(tmp_path)) for path in own_and_imported_files(tmp_path / "mine.py")]
    assert read == ["mine.py", "a/b.py", "pkg/__init__.py", "pkg/sub.py", "roots.py"]


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("mine.yaml", "mine.py:RootBias", "gone.py:RootBias", "gone.py was not found in"),
        ("mine.yaml", "mine.py:RootBias", "torch.nn:Linear", "as file.py:Class, not torch.nn:Linear"),
        ("mine.yaml", "mine.py:RootBias", "mine.py:torch", "names no encoding: torch"),
        ("mine.yaml", "0.5", "strong", "encoding.strength must be a number, not 'strong'"),
        ("mine.py", "import torch", "import torch\n1 / 0", "mine.py:3: ZeroDivisionError"),
        ("mine.py", "import torch", "import torch\n1 +", "SyntaxError: invalid syntax (mine.py, line 3)"),
        ("mine.py", "__init__()", "__init__()\n        raise SystemExit", "mine.py:11: SystemExit"),
        ("mine.py", "super().__init__()", "return", "RootBias.__init__ must call super().__init__()"),
        ("mine.py", "distance):", "distance):\n        raise SystemExit", "mine.py:14: SystemExit"),
        ("mine.py", "distance_bias", "distance_bais", "RootBias overrides no hook, and would do nothing"),
        ("mine.py", "(self, distance)", "(self)", "a hook cannot be used: TypeError: RootBias.distance_bias"),
        ("mine.py", "shift_invariant", "shift_invarient", "unknown claim 'shift_invarient': did you mean"),
        ("mine.py", "sqrt()", "log()", "gives values that are not finite in a window of 16 tokens"),
        ("mine.py", "-self.strength[:, None]", "torch.ones(7, 1)", "a hook cannot be used: RuntimeError"),
        ("mine.py", "return ", "", "distance_bias returned None: is a return missing?"),
        ("mine.py", "return ", "self.a = torch.nn.Parameter(torch.ones(1)); return ", "makes a in a hook"),
    ],
)
def test_what_cannot_work_is_one_line_before_anything_is_written(
    train_own, folder, own, file, before, after, message
):
    path = own.parent / file
    path.write_text(path.read_text().replace(before, after, 1))
    outcome = train_own()
    assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("words", "checked"),
    [
        ("encoding={own}/encoding/mine.py:RootBias", "{own}/encoding/mine.py:RootBias"),
        ("encoding=mine --config-dir {own}", "mine --config-dir {own}"),
        (
            "encoding=mine modifier=[logn] --config-dir {own}",
            "mine 'modifier=[logn]' --config-dir {own}",
        ),
    ],
)
def test_a_message_about_a_faulty_encoding_names_a_command_that_checks_it(
    train, command, own, words, checked
):
    own.write_text(own.read_text().replace("sqrt()", "log()"))
    folder = own.parent.parent
    checked = checked.format(own=folder)
    outcome = train(*words.format(own=folder).split())
    assert outcome.line.endswith(f": try `pe-bench check {checked}`")
    found = command("check", *shlex.split(checked))
    assert found.code == 1 and "not finite" in found.out


WRONG_DECLARATIONS = {
    "claims = {'decaying'}": "RootBias.claims must be a frozenset of names, such as",
    "claims = ('decaying', 3)": "RootBias.claims must be a frozenset of names, such as",
    "claims = frozenset({('decaying',)})": "RootBias.claims must be a frozenset of names, such as",
    "claims = True": "RootBias.claims must be a frozenset of names, such as",
    "claims = frozenset({'undefined'})": "unknown claim 'undefined': there are: decaying",
    "claims = property(lambda self: 5)": "RootBias.claims must be a frozenset of names, such as",
    "past_training = 3": "RootBias.past_training must be one of undefined, clamps, defined, not 3",
    "past_training = {'clamps'}": "RootBias.past_training must be one of undefined, clamps, defined",
    "past_training = 'shift_invariant'": "defined, not 'shift_invariant'",
    "lr_multiple = '3'": "RootBias.lr_multiple must be a number of at least 0, not '3'",
    "lr_multiple = float('inf')": "RootBias.lr_multiple must be a number of at least 0, not inf",
    "per_layer = None": "RootBias.per_layer must be true or false, not null",
    "family = ['bias']": "RootBias.family must be text, not ['bias']",
    "searched = True": "RootBias.searched must be text, not True",
    "compatible_with = 'alibi'": "RootBias.compatible_with must be a frozenset of names, not 'alibi'",
    "inert = frozenset({1})": "RootBias.inert must be a frozenset of names, not frozenset({1})",
    "def state_dict(self, **options): return {}": "does not save base.layers.0.strength, which it learns",
    "def __new__(cls, **options): return 'text'": "RootBias(...) is a str and no RootBias",
}
WRONG_CONSTRUCTORS = {
    "(self, n_heads: int, strength: float = 0.5, /)": "takes n_heads by its place alone",
    "(self, n_heads: int, strength: 'Flaot' = 0.5)": "an annotation that is no type: NameError",
    "(self, n_heads: int, strength: 'float |' = 0.5)": "an annotation that is no type: SyntaxError",
    "(self, n_heads: int, strength: 0.1 = 0.5)": "annotates encoding.strength with 0.1, which no value can",
    "(self, n_heads: int, strength=0.5, other=b'x')": "other has the default b'x', which YAML cannot store",
    "(self, n_heads: int, strength=0.5, other=print)": "other has the default <built-in function print>",
    "(self, n_heads: int, strength=0.5, chosen=1)": "has a parameter chosen, which every encoding has",
}


@pytest.mark.parametrize(("changed", "message"), [*WRONG_DECLARATIONS.items(), *WRONG_CONSTRUCTORS.items()])
def test_a_class_that_declares_what_cannot_be_is_one_line_before_anything_is_written(
    train, command, folder, own, changed, message
):
    head = "class RootBias(LayerEncoding):\n"
    if changed.startswith("("):
        text = ROOT_BIAS.replace("(self, n_heads: int, strength: float = 0.5)", changed)
    else:
        # The first declaration of the class is the one that is replaced.
        text = re.sub(r"    claims = .*\n", "", ROOT_BIAS).replace(head, f"{head}    {changed}\n")
    own.write_text(text)
    outcome = train(f"encoding={own}:RootBias")
    assert outcome.code == 2 and message in outcome.line
    assert not (folder / "results").exists()
    outcome = command("check", f"{own}:RootBias")
    assert outcome.code in (1, 2) and "Traceback" not in outcome.err


@pytest.mark.parametrize("value", ["('decaying',)", "None"])
def test_what_an_instance_declares_is_checked_as_what_its_class_does(train_own, folder, own, value):
    own.write_text(ROOT_BIAS.replace("__init__()\n", f"__init__()\n        self.claims = {value}\n"))
    outcome = train_own()
    assert outcome.code == 2 and "claims must be a frozenset of names" in outcome.line
    assert not (folder / "results").exists()


def test_a_layer_that_is_none_is_named(train, folder, own):
    own.write_text(
        "from pe_bench.encodings import PositionalEncoding\n\n\n"
        "class Lost(PositionalEncoding):\n    def layer(self, number):\n        return {}\n"
    )
    outcome = train(f"encoding={own}:Lost")
    assert outcome.code == 2 and "Lost.layer must return a LayerEncoding, not {}" in outcome.line
    assert not (folder / "results").exists()


def test_parameters_that_do_not_load_are_no_score(train_own, command, folder, own):
    load = "    def _load_from_state_dict(self, *arguments):\n        pass\n\n"
    own.write_text(ROOT_BIAS.replace("    def distance_bias", f"{load}    def distance_bias"))
    assert train_own().code == 0
    results = ("--results-dir", str(folder / "results"))
    outcome = command("eval", "--lengths", "64", "--code", str(own), *results)
    assert outcome.code == 2 and "did not load encoding.base.layers.0.strength from" in outcome.line
    outcome = command("check", f"{own}:RootBias", "--verbose")
    assert outcome.code == 1 and "saved and loaded into one of another seed" in outcome.out


def test_a_hook_that_ends_the_program_in_training_is_a_failed_run(train_own, folder, own):
    body = "if torch.is_grad_enabled():\n            raise SystemExit\n        return -self"
    own.write_text(ROOT_BIAS.replace("return -self", body))
    outcome = train_own()
    assert outcome.code == 1 and outcome.line.endswith("SystemExit")
    assert "mine.py:" in (only_run(folder) / "error.txt").read_text()


def test_a_class_in_a_file_is_taken_as_a_shipped_name_is(train, command, folder, own):
    name = f"{own}:RootBias"
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
    outcome = train(f"encoding={own}")
    assert outcome.code == 2 and outcome.line.endswith(f"is a file: say {name}")


def test_options_are_read_without_running_the_code(folder):
    file = Path("mine.py")
    file.write_text(f"raise SystemError\n{ROOT_BIAS}")
    assert [option.name for option in options_of(f"{file}:RootBias")] == ["n_heads", "strength"]
    file.write_text(ROOT_BIAS.replace("strength: float = 0.5", "strength: float = 2 ** -1"))
    assert options_of(f"{file}:RootBias")[1].default == 0.5


# A file that does not know its value, which is in another file of its folder: `@`.
MODULE = """
import importlib, importlib.util, sys
from pathlib import Path
from pe_bench.encodings import LayerEncoding
HERE = Path(__file__).parent
{imported}

class Mine(LayerEncoding):
    def distance_bias(self, distance):
        {in_hook}
        return value
"""
BY_PATH = """
found = importlib.util.spec_from_file_location("anything", HERE / "helper.py")
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
value = module.value
"""
LAYOUTS = {
    "beside": ("from helper import value", "", {"helper.py": "value = @"}),
    "in a hook": ("", "from helper import value", {"helper.py": "value = @"}),
    "through another": ("from one import *", "", {"one.py": "from two import value", "two.py": "value = @"}),
    "package": (
        "import parts.sub",
        "value = parts.sub.value",
        {"parts/__init__.py": "", "parts/sub.py": "from .deep import value", "parts/deep.py": "value = @"},
    ),
    "folder without __init__": ("from parts.sub import value", "", {"parts/sub.py": "value = @"}),
    "relative": ("from .helper import value", "", {"helper.py": "value = @"}),
    "own package": ("from v.helper import value", "", {"__init__.py": "", "helper.py": "value = @"}),
    "import_module": ("value = importlib.import_module('helper').value", "", {"helper.py": "value = @"}),
    "__import__": ("value = __import__('helper').value", "", {"helper.py": "value = @"}),
    "by path": (BY_PATH, "", {"helper.py": "from other import value", "other.py": "value = @"}),
    "sys.path": (
        "sys.path.insert(0, str(HERE / 'lib'))\nfrom deep_in_lib import value",
        "",
        {"lib/deep_in_lib.py": "value = @"},
    ),
    "data": ("value = int((HERE / f'{1}.txt').read_text())", "", {"1.txt": "@"}),
    "run as text": (
        "exec((HERE / 'text').read_text())",
        "",
        {"text": "from helper import value", "helper.py": "value = @"},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_version_of_a_folder_has_its_own_modules_and_its_own_identity(tmp_path, monkeypatch, layout):
    imported, in_hook, others = LAYOUTS[layout]
    monkeypatch.setattr(sys, "path", [*sys.path])
    texts = {"mine.py": MODULE.format(imported=imported, in_hook=in_hook or "pass"), **others}

    def write(folder: Path, value: int):
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text.replace("@", str(value)))
        return find_code(f"{folder / 'mine.py'}:Mine")

    def value_of(code):
        return code.encoding_class().distance_bias(None)

    public = set(sys.modules)
    first, second = write(tmp_path / "a" / "v", 1), write(tmp_path / "b" / "v", 2)
    assert (value_of(first), value_of(second)) == (1, 2)
    edited = write(tmp_path / "a" / "v", 3)  # of the same size, in the same second
    assert (value_of(edited), value_of(second), value_of(first)) == (3, 2, 1)
    assert len({code.sha256 for code in (first, second, edited)}) == 3
    assert find_code(f"{tmp_path / 'a' / 'v' / 'mine.py'}:Mine").encoding_class is edited.encoding_class
    assert not {name for name in set(sys.modules) - public if not name.startswith("pe_bench")}


def test_a_missing_module_and_a_missing_name_are_told_by_their_own_names(tmp_path):
    (tmp_path / "helper.py").touch()
    for line, message in {
        "import helper.gone": "No module named 'helper.gone'",
        "from helper import gone": "cannot import name 'gone' from 'helper'",
    }.items():
        (tmp_path / "mine.py").write_text(line)
        with pytest.raises(UserError, match=rf"mine.py:1: .*{message}"):
            find_code(f"{tmp_path / 'mine.py'}:Mine")


def test_a_file_that_is_opened_at_import_belongs_to_a_run(train_own, command, folder, own):
    table = own.parent / "strengths.txt"
    table.write_text("0.5")
    read = (
        "from pathlib import Path\nSTRENGTH = float(next(Path(__file__).parent.glob('*.txt')).read_text())\n"
    )
    own.write_text(read + ROOT_BIAS.replace("= 0.5", "= STRENGTH"))
    assert train_own().code == 0
    run = only_run(folder)
    score = ["eval", "--lengths", "64", "--results-dir", str(folder / "results"), "--code"]
    assert command(*score, str(own)).code == 0
    own_copy = str(run / "code" / "mine.py")
    assert command(*score, own_copy).code == 0, "the run has a copy of the data too"
    own.with_name("unrelated.md").write_text("not read")
    table.write_text("0.7")
    outcome = command(*score, str(own))
    assert outcome.code == 2 and "give the file as it was when the run was trained" in outcome.line
    assert train_own().code == 0
    assert len(list((folder / "results" / "runs").iterdir())) == 2


def test_names_of_files_in_a_run_do_not_lead_out_of_the_folder(tmp_path):
    file, secret = tmp_path / "own" / "mine.py", tmp_path / "secret"
    for names in ([f"{secret}"], ["../secret"], ["a/../../secret"], "secret", {"a": 1}, [1]):
        assert named_files(file, names) == []
    assert named_files(file, ["a/b.txt"]) == [file.parent / "a" / "b.txt"]


def test_a_file_that_a_hook_opens_is_named_before_training(train_own, own):
    own.with_name("scale.txt").write_text("1")
    read = "open(__file__.replace('mine.py', 'scale.txt')).close()\n        return -self"
    own.write_text(ROOT_BIAS.replace("return -self", read))
    outcome = train_own()
    assert outcome.code == 0
    assert "warning: RootBias opens scale.txt in a hook" in outcome.err


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("parameters", "return None"),
        ("named_parameters", "return iter(())"),
        ("modules", "return [torch.nn.Linear(2, 2)]"),
        ("buffers", "return 5"),
    ],
)
def test_a_class_that_hides_its_parameters_is_refused_in_one_line_and_nothing_is_trained(
    train_own, folder, own, method, body
):
    own.write_text(f"{ROOT_BIAS}\n    def {method}(self, *args, **options):\n        {body}\n")
    outcome = train_own()
    assert outcome.code == 2 and f"RootBias.{method}() must return what torch.nn.Module" in outcome.line
    assert not (folder / "results").exists()


def test_a_class_may_look_at_its_parameters_on_their_way(train_own, own):
    looks = "def parameters(self, recurse=True):\n        return super().parameters(recurse)\n"
    own.write_text(f"{ROOT_BIAS}\n    {looks}")
    assert train_own().code == 0


def test_a_class_that_collects_the_options_of_its_parent_is_told_to_write_them_out(command, folder):
    file = folder / "work" / "collecting.py"
    text = "from pe_bench.encodings.bias.alibi import ALiBi\n\n\nclass Collecting(ALiBi):\n"
    init = "    def __init__(self, {}):\n        super().__init__({})\n"
    file.write_text(text + init.format("scale=1.0, **options", "**options"))
    outcome = command("show", "collecting.py:Collecting")
    told = (
        "Collecting.__init__ takes **options, whose names pe-bench cannot read: write out those of the parent"
    )
    assert outcome.code == 2 and told in outcome.line and "'n_heads'" in outcome.line
    file.write_text(text + init.format("scale=1.0, **options", "4, **options"))
    assert command("show", "collecting.py:Collecting").code == 0, "the parent needs no more"
    mistake = "        (lambda width: width)()\n"
    file.write_text(text + init.format("scale=1.0, **options", "4, **options") + mistake)
    outcome = command("show", "collecting.py:Collecting")
    assert outcome.code and "missing 1 required positional argument: 'width'" in outcome.line
    assert "takes **options" not in outcome.line, "a mistake of one's own"
