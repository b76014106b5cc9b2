"""The version of pe-bench, installed or not."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pe_bench.system import version as module
from pe_bench.system.version import own_version


def test_a_checkout_that_is_not_installed_has_the_version_of_its_project_file(tmp_path, monkeypatch) -> None:
    assert own_version() == version("pe-bench")

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "pe-bench"\nversion = "3.4.5"\n')
    assert own_version(tmp_path) == "3.4.5"
    assert own_version(Path(module.CHECKOUT)) == version("pe-bench")
