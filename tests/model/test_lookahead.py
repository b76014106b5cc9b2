"""A model that reads later tokens is refused before training; every shipped encoding passes."""

from pathlib import Path

import pytest
import torch
from support.encodings import one_of_a_kind

from pe_bench.config.compose import compose
from pe_bench.config.groups import names_in
from pe_bench.config.parse import parse_config
from pe_bench.data.tokenizer import ByteTokenizer
from pe_bench.encodings.spec import EncodingSpec
from pe_bench.model.decoder import build_decoder
from pe_bench.model.lookahead import refuse_lookahead

torch.set_num_threads(1)

HEAD = "import torch\nfrom pe_bench.encodings import LayerEncoding\n\n\n"
LEAKS = {
    "all_visible": "    def visible(self, queries, keys):\n"
    "        return torch.ones(queries.index.numel(), keys.index.numel(), dtype=torch.bool)\n",
    "mean_of_keys": "    def transform(self, q, k, q_pos, k_pos):\n"
    "        return q + k.mean(-2, keepdim=True), k\n",
}


@pytest.mark.parametrize("name", one_of_a_kind(names_in("encoding")))
def test_every_shipped_encoding_passes(name: str) -> None:
    config = parse_config(compose([f"encoding={name}"]))
    encoding = EncodingSpec(config.encoding).with_examples()
    refuse_lookahead(build_decoder(config, ByteTokenizer().vocabulary, encoding), 64, name)


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_refused_before_anything_is_written(train, folder: Path, leak: str) -> None:
    own = Path("own/encoding")
    own.mkdir(parents=True)
    code = f"{HEAD}class Leak(LayerEncoding):\n{LEAKS[leak]}"
    (own / "leak.py").write_text(code, encoding="utf-8")
    (own / "leak.yaml").write_text("name: leak\nclass: leak.py:Leak\n", encoding="utf-8")
    outcome = train("--config-dir", "own", "encoding=leak")
    assert outcome.code == 2
    assert "leak reads later tokens" in outcome.line
    assert "`pe-bench check leak` says where" in outcome.line
    assert not (folder / "results").exists()
