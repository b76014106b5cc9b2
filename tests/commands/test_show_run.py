"""`show RUN`: the picture of a trained model, and the text that it writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.commands import Command, only_run

from pe_bench.commands.show_run import WRITTEN_CHARACTERS, load_run, text_written
from pe_bench.inspection.trained import attention_by_layer, rows_by_layer, trained_encoding
from pe_bench.model.decoder import Decoder
from pe_bench.runs.job import Job

OWN = """
import torch
from pe_bench.encodings import LayerEncoding


class Steps(LayerEncoding):
    def distance_bias(self, distance):
        return -distance.float()
"""


def loaded(folder: Path) -> tuple[Job, Decoder]:
    job = load_run(only_run(folder).name, folder / "results")
    assert isinstance(job.model, Decoder)
    return job, job.model


def show(command: Command, folder: Path, *arguments: str):
    return command("show", *arguments, "--results-dir", str(folder / "results"))


def test_the_weights_that_are_drawn_are_those_by_which_each_layer_reads(begin: Command, folder: Path) -> None:
    assert begin("encoding=alibi", "model.n_heads=1").code == 0
    job, model = loaded(folder)
    tokens_BT = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(0))
    ids = torch.arange(12)
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    for block in model.blocks:
        block.attention.register_forward_hook(
            lambda module, arguments, output: read.append((module.value(arguments[0]), output))
        )
    drawn = attention_by_layer(model, tokens_BT, ids)
    assert len(drawn) == job.config.model.n_layers
    with torch.no_grad():
        for block, weights, (values, output) in zip(model.blocks, drawn, read, strict=True):
            assert weights is not None
            expected = block.attention.output(torch.from_numpy(weights) @ values[0])
            torch.testing.assert_close(expected, output[0], rtol=1e-4, atol=1e-5)


def test_a_layer_without_softmax_has_no_weights_and_is_drawn_by_what_is_left(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=retention").code == 0
    job, model = loaded(folder)
    assert attention_by_layer(model, torch.zeros(1, 8, dtype=torch.long), torch.arange(8)) == [None, None]
    rows = rows_by_layer(trained_encoding(job.config, model.encoding))
    assert {row.meaning for row in rows} == {"log of what is left of a token"}
    picture = folder / "kept.png"
    outcome = show(command, folder, only_run(folder).name, "--plot", str(picture))
    assert outcome.code == 0 and picture.stat().st_size > 1_000, outcome.err


def test_the_curves_are_those_of_the_trained_parameters(begin: Command, folder: Path) -> None:
    assert begin("encoding=t5").code == 0
    job, model = loaded(folder)
    with torch.no_grad():
        for parameter in model.encoding.parameters():
            parameter.fill_(0.25)
    first, second = rows_by_layer(trained_encoding(job.config, model.encoding))
    assert (first.title, second.title) == ("layer 0", "layer 1")
    assert np.ptp(first.curves) == pytest.approx(0, abs=1e-5), "one value for every distance"


def test_the_likeliest_characters_are_written_after_as_many_tokens_as_the_prompt_has(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope", "train.steps=60", "train.lr=0.02").code == 0
    outcome = show(command, folder, only_run(folder).name[:12], "--sample")
    assert outcome.code == 0, outcome.err
    job, model = loaded(folder)
    assert outcome.out == text_written(job)
    parts = dict(part.split(":\n", 1) for part in outcome.out.split("\n\n"))
    assert list(parts)[2:] == [
        "written after 16 tokens, the training length",
        "written after 32 tokens, the longest scored length",
    ]
    split = job.data.validation
    document = split.document(int(split.lengths.argmax()))
    for length, text in zip((16, 32), list(parts.values())[2:], strict=True):
        tokens = torch.from_numpy(document[32 - length : 32].astype(np.int64))
        for _ in range(WRITTEN_CHARACTERS):
            with torch.no_grad():
                hidden = model.hidden(tokens[None, -length:], torch.arange(length))
                tokens = torch.cat([tokens, model.likeliest(hidden[0, -1:])])
        written = bytes(tokens[length:].tolist()).decode(errors="replace")
        assert text.replace("\n  | ", "\n").removeprefix("  | ").rstrip("\n") == written.rstrip("\n")


def test_what_cannot_be_shown_of_a_run_is_one_line_and_writes_nothing(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope").code == 0
    name = only_run(folder).name
    picture = str(folder / "picture.png")
    for arguments, line in (
        ((name,), f"say what to show of the run {name}: --plot FILE, --sample, or both"),
        ((name, name, "--sample"), "show takes one run at a time"),
        (("rope-s7-00000000", "--plot", picture), "no finished run 'rope-s7-00000000'"),
        (("--sample",), "show takes one run at a time"),
        (("task=copy", "--sample"), "a task writes no text"),
        (("rope", "--code", "own.py"), "--code is for a run"),
        (("task=copy", "--code", "own.py"), "--code is for a run"),
        (("hf:nowhere", "--code", "own.py"), "--code is for a run"),
        ((name, "--plot", str(folder / "picture.gif")), "picture.gif"),
    ):
        outcome = show(command, folder, *arguments)
        assert outcome.code == 2 and line in outcome.line, outcome.err
    assert not Path(picture).exists()


def test_the_name_of_an_encoding_is_the_encoding_whatever_runs_there_are(
    begin: Command, command: Command, folder: Path
) -> None:
    assert begin("encoding=rope").code == 0
    outcome = show(command, folder, "rope", "--plot", str(folder / "rope.png"))
    assert outcome.code == 0 and "encoding.base" in outcome.out
    sampled = show(command, folder, "rope", "--sample")
    assert sampled.code == 0 and "written after 16 tokens" in sampled.out


def test_the_code_of_a_run_s_own_encoding_runs_only_when_it_is_trusted(
    begin: Command, command: Command, folder: Path
) -> None:
    own = folder / "own.py"
    own.write_text(OWN)
    assert begin(f"encoding={own}:Steps").code == 0
    name = only_run(folder).name
    refused = show(command, folder, name, "--sample")
    assert refused.code == 2 and "--code" in refused.line
    trusted = show(command, folder, name, "--sample", "--code", str(own))
    assert trusted.code == 0 and "written after 16 tokens" in trusted.out, trusted.err


@pytest.mark.parametrize("name", ["my-s2.py", "far-s12-1a.py", "seeds-s3/own.py"])
def test_a_file_whose_name_is_like_that_of_a_run_is_shown_as_an_encoding(
    command: Command, folder: Path, name: str
) -> None:
    own = folder / name
    own.parent.mkdir(exist_ok=True)
    own.write_text(OWN)
    shown = show(command, folder, f"{own}:Steps")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("Steps")


@pytest.mark.parametrize("name", ["rope-s0", "rope+logn-s12-1a2b3c4d", "results/runs/t5-s3-", "rope-s0*"])
def test_a_name_with_a_seed_is_that_of_a_run(command: Command, folder: Path, name: str) -> None:
    assert "say what to show of the run" in show(command, folder, name).line


@pytest.mark.parametrize("name", ["scaled-s1.5", "my-s2b-rope"])
def test_a_name_that_goes_on_after_what_is_like_a_seed_is_that_of_an_encoding(
    command: Command, folder: Path, name: str
) -> None:
    outcome = show(command, folder, name)
    assert outcome.code == 2 and "of the run" not in outcome.line


@pytest.mark.parametrize("argument", ["rope", "task=mqar", "task.symbols=50", "hf:nowhere"])
def test_code_is_refused_with_all_that_is_no_run(command: Command, folder: Path, argument: str) -> None:
    outcome = show(command, folder, argument, "--code", "own.py")
    assert outcome.code == 2 and "--code is for a run" in outcome.line and outcome.out == ""
