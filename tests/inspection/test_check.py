"""The conformance suite finds what is wrong with an encoding, where it is wrong, and nothing else."""

import re
from pathlib import Path

import pytest
from support import wrong_at_size, wrong_encodings
from support.cases import find_case, find_wrong

from pe_bench.config.groups import encoding_names
from pe_bench.inspection.check import reference
from pe_bench.inspection.check.case import as_claimed, largest
from pe_bench.inspection.check.suite import PROPERTIES, check, check_all

FILE = Path(wrong_encodings.__file__)
LONG = "long_context"  # takes a second: only where it matters


# Properties whose wrong encodings are in test_tutorial_bugs.py; and `numbers`, which needs another file.
TOLD_ELSEWHERE = ("score_scale", "masked_weights", "numbers")
property_of = {wanted.name: wanted for wanted in PROPERTIES}

# Each encoding, every property at which it fails, and what the first of them says.
WRONG = (
    ("Right", "", r""),
    ("TurnsByValues", "", r""),
    (
        "SeesTheNextToken",
        "causal lookahead prefix blocks fused window",
        r"token 0 has gradient \d.* at token 1",
    ),
    ("IdsReadLaterTokens", "lookahead prefix device", r"other tokens behind change an output by \d"),
    ("AnglesOverTheNumberOfKeys", "prefix", r"the first \d+ of \d+ tokens differ from \d+ alone by \d"),
    ("ShiftNotClaimed", "shift", r"shift_invariant is not claimed, and holds: positions \+ 5 or \+ 403"),
    ("ShiftNotClaimedUndefined", "shift wide_heads", r"not claimed, and holds: positions \+ 5 change"),
    ("BatchMean", "batch", r"a sequence alone and in a batch differ by \d"),
    ("SharedCacheByLengthAndEnds", "batch", r"of other ids, a sequence differs by \d"),
    ("LongestSeen", "pure fused", r"after a longer text the same one differs by \d"),
    ("TextCacheByEnds", "pure", r"after a text with the same ends a text differs by \d"),
    ("HookMisspelt", "effect", r"HookMisspelt.colums is never called: is it columns\?"),
    ("HookOfTheOtherClass", "effect", r"embed is never called: it is a hook of PositionalEncoding"),
    ("NullOfTheBlock", "causal lookahead prefix blocks window", r"has gradient"),
    ("OffByOneUnderAnOffset", "positions", r"the input at one id differs by \d"),
    ("RangesTooNarrow", "ranges fused", r"visible keys outside of ranges: 1"),
    ("OtherInTraining", "fused", r"fused and reference differ by \d\.\de[-+]\d\d, float32"),
    ("ColumnsEndAfterOneChunk", "fused", r"fused and reference differ by \d"),
    ("PositionsInTheTypeOfQueries", "half_precision", r"on average bfloat16 is off by \d"),
    ("NormsChange", "norm", r"a norm changes by \d"),
    ("BiasThatRises", "decay", r"the bias rises by 9.0e-02"),
    ("DecayWithoutBias", "decay", r"decay is claimed, and there is no distance_bias"),
    ("SilentPastItsEnd", "extrapolation", r"128 tokens raise no LengthError"),
    ("UndefinedWithoutNumbers", "extrapolation", r"of 128 tokens after 32 the error says: too long"),
    ("ClampsWithoutEnd", "extrapolation", r"beyond distance 512 equal tokens differ by \d"),
    ("ClampedAt1024", "extrapolation", r"from distance 1,\d+ on all are alike: `clamps`, if"),
    ("DefinedAndNotANumber", "prefix fused half_precision extrapolation", r"tokens differ from"),
    ("ParameterWithoutUse", "gradients slopes", r"spare gets no gradient"),
    ("GradientThatIsNotANumber", "fused gradients slopes", r"fused and reference differ"),
    ("HalfAGradient", "slopes", r"along .*strength is by its gradient -?[\d.e+]+, and differences of"),
    ("PhaseThatCancels", "slopes", r"phase is inert: moving it by 0.1 changes no output"),
    ("SlopesByKeyHead", "heads", r"heads of two keys differ by \d.*, and those of one key do not"),
    ("WindowSeesOneMore", "sight", r"window=8, and a query sees 9 of the latest keys"),
    ("MadeOnTheCPU", "device", r"wrong_encodings.py:\d+: RuntimeError: Tensor on device"),
    ("OptionNeverRead", "options", r"encoding.strength is taken by the constructor, and nothing reads"),
    ("OptionOnlyKept", "options", r"encoding.strength is taken by the constructor, and nothing reads"),
    ("RandomFeaturesNotSaved", "state", r"loaded into one of another seed, its output differs by \d"),
    ("LoudInput", "scale", r"inputs of rms 1 leave with rms 3\.\d"),
    ("IdsOfTheGlobalGenerator", "device ids", r""),
    ("AddsTheFirstValue", "window", r"values beyond the window have gradients of \d"),
    ("PlaceTakenForIndex", "window", r"from a mask it differs by \d"),
)
# Each encoding of which nothing can be measured, the basic property that ends the check, the finding.
BASIC = (
    ("BiasWithHeadsLast", "shape", r"distance_bias returned the shape \[9, 4\], must be \[H, n\]"),
    ("BiasOfNumpy", "shape", r"distance_bias returned ndarray, must be a tensor \[H, n\]"),
    (
        "NullOfEachHead",
        "shape",
        r"null_logit returned the shape \[4\], must be \[B, H, Q, 1\] or \[H, Q, 1\]",
    ),
    ("VisibleIsAFactor", "shape", r"visible returned torch.float32, must be torch.bool"),
    ("LogarithmOfZero", "finite", r"distance_bias is nan at distance 0 in head 0; 4 of its 36 values"),
    ("HidesByAnInfiniteBias", "finite", r"distance_bias is -inf at distance 6 in head 0"),
    ("SqueezesOneToken", "runs", r"RuntimeError"),
    ("RaisesInForward", "shape", r"ZeroDivisionError: a mistake"),
    ("DropoutInAHook", "repeatable", r"two calls in training"),
)
FAR_OFF = {
    "AnglesInSinglePrecision": r"finite; float32 and float64 differ by \d",
    "InputAnglesInSinglePrecision": r"finite; float32 and float64 differ by \d",
    "PowersThatOverflow": r"\d+ outputs are not finite",
    "InputThatOverflows": r"the input is not finite",
}


QUICK = [wanted for wanted in PROPERTIES if wanted.name != LONG]


@pytest.mark.parametrize(("name", "expected", "measured"), WRONG)
def test_a_wrong_encoding_fails_where_it_is_wrong_and_nowhere_else_and_says_how(
    name: str, expected: str, measured: str
) -> None:
    findings = {wanted.name: check(find_wrong(name), wanted) for wanted in QUICK}
    failed = {name: finding.measured for name, finding in findings.items() if finding.state == "fails"}
    assert list(failed) == expected.split()
    assert not failed or re.search(measured, next(iter(failed.values()))), failed


# Encodings that are wrong at a size of their own, and the property that finds it; of the last three only
# their formula could.
AT_SIZE = {
    "FirstFeaturesTurned": "wide_heads",
    "LastPairsGrow": "wide_heads",
    "ScaleOf64": "wide_heads",
    "ColumnsOfNarrowHeads": "wide_heads",
    "FirstTokensForgottenAt512": "many_keys",
    "WindowWithoutOption": "many_keys",
    "PositionsModulo2048": "many_keys",
    "PositionsInSixteenBits": "many_keys",
    "SlopesOfManyKeys": "many_keys",
    "TableOf8192": "extrapolation",
    "PowerCappedAt1": "slopes",
    "DividesByAnOption": "option_ends",
    "LongWindowSeesOneMore": "option_ends",
    "RangesOfShortWindows": "option_ends",
    "FrequenciesOf64Repeated": "",
    "RisesPast4096": "",
    "StrengthCapped": "",
}


@pytest.mark.parametrize(("name", "expected"), AT_SIZE.items())
def test_what_is_wrong_at_a_size_of_its_own_fails_there(name: str, expected: str) -> None:
    case = find_case(f"{wrong_at_size.__file__}:{name}")
    for wanted in PROPERTIES:
        if wanted.name in AT_SIZE.values():
            assert (check(case, wanted).state == "fails") == (wanted.name == expected), wanted.name


@pytest.mark.parametrize(("name", "basic", "measured"), BASIC)
def test_the_first_basic_property_that_fails_names_the_line_and_ends_the_check(
    name: str, basic: str, measured: str
) -> None:
    found = check_all(find_wrong(name))
    failed = {wanted.name: finding.measured for wanted, finding in found.items() if finding.state == "fails"}
    assert list(failed) == [basic]
    assert re.search(measured, failed[basic])
    assert basic in ("runs", "repeatable") or re.match(r"wrong_encodings.py:\d+: ", failed[basic])
    order = list(found)
    after = order[order.index(property_of[basic]) + 1 :]
    assert {found[wanted].state for wanted in after} == {"not checked"}


def test_what_is_wrong_far_out_fails_there() -> None:
    for name, measured in FAR_OFF.items():
        finding = check(find_wrong(name), property_of[LONG])
        assert finding.state == "fails" and re.search(measured, finding.measured), name
    for name in ("Right", "Rotary", "LearnedSlopes"):
        assert check(find_wrong(name), property_of[LONG]).state == "holds", name


def test_every_property_has_an_encoding_that_fails_it() -> None:
    failing = {basic for _, basic, _ in BASIC} | {LONG, *AT_SIZE.values(), *TOLD_ELSEWHERE}
    failing |= {name for _, failed, _ in WRONG for name in failed.split()}
    assert {wanted.name for wanted in PROPERTIES} <= failing


def test_an_error_of_the_encoding_is_what_failed() -> None:
    finding = check(find_wrong("RaisesInForward"), property_of["prefix"])
    assert re.search(r"wrong_encodings.py:\d+: ZeroDivisionError: a mistake$", finding.measured)


def test_undefined_and_unclaimed_are_no_failures() -> None:
    learned, nope = find_case("learned"), find_case("nope")
    assert check(learned, property_of[LONG]).state == "not claimed"
    assert "max_position=32" in check(learned, property_of["extrapolation"]).measured
    for name in ("effect", "norm", "decay", "gradients"):
        assert check(nope, property_of[name]).state == "not claimed"


@pytest.mark.parametrize("name", ["rope", "yarn", "local_global", "fire", "path_attention"])
def test_encodings_with_tables_or_without_autocast_are_followed_to_another_device(name: str) -> None:
    assert check(find_case(name), property_of["device"]).state == "holds"


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("sliding_window", "sees 32 keys"),
        ("lm_infinite", "sees 42 keys"),
        ("swan", "sees 16 keys or every key"),
        ("rope", ""),
    ],
)
def test_the_keys_that_a_query_sees_are_counted(name: str, note: str) -> None:
    finding = check(find_case(name), property_of["sight"])
    assert finding.state == "holds" and finding.note == note


def test_a_parameter_that_cancels_is_named_by_the_class_and_by_no_other() -> None:
    assert check(find_case("fire"), property_of["slopes"]).state == "holds"
    assert "inert names" in check(find_wrong("NamedInertAndMoves"), property_of["slopes"]).measured


def test_what_is_not_a_number_never_holds() -> None:
    nan = float("nan")
    assert largest([0.0, nan]) == largest([nan, 0.0]) == float("inf")
    assert as_claimed("shift_invariant", True, nan, "").state == "fails"
    assert as_claimed("shift_invariant", False, nan, "").state == "fails"


# The command


def test_a_right_encoding_exits_with_0_and_three_lines(command, monkeypatch) -> None:
    monkeypatch.chdir(FILE.parent)
    outcome = command("check", f"{FILE.name}:Rotary")
    assert outcome.code == 0 and not outcome.err
    header, row, end = [line for line in outcome.out.splitlines() if line]
    assert header.split()[:3] == ["encoding", "holds", "fails"]
    assert re.search(rf":Rotary  {len(PROPERTIES) - 3} of {len(PROPERTIES)}  0 ", row)
    assert end == f"{len(PROPERTIES) - 3} checks hold, none fails; the number of each: --verbose"


def test_what_was_counted_and_the_reference_numbers_are_one_line(command) -> None:
    outcome = command("check", "sliding_window")
    assert outcome.code == 0
    found = " ".join(outcome.out.split())
    assert re.search(r"sliding_window: sees 32 keys; \d+ reference numbers, off by \de-0[78] at most", found)


def test_a_reference_number_that_does_not_hold_fails_and_says_by_how_much(monkeypatch) -> None:
    entry = {"of": "bias_of_heads", "options": {"n_heads": 2}, "numbers": [-0.0625, -0.25]}
    monkeypatch.setattr(reference, "reference_numbers", lambda: {"alibi": [entry]})
    finding = check(find_case("alibi"), property_of["numbers"])
    assert finding.state == "fails"
    assert finding.measured == "bias_of_heads with {'n_heads': 2} is off by 2.5e-01"
    assert check(find_wrong("Right"), property_of["numbers"]).state == "not claimed"


def test_verbose_shows_every_property_with_its_number(command) -> None:
    outcome = command("check", f"{FILE}:Rotary", "--verbose")
    assert outcome.code == 0 and not outcome.err
    table = outcome.out.split("\n\n")[1].splitlines()[1:]
    rows = [line.split()[:2] for line in table if not line.startswith(" ")]
    assert [name for name, _ in rows] == [wanted.name for wanted in PROPERTIES]
    assert {sign for _, sign in rows} == {"ok", "-"}
    assert "gradients at later tokens are 0" in outcome.out


def test_a_failure_exits_with_1_and_names_the_property_by_how_much_and_where_to_look(command) -> None:
    outcome = command("check", f"{FILE}:NormsChange")
    assert outcome.code == 1
    assert outcome.line == f"pe-bench: 1 of {len(PROPERTIES)} checks failed"
    header, *rows = outcome.out.split("\n\n")[1].splitlines()
    assert header.startswith("fails  ") and header.endswith("NormsChange")
    assert [line.split()[0] for line in rows if not line.startswith(" ")] == ["norm"], "only what failed"
    told = " ".join(outcome.out.split())
    look = r"look at: wrong_encodings.py:\d+ transform; transform"
    assert re.search(rf"norm a norm changes by \d.* must hold: queries and keys keep .* {look}", told)


def test_several_are_one_table_and_each_is_checked_once(command, monkeypatch) -> None:
    monkeypatch.chdir(FILE.parent)
    outcome = command("check", f"{FILE.name}:Right", "nope", f"{FILE.name}:NormsChange", "nope")
    header, *rows = outcome.out.split("\n\n")[0].splitlines()
    assert re.fullmatch(r"encoding +holds +fails +unclaimed", header)
    shown = [re.split(r" {2,}", row) for row in rows]
    assert [row[0].rpartition(":")[2] for row in shown] == ["Right", "nope", "NormsChange"]
    assert [row[2] for row in shown] == ["0", "0", "norm"]
    assert outcome.code == 1 and outcome.line.endswith(f"1 of {3 * len(PROPERTIES)} checks failed")


def test_after_a_basic_property_fails_the_rest_is_not_shown(command, monkeypatch) -> None:
    monkeypatch.chdir(FILE.parent)
    outcome = command("check", f"{FILE.name}:RaisesInForward", "--verbose")
    assert outcome.code == 1
    assert outcome.out.count("look at: ") == 1
    unknown = len(PROPERTIES) - 1
    assert outcome.out.count("not checked") == 1 and f"shape, {unknown} not checked" in outcome.out
    assert outcome.line == f"pe-bench: 1 of {len(PROPERTIES)} checks failed, {unknown} could not be made"
    outcome = command("check", f"{FILE.name}:RaisesInForward", f"{FILE.name}:NormsChange")
    assert outcome.line == f"pe-bench: 2 of {2 * len(PROPERTIES)} checks failed, {unknown} could not be made"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an encoding, a file.py:Class, or say --all"),
        (["--all", "rope"], "--all checks every encoding: leave out rope, or --all"),
        (["roep"], "unknown encoding 'roep': did you mean 'rope'?"),
        (["rope,alibi"], "'rope,alibi' is several: name them with spaces between"),
        (["rope", "bsae=3"], "unknown key 'encoding.bsae': did you mean 'encoding.base'?"),
        (["rope", "base=high"], "encoding.base must be a number, not 'high'"),
        (["rope", "base=-1"], "encoding.base must exceed 1, for frequencies to fall, not -1"),
        (["rope", "model.d_head=16"], "leave out model.d_head=16, which is not an option of an encoding"),
        (["rope", "modifier=[lgn]"], "unknown modifier 'lgn': did you mean 'logn'?"),
        (["rope", "--config-dir", "nowhere"], "--config-dir nowhere is not a folder"),
        ([str(FILE)], f"'{FILE}' is a file: say {FILE}:CLASS with one of "),
        (["gone.py:Gone"], "the encoding's file gone.py was not found"),
        ([f"{FILE}:Gone"], "names no encoding: Gone must be a class there"),
        ([f"{FILE}:NoEncoding"], "derives from LayerEncoding or PositionalEncoding"),
        ([f"{FILE}:NeedsAnOption"], "encoding needs a value for strength: give encoding.strength=..."),
        ([f"{FILE}:NeedsAnOption", "strnegth=1"], "did you mean 'encoding.strength'?"),
        ([f"{FILE}:NeedsAnOption", "strength=[1"], "encoding.strength=[1"),
        ([f"{FILE}:NeedsAnOption", "strength=10"], "cannot be built: wrong_encodings.py:"),
    ],
)
def test_a_mistake_is_one_line_and_exits_with_2(command, folder, arguments: list[str], message: str) -> None:
    outcome = command("check", *arguments)
    assert outcome.code == 2 and message in outcome.line
    assert not outcome.out


@pytest.mark.parametrize("arguments", [["strength=1e-3"], ["encoding.strength=0.5", "modifier=[logn]"]])
def test_a_class_in_a_file_takes_options_and_modifiers(arguments: list[str]) -> None:
    one = find_case(f"{FILE}:NeedsAnOption", arguments)
    assert one.config["strength"] in (1e-3, 0.5) and one.config["d_head"] == 8
    assert ("logn" in one.encoding.modifiers) == (len(arguments) > 1)
    assert check(one, property_of["prefix"]).state == "holds"


def test_options_reach_the_encoding_and_its_modifiers() -> None:
    arguments = ["modifier=[sliding_window]", "encoding.modifiers.sliding_window.window=7", "base=100"]
    one = find_case("rope", arguments)
    assert one.config["base"] == 100
    assert one.config["modifiers"]["sliding_window"]["window"] == 7


def test_arguments_are_those_of_show(command) -> None:
    assert command("check", "encoding=sliding_window", "window=7").code == 0
    outcome = command("check", "alibi", "n_heads=8")
    assert outcome.code == 2 and "n_heads=8: the model decides it" in outcome.line


def test_an_example_in_place_of_a_default_is_told(command) -> None:
    outcome = command("check", "longrope")
    assert outcome.code == 0
    assert (
        "longrope has no default for long_factors: checked with long_factors=[1.0, 2.0, 3.0, 4.0]"
        in outcome.err
    )


def test_a_folder_of_ones_own_is_found_and_is_part_of_all(command, tmp_path: Path) -> None:
    (tmp_path / "encoding").mkdir()
    text = f"name: mine\nclass: {FILE.name}:NormsChange\nd_head: ${{model.d_head}}\n"
    (tmp_path / "encoding" / "mine.yaml").write_text(text)
    (tmp_path / "encoding" / FILE.name).write_text(FILE.read_text())
    outcome = command("check", "mine", "--config-dir", str(tmp_path))
    assert outcome.code == 1 and re.search(r"^fails +mine\nnorm ", outcome.out, re.MULTILINE)
    assert "has no default" not in outcome.err
    assert command("check", f"{FILE.name}:Gone", "--config-dir", str(tmp_path)).code == 2
    assert "mine" in encoding_names([tmp_path])


def test_all_is_every_encoding_once() -> None:
    names = encoding_names()
    assert {"nope", "rope", "alibi", "logn"} <= set(names)
    assert len(names) == len(set(names))


def test_all_checks_them_all(command, monkeypatch) -> None:
    from pe_bench.cli import inspect as check

    monkeypatch.setattr(check, "encoding_names", lambda search: ["nope", "alibi"])
    outcome = command("check", "--all")
    assert outcome.code == 0
    table = outcome.out.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table] == ["encoding", "nope", "alibi"]
