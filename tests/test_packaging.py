"""What a user gets: one version, the extras, documented names, and examples that run. `make dist` checks the files."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import warnings
from importlib import metadata
from pathlib import Path

import pytest

import archive

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODULES = sorted(path.stem for path in (ROOT / "archive").glob("*.py") if path.stem != "__main__")


def test_version_stands_in_one_place() -> None:
    assert metadata.version("rl-archive") == archive.__version__
    assert "version =" not in (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[0]
    assert f"## {archive.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_extras_exist() -> None:
    extras = metadata.metadata("rl-archive").get_all("Provides-Extra") or []
    assert {"gym", "test"} <= set(extras)


def test_core_needs_no_extra() -> None:
    required = [text for text in metadata.requires("rl-archive") or [] if "extra ==" not in text]
    names = {re.split(r"[^\w-]", text)[0] for text in required}
    assert not names & {"gymnasium", "ale-py", "opencv-python-headless", "torch", "pytest"}


@pytest.mark.parametrize("name", archive.__all__)
def test_public_names_are_documented(name: str) -> None:
    assert inspect.getdoc(getattr(archive, name))
    assert re.search(rf"\b{name}\b", README), f"README.md does not mention {name}"


@pytest.mark.parametrize("name", ["Batch", "Checkpoint", "Prioritized", "Replay", "Run", "Schema", "Field", "Uniform"])
def test_public_methods_are_documented(name: str) -> None:
    for method, value in vars(getattr(archive, name)).items():
        if not method.startswith("_") and (callable(value) or isinstance(value, property | classmethod)):
            assert inspect.getdoc(value), f"{name}.{method} has no docstring"


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = archive if module == "__init__" else importlib.import_module(f"archive.{module}")
    assert doctest.testmod(loaded).failed == 0


def test_readme_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every Python block of the README, one after the other in one namespace; the quickstart is the first."""
    blocks = list(re.finditer(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL))
    assert blocks
    if "gymnasium" in README:
        pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        line = README.count("\n", 0, block.start()) + 1
        code = compile("\n" * line + block[1], str(ROOT / "README.md"), "exec")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="gymnasium")
            exec(code, namespace)
