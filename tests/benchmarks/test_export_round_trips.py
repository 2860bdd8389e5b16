"""Plans that are drawn for every target."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from automap_models.export.targets import TARGETS

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "export_round_trips.py"


def test_every_target_has_plans_to_be_read_back(benchmark: ModuleType) -> None:
    """A target that came later had none, so that the command without options ended in a KeyError."""
    assert list(benchmark.DRAWS) == list(TARGETS)
