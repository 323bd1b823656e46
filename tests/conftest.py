"""Profiles for hypothesis, a place for runs, fresh processes; slow tests only on request (`-m slow`)."""

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import archive

# Machines open files in every example, which hypothesis finds slow.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
settings.register_profile("quick", COMMON, max_examples=80, stateful_step_count=40, derandomize=True, database=None)
settings.register_profile("thorough", COMMON, max_examples=1500, stateful_step_count=80)
settings.load_profile("quick")

CHILD = """
from __future__ import annotations
import sys
import archive
np = sys.modules["numpy"]  # the package has it; nothing else is imported
{functions}
print(*{main}(*sys.argv[1:]), sep="\\n", flush=True)
assert not {{"pytest", "hypothesis", "model", "gymnasium", "torch"}} & set(sys.modules)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a run of this test can be."""
    return tmp_path / "run.h5"


@pytest.fixture
def fresh_process() -> Callable[..., list[str]]:
    """Return a function that calls `main(*arguments)` in a process that imports nothing but the package.

    Arguments arrive as text; what `main` returns, a list of words, comes back. `uses`: functions that it calls.
    """

    def call(main: Callable[..., Any], *arguments: Any, uses: Any = (), status: int = 0) -> list[str]:
        functions = "\n".join(inspect.getsource(function) for function in (*uses, main))
        script = CHILD.format(functions=functions, main=main.__name__)
        where = {**os.environ, "PYTHONPATH": str(Path(archive.__file__).parents[1])}
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout.split()

    return call


@pytest.fixture
def torch() -> Any:
    """Return torch, which a CI run must have."""
    return importlib.import_module("torch") if os.environ.get("CI") else pytest.importorskip("torch")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip slow tests unless they are asked for."""
    if "slow" not in config.option.markexpr:
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with -m slow"))
