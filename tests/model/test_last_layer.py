"""The last layer computes what is asked for alone, exactly, whatever the encoding."""

import pytest
import torch

from pe_bench.config.compose import compose
from pe_bench.config.groups import config_dir
from pe_bench.config.parse import parse_config
from pe_bench.model.decoder import Decoder, build_decoder

torch.set_num_threads(1)  # tensors are small here, and tests run side by side

ENCODINGS = sorted(path.stem for path in (config_dir() / "encoding").glob("*.yaml"))
MODIFIERS = sorted(path.stem for path in (config_dir() / "modifier").glob("*.yaml"))
WHOLE = [f"encoding={name}" for name in ENCODINGS] + [f"modifier=[{name}]" for name in MODIFIERS]
FACTORS = "encoding.long_factors=[1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2]"


def decoder(choice: str) -> Decoder:
    needed = [FACTORS] if choice == "encoding=longrope" else []
    config = parse_config(compose([choice, "model.n_layers=2", "model.n_kv_heads=2", *needed]))
    return build_decoder(config, [chr(index) for index in range(257)]).double().eval()


@pytest.mark.parametrize("choice", WHOLE)
@pytest.mark.parametrize(("tokens", "first", "window"), [(77, 60, None), (97, 96, None), (110, 93, 48)])
@torch.no_grad()
def test_the_last_tokens_alone_get_what_they_get_among_all(choice, tokens, first, window):
    model = decoder(choice)
    tokens_BT = torch.randint(0, 257, (2, tokens), generator=torch.Generator().manual_seed(0))
    ids = model.encoding.ids(tokens_BT, train=False, generator=torch.Generator().manual_seed(1))
    whole_BTD = model.hidden(tokens_BT, ids, window)
    last_BTD = model.hidden(tokens_BT, ids, window, first)
    assert last_BTD.shape[1] == tokens - first
    assert (whole_BTD[:, first:] - last_BTD).abs().max() < 1e-10


@pytest.mark.parametrize("choice", WHOLE)
@torch.no_grad()
def test_windows_that_differ_in_their_ends_alone_get_what_each_gets_by_itself(choice):
    model = decoder(choice)
    generator = torch.Generator().manual_seed(0)
    tokens_BCT = torch.randint(0, 257, (2, 1, 77), generator=generator).repeat(1, 3, 1)
    tokens_BCT[..., 61:] = torch.randint(0, 257, (2, 3, 16), generator=generator)
    flat = tokens_BCT.flatten(0, 1)
    ids = model.encoding.ids(flat, train=False, generator=torch.Generator().manual_seed(1))
    assert (model.ends(tokens_BCT, ids, 60) - model.hidden(flat, ids, None, 60)).abs().max() < 1e-10
