"""The pages of encodings: what they say, and mistakes."""

import re
import subprocess
import sys

import pytest
from support.shown import NAMES, SMALL, one

from pe_bench.config.overrides import Override, in_full
from pe_bench.errors import UserError
from pe_bench.inspection.page import _options, page
from pe_bench.inspection.resolve import resolve

OWN = '''
"""A penalty that grows with the root of the distance."""

import torch
from pe_bench.encodings import LayerEncoding


class RootBias(LayerEncoding):
    def __init__(self, n_heads: int, strength: float = 0.5):
        super().__init__()
        self.strength = torch.nn.Parameter(torch.full((n_heads,), strength))

    def distance_bias(self, distance):
        return -self.strength[:, None] * distance.sqrt()
'''


def option_line(text: str, key: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(key)]
    return re.split(r"  +", line)


# Pages


def test_a_page_has_the_docstring_the_options_and_the_claims(command):
    outcome = command("show", "alibi")
    assert outcome.code == 0, outcome.err
    assert "Press, Smith, Lewis" in outcome.out and "Past the training length: " in outcome.out
    assert option_line(outcome.out, "encoding.n_heads")[1:] == ["4", "from model.n_heads"]
    assert option_line(outcome.out, "parameters")[1] == "0"
    assert "decaying, prefix_consistent, shift_invariant" in outcome.out


def test_an_option_says_whether_it_was_given_follows_or_is_the_default():
    text = page(one("rope", "base=500", "model.d_model=64"))
    assert option_line(text, "encoding.base")[1:] == ["500", "given", "of the geometric frequencies"]
    assert option_line(text, "encoding.d_head")[1:] == ["16", "from model.d_head"]
    assert option_line(text, "encoding.layout")[1:3] == ["half", "default"]


def test_what_an_option_follows_from_is_spelled_out():
    text = page(one("randomized", "train.length=64"))
    key = "encoding.modifiers.randomized.max_position"
    assert option_line(text, key)[1:3] == ["1024", "from 16 * train.length"]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_begins_a_line_and_no_line_is_wider_than_the_page(name):
    subject = one(name)
    keys = {option for option, *_ in _options(subject, subject.spec.base)}
    for width in (60, 80, 100):
        text = page(subject, width)
        blocks = [block for block in text.split("\n\n") if block.startswith("encoding.")]
        lines = [line for block in blocks for line in block.splitlines()]
        assert {line.split()[0] for line in lines if not line.startswith(" ")} >= keys
        # A list of numbers, which may be an option's value, is one word less than a path is.
        assert all(len(line) <= width or " " not in line.strip() for line in text.splitlines())
        assert all(line == line.rstrip() for line in text.splitlines())


def test_prose_is_filled_and_what_is_laid_out_keeps_its_lines(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    laid_out = "One sentence\nin two lines.\n\n    b(r) = -r\n    c(r) = 0\n\n- an item\n- another\n"
    (tmp_path / "mine.py").write_text(
        OWN.replace("A penalty that grows", laid_out + "\nA penalty that grows")
    )
    shown = command("show", "mine.py:RootBias").out
    assert "One sentence in two lines.\n\n    b(r) = -r\n    c(r) = 0\n\n- an item\n- another\n" in shown


def test_a_page_ends_with_what_to_do_next(command, own):
    assert command("show", "alibi").out.endswith(
        "check it  pe-bench check alibi\ntrain it  pe-bench train encoding=alibi\n"
    )
    shown = command("show", "mine", "--config-dir", "encoding/..").out
    assert shown.endswith("pe-bench train encoding=mine --config-dir encoding/..\n")
    shown = command("show", "encoding/mine.py:RootBias").out
    assert shown.endswith("check it  pe-bench check encoding/mine.py:RootBias\n"), "it has no name to train"


def test_the_short_form_of_an_option_is_the_long_one():
    assert page(one("rope", "base=500")) == page(one("rope", "encoding.base=500"))


def test_the_short_form_of_an_option_finds_that_of_a_modifier():
    found = one("sliding_window", "window=20")
    assert found.config.encoding["modifiers"]["sliding_window"]["window"] == 20
    assert one("logn", "base=500").config.encoding["base"] == 500


@pytest.mark.parametrize(("name", "place"), [("first", "encoding"), ("second", "encoding.modifiers.second")])
def test_where_several_parts_have_an_option_the_short_form_means_what_the_name_stands_for(name, place):
    config = {"base": 1, "modifiers": {"other": {"base": 2}, "second": {"base": 3}}}
    for prefix in ("", "+"):
        found = in_full(name, config, Override(prefix, "base", "500"))
        assert found == Override(prefix, f"{place}.base", "500")
    assert in_full(name, config, Override("", "bass", "500")) is None


def test_a_modifier_comes_with_what_it_acts_on_and_its_own_docstring_first():
    text = page(one("logn"))
    assert text.startswith("rope+logn\n")
    assert text.index("Log-n scaling") < text.index("RoPE: each pair")
    text = page(one("rope", "modifier=[logn]"))
    assert text.startswith("rope+logn\n")
    assert text.index("RoPE: each pair") < text.index("Log-n scaling")


def test_sizes_of_the_model_count():
    assert one("learned", "train.length=64").encoding.state_dict()["base.table"].shape == (64, 128)
    assert "parameters     65,536  (model=small," in page(one("learned", "model=small", "train.length=256"))
    assert "  (model=tiny model.d_model=64, " in page(one("learned", "model.d_model=64"))


def test_other_names_and_repeated_ones_are_the_encoding():
    assert [found.label for found in resolve(["sin", "encoding=rope", "rope"])] == ["sinusoidal", "rope"]


def test_an_option_goes_to_those_that_have_it_and_values_are_compared():
    found = resolve(["rope", "alibi", "base=500,1000"])
    assert [subject.label for subject in found] == ["rope base=500.0", "rope base=1000.0", "alibi"]


def test_an_encoding_that_cannot_be_built_as_it_is_still_has_its_page(command, tmp_path):
    outcome = command("show", "longrope")
    assert outcome.code == 0 and "cannot be built as it is: " in outcome.out
    outcome = command("show", "longrope", "--plot", str(tmp_path / "a.png"))
    assert outcome.code == 2 and outcome.out == "" and "encoding.long_factors" in outcome.line
    factors = f"long_factors=[{','.join(['2.0'] * 16)}]"
    assert "cannot be built" not in command("show", "longrope", factors).out


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A person's encoding: the file, and a configuration folder."""
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "mine.py").write_text(OWN)
    (tmp_path / "encoding" / "mine.yaml").write_text(
        "name: mine\nclass: mine.py:RootBias\nn_heads: ${model.n_heads}\nstrength: 0.5  # of each head\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_persons_own_encoding_is_shown_from_its_yaml_or_its_file(command, own):
    for arguments in (["mine", "--config-dir", str(own)], ["encoding/mine.py:RootBias"]):
        outcome = command("show", *arguments, "strength=0.25")
        assert outcome.code == 0, outcome.err
        assert "A penalty that grows with the root" in outcome.out
        assert option_line(outcome.out, "encoding.strength")[1:2] == ["0.25"]
        assert option_line(outcome.out, "parameters")[1] == "4"
    outcome = command("show", "encoding/mine.py:RootBias", "strenght=1")
    assert outcome.code == 2 and "did you mean 'encoding.strength'?" in outcome.line


def test_a_class_in_a_file_takes_options_without_default_and_reads_values_as_hydra_does(command, own):
    (own / "needs.py").write_text(OWN.replace("strength: float = 0.5", "strength: float"))
    outcome = command("show", "needs.py:RootBias", "strength=1e-3")
    assert outcome.code == 0, outcome.err
    assert option_line(outcome.out, "encoding.strength")[1:3] == ["0.001", "given"]
    assert option_line(outcome.out, "parameters")[1] == "4"


# Mistakes

MISTAKES = [
    (["rop"], "unknown encoding 'rop': did you mean 'rope'?"),
    (["rope", "bass=500"], "unknown key 'encoding.bass': did you mean 'encoding.base'?"),
    (["rope", "alibi", "layuot=half"], "did you mean 'encoding.layout'?"),
    (["rope", "model=smal"], "did you mean 'small'?"),
    (["rope", "train.lenght=3"], "did you mean 'train.length'?"),
    (["rope", "seed=x"], "seed must be a whole number"),
    (["rope", "--config-dir", "missing"], "--config-dir missing is not a folder"),
    (["rope", "--plot", "a.gif"], "the name must end with .png, .svg or .pdf"),
    (["rope", "--plot", "missing/a.png"], "there is no folder missing"),
    (["base=3"], "name an encoding"),
    ([], "name an encoding"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_one_line(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    outcome = command("show", *arguments)
    assert outcome.code == 2 and message in outcome.line
    assert outcome.out == ""


def test_a_mistyped_argument_is_told_before_torch_is_imported():
    code = """
import sys
from pe_bench.cli.program import run
codes = [run(["show", "rop"]), run(["show", "rope", "bass=3"]), run(["list", "encodngs"])]
print(codes, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2, 2, 2] False"


def test_own_code_that_fails_is_one_line_and_nothing_is_printed_or_drawn(command, folder):
    for code, told in [
        ("sqroot()", "mine.py:14: AttributeError: 'Tensor' object has no attribute 'sqroot'"),
        ("sqrt()[:-1]", "mine.py: what a hook returns cannot be used: RuntimeError: "),
    ]:
        (folder / "work" / "mine.py").write_text(OWN.replace("sqrt()", code), encoding="utf-8")
        outcome = command("show", "mine.py:RootBias", *SMALL, "--plot", "b.png")
        assert outcome.code == 2 and told in outcome.line
        assert not outcome.out and not (folder / "work" / "b.png").exists()


def test_a_class_that_cannot_be_made_is_one_line(command, folder):
    (folder / "work" / "mine.py").write_text(OWN.replace("torch.full", "torch.fill_up"), encoding="utf-8")
    outcome = command("show", "mine.py:RootBias", *SMALL, "--plot", "b.png")
    assert outcome.code == 2 and "mine.py:11: AttributeError: module 'torch' has no" in outcome.line


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("class A:\n    pass\n", "'mine.py' is a file: say mine.py:A"),
        ("class A:\n    pass\nclass B(A):\n    pass\n", "say mine.py:CLASS with one of A, B"),
        ("raise SystemError\n", "'mine.py' is a file: say mine.py:CLASS"),
        ("class A(\n", "'mine.py' is a file: say mine.py:CLASS"),
    ],
)
def test_a_file_without_a_class_is_answered_with_those_that_it_has(folder, code, told):
    (folder / "work" / "mine.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        resolve(["mine.py"])
    assert str(caught.value).endswith(told)
    with pytest.raises(UserError, match=r"the encoding's file gone\.py was not found"):
        resolve(["gone.py"])
