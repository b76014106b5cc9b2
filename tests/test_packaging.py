"""What is installed from a wheel works away from the checkout."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


def test_the_citation_names_the_version_and_the_licence_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])


@pytest.mark.full
def test_a_wheel_holds_the_configurations_and_runs_from_anywhere(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    shipped = {str(path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*.yaml")}
    found = {name.replace("pe_bench/config/yaml", "configs") for name in names if name.endswith(".yaml")}
    assert found == shipped
    beside = {str(path.relative_to(ROOT)) for path in (ROOT / "pe_bench" / "report" / "html").rglob("*.*")}
    assert {name for name in beside if not name.endswith((".py", ".pyc"))} <= set(names)

    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
        "from pe_bench.config.groups import config_dir; from pe_bench.cli.program import run; "
        "print(config_dir()); "
        "sys.exit(run(['train', '--cfg', 'job', 'encoding=t5']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site" / "pe_bench" / "config" / "yaml") in done.stdout
    assert "name: t5" in done.stdout
