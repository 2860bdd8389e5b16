"""How far the search of strategies goes."""

from __future__ import annotations

from dataclasses import dataclass

from automap_models.errors import BadInput


@dataclass(frozen=True)
class StrategiesConfig:
    """How far to search.

    Attributes:
        gap: share of the step by which another strategy may be shorter at most when the search ends; 0 is to the end.
        guesses: strategies that closed forms say are good, and that are simulated before all others.
        far: a guess that is so many times as long as the best strategy is not simulated, nor neighbours of a strategy.
        refined: families of the best guesses whose other cuts and recomputation are tried at once.
        rounds: of chains that become rows of a family's linear program.
        trials: neighbouring cuts that are simulated of a family that may have the best strategy.
        nodes: of the search tree of a program of whole blocks; 0 solves none.
        exhaustive: strategies of a family up to which all of them are simulated where bounds do not rule it out.
        patience: strategies after which a search may give up that has proven what it can.
        budget_s: counted seconds (planners.effort) after which the search ends with the gap that it has reached.
    """

    gap: float = 0.01
    guesses: int = 80
    far: float = 1.15
    refined: int = 4
    rounds: int = 6
    trials: int = 24
    nodes: int = 1
    exhaustive: int = 200
    patience: int = 100
    budget_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.gap < 1.0:
            raise BadInput(f"a gap of {self.gap:g}", where="`gap`", do="give a share from 0 to 1, such as 0.01")
