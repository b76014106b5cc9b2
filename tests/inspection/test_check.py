"""The conformance suite finds what is wrong with an encoding, where it is wrong, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import wrong_encodings
from support.cases import LONG, PROPERTY, failures, find_case, find_wrong, finding
from support.shown import ROOT_BIAS
from support.wrong_encodings import WRONG

from pe_bench.errors import UserError
from pe_bench.inspection.check import BASICS, PROPERTIES, Property, check_all
from pe_bench.inspection.check.case import Case, Finding

FILE = Path(wrong_encodings.__file__)
BASIC = [one.name for one in BASICS]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_encoding_fails_where_it_is_wrong_and_nowhere_else_and_says_how(name: str) -> None:
    expected, says = WRONG[name]
    if expected and expected[0] in BASIC:  # which ends the check
        findings = {one.name: result for one, result in check_all(find_wrong(name))}
        failed = {key: result.measured for key, result in findings.items() if result.state == "fails"}
        assert list(findings)[-1] == expected[0]
    else:
        failed = failures(find_wrong(name), slow=LONG in expected)
    assert set(failed) == set(expected), failed
    assert not expected or re.search(says, failed[expected[0]]), failed


def test_every_property_has_an_encoding_that_fails_it() -> None:
    assert {name for expected, _ in WRONG.values() for name in expected} == set(PROPERTY)


def test_what_is_right_and_unclaimed_is_no_failure_and_the_keys_that_a_query_sees_are_counted() -> None:
    assert finding(find_wrong("LearnedSlopes"), LONG).state == "holds"
    learned, nope = find_case("learned"), find_case("nope")
    assert finding(learned, LONG).state == "not claimed"
    assert "max_position=32" in finding(learned, "extrapolation").measured
    assert {finding(nope, name).state for name in ("effect", "norm", "decay")} == {"not claimed"}
    for name, seen in {"lm_infinite": "42 keys", "swan": "16 keys or every key", "rope": "every key"}.items():
        assert finding(find_case(name), "sight").measured.endswith(f"sees {seen}")


@pytest.mark.parametrize(
    ("name", "overrides", "keys"),
    [
        ("rerope", ("modifier=[sliding_window]",), 32),  # whose own window is of distances
        ("nope", ("modifier=[ssmax,sliding_window]", "encoding.modifiers.ssmax.window=8"), 32),
        ("lm_infinite", ("modifier=[sliding_window]", "encoding.window=16", "encoding.global_tokens=0"), 16),
        ("streaming", ("modifier=[sliding_window]", "encoding.cache=9", "encoding.sinks=0"), 9),
    ],
)
def test_of_several_windows_the_narrowest_that_hides_keys_is_what_a_query_sees(
    name: str, overrides: tuple[str, ...], keys: int
) -> None:
    found = finding(find_case(name, overrides), "sight")
    assert found == Finding("holds", f"of 101 keys, the last query sees {keys} keys")


def test_far_positions_are_reached_by_ids_that_count_segments() -> None:
    moved = finding(find_case("self_extend", ("modifier=[bipe]",)), "shift")
    assert moved.state == "not claimed", moved.measured


def test_a_check_takes_a_modifier_and_one_thread_and_leaves_the_number_of_threads(
    command, monkeypatch
) -> None:
    seen: set[tuple[int, str]] = set()

    def check_all(case: Case) -> Iterator[tuple[Property, Finding]]:
        seen.add((torch.get_num_threads(), " ".join(case.encoding.modifiers)))
        yield PROPERTIES[0], Finding("holds", "")

    monkeypatch.setattr("pe_bench.inspection.check.check_all", check_all)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        checked = command("check", "rope", "yarn", "factor=4", "modifier=logn")
        assert (
            checked.code == 0 and "\nrope+logn " in checked.out and "\nyarn+logn factor=4.0 " in checked.out
        )
        assert seen == {(1, "logn")} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_right_encoding_exits_with_0(command) -> None:
    outcome = command("check", "longrope")
    assert outcome.code == 0
    told = "longrope has no default for long_factors: using the example long_factors=[1.0, 2.0, 3.0, 4.0]"
    assert told in outcome.err
    header, row, end = [line for line in outcome.out.splitlines() if line]
    assert re.fullmatch(r"encoding +holds +fails +unclaimed", header)
    assert re.match(rf"longrope +\d\d of {len(PROPERTIES)} +0 ", row)
    assert re.fullmatch(r"\d+ checks hold, none fails", end)


def test_a_failure_says_by_how_much_and_where_to_look_and_verbose_shows_every_property(
    command, monkeypatch
) -> None:
    monkeypatch.chdir(FILE.parent)
    names = [f"{FILE.name}:{name}" for name in ("NormsChange", "RaisesInForward")]
    outcome = command("check", *names, "nope", names[0])
    table = [line for line in outcome.out.split("\n\n")[0].splitlines()[1:] if line[0] != " "]
    rows = [re.split(r" {2,}", row) for row in table]
    shown = [(row[0].rpartition(":")[2], row[2]) for row in rows]
    assert shown == [("NormsChange", "norm"), ("RaisesInForward", "returns"), ("nope", "0")]
    counts = f"2 of {2 * len(PROPERTIES) + 1} checks failed"
    assert outcome.code == 1 and outcome.line == f"pe-bench: {counts}"
    look = r"look at: wrong_encodings.py:\d+ transform; transform"
    pattern = rf"norm a norm changes by \d.* must hold: queries and keys keep .* {look}"
    assert re.search(pattern, " ".join(outcome.out.split()))
    outcome = command("check", "nope", "--verbose")
    table = outcome.out.split("\n\n")[1].splitlines()[1:]
    assert [line.split()[0] for line in table if line[0] != " "] == [one.name for one in PROPERTIES]


def test_two_files_may_give_their_classes_one_name(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["Root.py:RootBias", "two.py:RootBias"]
    for name in names:
        Path(name.removesuffix(":RootBias")).write_text(ROOT_BIAS)
    rows = json.loads(command("check", *names, "--json").out)["encodings"]
    assert [row["encoding"] for row in rows] == names


def test_options_reach_a_class_in_a_file_and_its_modifiers() -> None:
    for options, message in (
        ((), "encoding needs a value for strength: give encoding.strength=..."),
        (("strnegth=1",), "did you mean 'encoding.strength'?"),
        (("strength=10",), r"wrong_encodings.py:\d+: KeyError"),
    ):
        with pytest.raises(UserError, match=message):
            find_case(f"{FILE}:NeedsAnOption", options)
    case = find_case(f"{FILE}:NeedsAnOption", ("encoding.strength=0.5", "modifier=[logn]"))
    assert case.spec.values["strength"] == 0.5 and case.spec.values["d_head"] == 8
    assert "logn" in case.encoding.modifiers and finding(case, "prefix").state == "holds"


def test_all_is_every_encoding_and_those_in_a_folder_of_ones_own(command, tmp_path, monkeypatch) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "mine.yaml").write_text(f"name: mine\nclass: {FILE}:NormsChange\n")
    names_in = {None: ["nope"], (tmp_path,): ["nope", "mine"]}
    monkeypatch.setattr(
        "pe_bench.config.groups.names_in", lambda _, search=(): names_in[tuple(search) or None]
    )
    outcome = command("check", "--all", "--config-dir", str(tmp_path))
    assert outcome.code == 1 and re.search(r"^fails +mine\nnorm ", outcome.out, re.MULTILINE)
    assert [line.split()[0] for line in outcome.out.split("\n\n")[0].splitlines()[1:]] == ["nope", "mine"]
