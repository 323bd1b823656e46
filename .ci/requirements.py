"""Print parts of what pyproject.toml asks for: build, run, extras and groups by name."""

import sys
import tomllib
from pathlib import Path

config = tomllib.loads(Path("pyproject.toml").read_text())
project = config["project"]
parts = {"build": config["build-system"]["requires"], "run": project["dependencies"]}
parts |= project["optional-dependencies"] | config["dependency-groups"]
for name in sys.argv[1:]:
    print(*parts[name], sep="\n")
