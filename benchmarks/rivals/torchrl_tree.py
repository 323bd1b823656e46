"""torchrl: the tree of its C++ extension, which loads only beside the torch that it was built for."""

from __future__ import annotations

import numpy as np
import torchrl

from . import Array

try:
    from torchrl._torchrl import SumSegmentTreeFp64
except ImportError as error:
    raise ImportError(f"the C++ of torchrl {torchrl.__version__} does not load beside this torch") from error


class ExtensionTree:
    """A float64 tree; the masses are drawn as its own sampler draws them."""

    def __init__(self, values: Array) -> None:
        self.tree, self.size, self.rng = SumSegmentTreeFp64(len(values)), len(values), np.random.default_rng(0)
        self.tree[np.arange(len(values))] = values
        self.update = self.tree.__setitem__

    def sample(self, batch: int) -> Array:
        """Draw leaves."""
        mass = self.rng.uniform(0.0, self.tree.query(0, self.size), size=batch)
        return np.asarray(self.tree.scan_lower_bound(mass))


tree = ExtensionTree
