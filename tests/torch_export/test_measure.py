"""Measured profiles: the clock's readings make up the whole, whatever the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from automap_models.core.profile import Profile
from automap_models.errors import BadInput, UserCodeError

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from automap_models.torch_export import measure  # noqa: E402
from automap_models.torch_export.measure import measure_module  # noqa: E402


@pytest.fixture(scope="module")
def measured(builders: dict[str, Callable[..., tuple[Any, dict[str, Any]]]]) -> Profile:
    """Of a tiny GPT-2."""
    model, kwargs = builders["gpt2"]()
    return measure_module(model, kwargs=kwargs, repeats=3, warmup=1)


def test_a_measured_profile_differs_from_the_computed_one_in_its_times_only(
    measured: Profile, profiled: Callable[[str], tuple[Any, Profile]]
) -> None:
    _, computed = profiled("gpt2")
    assert (measured.names, measured.layers) == (computed.names, computed.layers)
    for array in ("A", "W", "stash"):
        assert np.array_equal(getattr(measured, array), getattr(computed, array))
    assert (measured.C_fwd > 0).all()
    trained = measured.W > 0
    assert (measured.C[trained] > measured.C_fwd[trained]).all()


def test_the_parts_add_up_to_what_meta_says(measured: Profile) -> None:
    meta = measured.meta
    assert measured.C_fwd.sum() == pytest.approx(meta["forward_s"])
    assert measured.C.sum() == pytest.approx(meta["forward_s"] + meta["backward_s"])
    parts_s = meta["forward_s"] + meta["backward_s"]
    assert meta["parts_over_whole"] == pytest.approx(parts_s / meta["forward_and_backward_s"])
    assert meta["times"] == "measured per module"
    assert meta["threads"] == torch.get_num_threads()


class Clock:
    """A clock that only moves when it is wound; a copy of a model keeps the same one."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wind(self, seconds: float) -> None:
        self.now_s += seconds

    def __deepcopy__(self, _: Any) -> Clock:
        return self


class Timed(nn.Linear):
    """A layer whose passes take as long on a clock as they are given, not counting the export."""

    def __init__(self, clock: Clock, forward_s: float, backward_s: float) -> None:
        super().__init__(4, 4)
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if not torch.compiler.is_exporting():
            self.clock.wind(self.forward_s)
            y.grad_fn.register_hook(lambda *_: self.clock.wind(self.backward_s))
        return y


def test_the_clocks_readings_go_to_the_layer_and_the_pass_that_took_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a manufactured clock: on a busy machine's own one, a layer of 24 times the work was once not the slowest."""
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure, "_now_s", lambda: clock.now_s)
    layers = (Timed(clock, 1.0, 3.0), Timed(clock, 24.0, 70.0), Timed(clock, 2.0, 5.0))
    profile = measure_module(nn.Sequential(*layers), (torch.ones(2, 4),), repeats=2, warmup=1)
    assert profile.C_fwd.tolist() == [1, 24, 2]
    assert (profile.C - profile.C_fwd).tolist() == [3, 70, 5]
    meta = profile.meta
    assert (meta["forward_s"], meta["backward_s"], meta["forward_and_backward_s"]) == (27, 78, 105)
    assert (meta["parts_over_whole"], meta["update_per_step_s"]) == (1, 0)


class Small(nn.Module):
    """Three layers, a sum as the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 48), nn.Linear(48, 48), nn.Linear(48, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(x))).sum()


def test_the_model_and_the_random_state_are_left_as_they_were() -> None:
    model = Small()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.random.get_rng_state()
    measure_module(model, (torch.ones(4, 32),), repeats=1, warmup=0)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_nothing_can_be_measured_in_no_repeat() -> None:
    with pytest.raises(BadInput, match="0 repeats"):
        measure_module(Small(), (torch.ones(4, 32),), repeats=0)


class Fails(Small):
    """Takes what the tokens say from a table, which shapes alone do not tell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[torch.full((4,), 4)])


def test_a_step_that_fails_on_real_data_is_the_users_error_with_its_traceback() -> None:
    with pytest.raises(UserCodeError, match="IndexError") as caught:
        measure_module(Fails(), (torch.ones(4, 32),), repeats=1, warmup=0)
    assert "x[torch.full((4,), 4)]" in caught.value.details


class Wanders(nn.Module):
    """Takes another path whenever it is not being exported."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            return self.three(self.two(self.one(x)))
        return self.three(self.one(self.two(x)))


def test_another_path_than_the_exported_one_is_refused() -> None:
    with pytest.raises(BadInput, match="another path"):
        measure_module(Wanders(), (torch.ones(4, 4),), repeats=1, warmup=0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch works in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Waits(Small):
    """Does nothing for a while, as on a machine that others use."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return super().forward(x)


@pytest.mark.usefixtures("one_thread")
def test_what_one_thread_waits_for_others_does_not_count() -> None:
    """Wall times on a busy machine, medians apart, once made the parts two thirds of the whole."""
    meta = measure_module(Waits(), (torch.ones(4, 32),), repeats=2, warmup=1).meta
    assert meta["clock"] == "processor time"
    assert meta["forward_and_backward_s"] < 0.1
    assert meta["forward_s"] < 0.1
