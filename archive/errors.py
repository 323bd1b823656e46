"""Every error of this package, each also the built-in error that fits.

ArchiveError
├── NotARunError      (ValueError)          the file is not one of ours
├── VersionError      (ValueError)          written by a newer version of this package
├── DamagedError      (OSError)             bytes that fail their checksum or contradict each other
├── WriteError        (OSError)             the disk refused; the run is broken until reopened
├── MissingRunError   (FileNotFoundError)
├── ExistingRunError  (FileExistsError)
├── LockedError       (BlockingIOError)     somebody else is writing
├── SchemaError       (ValueError)          a schema that cannot be stored
├── FieldError        (ValueError)          a value that does not fit its field
├── FieldTypeError    (TypeError)           a value of a kind its field cannot take
├── UnknownFieldError (KeyError)
├── StateError        (RuntimeError)        a call that does not fit what happened before
├── NotEnoughData     (LookupError)         nothing can be drawn yet
├── PriorityError     (ValueError)
├── IndexRangeError   (IndexError)          an id or a row that does not exist
└── MemoryBudgetError (MemoryError)         `memory` is below what the run needs at least
"""


class ArchiveError(Exception):
    """Base of all errors raised on purpose by this package."""


class NotARunError(ArchiveError, ValueError):
    """The file is not a run of this package."""


class VersionError(ArchiveError, ValueError):
    """The file was written by a newer version of this package."""


class DamagedError(ArchiveError, OSError):
    """Bytes fail their checksum or contradict each other."""


class WriteError(ArchiveError, OSError):
    """A write failed: the run refuses everything until it is reopened; what was committed is safe."""


class MissingRunError(ArchiveError, FileNotFoundError):
    """There is no file at that path."""


class ExistingRunError(ArchiveError, FileExistsError):
    """There is a file at that path already."""


class LockedError(ArchiveError, BlockingIOError):
    """Another writer has the run open."""


class SchemaError(ArchiveError, ValueError):
    """A schema that cannot be stored, or one that differs from the file's."""


class FieldError(ArchiveError, ValueError):
    """A value does not fit its field."""


class FieldTypeError(ArchiveError, TypeError):
    """A value is of a kind that its field cannot take."""


class UnknownFieldError(ArchiveError, KeyError):
    """A field that the schema does not have."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the message in quotes


class StateError(ArchiveError, RuntimeError):
    """A call that does not fit what happened before."""


class NotEnoughData(ArchiveError, LookupError):  # noqa: N818 - the name is part of the public contract
    """Nothing can be drawn yet."""


class PriorityError(ArchiveError, ValueError):
    """A priority that is negative, not finite, or too large to be summed."""


class IndexRangeError(ArchiveError, IndexError):
    """An id or a row that does not exist."""


class MemoryBudgetError(ArchiveError, MemoryError):
    """The memory budget is below what the run needs at least."""
