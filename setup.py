"""Builds the two extensions, archive._core and archive._file; everything else is in pyproject.toml.

ARCHIVE_BUILD  release (default) or debug
"""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

FAST = {"boundscheck": False, "initializedcheck": False, "cdivision": True}
SAFE = {"boundscheck": True, "initializedcheck": True, "overflowcheck": False}
KINDS = {  # kind: directives, compiler flags
    "release": (FAST, ["-g0"] if os.name == "posix" else []),
    "debug": (SAFE, ["-Wall", "-Wextra"] if os.name == "posix" else []),
}
directives, flags = KINDS[os.environ.get("ARCHIVE_BUILD", "release")]

extensions = [
    Extension(
        f"archive.{name}",
        [f"_core/{source}.pyx"],
        depends=glob("_core/*.p*"),  # puts the kernels into the sdist, and rebuilds when one is touched
        extra_compile_args=flags,
    )
    for name, source in (("_core", "core"), ("_file", "file"))
]
setup(
    ext_modules=cythonize(
        extensions,
        include_path=["_core"],
        force=True,  # a change of kind is invisible to timestamps
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "wraparound": False, **directives},
    ),
    options={"build_ext": {"force": True}},
)
