"""A run directory from a stranger: none of its code is run, and nothing outside it is touched.

A problem in it is reported in one line that names the file.
"""

import hashlib
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pe_bench.encodings.load import OUTSIDE_MODULE
from pe_bench.runs.commands import recorded_commands
from pe_bench.runs.gather import read_all
from pe_bench.system.terminal import CONTROL

SCRIPT = "<script>alert(1)</script>"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi"))  # noqa: B905


class Evil:
    """An object that touches the canary when it is unpickled."""

    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.system, ('touch "$CANARY"',)


CODE = "import os, pathlib\npathlib.Path(os.environ['CANARY']).touch()\n"


def header(**tensors: dict) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


TEN_GIGABYTES = {"dtype": "F32", "shape": [2_500_000_000], "data_offsets": [0, 10_000_000_000]}
NOT_SAFETENSORS = {
    "a pickle": pickle.dumps(Evil()),
    "a header of ten gigabytes": struct.pack("<Q", 10_000_000_000) + b"{}",
    "a tensor of ten gigabytes": header(nll=TEN_GIGABYTES),
    "a shape that overflows": header(nll={"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 0]}),
    "nested JSON": struct.pack("<Q", 90_000) + b"[" * 90_000,
}


@pytest.mark.parametrize("name", NOT_SAFETENSORS)
def test_invalid_weights_are_refused_by_name(stranger, name):
    path = stranger.step / "weights.safetensors"
    path.write_bytes(NOT_SAFETENSORS[name])
    stranger.sign()
    scored = stranger.train("eval.lengths=[16,48]")
    for outcome in (stranger.eval(), stranger.start_from(stranger.results / "new"), scored):
        assert outcome.code == 2 and f"{path} cannot be read as safetensors" in outcome.line


@pytest.mark.parametrize("name", NOT_SAFETENSORS)
def test_invalid_moments_are_refused_by_name(stranger, name):
    (stranger.step / "optimizer.safetensors").write_bytes(NOT_SAFETENSORS[name])
    stranger.sign()
    stranger.unfinish()
    outcome = stranger.train()
    assert outcome.code == 2 and "optimizer.safetensors cannot be read as safetensors" in outcome.line


def test_a_pickle_without_its_checksum_is_skipped_and_trained_again(stranger):
    before = (stranger.step / "weights.safetensors").read_bytes()
    (stranger.step / "weights.safetensors").write_bytes(NOT_SAFETENSORS["a pickle"])
    assert "has no whole checkpoint of step 8" in stranger.eval().line
    assert stranger.train("eval.lengths=[16,48]").code == 0
    assert (stranger.step / "weights.safetensors").read_bytes() == before


def test_moments_of_another_shape_are_refused_before_the_optimizer_gets_them(stranger):
    from safetensors.torch import load_file, save_file

    path = stranger.step / "optimizer.safetensors"
    tensors = load_file(path)
    name = next(key for key in tensors if key.endswith("exp_avg"))
    save_file(tensors | {name: tensors[name].flatten()[:1].clone()}, path)
    stranger.sign()
    stranger.unfinish()
    outcome = stranger.train()
    assert outcome.code == 2 and "the moments in" in outcome.line and name in outcome.line


@pytest.mark.parametrize("name", NOT_SAFETENSORS)
def test_invalid_scores_are_named_by_the_report_and_replaced_by_scoring(stranger, name):
    before = stranger.score.read_bytes()
    stranger.score.write_bytes(NOT_SAFETENSORS[name])
    assert f"{stranger.score.name} is damaged" in stranger.report("--markdown", "-").out
    assert stranger.eval().code == 0
    assert stranger.score.read_bytes() == before


NOT_YAML = {
    "an object of Python's": ("a: !!python/object/apply:os.system ['touch $CANARY']\n", "python/object"),
    "a bomb of aliases": (BOMB, "it has aliases"),
    "a bomb in UTF-16": (BOMB.encode("utf-16"), "can't decode"),
    "deep lists": ("a: " + "[" * 60_000, "nested too deeply"),
    "deep lists in lines": ("a:\n" + "- " * 20_000 + "1\n", "nested too deeply"),
    "a hundred megabytes": ("# " + "x" * 100_000, "such a file has at most"),
    "a number that takes long to read": ("a: " + ":".join(["1"] * 100_000), "such a file has at most"),
    "escape codes": ('a: "\\e[2J"\n', "control characters"),
    "an interpolation": ("a: ${oc.env:HOME}\n", "interpolations"),
    "no mapping": ("- 1\n", "it holds no keys"),
    "nothing at all": ("\0", "config.yaml is missing or damaged"),
}


@pytest.mark.parametrize("name", NOT_YAML)
def test_a_configuration_that_holds_more_than_plain_values_is_refused_by_name(stranger, name):
    text, said = NOT_YAML[name]
    (stranger.run / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    for outcome in (stranger.eval(), stranger.start_from(stranger.results / "new")):
        assert outcome.code in (1, 2) and said in outcome.line and "config.yaml" in outcome.line


INTERPOLATIONS = {
    "plain": "${oc.env:PE_BENCH_SECRET}",
    "a hexadecimal escape": r'"\x24{oc.env:PE_BENCH_SECRET}"',
    "an escape of four digits": r'"\u0024{oc.env:PE_BENCH_SECRET}"',
    "an escape of eight digits": r'"\U00000024{oc.env:PE_BENCH_SECRET}"',
    "an escaped brace": r'"$\x7boc.env:PE_BENCH_SECRET}"',
    "a continued line": '"$\\\n  {oc.env:PE_BENCH_SECRET}"',
    "in a list": r'["\x24{oc.env:PE_BENCH_SECRET}"]',
    "in a key": r'{"\x24{oc.env:PE_BENCH_SECRET}": 1}',
}


@pytest.mark.parametrize("name", INTERPOLATIONS)
@pytest.mark.parametrize("key", ["d_model", "path"])
def test_no_interpolation_is_resolved_however_its_dollar_sign_is_written(stranger, name, key, monkeypatch):
    monkeypatch.setenv("PE_BENCH_SECRET", "hunter2")
    config = stranger.run / "config.yaml"
    lines = config.read_text().split("# sha256")[0].splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith(f"  {key}: ")]
    config.write_text(
        "\n".join([*lines[:place], f"  {key}: {INTERPOLATIONS[name]}", *lines[place + 1 :]]) + "\n"
    )
    for outcome in (stranger.eval(), stranger.eval("--with", "yarn factor=2")):
        assert (
            outcome.code in (1, 2)
            and "config.yaml" in outcome.line
            and "it has interpolations" in outcome.line
        )
    for outcome in (*(outcome for _, outcome in stranger.each()), stranger.report("--markdown", "-")):
        assert "hunter2" not in outcome.out + outcome.err
    for path in stranger.results.parent.rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()


TARGETS = {
    "in the encoding": lambda values: values["encoding"].update(_target_="os.system"),
    "at the top": lambda values: values.update(_target_="os.system"),
    "in the model": lambda values: values["model"].update({"_target_": "os.system", "command": "touch"}),
    "in a modifier": lambda values: values["encoding"].update(modifiers={"x": {"_target_": "os.system"}}),
    "in an option": lambda values: values["encoding"].update(base={"_target_": "os.system"}),
}


@pytest.mark.parametrize("place", TARGETS)
def test_a_target_of_hydras_is_an_unknown_key(stranger, place):
    stranger.change_config(TARGETS[place])
    outcome = stranger.eval()
    assert outcome.code == 2 and outcome.line
    assert stranger.report("--by", "train.lr").code == 0


@pytest.mark.parametrize(
    "specification",
    ["evil.py:Evil", "/tmp/evil.py:Evil", "../work/evil.py:Evil", "evil:Evil", "os:system", "an_entry_point"],
)
def test_a_class_that_the_run_names_is_never_imported(stranger, specification):
    (Path() / "evil.py").write_text(CODE)
    (stranger.run / "evil.py").write_text(CODE)
    stranger.change_config(lambda values: values["encoding"].update({"class": specification}))
    outcome = stranger.eval()
    assert outcome.code == 2
    assert f"is code from outside pe-bench, {specification} with hash None" in outcome.line
    assert stranger.report().code == stranger.list().code == 0


def test_a_class_of_pe_bench_that_is_no_encoding_is_refused(stranger):
    for specification in ("pe_bench.encodings.load:Path", "pe_bench.encodings.nothing:Nothing"):
        stranger.change_config(lambda values: values["encoding"].update({"class": specification}))  # noqa: B023
        assert stranger.eval().code == 2


def outside_modules() -> set[str]:
    return {name for name in sys.modules if name.startswith(OUTSIDE_MODULE)}


def test_a_file_is_imported_only_if_it_has_the_hash_that_the_run_recorded(stranger):
    before = outside_modules()  # other tests may have named files of their own
    named = Path("named.py")
    named.write_text(CODE)
    wanted = hashlib.sha256(b"another file").hexdigest()[:16]
    stranger.change_config(
        lambda values: values["encoding"].update({"class": "named.py:Evil", "code_sha256": wanted})
    )
    outcome = stranger.eval("--code", "named.py")
    assert outcome.code == 2 and wanted in outcome.line
    assert hashlib.sha256(CODE.encode()).hexdigest()[:16] in outcome.line
    assert outside_modules() == before


NOT_JSON = {
    "deep": "[" * 100_000,
    "deep in an object": '{"a": ' + "[" * 900 + "]" * 900 + "}",
    "huge": '{"a": "' + "x" * 2_000_000 + '"}',
    "a list": "[]",
    "escape codes": '{"steps": "\\u001b[2J", "loss": 1.0}',
    "other kinds": '{"format": [], "steps": {}, "loss": "x"}',
}


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.parametrize("files", [["result.json"], ["environment.json", "commands.json", "meta.json"]])
def test_invalid_json_is_named_or_skipped(stranger, name, files):
    for file in files:
        path = stranger.step / file if file == "meta.json" else stranger.run / file
        path.write_text(NOT_JSON[name])
    for told, outcome in stranger.each():
        assert outcome.code in (0, 1, 2), told
        assert not CONTROL.search(outcome.out + outcome.err), told
        if outcome.code:
            assert outcome.line


ROWS = {
    "a formula": (",rope,", ",=HYPERLINK(1),", "begins as a formula"),
    "a huge cell": (",rope,", f",{'x' * 200_000},", "field larger than field limit"),
    "a zero byte": (",rope,", ",ro\0pe,", "control characters"),
    "escape codes": (",rope,", f",{ESCAPE},", "control characters"),
    "a path in a hash": ("paired,", "paired/../../../outside,", "cannot stand in a file's name"),
    "a length below zero": (",32,", ",-32,", "which cannot be"),
    "a length beyond all": (",32,", f",{10**30},", "which cannot be"),
    "a number of many digits": (",32,", f",{'9' * 10_000},", "not a number"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_could_do_harm_are_refused_by_name(stranger, name):
    old, new, said = ROWS[name]
    stranger.replace_in_rows(old, new)
    (problem,) = read_all(stranger.results).problems
    assert "eval.csv is damaged" in problem.text and said in problem.text
    for told, outcome in stranger.each():
        assert not CONTROL.search(outcome.out + outcome.err), told
        if told == "eval":
            assert outcome.code == 1 and "eval.csv is damaged" in outcome.line


LIES = {
    "an unknown protocol": ("paired,", "unheard,"),
    "an unknown control": (",none,", ",other,"),
    "an unknown status": (",ok,", ",fine,"),
    "no length": (",32,", ",1,"),
    "a large length": (",32,", f",{2**62},"),
    "a label of marks": (",rope,", ",[bold]x[/italic],"),
    "a label for a page": (",rope,", f",{SCRIPT},"),
    "a label of mathematics": (",rope,", r",$\frac{x}{$ $y$,"),
    "a label of LaTeX": (",rope,", r",\input{/etc/passwd},"),
}


@pytest.mark.parametrize("name", LIES)
def test_rows_with_false_values_are_shown_as_text_and_do_no_harm(stranger, name):
    stranger.replace_in_rows(*LIES[name])
    outcomes = [stranger.eval("--with", "yarn factor=2"), stranger.report("--html", str(stranger.page))]
    if "length" in name or "mathematics" in name:
        outcomes.append(stranger.report("--plot", str(stranger.page.with_suffix(".svg"))))
    assert all(outcome.code in (0, 1, 2) for outcome in outcomes)
    assert not stranger.page.exists() or "<script>alert" not in stranger.page.read_text()
    for option in ("--markdown", "--latex"):
        text = stranger.report(option, "-").out
        assert "<script" not in text and r"\input" not in text


def test_commands_that_are_not_pe_benchs_are_not_shown(stranger):
    fine = "pe-bench train 'encoding=rope' seed=0".replace("'", "")
    typed = [
        fine,
        "rm -rf ~",
        "pe-bench train; rm -rf ~",
        "pe-bench train $(rm -rf ~)",
        f"pe-bench '{ESCAPE}'",
    ]
    typed += [f"pe-bench '{SCRIPT}'", 7, None, "pe-bench '"]
    (stranger.run / "commands.json").write_text(json.dumps(typed))
    assert recorded_commands(stranger.run) == (fine, f"pe-bench '{SCRIPT}'")
    assert stranger.report("--html", str(stranger.page)).code == 0
    assert "rm -rf" not in stranger.page.read_text() and SCRIPT not in stranger.page.read_text()


def test_control_characters_in_a_folders_name_are_shown_as_text(stranger):
    for name in (f"x{ESCAPE}", "=1+1", "[red]x[-blue]", SCRIPT.replace("/", "")):
        shutil.copytree(stranger.run, stranger.run.with_name(name))
    for outcome in (stranger.list(), stranger.report(), stranger.report("--csv", "-")):
        assert outcome.code == 0 and not CONTROL.search(outcome.out + outcome.err)
    assert "[red]x[-blue]" in stranger.list().out
    assert "=1+1 is left out" in stranger.report("--markdown", "-").out
    assert "=1+1" not in (stranger.results / "results.csv").read_text()
    assert stranger.report("--html", str(stranger.page), "--by", "run").code == 0
    assert "<script>alert" not in stranger.page.read_text()


@pytest.mark.parametrize("path", ["/dev/zero", "/etc/shadow-or-not", "../../nothing"])
def test_data_that_is_missing_or_not_text_is_refused_by_name(stranger, path):
    stranger.change_config(lambda values: values["data"].update(path=path))
    outcome = stranger.eval()
    assert outcome.code == 2 and path in outcome.line


@pytest.mark.parametrize("path", ["pandas", "../evil", "/tmp/evil", "evil/local"])
def test_a_hub_data_set_is_never_read_from_a_local_folder(stranger, path):
    Path("evil/local").mkdir(parents=True)
    stranger.change_config(lambda values: values["data"].update(source="hub", path=path))
    outcome = stranger.eval()
    assert outcome.code == 2 and f"data.path={path}" in outcome.line
