"""Schedules against grids drawn by hand and torch's own classes, what they hold, and what makes an order a schedule."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from most_held import most_held

from automap_models.core import schedules
from automap_models.core.passes import Action, Order, build_schedule
from automap_models.core.schedules import SCHEDULES, WARM_UPS, rank_of, remembered
from automap_models.errors import BadInput

GRIDS = {
    "1f1b": """
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F1 B0 F2 B1 F3 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """,
    "1f1b-deep": """
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """,
    "gpipe": """
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 F3 B0 B1 B2 B3
    """,
}
"""3 stages, 4 micro-batches; one row a stage."""

SHAPES = [(s, m) for s in (1, 2, 3, 5, 8) for m in (1, 2, 3, 7, 16)]
VIRTUAL = {"interleaved": (1, 2, 3, 4), "zb-h1": (1, 2, 3, 4), "zb-v": (2,), "dualpipev": (2,)}
"""Of the schedules with virtual stages; the others have one a rank."""


def _shapes(name: str, most_ranks: int, most_micro_batches: int) -> list[tuple[int, int, int]]:
    """(S, M, vp) that a schedule runs."""
    shapes = product(range(1, most_ranks + 1), range(1, most_micro_batches + 1), VIRTUAL.get(name, (1,)))
    if name in ("interleaved", "zb-h1"):
        return [(s, m, vp) for s, m, vp in shapes if m % max(1, m // s) == 0]
    return [(s, m, vp) for s, m, vp in shapes if name != "dualpipev" or m >= 2 * s]


@pytest.mark.parametrize("name", WARM_UPS)
def test_a_schedule_is_the_grid_drawn_by_hand(name: str) -> None:
    assert build_schedule(name, 3, 4).orders == _read(GRIDS[name])


def test_the_grids_in_the_docstring_are_true() -> None:
    """Three grids stand side by side, apart by several blanks, under their names."""
    lines = (schedules.__doc__ or "").splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("F0 "))
    columns = zip(*(re.split(r" {2,}", line.strip()) for line in lines[first - 1 : first + 3]), strict=True)
    drawn = {name: _read("\n".join(rows)) for name, *rows in columns}
    assert drawn == {name: build_schedule(name, 3, 4).orders for name in WARM_UPS}


def test_zb_h1_and_zb_h2_are_the_papers_figures_3() -> None:
    """Figure 3 of 2401.10241: 4 ranks, 8 micro-batches; F as f, the input gradient as b, the weight gradient as w."""
    h1, h2 = (
        ["".join(action.kind for action in order).translate(str.maketrans("FIW", "fbw")) for order in built.orders]
        for built in (build_schedule("zb-h1", 4, 8), build_schedule("zb-h2", 4, 8))
    )
    assert [order.index("b") for order in h1] == [4, 3, 2, 1]
    assert [order.index("b") for order in h2] == [7, 5, 3, 1]
    assert h1[0] == "ffffbwfbwfbwfbwfbwbwbwbw"
    assert h1[3] == "fbfbfbfbwfbwfbwfbwfbwwww"
    assert h2[0] == "fffffffbwfbwbwbwbwbwbwbw"
    assert h2[3] == "fbfbfbfbfbfbfbwfbwwwwwww"


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
@pytest.mark.parametrize("name", WARM_UPS)
def test_every_stage_runs_each_pass_once_and_backward_after_forward(name: str, stages: int, micro_batches: int) -> None:
    for stage, order in enumerate(build_schedule(name, stages, micro_batches).orders):
        passes = [Action(kind, stage, m) for kind in ("B", "F") for m in range(micro_batches)]  # type: ignore[arg-type]
        assert sorted(order) == passes
        assert all(order.index(f) < order.index(b) for b, f in zip(passes, passes[micro_batches:], strict=False))


@pytest.mark.parametrize(("name", "stages"), [("1f1b", 4), ("1f1b-deep", 4), *((name, 1) for name in WARM_UPS)])
def test_the_last_stage_of_1f1b_alternates_and_one_stage_alone_does_too(name: str, stages: int) -> None:
    """Accumulation on one stage once held all micro-batches under GPipe: BERT-48 was said to fit no devices."""
    alternating = [(kind, m) for m in range(5) for kind in "FB"]
    last = build_schedule(name, stages, 5).orders[-1]
    assert [(action.kind, action.micro_batch) for action in last] == alternating


class _Stage:
    """What torch's schedules ask of a stage before they run: where it is; and what 1F1B and GPipe ask when they run."""

    def __init__(self, index: int, ranks: int, stages: int) -> None:
        self.stage_index, self.num_stages, self.group_size = index, stages, ranks
        self.group_rank, self.group, self.submod, self.has_backward = index % ranks, None, None, True
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.order: list[Action] = []

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.order.append(Action("F", self.stage_index, micro_batch))

    def backward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.order.append(Action("B", self.stage_index, micro_batch))

    def __getattr__(self, name: str) -> Any:
        """Sending, receiving and scaling: nothing."""
        if name.startswith(("get_", "perform_")):
            return lambda *_, **__: []
        raise AttributeError(name)


def _torch_class(name: str) -> Any:
    from torch.distributed.pipelining import schedules as of_torch

    return {
        "1f1b": of_torch.Schedule1F1B,
        "gpipe": of_torch.ScheduleGPipe,
        "interleaved": of_torch.ScheduleInterleaved1F1B,
        "zb-h1": of_torch.ScheduleInterleavedZeroBubble,
        "zb-v": of_torch.ScheduleZBVZeroBubble,
        "dualpipev": of_torch.ScheduleDualPipeV,
    }[name]


def _passes(action: Any) -> list[Action]:
    """Of an action of torch; two of them where it overlaps two, which it runs in this order by default."""
    if action is None:
        return []
    if action.sub_actions is not None:
        return [one for part in action.sub_actions for one in _passes(part)]
    kind = action.computation_type.value
    return [Action(kind, action.stage_index, action.microbatch_index)] if kind in ("F", "B", "I", "W") else []


@pytest.mark.parametrize("name", ["interleaved", "zb-h1", "zb-v", "dualpipev"])
def test_every_order_is_the_one_that_torch_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sends and receives, which torch then works out for several seconds."""
    monkeypatch.setattr(_torch_class(name), "_prepare_schedule_with_comms", lambda *_: None)
    for ranks, micro_batches, virtual in _shapes(name, 5, 13):
        stages = [_Stage(chunk * ranks, ranks, ranks * virtual) for chunk in range(virtual)]
        of_torch = _torch_class(name)(stages, micro_batches).pipeline_order
        orders = tuple(tuple(one for action in of_torch[r] for one in _passes(action)) for r in range(ranks))
        assert build_schedule(name, ranks, micro_batches, virtual).orders == orders


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_every_order_is_the_one_that_torch_runs(name: str) -> None:
    """Not the one that it lists: `Schedule1F1B._get_pipeline_order` numbers the last rank's passes from 1."""
    for ranks, micro_batches, _ in _shapes(name, 5, 13):
        if micro_batches < ranks if name == "1f1b" else ranks == 1:
            continue  # torch refuses these; one stage is accumulated, not given to torch (run.torch_schedules.why_not)
        orders = []
        for rank in range(ranks):
            stage = _Stage(rank, ranks, ranks)
            schedule = _torch_class(name)(stage, micro_batches, scale_grads=False)
            schedule._initialize_stage = lambda *_: None
            schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
            orders.append(tuple(stage.order))
        assert build_schedule(name, ranks, micro_batches).orders == tuple(orders)


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches"), [("interleaved", 4, 9), ("zb-h1", 3, 7), ("dualpipev", 3, 5)]
)
def test_what_torch_refuses_is_refused(name: str, ranks: int, micro_batches: int) -> None:
    stages = [_Stage(chunk * ranks, ranks, 2 * ranks) for chunk in range(2)]
    with pytest.raises(ValueError, match="micro"):
        _torch_class(name)(stages, micro_batches)
    with pytest.raises(BadInput, match=f"{micro_batches} micro-batches"):
        build_schedule(name, ranks, micro_batches, 2)


CLOSED_FORMS = {
    "1f1b": lambda s, ranks, m, vp: min(m, ranks - s),
    "1f1b-deep": lambda s, ranks, m, vp: min(m, 2 * (ranks - s) - 1),
    "gpipe": lambda s, ranks, m, vp: m if ranks > 1 else 1,
    "interleaved": lambda s, ranks, m, vp: min(m * vp, 2 * (ranks - s - 1) + (vp - 1) * (m // max(1, m // ranks)) + 1),
    "zb-h1": lambda s, ranks, m, vp: min(m * vp, ranks - s + (vp - 1) * (m // max(1, m // ranks))),
    "zb-h2": lambda s, ranks, m, vp: min(m, 2 * (ranks - s) - 1),
}
"""Micro-batches of virtual stages whose activations rank s of S holds; a round has S where S divides M."""


@pytest.mark.parametrize("most", [(5, 12), (8, 32)])
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_what_a_rank_holds_has_a_closed_form(name: str, most: tuple[int, int]) -> None:
    for ranks, micro_batches, virtual in _shapes(name, *most):
        held = most_held(build_schedule(name, ranks, micro_batches, virtual))
        assert held == tuple(CLOSED_FORMS[name](s, ranks, micro_batches, virtual) for s in range(ranks))


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("zb-h1", lambda ranks, m: min(m, ranks)),
        ("zb-h2", lambda ranks, m: min(m, 2 * ranks - 1)),
        ("zb-v", lambda ranks, m: min(2 * m, 2 * ranks)),
        ("dualpipev", lambda ranks, m: 2 * ranks + 1),
    ],
)
def test_with_the_weight_gradients_that_are_due_a_rank_holds_what_is_published(name: str, limit: Any) -> None:
    """By 2401.10241, Table 2 and section 6, and by the table of bubbles and memory of DualPipeV's authors.

    ZB-H1 as much as rank 0 of 1F1B; ZB-H2 2S - 1; ZB-V its 2S stages, each half as large; DualPipeV one more.
    """
    for ranks, micro_batches, virtual in _shapes(name, 6, 16):
        if virtual == VIRTUAL.get(name, (1,))[0]:
            built = build_schedule(name, ranks, micro_batches, virtual)
            assert max(most_held(built, for_weights=[1.0] * built.stages)) == limit(ranks, micro_batches)


def test_what_a_rank_holds_counts_the_bytes_of_its_own_stages() -> None:
    """Rank 0 of 2 in a V: stages of 10 and 1 bytes, which keep 4 and 0 of them for their weight gradients."""
    built = build_schedule("zb-v", 2, 1)
    assert [str(action) for action in built.orders[0]] == ["0F0", "3F0", "3I0", "3W0", "0I0", "0W0"]
    assert most_held(built, [10.0, 0.0, 0.0, 1.0], [4.0, 0.0, 0.0, 0.0]) == (11.0, 0.0)


def test_a_pass_is_written_as_torch_writes_it() -> None:
    assert str(Action("I", 3, 0)) == "3I0"
    assert str(build_schedule("1f1b", 2, 2)) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_pass_is_there_once_on_its_rank(name: str) -> None:
    """Forward, and backward as a whole or in two halves, of every micro-batch through every virtual stage."""
    for ranks, micro_batches, virtual in _shapes(name, 4, 9):
        built = build_schedule(name, ranks, micro_batches, virtual)
        kinds: dict[tuple[int, int], list[str]] = {}
        for rank, order in enumerate(built.orders):
            for kind, stage, m in order:
                assert rank_of(stage, ranks, built.placement) == rank
                kinds.setdefault((stage, m), []).append(kind)
        assert kinds.keys() == set(product(range(ranks * virtual), range(micro_batches)))
        assert {"".join(sorted(of_pass)) for of_pass in kinds.values()} <= {"BF", "FIW"}


def test_unknown_names_and_impossible_numbers_are_refused() -> None:
    for arguments, what in (
        (("1f2b", 2, 2), "unknown schedule '1f2b'"),
        (("1f1b", 0, 2), "0 is no number"),
        (("1f1b", 2, 0), "0 is no number"),
        (("1f1b", 2, 2, 2), "schedule 1f1b with 2 virtual stage"),
        (("zb-v", 2, 4, 3), "schedule zb-v with 3 virtual stage"),
    ):
        with pytest.raises(BadInput, match=what):
            build_schedule(*arguments)  # type: ignore[arg-type]


def test_planners_take_the_schedules_that_are_their_warm_up_alone() -> None:
    with pytest.raises(BadInput, match="no plan is made for schedule 'zb-h1'; choose from 1f1b, 1f1b-deep, gpipe"):
        schedules.require_schedule("zb-h1")


@pytest.mark.parametrize("name", SCHEDULES)
def test_turns_put_no_pass_before_its_inputs(name: str) -> None:
    for ranks, micro_batches, virtual in _shapes(name, 4, 9):
        built = build_schedule(name, ranks, micro_batches, virtual)
        turn = {action: t for t, action in enumerate(built.in_turn)}
        assert len(turn) == len(built.in_turn) == sum(map(len, built.orders))
        back = {(a.stage, a.micro_batch): t for a, t in turn.items() if a.kind in ("B", "I")}
        for order in built.orders:
            assert [action for action in built.in_turn if action in set(order)] == list(order)
        for (kind, stage, m), t in turn.items():
            if kind == "F":
                assert stage == 0 or turn[Action("F", stage - 1, m)] < t
            elif kind == "W":
                assert back[stage, m] < t
            else:
                assert turn[Action("F", stage, m)] < t
                assert stage == built.stages - 1 or back[stage + 1, m] < t


def _read(grid: str) -> tuple[Order, ...]:
    rows = enumerate(grid.strip().splitlines())
    return tuple(tuple(Action(c[0], stage, int(c[1:])) for c in row.split()) for stage, row in rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("micro_batches", [1_000_000, 10**9])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_a_schedule_of_too_many_passes_is_refused_before_it_is_laid_out(name: str, micro_batches: int) -> None:
    """A plan of 10^9 micro-batches filled the memory: its middle repeats itself, but all of it was laid out."""
    with pytest.raises(BadInput, match=f"{micro_batches} micro-batches through 4 stages.*give at most 75000"):
        build_schedule(name, 4, micro_batches)


def test_schedules_that_were_laid_out_are_forgotten_by_their_size() -> None:
    """A server that was asked for schedules of many passes held 1,024 of them, however large they were."""
    laid_out: list[int] = []

    def laying_out(passes: int) -> int:
        laid_out.append(passes)
        return passes

    passes_of = remembered(lambda passes: passes, most=100, least=1)(laying_out)
    assert [passes_of(passes) for passes in (1, 2, 50, 1, 2, 40)] == [1, 2, 50, 1, 2, 40]
    assert laid_out == [1, 2, 50, 40]  # 97 of 100
    for passes in (3, 1, 2, 50):  # 3 is too many, and 50 what was asked for longest ago
        passes_of(passes)
    assert laid_out[4:] == [3, 50]
    for passes in (100, 100):  # alone too large
        passes_of(passes)
    assert laid_out[6:] == [100, 100]
