"""The pages of encodings and tasks: what they say, and mistakes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.shown import NAMES, ROOT_BIAS, one

from pe_bench.config.overrides import Override, with_full_key
from pe_bench.inspection.page import options_of, page
from pe_bench.inspection.resolve import resolve

OWN = f'"""One sentence\nin two lines.\n\n    b(r) = -r\n    c(r) = 0\n"""\n{ROOT_BIAS}'


def cells_of(text: str, key: str) -> list[str]:
    """Return what a page says behind a key."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"{key} ")]
    return re.split(r"  +", line)[1:]


def test_a_page_has_the_docstring_the_options_and_the_claims(command):
    outcome = command("show", "alibi")
    assert outcome.code == 0, outcome.err
    assert "Press, Smith, Lewis" in outcome.out and "Past the training length: " in outcome.out
    assert cells_of(outcome.out, "encoding.n_heads") == ["4", "from model.n_heads"]
    assert cells_of(outcome.out, "parameters")[0] == "0"
    assert "decaying, prefix_consistent, shift_invariant" in outcome.out
    text = page(one("rope", "base=500", "model.d_model=64"))
    assert "$" not in text and "\\" not in text, "a terminal shows no LaTeX"
    assert cells_of(text, "encoding.base") == ["500", "of the geometric frequencies"]
    assert cells_of(text, "encoding.d_head") == ["16", "from model.d_head"]
    assert "parameters     65,536  (model=small," in page(one("learned", "model=small", "train.length=256"))
    outcome = command("show", "longrope")
    assert "(no default)" in outcome.out and "longrope has no default for long_factors: " in outcome.err


@pytest.mark.parametrize("name", NAMES)
def test_every_option_begins_a_line_and_no_line_is_wider_than_the_page(name):
    subject = one(name)
    keys = {option for option, *_ in options_of(subject, subject.spec.base)}
    text = page(subject, 60)
    blocks = [block for block in text.split("\n\n") if block.startswith("encoding.")]
    lines = [line for block in blocks for line in block.splitlines()]
    assert {line.split()[0] for line in lines if not line.startswith(" ")} >= keys
    assert all(len(line) <= 60 or " " not in line.strip() for line in text.splitlines())
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_short_form_of_an_option_means_what_the_name_stands_for_and_goes_to_those_that_have_it():
    assert one("sliding_window", "window=20").config.encoding["modifiers"]["sliding_window"]["window"] == 20
    config = {"base": 1, "modifiers": {"other": {"base": 2}, "second": {"base": 3}}}
    for name, part in (("first", "encoding"), ("second", "encoding.modifiers.second")):
        assert with_full_key(name, config, Override("", "base", "500")) == Override("", f"{part}.base", "500")
    assert with_full_key("first", config, Override("", "bass", "500")) is None
    labels = [subject.label for subject in resolve(["sin", "encoding=rope", "rope", "base=500"])]
    assert labels == ["sinusoidal base=500.0", "rope base=500.0"]


def test_a_persons_own_encoding_is_shown_from_its_yaml_or_its_file(command, folder):
    Path("encoding").mkdir()
    Path("encoding/mine.py").write_text(OWN)
    Path("encoding/mine.yaml").write_text("name: mine\nclass: mine.py:RootBias\n")
    for arguments in (["mine", "--config-dir", "encoding/.."], ["encoding/mine.py:RootBias"]):
        outcome = command("show", *arguments, "strength=1e-3")
        assert outcome.code == 0, outcome.err
        laid_out = "One sentence in two lines.\n\n    b(r) = -r\n    c(r) = 0\n"
        assert laid_out in outcome.out, "prose is filled, and what is laid out keeps its lines"
        assert cells_of(outcome.out, "encoding.strength") == ["0.001"]
        assert cells_of(outcome.out, "parameters")[0] == "4"


@pytest.mark.parametrize("place", ["mine-s2.py", "notes-s1-2/mine.py"])
def test_an_encoding_in_a_file_that_is_named_like_a_run_is_shown(command, folder, place):
    file = folder / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(OWN)
    outcome = command("show", f"{file}:RootBias")
    assert outcome.code == 0 and "One sentence" in outcome.out, outcome.err


@pytest.mark.parametrize("name", ["mine-s2x", "folder-s2-1a/mine"])
def test_only_the_end_of_a_name_makes_it_that_of_a_run(command, name):
    outcome = command("show", name)
    assert outcome.code == 2 and "of the run" not in outcome.line, outcome.err


def test_a_task_has_its_options_and_an_example_with_the_answers_marked(command):
    outcome = command("show", "task=mqar", "task.symbols=50")
    assert outcome.code == 0 and outcome.out.startswith("mqar\n====\n")
    assert cells_of(outcome.out, "task.symbols") == ["50"]
    assert re.search(r"an example of size \d, .*\n\n    .* \[\w+\]", outcome.out)


@pytest.mark.parametrize("name", ["rope", "task=mqar"])
def test_a_page_is_shown_for_any_training_length(command, name):
    outcome = command("show", name, "train.length=200", "train.batch_tokens=1024")
    assert outcome.code == 0, outcome.err


def test_a_mistyped_argument_is_told_before_torch_is_imported():
    code = """
import sys
from pe_bench.cli.program import run
commands = "show rop", "show rope bass=3", "list encodngs", "speed rope model.d_modell=3"
print([run(command.split()) for command in commands], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2, 2, 2, 2] False"
