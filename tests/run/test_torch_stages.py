"""Stages one after the other compute what the whole model does, wherever it is cut."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import pipelines  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from automap_models.core.plan import Plan  # noqa: E402
from automap_models.errors import BadInput, UserCodeError  # noqa: E402
from automap_models.hlo.graph import instruction_graph  # noqa: E402
from automap_models.hlo.profile import profile_from_graph  # noqa: E402
from automap_models.run.torch_stages import (  # noqa: E402
    CutModel,
    cut_model,
    flat_inputs,
    in_modules,
    in_operators,
    loss_of,
)
from automap_models.torch_export.step import step_module  # noqa: E402


class Net(nn.Module):
    """Two inputs, one read by two stages; a skip connection; in-place operators; buffers; dropout; a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 3)
        self.register_buffer("scale", torch.full((6,), 0.5), persistent=False)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        a = self.norm(self.first(x)).t().contiguous().t()
        b = self.drop(self.relu(a * mask))
        c = self.second(b) * self.scale + x
        return {"scores": self.last(c + a * mask), "hidden": c}


CUTS = ["first", "norm", "before drop", "before last"]


def run(cut: CutModel, inputs: dict[str, Any]) -> list[Tensor]:
    """All stages in turn."""
    values: tuple[Tensor, ...] = ()
    for stage in cut.stages:
        values = stage.module(*values, *(inputs[name] for name in stage.inputs))
    return list(values)


@pytest.mark.parametrize("names", [[], ["first"], ["norm", "before last"], CUTS])
def test_stages_in_turn_are_the_model(names: list[str]) -> None:
    torch.manual_seed(0)
    model = Net()
    x, mask = torch.randn(5, 6), torch.randn(5, 6)
    cut = cut_model(model, (x,), {"mask": mask}, names, name="net")
    torch.manual_seed(1)
    expected = model(x, mask)
    for buffer in (model.norm.running_mean, model.norm.running_var):
        assert buffer is not None
    torch.manual_seed(1)
    scores, hidden = run(cut, flat_inputs(cut, (x,), {"mask": mask}))
    torch.testing.assert_close(scores, expected["scores"], rtol=0, atol=0)
    torch.testing.assert_close(hidden, expected["hidden"], rtol=0, atol=0)
    assert int(model.norm.num_batches_tracked) == 2  # once as a whole, once in stages


def test_a_cut_model_says_what_its_stages_hold() -> None:
    x, mask = torch.randn(5, 6), torch.randn(5, 6)
    cut = cut_model(Net(), (x, mask), {}, ["norm", "before last"], name="net")
    assert [stage.inputs for stage in cut.stages] == [("x",), ("x", "mask"), ()]
    holders = cut.holders()
    assert sorted(holders.values()) == [(0,)] * 3 + [(0, 1)] + [(1,)] * 1 + [(2,)] * 2
    assert next(name for name, stages in holders.items() if stages == (0, 1)) in {"first.weight", "second.weight"}
    assert cut.random == ("drop",)
    assert cut.mixing == (("norm", 0),)
    assert [len(stage.sent) for stage in cut.stages] == [1, 2, 0]
    assert all(value.differentiable for value in cut.stages[0].sent)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda output, _: None, "is of type NoneType"),
        (lambda output, _: 0.5, "is of type float"),
        (lambda output, _: output.square().mean(-1), r"is a tensor of shape \[4\]"),
        (lambda output, _: output.detach().mean(), "does not depend on the model's output"),
    ],
)
def test_a_loss_that_is_none_is_refused_in_a_sentence(loss: Any, sentence: str) -> None:
    """Each ended in a traceback of torch's schedules, or of autograd."""
    with pytest.raises(BadInput, match=f"the loss of the factory: {sentence}; return its mean over samples"):
        loss_of(torch.ones(4, 6, requires_grad=True), loss, None, 4)


def test_what_a_loss_raises_is_told_as_the_users() -> None:
    def loss(_output: Tensor, target: Tensor) -> Tensor:
        raise RuntimeError("expected another type")

    with pytest.raises(UserCodeError, match="loss of the factory: RuntimeError in the code that it names") as raised:
        loss_of(torch.ones(4, 6), loss, None, 4)
    assert "expected another type" in raised.value.details


class Drawing(nn.Module):
    """One operator between two layers."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.before, self.after, self.operator = nn.Linear(6, 6), nn.Linear(6, 6), operator

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.operator(self.before(x)))


@pytest.mark.parametrize(
    ("operator", "draws"),
    [
        (torch.randn_like, True),
        (torch.rand_like, True),
        (lambda x: x + torch.randn(6), True),
        (lambda x: x + torch.rand(6), True),
        (lambda x: x * torch.randint(0, 3, (6,)), True),
        (lambda x: x + torch.normal(0.0, 1.0, x.shape), True),
        (lambda x: torch.empty_like(x).exponential_() + x, True),
        (lambda x: x[torch.randperm(5)], True),
        (torch.bernoulli, True),
        (nn.Dropout(0.3), True),
        (nn.Dropout(0.0), False),
        (nn.AlphaDropout(0.3), True),
        (nn.RReLU(), True),
        (lambda x: nn.functional.dropout(x, 0.3, training=False), False),
        (nn.LeakyReLU(), False),
        (lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1), True),
        (lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]), False),
    ],
)
def test_whatever_draws_random_numbers_is_known_for_it(operator: Any, draws: bool) -> None:
    """Stages are seeded for the check where one of their operators draws; of most that do nobody knew."""
    x = torch.rand(5, 6)
    assert bool(cut_model(Drawing(operator), (x,), {}, ["before"], name="net").random) is draws


@pytest.mark.parametrize("names", [["nowhere"], ["norm", "first"], ["last"]])
def test_cuts_that_are_none_are_refused(names: list[str]) -> None:
    x, mask = torch.randn(5, 6), torch.randn(5, 6)
    with pytest.raises(BadInput, match="no place to cut called"):
        cut_model(Net(), (x, mask), {}, names, name="net")


class Products(nn.Module):
    """Functions that are no modules between two products and a norm of many operations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x).tanh().exp())).mean()


def cut_after_operation(name: str) -> tuple[Plan, nn.Module, Tensor]:
    """A plan as automap plan makes it: of two stages of the traced step, the first of which ends at an operation."""
    model, x = Products(), torch.randn(4, 6)
    graph = instruction_graph(step_module(model, (x,), name="products"))
    names = profile_from_graph(graph, [1.0] * len(graph)).names
    cut = next(i for i, own in enumerate(names) if own.split(".")[0] == name)
    return pipelines.plan([names[cut]], [1, 1], 2, 4, (cut, len(names) - 1)), model, x


@pytest.mark.parametrize(("operation", "cut"), [("add", "first"), ("tanh", "after tanh"), ("exp", "before norm")])
def test_a_plan_of_the_traced_step_runs_in_stages_of_operators(operation: str, cut: str) -> None:
    """`automap run` refused what `automap plan MODULE` wrote: one traced operations, the other called modules."""
    plan, model, x = cut_after_operation(operation)
    assert not in_modules(plan, model)
    plan = in_operators(plan, model, (x,), {}, name="products")
    assert plan.cut_names == (cut,)
    assert in_modules(plan, model)
    stages = cut_model(model, (x,), {}, plan.cut_names, name="products")
    torch.testing.assert_close(run(stages, flat_inputs(stages, (x,), {})), [model(x)], rtol=0, atol=0)


def test_a_plan_that_cuts_an_operator_in_two_says_where_to_cut_instead() -> None:
    plan, model, x = cut_after_operation("sum")
    with pytest.raises(BadInput, match=r"inside layer_norm of norm, which torch .*`cut_at='blocks'`"):
        in_operators(plan, model, (x,), {}, name="products")
