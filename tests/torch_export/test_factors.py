"""Dimensions in parts: the common refinement of several divisions, against all divisions of a size."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from automap_models.hlo.sharding_rules import Role
from automap_models.torch_export.factors import Roles, mapped, opaque, refined, regrouped

FACTORIZATIONS = st.lists(st.sampled_from([2, 3, 4, 6]), min_size=1, max_size=3)


def ends(division: tuple[int, ...]) -> set[int]:
    """Products of the last parts: where a division has its borders."""
    return {1, *accumulate(reversed(division), mul)}


def every_factorization(size: int) -> list[tuple[int, ...]]:
    """All ways to write a size as a product of numbers above 1, in order."""
    if size == 1:
        return [()]
    parts = [part for part in range(2, size + 1) if size % part == 0]
    return [(part, *rest) for part in parts for rest in every_factorization(size // part)]


@given(FACTORIZATIONS, st.randoms(use_true_random=False))
def test_the_refinement_is_the_coarsest_division_with_all_borders(first: list[int], random: object) -> None:
    size = prod(first)
    second = random.choice(every_factorization(size))  # type: ignore[attr-defined]
    borders = ends(tuple(first)) | ends(second)
    finer = [division for division in every_factorization(size) if borders <= ends(division)]
    coarsest = min(finer, key=len, default=None)
    own = refined([tuple(first), second])
    assert (own is None) == (coarsest is None)
    if own is not None and coarsest is not None:
        assert (prod(own), ends(own)) == (size, borders)
        assert len(own) == len(coarsest)


def test_a_reshape_that_fits_no_border_stays_whole() -> None:
    mapping = regrouped(((4,), (6,)), (6, 4))
    assert set(mapping.rule.roles) == {Role.FIXED}
    assert mapping.results == (((6,), (4,)),)


def test_a_part_follows_the_first_of_its_factors_and_the_others_stay_whole() -> None:
    mapping = mapped([(((2, 3),), ("a",)), (((6,),), ("a",))], [((6,), ("a",))], Roles())
    assert mapping.rule.sizes == (2, 3)
    assert mapping.rule.roles == (0, Role.FIXED)
    assert mapping.results == (((2, 3),),)


def test_all_that_is_unknown_stays_whole() -> None:
    rule = opaque([((2,), (3,))], [(4,)]).rule
    assert (rule.sizes, set(rule.roles)) == ((2, 3, 4), {Role.FIXED})


def test_a_dimension_without_a_label_is_a_defect() -> None:
    with pytest.raises(ValueError, match="has no label"):
        mapped([(((4,),), (None,))], [((4,), (0,))], Roles())
