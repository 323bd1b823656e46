"""What is wrong with a file: one line each of what, where, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from .errors import ArchiveError, DamagedError

Progress = Callable[[int, int], None]  # what has been done, of how much
STUMBLES = (LookupError, ArithmeticError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError)
FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # what HDF5, JSON and our checks raise


@contextmanager
def damaged(path: str) -> Iterator[None]:
    """Say DamagedError where the bytes of a file make a check of ours stumble."""
    try:
        yield
    except ArchiveError:
        raise
    except STUMBLES as error:
        raise DamagedError(f"{path}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Finding:
    """Damage: `what` is wrong, `where` it is, and what it `costs` whoever uses the file."""

    what: str
    where: str
    costs: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.costs}"


@dataclass
class Findings:
    """Findings as they come in; `notes` are harmless: what a kill leaves and the next opening puts right."""

    damage: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, where: str, costs: str) -> None:
        """Add damage."""
        self.damage.append(Finding(what, where, costs))

    @contextmanager
    def of(self, where: str, costs: str) -> Iterator[None]:
        """Turn what fails inside into a finding."""
        try:
            yield
        except FAILURES as error:
            self.add(" ".join(str(error).split()) or type(error).__name__, where, costs)


@dataclass(frozen=True)
class Verification:
    """What `archive.verify` found; `clean` if nothing is wrong.

    `notes` are harmless. `stored` and `decoded` count bytes of the chunks that were read, `seconds` all of the time.
    """

    path: str
    commit: int
    rows: int
    chunks: int
    stored: int
    decoded: int
    seconds: float
    quick: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"clean": self.clean, **asdict(self)}
