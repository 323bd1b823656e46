"""Builds the two extensions, archive._core and archive._file; everything else is in pyproject.toml.

ARCHIVE_BUILD  release (default), or debug: bounds, views and integer overflow checked, as tests run it
"""

import os
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

FAST = {"boundscheck": False, "initializedcheck": False, "cdivision": True}
SAFE = {"boundscheck": True, "initializedcheck": True, "overflowcheck": True, "show_performance_hints": False}
KINDS = {  # kind: directives, compiler flags
    "release": (FAST, ["-g0"]),  # Python's own flags ask for debug symbols, four times the size
    "debug": (SAFE, ["-O1", "-Wall", "-Wextra"]),
}
kind = os.environ.get("ARCHIVE_BUILD") or "release"
directives, flags = KINDS[kind]

extensions = [
    Extension(
        f"archive.{name}",
        [f"_core/{source}.pyx"],
        depends=glob("_core/*.p*"),  # puts the kernels into the sdist, and rebuilds when one is touched
        extra_compile_args=flags if os.name == "posix" else [],
    )
    for name, source in (("_core", "core"), ("_file", "file"))
]
setup(
    ext_modules=cythonize(
        extensions,
        include_path=["_core"],
        force=True,  # a change of kind is invisible to timestamps
        build_dir=f"build/cython/{kind}",
        compiler_directives={"language_level": 3, "wraparound": False, **directives},
    ),
    options={"build_ext": {"force": True, "parallel": len(extensions)}},
)
