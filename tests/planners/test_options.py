"""What is asked of a plan is checked once, for the commands and for Python alike, and messages name the arguments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.constraints import Pin
from automap_models.errors import BadInput
from automap_models.planners.options import ExploreOptions, PlanOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "4"}, "`stages`: is '4'; give a whole number or 'auto'"),
        ({"stages": 4.0}, "`stages`: is 4.0; give a whole number or 'auto'"),
        ({"micro_batches": True}, "`micro_batches`: is True; give a whole number or 'auto'"),
        ({"global_batch": "256"}, "`global_batch`: is '256'; give a whole number"),
        ({"stages": "auto", "planner": "exact"}, "`stages='auto'`: planner exact does not choose; give a number, or"),
        ({"beam": 0}, "`beam`: a beam of 0; give at least 1"),
        ({"certify_s": -1.0}, "`certify_s`: -1 seconds; give 0 or more"),
        ({"refine_s": math.nan}, "`refine_s`: nan seconds; give 0 or more"),
        ({"schedule": "zb"}, "`schedule`: unknown schedule 'zb'; choose from 1f1b"),
        ({"planner": "data-parallel", "stages": 2}, "`stages`: data parallelism has one stage, not 2; leave it out"),
        ({"planner": "uniform", "beam": 4}, "`beam`: planner uniform uses none; leave it out"),
        ({"policy": "x.onnx"}, "`policy`: the default planner asks no policy for plans by the step"),
        ({"planner": "exact", "policy": "x.onnx"}, "`policy`: planner exact uses none; leave it out"),
        ({"planner": "policy", "refine_s": 1.0}, "`refine_s`: planner policy is not refined; leave it out"),
        (
            {"planner": "data-parallel", "certify_s": 1.0},
            "`certify_s`: a plan of planner data-parallel needs no proof; leave it out",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message) -> None:
    with pytest.raises(BadInput) as refused:
        PlanOptions(**options)
    assert str(refused.value).startswith(message)


def test_the_planner_gets_the_options_that_it_has() -> None:
    planner = PlanOptions(beam=2, certify_s=0.5, refine_s=0.0, objective="length").make_planner()
    config = planner.config
    assert (planner.name, config.beam, config.certify_s, config.refine_s) == ("auto", 2, 0.5, 0)
    with pytest.raises(BadInput, match=r"^`planner`: unknown planner 'magic'; choose from policy"):
        PlanOptions(planner="magic").make_planner()


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert type(PlanOptions(stages=np.int64(4)).stages) is int


def test_one_constraint_needs_no_collection() -> None:
    one = ExploreOptions(pins="head=1", together="block_0/*", forbidden="data").constraints
    several = ExploreOptions(pins=["head=1"], together=("block_0/*",), forbidden={"data"}).constraints
    assert one == several
    assert (one.pins, one.together, one.forbidden) == ((Pin("head", 1),), ("block_0/*",), {"data"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_stages": 0}, "`max_stages`: 0 stages"),
        ({"max_stages": "2"}, "`max_stages`: is '2'; give a whole number"),
        ({"forbidden": "tensor"}, "`forbidden`: unknown technique 'tensor'; choose from"),
        ({"pins": "head"}, "`pins`: 'head' is not LAYER=STAGE; write for example"),
        ({"memory_bytes": 0}, "`memory_bytes`: is 0; give a positive number"),
        ({"memory_bytes": 2e9}, "`memory_bytes`: 2e+09 bytes are more than the 1e+09 of a device of cluster small"),
        ({"budget_s": math.nan}, "`budget_s`: is nan; give a positive number"),
    ],
)
def test_what_no_plan_can_be_like_is_refused(options, message) -> None:
    with pytest.raises(BadInput) as refused:
        options_record = ExploreOptions(**options)
        _ = options_record.constraints
        options_record.limited(Cluster(1, 2, 1e9, 1e9, 1e9, name="small"))
    assert str(refused.value).startswith(message)
