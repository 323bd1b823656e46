"""Check what `make dist` built: the files of sdist and wheels, then each wheel in a fresh environment elsewhere."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTED = ("core", "draws", "file_object", "format", "plain", "semantics")  # with the wheel for many versions
USE = """
import doctest, sys
import numpy as np
import archive
assert archive.__file__.startswith(sys.prefix), f"imported from {archive.__file__}"
assert doctest.testmod(archive, raise_on_error=True).attempted
schema = archive.Schema(steps={"observation": archive.Field("float32", (4,)), "action": archive.Field("int64")})
with archive.create("run.h5", schema) as run:
    run.reset(np.zeros(4))
    for t in range(50):
        run.step(t % 2, np.full(4, t), 1.0, t == 49, False)
with archive.open("run.h5") as run:
    batch = run.replay(batch_size=8, n_step=3).sample()
    assert run.num_steps == 50 and batch.observation.shape == (8, 4)
"""


def sdist_files(path: Path) -> set[str]:
    """Return the names of the files in an sdist, below its folder."""
    with tarfile.open(path) as file:
        return {name.partition("/")[2] for name in file.getnames()}


def wheel_files(path: Path) -> set[str]:
    """Return the names of the files in a wheel, the platform taken out of those of extensions."""
    with zipfile.ZipFile(path) as file:
        return {name.partition(".")[0] + ".so" if name.endswith((".so", ".pyd")) else name for name in file.namelist()}


def committed(*folders: str) -> set[str]:
    """Return the sources that are in these folders of the checkout."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    skip = (".pyc", ".so", ".pyd", ".c")
    return {str(p.relative_to(ROOT)) for p in paths if p.suffix not in skip and "__pycache__" not in p.parts}


def require(what: str, wanted: set[str], found: set[str]) -> None:
    """Leave with a message if anything is missing."""
    if not wanted <= found:
        sys.exit(f"{what} lacks {', '.join(sorted(wanted - found))}")


def check_wheel(wheel: Path) -> None:
    """Leave with a message if a wheel lacks a file of the package or holds anything else."""
    stubs = {f"archive/{name}{end}" for name in ("_core", "_append", "_file") for end in (".pyi", ".so")}
    found = wheel_files(wheel)
    require(wheel.name, stubs | {"archive/py.typed"} | committed("archive"), found)
    strange = {name for name in found if not name.startswith("archive/") and ".dist-info/" not in name}
    if strange or any(name.endswith((".c", ".pyx", ".pxd")) for name in found):
        sys.exit(f"{wheel.name} holds more than the package: {', '.join(sorted(strange)) or 'sources of the core'}")


def use(wheel: Path, python: str, tests: tuple[str, ...] = ()) -> None:
    """Install a wheel in a fresh environment of `python`, outside the checkout, use it and run tests with it."""
    with tempfile.TemporaryDirectory() as elsewhere:
        options = {"cwd": elsewhere, "check": True}
        subprocess.run([python, "-m", "venv", "v"], **options)
        bin_ = Path(elsewhere) / "v" / ("Scripts" if os.name == "nt" else "bin")
        pip = [bin_ / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, f"{wheel.resolve()}[test]" if tests else wheel.resolve()], **options)
        subprocess.run([bin_ / "python", "-W", "error", "-c", USE], **options)
        shown = subprocess.run([bin_ / "rl-archive", "info", "run.h5"], capture_output=True, text=True, **options)
        if "50" not in shown.stdout:
            sys.exit(f"rl-archive info run.h5 printed {shown.stdout!r}")
        if tests:
            for name in ("tests", "docs", "pyproject.toml"):
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, Path(elsewhere) / name)
            subprocess.run([bin_ / "python", "-P", "-m", "pytest", *tests], **options)
        print(f"{wheel.name}: complete, and works elsewhere with {python}")


def main(folder: Path, python: str, newest: str) -> None:
    """Check the sdist and the wheel in a folder, and the wheel for many versions in its folder `abi3`."""
    (sdist,), (wheel,), (many,) = folder.glob("*.tar.gz"), folder.glob("*.whl"), folder.glob("abi3/*cp311-abi3*.whl")
    top = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "setup.py"}
    require(sdist.name, top | committed("_core", "archive", "tests", "benchmarks", "docs"), sdist_files(sdist))
    check_wheel(wheel)
    use(wheel, python)
    check_wheel(many)
    use(many, newest, tuple(f"tests/test_{name}.py" for name in TESTED))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
