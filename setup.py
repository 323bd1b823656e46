"""Builds the extensions archive._core, _rows, _pool, _append and _file; everything else is in pyproject.toml.

ARCHIVE_BUILD  release (default); debug: bounds, views and integer overflow checked, as tests run it;
               coverage: debug with line tracing; sanitize: under address and undefined-behaviour sanitizers
ARCHIVE_ABI3   1: one wheel for every CPython from 3.11 on
"""

import os
import sysconfig
from glob import glob

from Cython.Build import cythonize
from Cython.Compiler import Options
from setuptools import Extension, setup

FAST = {"boundscheck": False, "initializedcheck": False, "cdivision": True}
SAFE = {"boundscheck": True, "initializedcheck": True, "overflowcheck": True, "show_performance_hints": False}
ASAN = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]
KINDS = {  # kind: directives, compiler flags
    "release": (FAST, ["-g0"]),  # Python's own flags ask for debug symbols, four times the size
    "debug": (SAFE, ["-O1", "-Wall", "-Wextra", "-Werror"]),
    "coverage": (SAFE | {"linetrace": True}, ["-O1"]),
    "sanitize": (FAST, ASAN),
}
kind = os.environ.get("ARCHIVE_BUILD") or "release"
directives, flags = KINDS[kind]
Options.warning_errors = kind == "debug"  # Cython's own warnings; the C compiler's: -Werror
macros = []
if kind == "coverage":  # without the second macro Python 3.13 records nothing
    macros += [("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")]
abi3 = os.environ.get("ARCHIVE_ABI3") == "1" and not sysconfig.get_config_var("Py_GIL_DISABLED")
if abi3:
    macros.append(("Py_LIMITED_API", "0x030B0000"))

extensions = [
    Extension(
        f"archive._{name}",
        [f"_core/{name}.pyx"],
        depends=glob("_core/*.p*"),  # puts the kernels into the sdist, and rebuilds when one is touched
        define_macros=macros,
        extra_compile_args=flags if os.name == "posix" else [],
        extra_link_args=[flag for flag in flags if "sanitize=" in flag],
        py_limited_api=abi3,
    )
    for name in ("core", "rows", "pool", "append", "file")
]
setup(
    ext_modules=cythonize(
        extensions,
        include_path=["_core"],
        force=True,  # a change of kind is invisible to timestamps
        build_dir=None if kind == "coverage" else f"build/cython/{kind}",  # coverage looks for the C beside the .pyx
        compiler_directives={"language_level": 3, "wraparound": False, **directives},
    ),
    options={"build_ext": {"force": True, "parallel": len(extensions)}}
    | ({"bdist_wheel": {"py_limited_api": "cp311"}} if abi3 else {}),
)
