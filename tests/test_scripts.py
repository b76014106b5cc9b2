"""scripts/install on machines that lack something: one line says what. A benchmark finds what it times."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = "#!/bin/sh\ncase \"$1\" in --version) echo 'Python 3.9.2';; *) exit 1;; esac\n"
NO_VENV = '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\nexit 0\n'
PIP_FAILS = '#!/bin/sh\ncase "$3" in --version) exit 0;; esac\necho "no space left on device"\nexit 1\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    scripts = [f"scripts/{name}" for name in ("install", "uv", "demo")]
    for name in (*scripts, "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script], capture_output=True, text=True, env={**os.environ, **environment})


def test_a_python_that_cannot_do_is_named_in_one_line(checkout):
    for script, python, told in (
        ("install", OLD, "needs Python 3.11 or newer"),
        ("demo", OLD, "needs Python 3.11 or newer"),
        ("install", NO_VENV, "has no venv module: install python3-venv"),
    ):
        done = run(checkout / "scripts" / script, PYTHON=str(program(checkout / "python-found", python)))
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert all(word in done.stderr for word in told.split(": install "))


def test_what_is_installed_is_not_installed_again_and_a_failure_does_not_count(checkout):
    calls, install = checkout / "calls", checkout / "scripts" / "install"
    program(checkout / ".venv" / "bin" / "python", PIP_FAILS)
    done = run(install)
    assert done.returncode == 1 and "no space left on device" in done.stdout
    assert "could not be installed" in done.stderr.splitlines()[-1]
    program(checkout / ".venv" / "bin" / "python", f'#!/bin/sh\necho "$@" >> {calls}\n')
    program(checkout / ".venv" / "bin" / "pe-bench", "#!/bin/sh\n")
    for installed in (1, 1, 2):
        if installed == 2:
            (checkout / "constraints.txt").write_text("")
        assert run(install).returncode == 0
        assert calls.read_text().count("uv pip install") == installed


@pytest.mark.parametrize(
    ("settings", "variables"),
    [
        ("", "UV_TORCH_BACKEND=auto"),
        ("global.find-links='/wheels /more'", "UV_FIND_LINKS=/wheels,/more"),
        ("global.index-url='http://mirror'", "UV_DEFAULT_INDEX=http://mirror"),
        (r"global.extra-index-url='\nhttp://a'", "UV_INDEX= http://a UV_INDEX_STRATEGY=unsafe-best-match"),
    ],
)
def test_what_is_set_for_pip_holds_for_uv(checkout, settings, variables):
    """PyTorch's build is chosen for the machine only where no other package index is set."""
    echo = f"""#!/bin/sh
case "$*" in
  *"config list"*) cat {checkout}/settings ;;
  *"uv pip install"*) env | grep ^UV_ | sort | xargs echo ;;
esac
"""
    (checkout / "settings").write_text(settings + "\n")
    program(checkout / ".venv" / "bin" / "python", echo)
    done = run(checkout / "scripts" / "install")
    assert (done.returncode, done.stdout.strip()) == (0, " ".join(variables.split()))


def test_the_benchmark_of_stages_finds_all_parts_of_a_run() -> None:
    code = "import stages; stages.watch_parts(stages.Clock())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "patch", sorted((ROOT / "tests" / "planted").glob("*.patch")), ids=lambda path: path.stem
)
def test_a_planted_fault_still_applies_and_names_tests_that_there_are(patch: Path) -> None:
    what, tests, *_ = patch.read_text(encoding="utf-8").splitlines()
    assert what.endswith(".") and tests.startswith("Tests: ")
    assert all((ROOT / path).exists() for path in tests.removeprefix("Tests: ").split())
    checked = ["git", "apply", "--check", "--recount", str(patch)]
    done = subprocess.run(checked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# For each 1,000 statements of the program; `scripts/size` says what is counted.
MOST_IN_1_000 = {">15": 100.0, ">60": 0.0, "packed": 0.0, "hard": 1.5, "ifexp": 40.0}
MOST_NODES = 8.5  # of a statement, on average


def test_the_program_has_few_lines_that_say_several_things() -> None:
    loader = SourceFileLoader("size", str(ROOT / "scripts" / "size"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    size = module_from_spec(spec)
    loader.exec_module(size)
    counts: Counter[str] = Counter()
    for path in (ROOT / "pe_bench").rglob("*.py"):
        counts += size.counts_of(path.read_text(encoding="utf-8"))
    thousands = counts["stmts"] / 1_000
    found = {name: round(counts[name] / thousands, 2) for name in MOST_IN_1_000}
    too_many = {name: number for name, number in found.items() if number > MOST_IN_1_000[name]}
    assert not too_many, f"for each 1,000 statements {too_many}: `scripts/size pe_bench` says where"
    assert counts["nodes"] / counts["stmts"] <= MOST_NODES
