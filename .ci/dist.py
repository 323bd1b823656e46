"""Check what `make dist` built: the files of sdist and wheel, then the wheel in a fresh environment elsewhere."""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    skip = (".pyc", ".so", ".pyd")
    return {str(p.relative_to(ROOT)) for p in paths if p.suffix not in skip and "__pycache__" not in p.parts}


def require(what: str, wanted: set[str], found: set[str]) -> None:
    """Leave with a message if anything is missing."""
    if not wanted <= found:
        sys.exit(f"{what} lacks {', '.join(sorted(wanted - found))}")


def main(folder: Path) -> None:
    """Check the one sdist and the one wheel in a folder."""
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    top = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "setup.py"}
    require(sdist.name, top | committed("_core", "archive", "tests", "benchmarks", "docs"), sdist_files(sdist))
    stubs = {"archive/py.typed", "archive/_core.pyi", "archive/_file.pyi", "archive/_core.so", "archive/_file.so"}
    found = wheel_files(wheel)
    require(wheel.name, stubs | committed("archive"), found)
    strange = {name for name in found if not name.startswith("archive/") and ".dist-info/" not in name}
    if strange or any(name.endswith((".c", ".pyx", ".pxd")) for name in found):
        sys.exit(f"{wheel.name} holds more than the package: {', '.join(sorted(strange)) or 'sources of the core'}")
    with tempfile.TemporaryDirectory() as elsewhere:
        venv.create(Path(elsewhere) / "v", with_pip=True)
        bin_ = Path(elsewhere) / "v" / ("Scripts" if os.name == "nt" else "bin")
        options = {"cwd": elsewhere, "check": True}
        pip = [bin_ / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, wheel.resolve()], **options)
        subprocess.run([bin_ / "python", "-W", "error", "-c", USE], **options)
        shown = subprocess.run([bin_ / "rl-archive", "info", "run.h5"], capture_output=True, text=True, **options)
        if "50" not in shown.stdout:
            sys.exit(f"rl-archive info run.h5 printed {shown.stdout!r}")
    print(f"{sdist.name} -> {wheel.name}: complete, and works elsewhere")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
