"""Training steps of well-known models, and of the user's own, as shapes: nothing is allocated, nothing runs.

Each is a flax.linen model with its loss, gradients and Adam. What they have in common:

- dropout is left out unless a share is given: the step is deterministic, and it needs no random key;
- parameters, the optimiser's state and the loss are float32; `dtype` is what the layers compute in, so that a step in
  half precision casts every parameter where it is used (mixed precision); losses are not scaled;
- sequences are full: there is no padding, and no mask for it;
- layers are Python loops, not `lax.scan`, so that the traced step has a cut point between any two of them;
- T5 was trained with Adafactor; the step uses Adam as all others do, and the cost model's state factor says which
  optimiser a plan is for.

Importing this package imports neither jax nor flax; building a step does.
"""

from __future__ import annotations

from .catalogue import names, summary
from .registry import build, from_factory

__all__ = ["build", "from_factory", "names", "summary"]
