"""What a search that plays episodes tells whoever watches it."""

from __future__ import annotations

from typing import NamedTuple


class Round(NamedTuple):
    """What a round of episodes came to, as a watcher is told.

    Attributes:
        stage: 1 while the search explores, 2 while it backtraces.
        episodes: played so far, these included.
        epsilon: share of exploratory decisions; 0 where the agent only follows its policy.
        greedy: score of the episode that followed the policy alone; None where none did.
        scores: of all episodes of the round in their order: candidates that the plan of each partitions.
        best: the best score so far.
    """

    stage: int
    episodes: int
    epsilon: float
    greedy: int | None
    scores: tuple[int, ...]
    best: int
