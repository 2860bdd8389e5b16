"""What a run knows of ZeRO. That replicas which share parameters train as one process does: test_torch_run.py."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from automap_models.errors import BadInput
from automap_models.run.torch_sharding import require_zero


@pytest.mark.parametrize("zero", [-1, 1, 4])
def test_a_stage_of_zero_that_fsdp2_is_not_is_refused(zero: int) -> None:
    with pytest.raises(BadInput, match=f"is not ZeRO-{zero}; take 0, 2 or 3"):
        require_zero(zero)


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_those_that_it_is_are_taken(zero: int) -> None:
    require_zero(zero)
