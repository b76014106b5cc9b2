"""Other names of encodings: the field has several for some of them."""

from pathlib import Path

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


def test_a_persons_own_file_comes_before_an_alias(tmp_path: Path) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "rotary.yaml").write_text("name: rotary\nclass: pe_bench.encodings.nope:NoPE\n")
    assert compose(["encoding=rotary"], [tmp_path])["encoding"]["name"] == "rotary"


@pytest.mark.parametrize("group", GROUPS)
def test_no_two_names_of_a_group_are_one_in_other_letters(group: str) -> None:
    names = [*names_in(group), *(aliases() if group == "encoding" else [])]
    assert [find_name(group, name.upper().replace("_", "-")) for name in names] == [
        find_name(group, name) for name in names
    ]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("encoding=rotary,alibi,ape", "encoding=rope,alibi,learned"),
        ("encoding=ALiBi", "encoding=alibi"),
        ("encoding=SWA", "encoding=sliding_window"),
        ("modifier=[LogN,sliding-window]", "modifier=[logn,sliding_window]"),
        ("data.name=rotary", "data.name=rotary"),
        *(
            (text, text)
            for text in ("encoding=glob(r*)", "encoding='rope'", "encoding=sub/mine", "experiment=null")
        ),
    ],
)
def test_a_name_is_found_by_an_alias_and_in_other_letters_and_the_rest_is_hydras(
    typed: str, names: str
) -> None:
    assert for_hydra([typed]) == [names]
    assert compose(["encoding=Rotary"]) == compose(["encoding=rope"])
