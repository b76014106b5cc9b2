"""Every command that the README and the pages in docs print runs as printed, on a shorter budget."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import write_corpus
from support.documentation import run_all
from typer.main import get_command

from pe_bench.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_runs_in_the_order_of_the_readme(tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path / "texts", documents=12, words=600)
    run_all(README, tmp_path, monkeypatch, capsys)


def test_no_command_of_a_page_or_of_help_has_a_sign_that_zsh_expands() -> None:
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").glob("*.md")]
    blocks = [
        block for page in pages for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    blocks += [each.epilog for each in get_command(app).commands.values()]  # pyright: ignore
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    typed = [line for line in lines if line.startswith("pe-bench ")]
    assert len(typed) > 100
    for line in typed:
        bare = re.sub(r"'[^']*'", "", line)
        assert not re.search(r"[][*?~]|\s=", bare), line
        if zsh := shutil.which("zsh"):
            words = line.removeprefix("pe-bench ")
            subprocess.run([zsh, "-fc", f"print -r -- {words}"], check=True, capture_output=True)


@pytest.mark.full
def test_every_command_of_the_page_for_people_in_a_hurry_runs(tmp_path, monkeypatch, capsys):
    printed = run_all((ROOT / "AGENTS.md").read_text(encoding="utf-8"), tmp_path, monkeypatch, capsys)
    assert "RootBias" in printed and "(try 2 against it)" in printed and "(confirm 1 against it)" in printed


@pytest.mark.full
def test_the_page_on_adding_an_encoding_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "add-an-encoding.md").read_text(encoding="utf-8")
    printed = run_all(page, tmp_path, monkeypatch, capsys)
    failure = re.search(r"```text\n(.*?)\.\.\.\n```", page, flags=re.DOTALL)
    assert failure is not None and failure[1] in printed and "=root_bias.py:RootBias: done in" in printed
    assert (tmp_path / "bias.png").stat().st_size > 5_000
    for hook, files in re.findall(r"^\| .* \| (`.*?) \| (`.*) \|$", page, flags=re.MULTILINE):
        for name in re.findall(r"`([\w/]+\.py)`", files):
            code = (ROOT / "pe_bench" / "encodings" / name).read_text(encoding="utf-8")
            assert any(f"def {word}(" in code for word in re.findall(r"`(\w+)`", hook)), (hook, name)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("encodings", "yarn factor=4"),
        ("performance", "x nope"),
        ("quick-start", "bits per byte"),
        ("choose-an-encoding", "bits per byte"),
    ],
)
def test_a_page_runs_as_it_stands(name, printed, tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path / "texts", documents=12, words=600)
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert printed in run_all(page, tmp_path, monkeypatch, capsys)
    for code in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(code, {})
        assert "yarn" in capsys.readouterr().out


def test_the_pages_name_all_folders_and_encodings():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tree = re.search(r"```text\npe_bench/\n(.*?)```", page, flags=re.DOTALL)
    assert tree is not None
    named = set(re.findall(r"^ +([\w/.]+)", tree[1], flags=re.MULTILINE))
    folders = (ROOT / "pe_bench", ROOT / "pe_bench" / "commands")
    there = {path.name for folder in folders for path in folder.iterdir() if not path.name.startswith("__")}
    assert {name.rstrip("/") for name in named} == there
    page = (ROOT / "docs" / "encodings.md").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / "configs" / "encoding").glob("*.yaml")}
    assert {name for name in names if f"`{name}`" in page} == names


@pytest.mark.full
def test_the_demo_shows_what_the_readme_says(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    done = subprocess.run([clone / "scripts" / "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(sinusoidal|rope|alibi) +([\d,]+)\??  ", done.stdout, re.MULTILINE))
    works_to = {name: int(to.replace(",", "")) for name, to in found.items()}
    assert 128 <= works_to["sinusoidal"] <= works_to["rope"] < works_to["alibi"] == 2048
    assert (clone / "results" / "demo" / "curve.png").stat().st_size > 10_000
