"""`pe-bench eval --with` and `--code` for encodings of your own."""

import re

import torch
from support.other_scores import labels, levels, rows_of

torch.set_num_threads(1)


def test_a_custom_scaling_is_scored_from_its_folder(begin, evaluate, folder):
    own = folder / "mine" / "encoding"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "name: mine\nclass: mine.py:Half\nd_head: ${model.d_head}\ntrain_length: ${train.length}\n"
    )
    (own / "mine.py").write_text(
        "from pe_bench.encodings.scalings.rope_scaling import RopeScaling, Scaled\n"
        "from pe_bench.encodings.rotary.rope import rope_frequencies\n"
        "class Half(RopeScaling):\n"
        "    window_factor = None\n"
        "    def __init__(self, d_head: int, train_length: int):\n"
        "        super().__init__(d_head, train_length, 2.0)\n"
        "    def scaled(self, window):\n"
        "        return Scaled(rope_frequencies(self.width, self.base) / self.factor_at(window))\n"
    )
    begin("encoding=rope")
    outcome = evaluate("--with", "mine", "--with", "rope_pi factor=2", "--config-dir", str(own.parent))
    assert outcome.code == 0, outcome.err
    label = next(label for label in labels(folder) if label.startswith("mine@"))
    nll = levels(folder)
    assert [nll[label, length] for length in (16, 32)] == [
        nll["rope_pi factor=2.0", length] for length in (16, 32)
    ]
    outcome = evaluate("--with", "mine")
    assert outcome.code == 2 and "unknown encoding 'mine'" in outcome.line
    outcome = evaluate("--with", "mine", "--config-dir", str(folder / "none"))
    assert outcome.code == 2 and "is not a folder" in outcome.line


def test_a_run_of_a_custom_encoding_needs_its_file_and_force(begin, evaluate, folder):
    own = folder / "mine" / "encoding"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("name: mine\nclass: mine.py:Mine\n")
    (own / "mine.py").write_text(
        "from pe_bench.encodings import LayerEncoding\n"
        "class Mine(LayerEncoding):\n"
        "    def distance_bias(self, distance):\n"
        "        return -distance[None].expand(2, -1).float()\n"
    )
    begin("encoding=mine", "--config-dir", str(own.parent))
    code = ["--code", str(own / "mine.py")]
    outcome = evaluate("--with", "sliding_window")
    assert outcome.code == 2 and "--code FILE.py" in outcome.line
    outcome = evaluate("--with", "sliding_window", *code)
    assert outcome.code == 2 and "this run used mine (compatible: none)" in outcome.line
    outcome = evaluate("--with", "sliding_window", *code, "--force")
    assert outcome.code == 0, outcome.err
    assert any(re.fullmatch(r"mine@\w{4}\+sliding_window \(forced\)", label) for label in labels(folder))


def test_an_option_derived_in_a_users_file_is_in_the_label(begin, evaluate, folder):
    """Two versions of one file are two models and never share a row."""
    own = folder / "mine" / "encoding"
    own.mkdir(parents=True)
    begin("encoding=rope")
    for divisor in (2, 4):
        (own / "mine.yaml").write_text(
            "name: mine\nclass: pe_bench.encodings.distance.lm_infinite:LMInfinite\nd_head: ${model.d_head}\n"
            f"window: ${{quotient:${{train.length}},{divisor}}}\n"
        )
        outcome = evaluate("--with", "mine", "--config-dir", str(own.parent))
        assert outcome.code == 0, outcome.err
    mine = [label for label in labels(folder) if label.startswith("mine ")]
    assert len(mine) == 2
    assert {argument for label in mine for argument in label.split() if argument.startswith("window=")} == {
        "window=8",
        "window=4",
    }


def test_another_encoding_with_the_runs_name_is_refused(begin, evaluate, folder):
    own = folder / "mine" / "encoding"
    own.mkdir(parents=True)
    (own / "fast.yaml").write_text(
        "name: rope\nclass: pe_bench.encodings.rotary.hope:HoPE\nd_head: ${model.d_head}\nactive: 2\n"
    )
    begin("encoding=rope")
    before = rows_of(folder)
    (own / "fast.yaml").write_text("name: rope\nclass: pe_bench.encodings.nope:NoPE\n")
    outcome = evaluate("--with", "fast", "--config-dir", str(own.parent))
    assert outcome.code == 2 and "give it another name" in outcome.line
    assert rows_of(folder) == before
