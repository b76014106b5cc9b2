"""The pages of encodings: what they say, and mistakes."""

import re
import subprocess
import sys

import pytest
from support.shown import NAMES, SMALL, one

from pe_bench.config.overrides import Override, in_full
from pe_bench.errors import UserError
from pe_bench.inspection.page import options_of, page
from pe_bench.inspection.resolve import resolve

OWN = '''
"""One sentence
in two lines.

    b(r) = -r
    c(r) = 0

- an item
- another
"""

import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    def __init__(self, n_heads: int, strength: float = 0.5):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.full((n_heads,), strength))

    def distance_bias(self, distance):
        return -self.strength[:, None] * distance.sqrt()
'''


def cells_of(text: str, key: str) -> list[str]:
    """Return what a page says behind a key."""
    (line,) = [line for line in text.splitlines() if line.startswith(key)]
    return re.split(r"  +", line)[1:]


def test_a_page_has_the_docstring_the_options_the_claims_and_what_to_do_next(command):
    outcome = command("show", "alibi")
    assert outcome.code == 0, outcome.err
    assert "Press, Smith, Lewis" in outcome.out and "Past the training length: " in outcome.out
    assert cells_of(outcome.out, "encoding.n_heads") == ["4", "from model.n_heads"]
    assert cells_of(outcome.out, "parameters")[0] == "0"
    assert "decaying, prefix_consistent, shift_invariant" in outcome.out
    steps = "check it  pe-bench check alibi\ntrain it  pe-bench train encoding=alibi\n"
    assert outcome.out.endswith(steps)


def test_an_option_says_whether_it_was_given_follows_or_is_the_default():
    text = page(one("rope", "base=500", "model.d_model=64"))
    assert cells_of(text, "encoding.base") == ["500", "given", "of the geometric frequencies"]
    assert cells_of(text, "encoding.d_head") == ["16", "from model.d_head"]
    assert cells_of(text, "encoding.layout")[:2] == ["half", "default"]
    text = page(one("randomized", "train.length=64"))
    key = "encoding.modifiers.randomized.max_position"
    assert cells_of(text, key)[:2] == ["1024", "from train.length"]
    assert "parameters     65,536  (model=small," in page(one("learned", "model=small", "train.length=256"))


@pytest.mark.parametrize("name", NAMES)
def test_every_option_begins_a_line_and_no_line_is_wider_than_the_page(name):
    subject = one(name)
    keys = {option for option, *_ in options_of(subject, subject.spec.base)}
    text = page(subject, 60)
    blocks = [block for block in text.split("\n\n") if block.startswith("encoding.")]
    lines = [line for block in blocks for line in block.splitlines()]
    assert {line.split()[0] for line in lines if not line.startswith(" ")} >= keys
    # A list of numbers, which may be an option's value, is one word less than a path is.
    assert all(len(line) <= 60 or " " not in line.strip() for line in text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_short_form_of_an_option_means_what_the_name_stands_for():
    assert one("sliding_window", "window=20").config.encoding["modifiers"]["sliding_window"]["window"] == 20
    config = {"base": 1, "modifiers": {"other": {"base": 2}, "second": {"base": 3}}}
    for name, part in (("first", "encoding"), ("second", "encoding.modifiers.second")):
        assert in_full(name, config, Override("", "base", "500")) == Override("", f"{part}.base", "500")
    assert in_full("first", config, Override("", "bass", "500")) is None


def test_a_modifier_comes_with_what_it_acts_on_and_its_own_docstring_first():
    for arguments, first, second in (
        (["logn"], "Log-n scaling", "RoPE: each pair"),
        (["rope", "modifier=[logn]"], "RoPE: each pair", "Log-n scaling"),
    ):
        text = page(one(*arguments))
        assert text.startswith("rope+logn\n") and text.index(first) < text.index(second)


def test_an_option_goes_to_those_that_have_it_and_values_and_names_are_compared_once():
    assert [subject.label for subject in resolve(["sin", "encoding=rope", "rope"])] == ["sinusoidal", "rope"]
    labels = [subject.label for subject in resolve(["rope", "alibi", "base=500,1000"])]
    assert labels == ["rope base=500.0", "rope base=1000.0", "alibi"]


def test_an_encoding_that_cannot_be_built_as_it_is_still_has_its_page(command, tmp_path):
    outcome = command("show", "longrope")
    assert outcome.code == 0 and "cannot be built as it is: " in outcome.out
    outcome = command("show", "longrope", "--plot", str(tmp_path / "a.png"))
    assert outcome.code == 2 and outcome.out == "" and "encoding.long_factors" in outcome.line


@pytest.fixture
def own(folder):
    """A person's encoding: the file, and a configuration folder."""
    work = folder / "work"
    (work / "encoding").mkdir()
    (work / "encoding" / "mine.py").write_text(OWN)
    (work / "encoding" / "mine.yaml").write_text(
        "name: mine\nclass: mine.py:RootBias\nn_heads: ${model.n_heads}\nstrength: 0.5  # of each head\n"
    )
    return work


def test_a_persons_own_encoding_is_shown_from_its_yaml_or_its_file(command, own):
    for arguments in (["mine", "--config-dir", "encoding/.."], ["encoding/mine.py:RootBias"]):
        outcome = command("show", *arguments, "strength=1e-3")
        assert outcome.code == 0, outcome.err
        laid_out = "One sentence in two lines.\n\n    b(r) = -r\n    c(r) = 0\n\n- an item\n- another\n"
        assert laid_out in outcome.out, "prose is filled, and what is laid out keeps its lines"
        assert cells_of(outcome.out, "encoding.strength")[:2] == ["0.001", "given"]
        assert cells_of(outcome.out, "parameters")[0] == "4"
        name = " ".join(arguments)
        train = f"train it  pe-bench train encoding={arguments[0]} KEY=VALUE ... {' '.join(arguments[1:])}"
        assert outcome.out.endswith(f"check it  pe-bench check {name}\n{train.rstrip()}\n")


def test_a_task_has_its_options_an_example_with_the_answers_marked_and_what_to_do_next(command):
    outcome = command("show", "task=mqar", "task.symbols=50")
    assert outcome.code == 0 and outcome.out.startswith("mqar\n====\n")
    assert cells_of(outcome.out, "task.symbols") == ["50", "keys, and as many values"]
    assert re.search(r"an example of size \d, .*\n\n    .* \[\w+\]", outcome.out)
    assert outcome.out.endswith("train it  pe-bench train task=mqar encoding=rope\n")


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rop"], "unknown encoding 'rop': did you mean 'rope'?"),
        (["rope", "bass=500"], "unknown key 'bass': did you mean 'encoding.base'?"),
        (["rope", "alibi", "layuot=half"], "did you mean 'encoding.layout'?"),
        (["rope", "zzz=1"], "unknown key 'encoding.zzz': there are: "),
        (["rope", "treads=1"], "unknown key 'treads': did you mean 'threads'?"),
        (["rope", "train.lenght=3"], "did you mean 'train.length'?"),
        (["rope", "seed=x"], "seed must be a whole number"),
        (["rope", "--config-dir", "missing"], "--config-dir missing is not a folder"),
        (["rope", "--plot", "a.gif"], "the name must end with .png, .svg or .pdf"),
        (["base=3"], "name an encoding"),
        (["task=mqar", "rope"], "show rope and the task in two commands"),
    ],
)
def test_a_mistake_is_one_line(command, folder, arguments, message):
    outcome = command("show", *arguments)
    assert outcome.code == 2 and message in outcome.line
    assert outcome.out == ""


def test_a_mistyped_argument_is_told_before_torch_is_imported():
    code = """
import sys
from pe_bench.cli.program import run
commands = "show rop", "show rope bass=3", "list encodngs", "speed rope model.d_modell=3"
print([run(command.split()) for command in commands], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2, 2, 2, 2] False"


@pytest.mark.parametrize(
    ("text", "change", "told"),
    [
        ("sqrt()", "sqroot()", "AttributeError: 'Tensor' object has no attribute 'sqroot'"),
        ("sqrt()", "sqrt()[:-1]", "mine.py: a hook cannot be used: RuntimeError: "),
        ("torch.full", "torch.fill_up", "AttributeError: module 'torch' has no"),
    ],
)
def test_own_code_that_fails_is_one_line_and_nothing_is_printed_or_drawn(command, own, text, change, told):
    (own / "mine.py").write_text(OWN.replace(text, change), encoding="utf-8")
    outcome = command("show", "mine.py:RootBias", *SMALL, "--plot", "b.png")
    assert outcome.code == 2 and told in outcome.line
    assert not outcome.out and not (own / "b.png").exists()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("class A:\n    pass\n", "'mine.py' is a file: say mine.py:A"),
        ("class A:\n    pass\nclass B(A):\n    pass\n", "say mine.py:CLASS with one of A, B"),
        ("class A(\n", "'mine.py' is a file: say mine.py:CLASS"),
    ],
)
def test_a_file_without_a_class_is_answered_with_those_that_it_has(folder, code, told):
    (folder / "work" / "mine.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        resolve(["mine.py"])
    assert str(caught.value).endswith(told)
