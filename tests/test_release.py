"""Workflows, forms, the citation, and where the address stands."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
ADDRESS = "https://example.org/bench"
NOTEBOOKS = ("docs/quick-start.ipynb", "docs/own-encoding.ipynb")


def test_files_for_other_programs_have_their_schema():
    forms, of_forms = [form for form in FORMS if form.name != "config.yml"], FORMS[0].parent / "config.yml"
    for schema, files in (
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", forms),
        ("github-issue-config", [of_forms]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ):
        check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        done = subprocess.run([*check, *map(str, files)], capture_output=True, text=True, check=False)
        assert files and done.returncode == 0, done.stdout


def test_each_step_of_a_workflow_is_a_script_of_the_repository():
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert len(commands) >= 4
    for command in commands:
        script = ROOT / command
        assert command.startswith("scripts/") and script.is_file() and script.stat().st_mode & 0o111, command


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("scripts", "docs"):
        (tmp_path / folder).mkdir()
    for name in ("scripts/release", "pyproject.toml", "CITATION.cff", "README.md", *NOTEBOOKS):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 2.3.4\n")
    return tmp_path


def release(checkout: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "scripts" / "release"), version]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_release_writes_version_and_address_wherever_they_stand(checkout):
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace('repository = ""', f'repository = "{ADDRESS}"'))
    for _ in range(2):
        assert release(checkout, "2.3.4").returncode == 0
    texts = {name: (checkout / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "README.md")}
    assert texts["pyproject.toml"].count(f'Issues = "{ADDRESS}/issues"') == 1
    assert '\nversion = "2.3.4"\n' in texts["pyproject.toml"]
    cited = yaml.safe_load(texts["CITATION.cff"])
    assert (cited["version"], cited["repository-code"]) == ("2.3.4", ADDRESS)
    assert len(re.findall(r"badge\.svg", texts["README.md"])) == 1
    assert all(f"git clone {ADDRESS} pe-bench" in (checkout / name).read_text() for name in NOTEBOOKS)


def test_what_a_release_lacks_is_named_and_nothing_is_written(checkout):
    before = (checkout / "pyproject.toml").read_text()
    for version, said in ("2.3.4", "no address"), ("2.3", "usage"):
        done = release(checkout, version)
        assert done.returncode == 1 and said in done.stderr
    assert (checkout / "pyproject.toml").read_text() == before
