"""All cases by name, in the order in which they are shown."""

from __future__ import annotations

from .batches import BATCHES
from .case import Case
from .files import FILES
from .memory import MEMORY
from .modes import MODES
from .trees import TREES
from .writing import WRITING

CASES: dict[str, Case] = TREES | BATCHES | WRITING | FILES | MEMORY | MODES
