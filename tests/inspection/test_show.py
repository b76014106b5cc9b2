"""The pages and the pictures of encodings: what they say, the numbers they draw, and mistakes."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.encodings import one_of_a_kind

from pe_bench.cli.completion import complete_word
from pe_bench.config.options import in_full
from pe_bench.config.override import Override
from pe_bench.errors import UserError
from pe_bench.inspection.resolve import ResolvedEncoding, resolve
from pe_bench.inspection.show import curves
from pe_bench.inspection.show.page import _options, page
from pe_bench.inspection.show.picture import draw, rows_of
from pe_bench.plot.style import styles_of

NAMES = [argument.removeprefix("encoding=") for argument in complete_word("encoding=")]
SMALL = ("model.d_model=16", "model.n_heads=2", "model.d_head=8", "model.d_ff=8", "train.length=16")
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


def one(*arguments: str) -> ResolvedEncoding:
    (found,) = resolve(arguments)
    return found


def scores(subject: ResolvedEncoding) -> torch.Tensor:
    length = curves.length_within(subject, 8)
    return curves.scores_by_distance(subject, subject.encoding.layer(0), length).scores


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


# Numbers


def test_the_expected_score_of_rope_is_the_mean_cosine():
    theta = 10_000.0 ** (-torch.arange(16) / 16)
    expected = math.sqrt(32) * (torch.arange(1_024).unsqueeze(-1) * theta).cos().mean(-1)
    assert (scores(one("rope")) - expected).abs().max() < 2e-3


def test_a_bias_is_added_to_the_content_that_is_shared():
    slopes = torch.tensor([2.0 ** (-2 * head) for head in range(1, 5)])
    expected = math.sqrt(32) - slopes.unsqueeze(-1) * torch.arange(1_024)
    assert (scores(one("alibi")) - expected).abs().max() < 1e-3


def test_contents_have_the_moments_of_the_normal_distribution():
    x, heads = curves.contents(d_model=6, n_heads=3, d_head=4)
    assert heads.shape == (8, 3, 1, 4) and x.shape == (8, 1, 6)
    products = torch.einsum("shqk,shqc->hkc", heads, heads) / len(heads)
    assert (products - torch.eye(4)).abs().max() < 1e-5
    assert heads.mean(0).abs().max() < 1e-6


def test_hidden_keys_have_no_score_and_the_mask_shows_them():
    window = one("sliding_window", "window=20")
    assert torch.equal(scores(window)[0].isnan(), torch.arange(1_024) >= 20)
    mask = curves.mask(window, window.encoding.layer(0), 64)
    row, column = torch.arange(64).unsqueeze(-1), torch.arange(64)
    assert torch.equal(mask, (column <= row) & (row - column < 20))


def test_a_mask_of_a_long_text_has_every_nth_token():
    subject = one("nope", "train.length=1024")
    mask = curves.mask(subject, subject.encoding.layer(0), 4_096)
    assert torch.equal(mask, torch.ones(1_024, 1_024).tril().bool())


def test_without_positions_attention_is_spread_evenly():
    subject = one("nope")
    found = curves.scores_by_distance(subject, subject.encoding.layer(0), 64)
    assert (found.weights - 1 / 64).abs().max() < 1e-6 and not found.is_weight


def test_where_the_softmax_is_replaced_scores_are_logarithms_of_weights():
    subject = one("stick_breaking")
    found = curves.scores_by_distance(subject, subject.encoding.layer(0), 64)
    assert found.is_weight and float(found.scores[0, 1]) == pytest.approx(0, abs=0.1)
    assert float(found.weights.sum(-1).max()) <= 1 + 1e-5


def test_what_is_undefined_past_training_is_shown_up_to_it():
    assert curves.length_within(one("learned"), 8) == 128
    assert curves.length_within(one("rope"), 8) == 1_024


def test_products_of_sinusoids_are_sums_of_cosines_of_the_distance():
    found = curves.input_products(one("sinusoidal"), 100)
    assert found is not None and not found[1]
    theta = 10_000.0 ** (-torch.arange(64) / 64)
    expected = (torch.arange(100).unsqueeze(-1) * theta).cos().sum(-1)
    assert (found[0] - expected).abs().max() < 1e-3
    assert curves.input_products(one("rope"), 100) is None


def test_what_multiplies_the_input_is_shown_on_contents():
    found = curves.input_products(one("multiplicative"), 100)
    assert found is not None and found[1] and float(found[0][0]) > 10


def test_wavelengths_are_those_of_the_window():
    def of(*arguments: str, length: int = 1_024) -> torch.Tensor:
        (found,) = curves.wavelengths(one(*arguments).encoding.layer(0), length)
        return found

    rope = of("rope", "base=500")
    assert (rope - 2 * math.pi * 500.0 ** (torch.arange(16) / 16)).abs().max() < 1e-3
    assert torch.allclose(of("rope_pi"), 8 * of("rope"))
    assert torch.allclose(of("rope_pi", length=128), of("rope"))
    assert curves.wavelengths(one("alibi").encoding.layer(0), 1_024) == []


def test_layers_that_differ_are_shown_apart_and_alike_ones_once():
    assert [kind.numbers for kind in curves.kinds(one("rope"))] == [(0, 1, 2, 3)]
    assert [kind.numbers for kind in curves.kinds(one("deberta"))] == [(0, 1, 2, 3)]
    assert len(curves.kinds(one("swan"))) == 2


@pytest.mark.parametrize("name", one_of_a_kind(NAMES))
def test_every_encoding_has_something_to_draw(name):
    subject = one(name, *SMALL)
    try:
        _ = subject.encoding
    except UserError as refusal:
        pytest.skip(str(refusal))
    rows = rows_of([subject])
    assert rows
    for row in rows:
        assert (row.scores is None) != (row.products is None)
        if row.scores is not None:
            assert np.isfinite(row.scores.scores.numpy()).any(1).all()
            assert np.isfinite(row.scores.weights.numpy()).all()
        if row.products is not None:
            assert np.isfinite(row.products[0]).all()


# Pictures


@pytest.mark.parametrize("name", ["p_rope", "partial_rope"])
def test_rotations_of_no_pair_have_no_wavelengths_and_can_be_drawn(name):
    subject = one(name, "fraction=0", *SMALL)
    assert curves.wavelengths(subject.encoding.layer(0), 128) == []
    assert draw(rows_of([subject])).axes


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_heads_are_named_where_they_differ_with_what_the_panel_leaves_out():
    shown = texts(draw(rows_of(resolve(["alibi"]))))
    assert "head 3" in shown and "head 0 (to \N{MINUS SIGN}250)" in shown
    assert "all heads" in texts(draw(rows_of(resolve(["rope"]))))
    assert "all heads (masked from 20)" in texts(draw(rows_of(resolve(["sliding_window", "window=20"]))))
    assert "undefined" in texts(draw(rows_of(resolve(["learned"]))))


def test_several_encodings_have_a_row_each_and_one_panel_of_all():
    figure = draw(rows_of(resolve(["rope", "alibi"])))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title in ("rope", "alibi")] == ["rope", "alibi"]
    (legend,) = [found for axes in figure.axes if (found := axes.get_legend()) is not None]
    assert [text.get_text() for text in legend.get_texts()] == [
        "alibi: half within 19",
        "rope: half within 216",
    ]


def test_only_a_mask_that_hides_keys_before_the_query_is_drawn():
    """All others would be the same triangle."""
    causal, window = rows_of([one("rope")]), rows_of([one("sliding_window", "window=20")])
    assert [row.mask is None for row in (*causal, *window)] == [True, False]
    assert "A query sees all keys before it" in note_of(draw(causal))
    assert "A query sees all keys before it" not in note_of(draw(window))


def note_of(figure) -> str:
    return " ".join(figure.subfigs[-1].get_supxlabel().split())


def test_an_encoding_without_scores_by_distance_is_named_beside_the_panel_of_all():
    figure = draw(rows_of(resolve(["rope", "alibi", "sinusoidal"])))
    (legend,) = [found for axes in figure.axes if (found := axes.get_legend()) is not None]
    assert [text.get_text() for text in legend.get_texts()][-1] == "sinusoidal: changes inputs, not scores"


def test_pairs_that_turn_fully_are_counted_and_said_to_be_so():
    figure = draw(rows_of(resolve(["rope"])))
    titles = [" ".join(axes.get_title().split()) for axes in figure.axes]
    assert "feature pairs that turn fully within the training length" in titles
    assert "6 of 16" in texts(figure)


def test_an_encoding_has_the_colour_of_its_curve_in_a_report():
    found = {row.subject.label: row.colour for row in rows_of(resolve(["rope", "alibi"]))}
    assert found == {name: style.colour for name, style in styles_of(["rope", "alibi"]).items()}


def test_labels_of_a_panel_lie_apart():
    figure = draw(rows_of(resolve(["fox", "model=small"])))
    heights = sorted(
        text.get_position()[1] for text in figure.axes[0].texts if text.get_text().startswith("head")
    )
    points = np.diff(heights) * figure.axes[0].get_window_extent().height * 72 / figure.dpi
    assert len(heights) == 8 and points.min() > 9


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_written_in_the_format_of_its_name(command, tmp_path, suffix, start):
    file = tmp_path / f"a{suffix}"
    outcome = command("show", "rope", *SMALL, "--plot", str(file))
    assert outcome.code == 0 and f"wrote {file}" in outcome.err, outcome.err
    assert "RoPE: each pair" in outcome.out
    assert file.read_bytes().startswith(start)


def test_a_picture_is_the_same_each_time(command, tmp_path):
    for name in "ab":
        assert command("show", "t5", *SMALL, "--plot", str(tmp_path / f"{name}.svg")).code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


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
