"""Each training run in one HDF5 file: record, commit, sample, kill, resume bit for bit.

>>> import archive, tempfile, numpy as np
>>> path = tempfile.mkdtemp() + "/run.h5"
>>> schema = archive.Schema(steps={"observation": archive.Field("float32", (4,)), "action": archive.Field("int64")})
>>> run = archive.create(path, schema)
>>> run.reset(np.zeros(4, "float32"))
>>> for t in range(100):
...     _ = run.step(t % 2, np.full(4, t, "float32"), 1.0, False, t == 99)
>>> replay = run.replay(batch_size=32, n_step=3, sampler=archive.Prioritized())
>>> batch = replay.sample()
>>> replay.update_priorities(batch.index, np.abs(batch.reward))
>>> run.checkpoint(replay=replay.state_dict())
>>> run.close()
"""

from . import presets
from .batch import Batch
from .branch import fork
from .checkpoint import Checkpoint
from .errors import (
    ArchiveError,
    DamagedError,
    ExistingRunError,
    FieldError,
    FieldTypeError,
    IndexRangeError,
    LockedError,
    MemoryBudgetError,
    MissingRunError,
    NotARunError,
    NotEnoughData,
    PriorityError,
    SchemaError,
    StateError,
    UnknownFieldError,
    VersionError,
    WriteError,
)
from .finding import Verification
from .mix import Mix, mix
from .opening import create, open  # noqa: A004 - the name is part of the public contract
from .repairing import Repair, repair
from .replay import Replay
from .run import Run
from .salvaging import Salvage, salvage
from .samplers import Epoch, Linear, Prioritized, Uniform
from .schema import Field, Schema, Text
from .verification import verify

__version__ = "0.1.0"
__all__ = [
    "ArchiveError",
    "Batch",
    "Checkpoint",
    "DamagedError",
    "Epoch",
    "ExistingRunError",
    "Field",
    "FieldError",
    "FieldTypeError",
    "IndexRangeError",
    "Linear",
    "LockedError",
    "MemoryBudgetError",
    "MissingRunError",
    "Mix",
    "NotARunError",
    "NotEnoughData",
    "Prioritized",
    "PriorityError",
    "Repair",
    "Replay",
    "Run",
    "Salvage",
    "Schema",
    "SchemaError",
    "StateError",
    "Text",
    "Uniform",
    "UnknownFieldError",
    "Verification",
    "VersionError",
    "WriteError",
    "create",
    "fork",
    "mix",
    "open",
    "presets",
    "repair",
    "salvage",
    "verify",
]
