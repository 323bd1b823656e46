"""The shape of the package: imports go one way, outside libraries have few doors, files and functions stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "archive"

# A module imports only from lines above its own. Modules of one line do not know each other.
LAYERS = """
errors   batch   buffers   disk   record   rewind   guard   codec   rule   places   copies   lost   ranges
finding   text
_core    _rows   _pool   _append   _file
superblock
background   block   casting   chunk   leaves   lock   workers
options   payload   samplers
schema   presets
spaces   datasets   episodes   intake   layout   objects
header
bounds
budget   column   snapshot   store
slots
checkpoint   contents   loader   region_check   scan   window
rows
chunk_check   remains   returns
episode_check   segments
bulk   change   chunks   commit   lazy   pictures   plain   plan   source   stacks   stats   valid
assembly   epochs   priorities   appender
draw
ahead
replay   writer
mix   rebuilding   run
opening   info   salvaging   verification
branch   repairing
__init__
breakout
__main__   demo
"""
UPWARD = {("schema", "spaces"), ("run", "opening")}  # imported when called: Schema.from_env, pickles of runs

DOORS = {  # library: the modules that may import it
    "h5py": {"contents", "datasets", "store", "snapshot", "guard", "objects"},
    "hdf5plugin": {"datasets"},
    "zlib_ng": {"codec", "chunk", "chunk_check", "commit", "rows", "scan", "slots", "snapshot"},  # crc32
    "zstandard": {"codec"},
    "lz4": {"codec"},
    "click": {"__main__", "demo"},
    "rich": {"__main__", "info", "demo"},
    "gymnasium": {"breakout", "demo"},
    "ale_py": {"breakout", "demo"},
    "cv2": {"breakout", "demo"},
    "pickle": set(),
}
WHEN_USED = {"gymnasium", "ale_py", "cv2"}  # never at the top of a module: `archive` works without the extra

MODULES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.glob("*.py"))}


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield what a module imports: names of modules of ours after a dot, else of outside packages; True: at its top."""
    top = {id(node) for node in ast.iter_child_nodes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names = [f".{node.module}"] if node.module else [f".{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0]]
        else:
            continue
        for name in names:
            yield (".__init__" if name == "archive" else name), id(node) in top


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, source: list[str]) -> int:
    """Return the lines of a function's body without its docstring, comments and blank lines."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    lines = source[body[0].lineno - 1 : function.end_lineno] if body else []
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


def test_every_module_has_a_layer() -> None:
    listed = LAYERS.split()
    assert len(listed) == len(set(listed))
    assert set(listed) == set(MODULES) | {path.stem for path in PACKAGE.glob("*.pyi")}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    level = {name: number for number, line in enumerate(LAYERS.splitlines()) for name in line.split()}
    for name, _ in imports(MODULES[module]):
        if name.startswith(".") and (module, name[1:]) not in UPWARD:
            assert level.get(name[1:], 99) < level[module], f"{module} imports {name}, which is not above it"


@pytest.mark.parametrize("library", DOORS)
def test_outside_libraries_have_their_doors(library: str) -> None:
    users = {module for module, tree in MODULES.items() if library in {name for name, _ in imports(tree)}}
    assert users <= DOORS[library]


def test_extras_are_imported_when_used() -> None:
    for module, tree in MODULES.items():
        early = WHEN_USED & {name for name, at_top in imports(tree) if at_top}
        assert not early, f"{module} imports {early} at its top"


def test_files_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.glob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 330} == {}


def test_functions_are_short() -> None:
    lengths = []
    for module, tree in MODULES.items():
        source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((code_lines(node, source), f"{module}.{node.name}"))
    lengths.sort()
    assert lengths[ceil(0.9 * len(lengths)) - 1][0] < 20
    assert lengths[-1][0] <= 60, lengths[-1]
