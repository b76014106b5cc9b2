"""Our attention gives the logits of transformers' own, for every architecture that lets it be replaced."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import Command
from support.hf_models import TRAIN_LENGTH, VOCABULARY, WINDOW, opened, write_hf_model
from torch import Tensor
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention

from pe_bench.encodings.base import LayerEncoding, LengthError
from pe_bench.errors import RunError, UserError
from pe_bench.hf.attention import ATTENTION_NAME, PassMask
from pe_bench.hf.encoding import RotatedLayer, Rotation
from pe_bench.hf.layers import _visible_text
from pe_bench.hf.model import split_feedforward
from pe_bench.hf.opened import Opened, require_precision, window_loss
from pe_bench.model.decoder import LanguageModel

ENCODINGS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text"), "rope"),
    "olmo2": "rope",
    "gpt_neox": "partial_rope",
    "phi": "partial_rope",
    "gpt_oss": "yarn",
    "gpt2": "learned",
    "opt": "learned",
    "cohere2": "nope",
    "gemma4_text": "p_rope",
    "llama4_text": "nope",
    "lfm2": "rope",
    "qwen3_next": "partial_rope",
    "kimi_linear": "nope",
    "olmo_hybrid": "rope",
    "minimax": "rope",
    "granitemoehybrid": "nope",
    "bamba": "partial_rope",
}
HYBRIDS = {
    "lfm2": [1, 3],
    "qwen3_next": [3],
    "kimi_linear": [3],
    "olmo_hybrid": [3],
    "minimax": [0, 2],
    "granitemoehybrid": [1, 3],
    "bamba": [2],
}
# Layers that keep what they do: without positions; windowed, with another base; rotary, below one without.
FIXED = {"smollm3": [3], "gemma3_text": [0, 1, 2, 3, 4], "cohere2": [0, 1, 2]}
FIXED |= {"gemma4_text": [0, 1, 2, 3, 4], "llama4_text": [0, 1, 2]}
LENGTH = 60  # several windows, and further than in training
HALF_TURN = Rotation("half", (3.0, 2.0, 1.0, 0.5), 1.0, 8)
STRETCHED = {"factor": 4.0, "original_max_position_embeddings": TRAIN_LENGTH}
SCALINGS = {
    "yarn": {"rope_type": "yarn", **STRETCHED},
    "llama3": {"rope_type": "llama3", **STRETCHED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "rope_pi": {"rope_type": "linear", "factor": 2.0},
    "rope_dynamic_ntk": {"rope_type": "dynamic", "factor": 2.0},
    "p_rope": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
}


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(256, (1, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def ours(hf_model: Opened, read: Tensor, later: int = 0) -> Tensor:
    return hf_model.model.logits(hf_model.model.hidden(read, torch.arange(read.shape[1]) + later))


@torch.no_grad()
def theirs(hf_model: Opened, read: Tensor) -> Tensor:
    hf_model.model.causal.set_attn_implementation("eager")
    logits = hf_model.model.causal(input_ids=read, use_cache=False).logits
    hf_model.model.causal.set_attn_implementation(ATTENTION_NAME)
    return logits


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


@pytest.fixture(scope="module")
def hf_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    folder = tmp_path_factory.mktemp("hf_models")
    return {name: opened(write_hf_model(folder / name, name)) for name in ENCODINGS}


@pytest.mark.parametrize("name", ENCODINGS)
def test_logits_are_those_of_transformers_and_the_encoding_is_found(
    hf_models: dict[str, Opened], name: str
) -> None:
    hf_model, read = hf_models[name], tokens()
    assert hf_model.encoding["name"] == ENCODINGS[name]
    assert hf_model.difference is not None and hf_model.difference < 1e-5
    logits, fixed = ours(hf_model, read), hf_model.model.fixed
    assert distance(logits, theirs(hf_model, read)) < 1e-5
    assert sorted(fixed) == FIXED.get(name, [])
    if ENCODINGS[name] not in ("learned", "nope"):  # a rotation that was dropped would show
        hf_model.model.fixed = dict.fromkeys(range(9), LayerEncoding())
        least = 1e-3 if name == "minimax" else 1e-2  # its experts' output is much larger than attention's
        assert distance(ours(hf_model, read), logits) > least
        hf_model.model.fixed = fixed


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_of_the_configuration_is_ours(tmp_path: Path, name: str) -> None:
    length = 64 if name == "rope_dynamic_ntk" else TRAIN_LENGTH  # it is plain up to there
    changes = {"rope_parameters": {"rope_theta": 10_000.0, **SCALINGS[name]}}
    folder = write_hf_model(tmp_path / "llama", "llama", max_position_embeddings=length, **changes)
    hf_model, read = opened(folder, begin=(7, 9)), tokens(100)
    assert hf_model.encoding["name"] == name and hf_model.model.is_neutral
    logits = ours(hf_model, read)
    read[0, :2] = torch.tensor([7, 9])
    assert distance(logits, theirs(hf_model, read)) < 1e-4, "each window begins as texts do"


GROWING = {
    "rope_dynamic_ntk": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": TRAIN_LENGTH,
        "long_factor": [1.0, 2.0, 3.0, 4.0],
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "factor": 4.0,
    },
}


@pytest.mark.parametrize("name", GROWING)
@pytest.mark.parametrize("train_length", [16, TRAIN_LENGTH, 96])
def test_a_scaling_grows_from_the_length_that_transformers_reads(
    tmp_path: Path, name: str, train_length: int
) -> None:
    changes = {"rope_parameters": {"rope_theta": 10_000.0, **GROWING[name]}}
    folder = write_hf_model(tmp_path / "llama", "llama", **changes)
    hf_model = opened(folder, train_length=train_length)
    assert hf_model.encoding["name"] == name and hf_model.model.is_neutral
    assert hf_model.encoding["train_length"] == TRAIN_LENGTH
    for length in (TRAIN_LENGTH, TRAIN_LENGTH + 1, 100):
        read = tokens(length)
        assert distance(ours(hf_model, read), theirs(hf_model, read)) < 1e-4


def test_a_rotation_that_grows_in_another_way_is_the_model_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(*arguments: Any, seq_len: Any = None, **named: Any) -> Any:
        frequencies, factor = compute(*arguments, seq_len=seq_len, **named)
        return frequencies if seq_len is None or seq_len < 2 * TRAIN_LENGTH + 2 else frequencies / 2, factor

    compute = ROPE_INIT_FUNCTIONS["dynamic"]
    monkeypatch.setitem(ROPE_INIT_FUNCTIONS, "dynamic", doubled)
    changes = {"rope_parameters": {"rope_theta": 10_000.0, **GROWING["rope_dynamic_ntk"]}}
    hf_model = opened(write_hf_model(tmp_path / "llama", "llama", **changes))
    assert hf_model.encoding["name"] == "own", "at 65 tokens they are equal, at 128 they are not"


@pytest.mark.parametrize("plain", [True, False])
def test_a_window_is_scored_alike_after_a_longer_one(tmp_path: Path, plain: bool) -> None:
    alike = {"rope_theta": 10_000.0, "rope_type": "default"}
    both = {"full_attention": {**alike, **GROWING["rope_dynamic_ntk"]}, "sliding_attention": alike}
    folder = write_hf_model(tmp_path / "gemma", "gemma3_text", rope_parameters=both)
    hf_model = opened(folder, plain=plain)
    assert hf_model.encoding["name"] == ("as_is" if plain else "own"), "which layers grow is not known"
    logits = ours(hf_model, tokens(40))
    ours(hf_model, tokens(100))
    assert torch.equal(ours(hf_model, tokens(40)), logits)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("name", ["gemma3_text", "llama"])
def test_a_scaling_that_transformers_drops_is_noted(
    command: Command, tmp_path: Path, name: str, key: str
) -> None:
    folder = write_hf_model(tmp_path / name, name)
    values = json.loads((folder / "config.json").read_text())
    values.pop("rope_parameters")
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    (folder / "config.json").write_text(json.dumps({**values, key: scaling}))
    hf_model = opened(folder)
    is_dropped = hf_model.encoding["name"] == "rope"
    assert hf_model.unused_scaling == ("linear" if is_dropped else "")
    shown = " ".join(command("show", f"hf:{folder}").out.split())
    assert ("names the scaling linear, and no layer turns so" in shown) == is_dropped
    assert is_dropped == (name == "gemma3_text" and key == "rope_parameters")


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "smollm3", "phi", "bloom"])
def test_an_hf_model_in_bfloat16_has_the_encoding_that_it_has_in_float32(
    hf_models: dict[str, Opened], tmp_path: Path, name: str
) -> None:
    folder = write_hf_model(tmp_path / name, name)
    hf_model = opened(folder, dtype=torch.bfloat16)
    assert hf_model.encoding["name"] == ENCODINGS.get(name, "as_is") and hf_model.model.is_neutral
    causal = hf_model.model.causal
    assert {weight.dtype for weight in causal.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for key, buffer in causal.named_buffers() if "inv_freq" in key} <= {torch.float32}
    logits = ours(hf_model, tokens())
    assert logits.dtype == torch.bfloat16
    if name != "bloom":
        assert hf_model.nats is not None and hf_model.nats < 0.02
        assert 0 < distance(logits.float(), ours(hf_models[name], tokens())) < 0.1


def test_an_attention_that_is_wrong_in_bfloat16_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rough(*arguments: Any, **options: Any) -> Any:
        attended, weights = FORWARD(*arguments, **options)
        is_ours = arguments[0].config._attn_implementation == ATTENTION_NAME
        return attended * (-30 if is_ours and attended.dtype == torch.bfloat16 else 1), weights

    folder = write_hf_model(tmp_path / "llama", "llama")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 50  # at transformers' own initialisation all tokens are about as likely
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert (opened(folder, dtype=torch.bfloat16).nats or 1) < 0.02
    monkeypatch.setattr(LlamaAttention, "forward", rough)
    with pytest.raises(
        UserError, match=r"in bfloat16 the mean loss .* its error may exceed transformers' by at most 0.02"
    ):
        opened(folder, dtype=torch.bfloat16)


def test_a_loss_in_bfloat16_may_be_as_far_from_float32_as_transformers_own_on_the_other_side(
    hf_models: dict[str, Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hf_models["llama"].model
    theirs = window_loss(model)  # both have the same weights here, in float32
    for exact, ours, is_precise in (
        (theirs - 0.5, theirs - 1.0, True),
        (theirs - 0.5, theirs - 1.019, True),
        (theirs - 0.5, theirs - 1.021, False),
        (theirs, theirs + 0.021, False),
    ):
        with monkeypatch.context() as patched:
            patched.setattr("pe_bench.hf.opened.window_loss", lambda _, ours=ours: ours)
            if is_precise:
                assert require_precision(model, exact) == pytest.approx(abs(ours - exact))
            else:
                with pytest.raises(UserError, match=r"its error may exceed transformers' by at most 0\.02"):
                    require_precision(model, exact)


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_without_attention_are_counted_and_shown(
    command: Command, tmp_path: Path, hf_models: dict[str, Opened], name: str
) -> None:
    hf_model = hf_models[name]
    model, with_attention = hf_model.model, HYBRIDS[name]
    assert hf_model.layer_facts is not None and hf_model.layer_facts.numbers == with_attention
    assert (hf_model.size.n_layers, model.without_attention) == (4, 4 - len(with_attention))
    assert f"{4 - len(with_attention)} of its 4 layers have no attention" in model.control_refusal(
        "window", 64
    )
    write_hf_model(tmp_path / name, name)
    shown = command("show", f"hf:{tmp_path / name}")
    assert shown.code == 0 and "no attention" in shown.out
    # An encoding that acts on one layer of the model acts on the attention of that layer.
    logits = ours(hf_model, tokens())
    for number in range(4):
        model.fixed = {**dict.fromkeys(range(4), RotatedLayer(HALF_TURN)), number: LayerEncoding()}
        moved = distance(ours(hf_model, tokens()), logits)
        model.fixed = dict.fromkeys(range(4), RotatedLayer(HALF_TURN))
        assert (distance(ours(hf_model, tokens()), logits) != moved) == (number in with_attention)
    model.fixed = {}


def test_a_hybrid_whose_long_stage_dropped_the_rotation_has_no_positions(
    tmp_path: Path, command: Command
) -> None:
    dropped = {"rope_parameters": {"rope_type": "default", "rope_theta": None}}
    folder = write_hf_model(tmp_path / "olmo", "olmo_hybrid", **dropped)
    assert opened(folder).encoding["name"] == "nope"
    shown = command("show", f"hf:{folder}").out.splitlines()
    rows = [line.split()[:2] for line in shown if line[:1].isdigit()]
    assert sorted(rows) == [["0-2", "no"], ["3", "none"]]


def test_a_table_that_grows_with_the_text_has_no_end(tmp_path: Path) -> None:
    hf_model = opened(write_hf_model(tmp_path / "xglm", "xglm"))
    assert hf_model.model.max_positions is None
    with torch.no_grad():
        logits = hf_model.model.causal(tokens(100), use_cache=False).logits
    assert distance(ours(hf_model, tokens(100)), logits) < 1e-5


def test_show_prints_what_was_found_of_the_layers(command: Command, tmp_path: Path) -> None:
    def rows(name: str) -> list[list[str]]:
        write_hf_model(tmp_path / name, name)
        done = command("show", f"hf:{tmp_path / name}")
        assert done.code == 0, done.err
        lines = done.out.splitlines()
        rule = next(number for number, line in enumerate(lines) if line.startswith("---"))
        return [re.split(" {2,}", line.strip()) for line in itertools.takewhile(bool, lines[rule + 1 :])]

    assert rows("smollm3")[1] == ["3", "none", "all"]
    assert rows("gemma3_text") == [
        ["0-4", "rope", "10,000", "8 of 8", f"window of {WINDOW}", "x 0.177"],
        ["5", "rope base=1000000.0", "1,000,000", "8 of 8", "all", "x 0.177"],
    ]
    yarn = ["yarn factor=4.0 ramp=exact base=150000.0", "150,000", "8 of 8"]
    assert rows("gpt_oss") == [["0, 2", *yarn, f"window of {WINDOW}", "yes"], ["1, 3", *yarn, "all", "yes"]]
    chunks = PassMask(lambda b, h, q, k: (k <= q) & (k // 16 == q // 16), False, torch.device("cpu"))
    assert _visible_text(chunks) == "chunk of 16"
    first_keys = chunks.first_keys(300)
    assert first_keys is not None and first_keys.tolist() == [16 * (index // 16) for index in range(300)]
    sinks = PassMask(lambda b, h, q, k: (k <= q) & ((k < 4) | (k > q - 9)), False, torch.device("cpu"))
    assert sinks.first_keys(300) is None
    write_hf_model(tmp_path / "bloom", "bloom")
    refused = command("show", f"hf:{tmp_path / 'bloom'}")
    assert refused.code == 2 and "bloom does not let its attention be replaced" in refused.line


def test_the_window_control_is_for_models_whose_attention_alone_reads_the_whole_text(
    hf_models: dict[str, Opened], tmp_path: Path
) -> None:
    def refusal(name: str, length: int = 4 * WINDOW) -> str:
        return hf_models[name].model.control_refusal("window", length)

    assert "windowed itself" in refusal("mistral", 2 * WINDOW)
    assert refusal("mistral", WINDOW) == refusal("gemma2") == refusal("gpt_oss") == ""
    beside = opened(write_hf_model(tmp_path / "falcon", "falcon_h1")).model
    assert "beside its attention" in beside.control_refusal("window", 64)
    assert beside.control_refusal("swap", 64) == ""


@pytest.mark.parametrize(("name", "window"), [("llama", 8), ("gemma2", 6), ("gpt_oss", 9)])
def test_the_window_control_leaves_the_first_four_tokens_of_a_text_visible(
    tmp_path: Path, name: str, window: int
) -> None:
    layers = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    model = opened(write_hf_model(tmp_path / name, name, **layers)).model
    read, ids = tokens()[:1, :40], torch.arange(40)

    def last(of: Tensor) -> Tensor:
        return model.hidden(of, ids, window)[:, -1]

    seen = []
    for place in range(40):
        changed = read.clone()
        changed[0, place] = (read[0, place] + 1) % VOCABULARY
        seen += [place] if not torch.equal(last(changed), last(read)) else []
    assert seen == [*range(4), *range(40 - window, 40)]


@pytest.mark.parametrize("name", ["bloom", "falcon", "mamba"])
def test_a_model_without_the_interface_is_scored_as_it_is(tmp_path: Path, name: str) -> None:
    hf_model, read = opened(write_hf_model(tmp_path / name, name)), tokens()
    assert (hf_model.difference, hf_model.encoding["name"]) == (None, "as_is")
    assert "keeps its own attention" in hf_model.model.control_refusal("window", 64)
    with torch.no_grad():
        logits = hf_model.model.causal(read, use_cache=False).logits
    assert distance(ours(hf_model, read), logits) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "opt", "gptj", "mpt"])
def test_a_position_past_the_table_is_undefined(tmp_path: Path, name: str) -> None:
    hf_model = opened(write_hf_model(tmp_path / name, name))
    assert hf_model.model.has_learned_table == (name in ("gpt2", "opt")), "the others compute theirs"
    ours(hf_model, tokens(60))
    with pytest.raises(LengthError, match="position 6[49]"):
        ours(hf_model, tokens(60 if name == "opt" else 70), later=5 if name == "opt" else 0)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_error_of_a_plain_model_is_undefined_only_past_its_training_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_model = opened(write_hf_model(tmp_path / "llama", "llama"), plain=True)
    monkeypatch.setattr(LlamaAttention, "forward", failing(RuntimeError("no such kernel")))
    for length, kind in ((TRAIN_LENGTH, RunError), (TRAIN_LENGTH + 1, LengthError)):
        with pytest.raises(kind, match=f"cannot compute position {length - 1}: no such kernel"):
            ours(hf_model, tokens(length))


def test_logits_and_feedforward_layers_are_computed_in_parts(
    tmp_path: Path, hf_models: dict[str, Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_model, read = hf_models["gemma2"], tokens()  # its head caps the logits
    monkeypatch.setattr("pe_bench.hf.model.MAX_LOGIT_ELEMENTS", 257 * 7)
    with torch.no_grad():
        model = hf_model.model
        nll = model.nll(model.hidden(read, torch.arange(LENGTH))[0, :-1], read[0, 1:])
    expected = functional.cross_entropy(theirs(hf_model, read)[0, :-1], read[0, 1:], reduction="none")
    assert torch.allclose(nll, expected, atol=1e-4)
    hf_model = opened(write_hf_model(tmp_path / "llama", "llama"))
    logits, sizes = ours(hf_model, read), []
    split_feedforward(hf_model.model.causal, tokens=16)
    linear = hf_model.model.causal.get_submodule("model.layers.0.mlp.up_proj")
    linear.register_forward_pre_hook(lambda _, arguments: sizes.append(arguments[0].shape[1]))
    assert distance(ours(hf_model, read), logits) < 1e-5
    assert max(sizes) == 16


FORWARD = LlamaAttention.forward


def scaled(*arguments: Any, **options: Any) -> Any:
    attended, weights = FORWARD(*arguments, **options)
    is_ours = arguments[0].config._attn_implementation == ATTENTION_NAME
    return attended * (1.01 if is_ours else 1), weights


def with_bias(*arguments: Any, **options: Any) -> Any:
    return FORWARD(*arguments, **options, position_bias=torch.zeros(1))


@pytest.mark.parametrize(
    ("name", "forward", "message"),
    [
        ("llama", scaled, r"differ .* by [\d.e-]+ of [\d.]+ .*and .* is allowed; --plain"),
        ("llama", with_bias, "LlamaAttention hands position_bias to its attention"),
        ("llama", failing(ImportError("no package")), r"cannot be run as .* describes it \(no package\)"),
        ("bert", FORWARD, r"reads later tokens.* when those after them change$"),
    ],
)
def test_a_layer_that_computes_something_else_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, forward: Any, message: str
) -> None:
    monkeypatch.setattr(LlamaAttention, "forward", forward)
    with pytest.raises(UserError, match=message):
        opened(write_hf_model(tmp_path / name, name))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "gpt2", "falcon_h1"])
def test_endings_of_a_window_are_scored_alike_with_its_prefix_fed_once(tmp_path: Path, name: str) -> None:
    model = opened(write_hf_model(tmp_path / name, name), begin=(3,)).model
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (2, 4, 40), generator=generator)
    tokens[:, :, :30] = tokens[:, :1, :30]
    ids = torch.arange(40)
    fed: list[int] = []
    model.trunk.register_forward_pre_hook(
        lambda _, __, named: fed.append(named["input_ids"].numel()), with_kwargs=True
    )
    with torch.inference_mode():
        ends = model.hidden_of_ends(tokens, ids, 30)
        shared = sum(fed)
        each = LanguageModel.hidden_of_ends(model, tokens, ids, 30)
    torch.testing.assert_close(ends, each, rtol=1e-4, atol=1e-4)
    assert (shared < sum(fed) - shared) == (name != "falcon_h1")


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "gpt2"])
def test_a_text_is_fed_from_the_first_token_on_that_differs_from_the_text_before_it(
    tmp_path: Path, name: str
) -> None:
    model = opened(write_hf_model(tmp_path / name, name), begin=(3,)).model
    generator = torch.Generator().manual_seed(0)
    text, *others = torch.randint(VOCABULARY, (6, 4, 40), generator=generator)
    ids = torch.arange(40)
    text[:, :30] = text[:1, :30]
    texts = [text]
    for shared, other in zip((30, 20, 12, 1, 0), others, strict=True):
        other[:, :30] = other[:1, :30]
        other[:, :shared] = text[:, :shared]
        texts.append(other)
    fed: list[int] = []
    model.trunk.register_forward_pre_hook(
        lambda _, __, named: fed.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    with torch.inference_mode():
        found = [model.hidden_of_ends(each[None], ids, 30) for each in texts]
        assert fed == [40, 10, 10, 20, 10, 28, 10, 40, 10, 40, 10]
        longer = model.hidden_of_ends(torch.cat([text, text[:, -1:]], 1)[None], torch.arange(41), 30)
        assert fed[-2:] == [41, 11], "a scaling may depend on the length of the text"
        exact = [LanguageModel.hidden_of_ends(model, each[None], ids, 30) for each in texts]
        unchanged = model.hidden_of_ends(text[None], ids, 30)
        changed = model.changed({}, dict.fromkeys(range(model.n_layers), 4))
        after_change = changed.hidden_of_ends(text[None], ids, 30)
        exact_change = LanguageModel.hidden_of_ends(changed, text[None], ids, 30)
    torch.testing.assert_close(torch.cat(found), torch.cat(exact), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(longer[:, :10], exact[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after_change, exact_change, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(after_change, unchanged, rtol=1e-2, atol=1e-2)
