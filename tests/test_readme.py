"""Every command that the README prints runs as printed, on a shorter budget."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import write_corpus

from pe_bench.cli import run
from pe_bench.hydra_app import WORDS_VARIABLE

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORT = (
    "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=16 train.tokens=8192 "
    "train.batch_tokens=2048 train.warmup_steps=2 train.validation_tokens=2048 eval.targets=6 "
    "eval.max_length=512 eval.lengths=[64,256] threads=1"
)


def commands() -> list[str]:
    """The lines of the README's shell blocks, without comments and prompts."""
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def words_of(command: str) -> list[str]:
    """The words as a shell would hand them on."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def test_the_readme_shows_the_commands_that_matter():
    shown = "\n".join(commands())
    for needed in ("scripts/demo", "scripts/test", "pe-bench train encoding=rope", "pe-bench report"):
        assert needed in shown
    assert "pe-bench eval --lengths 512,2048" in shown


def test_every_command_runs_in_the_order_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(WORDS_VARIABLE, SHORT)
    write_corpus(tmp_path / "texts", documents=12, words=600)
    for path, text in re.findall(r"`(my/[\w/.]+)`:\n+```\w*\n(.*?)```", README, flags=re.DOTALL):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    ran = [command for command in commands() if command.startswith("pe-bench ")]
    assert len(ran) > 8
    for command in ran:
        code = run(words_of(command)[1:])
        assert code == 0, f"{command}\n{capsys.readouterr().err}"


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_the_readmes_tree_names_what_there_is():
    tree = re.search(r"```text\npe_bench/\n(.*?)```", README, flags=re.DOTALL)
    assert tree is not None
    named = set(re.findall(r"^ +([\w/.]+)", tree[1], flags=re.MULTILINE))
    shown = {name.rstrip("/") for name in named}
    there = {path.name for path in (ROOT / "pe_bench").iterdir() if not path.name.startswith("__")}
    assert shown == there - {"configs"}


def test_the_readme_lists_every_encoding():
    names = {path.stem for path in (ROOT / "configs" / "encoding").glob("*.yaml")}
    assert {name for name in names if f"`{name}`" in README} == names


@pytest.mark.full
def test_the_demo_shows_what_the_readme_says(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    done = subprocess.run([clone / "scripts" / "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    points = dict(
        re.findall(
            r"^(sinusoidal|rope|alibi) +bits/byte.* (none[^0-9]*\d+|by \d+|\d+) +1 ",
            done.stdout,
            re.MULTILINE,
        )
    )
    assert points.pop("alibi").startswith("none")
    sinusoidal, rope = (int(points[name].removeprefix("by ")) for name in ("sinusoidal", "rope"))
    assert 128 < sinusoidal <= rope
    assert (clone / "results" / "demo" / "curve.png").stat().st_size > 10_000
