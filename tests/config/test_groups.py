"""Other names of encodings: the field has several for some of them."""

import pytest

from pe_bench.config.compose import compose
from pe_bench.config.groups import GROUPS, aliases, config_dir, find_name, names_in
from pe_bench.config.overrides import for_hydra


def test_no_alias_hides_an_encoding_or_another_alias() -> None:
    files = list((config_dir() / "encoding").glob("*.yaml"))
    assert not set(aliases()) & {path.stem for path in files}
    lines = [path.read_text().splitlines()[0] for path in files]
    told = [alias for line in lines if line.startswith("# also: ") for alias in line[8:].split(", ")]
    assert len(told) == len(set(told)) == len(aliases())


def test_a_persons_own_file_comes_before_an_alias(tmp_path) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "rotary.yaml").write_text("name: rotary\nclass: pe_bench.encodings.nope:NoPE\n")
    assert compose(["encoding=rotary"], [tmp_path])["encoding"]["name"] == "rotary"


def test_a_run_under_an_alias_is_the_run_under_the_name(train) -> None:
    assert train("encoding=rotary").code == 0
    assert "trained in" not in train("encoding=rope").err


@pytest.mark.parametrize("group", GROUPS)
def test_no_two_names_of_a_group_are_one_in_other_letters(group: str) -> None:
    names = [*names_in(group), *(aliases() if group == "encoding" else [])]
    assert [find_name(group, name.upper().replace("_", "-")) for name in names] == [
        find_name(group, name) for name in names
    ]


def test_a_name_is_found_by_an_alias_and_in_other_letters() -> None:
    for typed, name in [
        ("rotary", "rope"),
        ("ape", "learned"),
        ("RoPE", "rope"),
        ("ALiBi", "alibi"),
        ("sliding-window", "sliding_window"),
        ("SWA", "sliding_window"),
    ]:
        assert find_name("encoding", typed) == name
        assert for_hydra([f"encoding={typed}"]) == [f"encoding={name}"]
    assert compose(["encoding=Rotary"]) == compose(["encoding=rope"])
    for typed, names in [
        ("encoding=rotary,alibi,ape", "encoding=rope,alibi,learned"),
        ("modifier=[LogN,sliding-window]", "modifier=[logn,sliding_window]"),
    ]:
        assert for_hydra([typed, "data.name=rotary"]) == [names, "data.name=rotary"]


def test_patterns_and_quoted_texts_are_left_to_hydra() -> None:
    for pattern in ("encoding=glob(r*)", "encoding='rope'", "encoding=sub/mine", "experiment=null"):
        assert for_hydra([pattern]) == [pattern]
