"""scripts/install on machines that lack something: one line says what."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OLD = "#!/bin/sh\ncase \"$1\" in --version) echo 'Python 3.9.2';; *) exit 1;; esac\n"
NO_VENV = '#!/bin/sh\ncase "$2" in *venv*) exit 1;; esac\nexit 0\n'
PIP_FAILS = '#!/bin/sh\ncase "$3" in --version) exit 0;; esac\necho "{}"\nexit 1\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/install", "scripts/demo", "scripts/test", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [script], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("script", ["install", "demo", "test"])
def test_an_old_python_is_named(checkout, script):
    old = program(checkout / "python-old", OLD)
    done = run(checkout / "scripts" / script, PYTHON=str(old))
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr and done.stderr.count("\n") == 1


def test_a_python_without_venv_is_named_with_what_to_install(checkout):
    bare = program(checkout / "python-bare", NO_VENV)
    done = run(checkout / "scripts" / "install", PYTHON=str(bare))
    assert done.returncode == 1
    assert "has no venv module" in done.stderr and "python3-venv" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("WARNING: Retrying ... Failed to establish a new connection: [Errno -3]", "no network?"),
        ("ERROR: Could not install packages due to an OSError: No space left on device", "the disk is full"),
        ("ERROR: Cannot install a and b: conflicting dependencies", "Cannot install a and b"),
    ],
)
def test_what_pip_failed_of_is_told_in_one_line(checkout, said, told):
    program(checkout / ".venv" / "bin" / "python", PIP_FAILS.format(said))
    done = run(checkout / "scripts" / "install")
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
    assert not list((checkout / ".venv").glob("installed*"))


def test_what_is_installed_is_not_installed_again(checkout):
    calls = checkout / "calls"
    program(checkout / ".venv" / "bin" / "python", f'#!/bin/sh\necho "$@" >> {calls}\n')
    program(checkout / ".venv" / "bin" / "pe-bench", "#!/bin/sh\n")
    for _ in range(2):
        assert run(checkout / "scripts" / "install").returncode == 0
    assert calls.read_text().count("pip install") == 1
    (checkout / "constraints.txt").write_text("")
    assert run(checkout / "scripts" / "install").returncode == 0
    assert calls.read_text().count("pip install") == 2


@pytest.mark.parametrize(("metadata", "warned"), [("nvidia-cublas", True), ("numpy", False)])
def test_the_cuda_build_is_announced_before_it_is_downloaded(checkout, metadata, warned):
    """As on a machine without a GPU and without PyTorch, whose package index offers this build."""
    pip = f"""#!/bin/sh
case "$*" in
  *torch*--report*|*--report*torch*) echo '{{"requires_dist": ["{metadata}"]}}' ;;
  *"import torch"*) exit 1 ;;
esac
"""
    program(checkout / ".venv" / "bin" / "python", pip)
    done = run(checkout / "scripts" / "install", PATH="/usr/bin:/bin")
    assert done.returncode == 0
    assert ("CUDA build (2 GB and more)" in done.stderr) == warned
    assert ("PIP_EXTRA_INDEX_URL" in done.stderr) == warned


def test_the_install_ends_with_the_next_command(checkout):
    program(checkout / ".venv" / "bin" / "python", "#!/bin/sh\n")
    done = run(checkout / "scripts" / "install")
    assert "pe-bench train encoding=nope experiment=quick" in done.stderr.splitlines()[-1]
