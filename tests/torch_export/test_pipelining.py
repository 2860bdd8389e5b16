"""Names of instructions are split points of torch.distributed.pipelining, checked by splitting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput
from automap_models.planners.staged.search import ExactPlanner

torch = pytest.importorskip("torch")
from torch import fx, nn  # noqa: E402
from torch.distributed.pipelining import SplitPoint, pipeline  # noqa: E402

from automap_models.torch_export.pipelining import split_spec  # noqa: E402

Built = tuple[Any, dict[str, Any]]
Builders = dict[str, Callable[..., Built]]
Profiled = Callable[[str], tuple[Any, Profile]]
Filler = Callable[[Any, dict[str, Any]], Built]


def sent_bytes(split: fx.GraphModule, kwargs: dict[str, Any]) -> int:
    """Bytes of what the second of two stages takes from the first, each storage once."""

    class Sender(fx.Interpreter):
        received: list[Any]

        def run_node(self, n: fx.Node) -> Any:
            if n.op == "call_module" and n.target == "submod_pp_1":
                computed = [arg for arg in n.args if isinstance(arg, fx.Node) and arg.op != "placeholder"]
                self.received = [self.env[node] for node in computed]
            return super().run_node(n)

    sender = Sender(split)
    sender.run(*kwargs.values())
    sizes: dict[int, tuple[int, int]] = {}
    for tensor in sender.received:
        storage = tensor.untyped_storage()
        total = sizes.get(storage.data_ptr(), (0, 0))[0] + tensor.numel() * tensor.element_size()
        sizes[storage.data_ptr()] = total, storage.nbytes()
    return sum(min(sizes_of) for sizes_of in sizes.values())


def check_cut(model: nn.Module, kwargs: dict[str, Any], profile: Profile, cut: int) -> None:
    """Splitting at a cut gives two stages that compute the same loss and pass A on."""
    expected = model(**kwargs)["loss"]
    pipe = pipeline(model, (), kwargs, split_spec=split_spec(profile, [cut]))
    assert pipe.num_stages == 2
    result = pipe(**kwargs)
    assert torch.allclose(result["loss"] if isinstance(result, dict) else result[0], expected)
    assert sent_bytes(pipe.split_gm, kwargs) == profile.A[cut]


def test_a_plan_of_gpt2_is_a_pipeline(builders: Builders, with_values: Filler, profiled: Profiled) -> None:
    _, profile = profiled("gpt2")
    problem = StagedProblem(profile, Cluster(2, 1, intra=1e12, inter=1e12, memory=1e12), stages=2, micro_batches=4)
    plan = ExactPlanner().plan(problem)
    check_cut(*with_values(*builders["gpt2"]()), profile, plan.cuts[0])


@pytest.mark.parametrize("key", ["gpt2", "bert", "t5"])
def test_instructions_end_at_split_points_and_A_is_what_is_sent_there(
    key: str, builders: Builders, with_values: Filler, profiled: Profiled
) -> None:
    _, profile = profiled(key)
    for cut in range(1, len(profile) - 1, len(profile) // 6):
        check_cut(*with_values(*builders[key]()), profile, cut)


def test_all_cuts_together_are_one_split_spec(builders: Builders, with_values: Filler, profiled: Profiled) -> None:
    _, profile = profiled("gpt2")
    spec = split_spec(profile, range(len(profile) - 1))
    assert len(spec) == len(profile) - 1
    assert spec["transformer.h.0"] is SplitPoint.END
    real, inputs = with_values(*builders["gpt2"]())
    pipe = pipeline(real, (), inputs, split_spec=spec)
    assert pipe.num_stages == len(profile)


def test_cuts_that_are_none_are_refused(profiled: Profiled) -> None:
    _, profile = profiled("gpt2")
    with pytest.raises(BadInput, match="no cut after instruction"):
        split_spec(profile, [len(profile) - 1])
    with pytest.raises(BadInput, match="no modules of torch"):
        split_spec(Profile.create([1.0, 1.0], [1.0, 0.0], [0.0, 0.0]), [0])
