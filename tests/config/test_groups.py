"""Other names of encodings: the field has several for some of them."""

import pytest

from pe_bench.config.compose import compose
from pe_bench.config.groups import aliases, config_dir, without_aliases


def test_no_alias_hides_an_encoding_or_another_alias() -> None:
    files = list((config_dir() / "encoding").glob("*.yaml"))
    assert not set(aliases()) & {path.stem for path in files}
    lines = [path.read_text().splitlines()[0] for path in files]
    told = [alias for line in lines if line.startswith("# also: ") for alias in line[8:].split(", ")]
    assert len(told) == len(set(told)) == len(aliases())


@pytest.mark.parametrize("alias", ["rotary", "ape", "sin", "rpr"])
def test_an_alias_is_the_encoding_itself(alias: str) -> None:
    name = aliases()[alias]
    assert compose([f"encoding={alias}"]) == compose([f"encoding={name}"])


def test_overrides_of_a_sweep_and_of_other_keys() -> None:
    assert without_aliases(["encoding=rotary,alibi,ape", "seed=0"]) == [
        "encoding=rope,alibi,learned",
        "seed=0",
    ]
    assert without_aliases(["encoding.base=3", "data.name=rotary"]) == ["encoding.base=3", "data.name=rotary"]


def test_a_persons_own_file_comes_before_an_alias(tmp_path) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "rotary.yaml").write_text("name: rotary\nclass: pe_bench.encodings.nope:NoPE\n")
    assert compose(["encoding=rotary"], [str(tmp_path)])["encoding"]["name"] == "rotary"


def test_a_run_under_an_alias_is_the_run_under_the_name(train) -> None:
    assert train("encoding=rotary").code == 0
    assert "trained in" not in train("encoding=rope").err
