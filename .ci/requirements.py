"""Print everything that pyproject.toml asks for: to build, to run, every extra and every group."""

import tomllib
from pathlib import Path

config = tomllib.loads(Path("pyproject.toml").read_text())
project = config["project"]
print(*config["build-system"]["requires"], *project["dependencies"], sep="\n")
for group in (*project["optional-dependencies"].values(), *config["dependency-groups"].values()):
    print(*group, sep="\n")
