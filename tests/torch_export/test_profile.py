"""Profiles of PyTorch models against hand computation, FlopCounterMode and published figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from ideal_devices import ideal_device

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.microbatch import rescaled
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from automap_models.hlo.graph import instruction_graph  # noqa: E402
from automap_models.hlo.profile import clock_profile  # noqa: E402
from automap_models.torch_export.profile import profile_module  # noqa: E402
from automap_models.torch_export.step import step_module  # noqa: E402

F32 = 4
BATCH = 8
Builders = dict[str, Callable[..., tuple[Any, dict[str, Any]]]]
Profiled = Callable[[str], tuple[Any, Profile]]


class MLP(nn.Module):
    """6 → 10 → 4, a residual around the second half, the mean as the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 10)
        self.act = nn.Tanh()
        self.down = nn.Linear(10, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.act(self.up(x)))
        return self.head(self.norm(y + x.sin())).mean()


def by_name(profile: Profile, array: str) -> dict[str, float]:
    return dict(zip(profile.names, getattr(profile, array).tolist(), strict=True))


@pytest.fixture(scope="module")
def mlp(unit_device: Device) -> Profile:
    return profile_module(MLP(), (torch.ones(BATCH, 6),), device=unit_device)


def test_each_cut_is_named_after_a_module_boundary(mlp: Profile) -> None:
    assert mlp.names == ("up", "act", "down", "norm", "head", "end of forward")
    assert mlp.layers == ("up", "act", "down", "", "head", "")  # the sum moves more bytes than the norm


def test_flop_are_two_a_multiplication_and_the_first_layer_needs_no_gradient_of_its_input(mlp: Profile) -> None:
    multiplications = {"up": 6 * 10, "down": 10 * 6, "head": 6 * 4}
    forward = {name: 2.0 * BATCH * multiplications.get(name, 0) for name in mlp.names}
    assert by_name(mlp, "C_fwd") == pytest.approx(forward, abs=1e-9)
    whole = {name: flop * (2 if name == "up" else 3) for name, flop in forward.items()}
    assert by_name(mlp, "C") == pytest.approx(whole, abs=1e-9)


def test_what_crosses_are_the_values_read_later_and_never_the_inputs(mlp: Profile) -> None:
    wide, narrow = BATCH * 10 * F32, BATCH * 6 * F32
    assert by_name(mlp, "A") == {
        "up": wide,
        "act": wide,
        "down": narrow,  # the sine of x is computed after this
        "norm": narrow,
        "head": BATCH * 4 * F32,
        "end of forward": 0,
    }


def test_parameters_count_where_they_are_first_read(mlp: Profile) -> None:
    assert by_name(mlp, "W") == {
        "up": (6 * 10 + 10) * F32,
        "act": 0,
        "down": 10 * 6 * F32,
        "norm": 2 * 6 * F32,
        "head": (6 * 4 + 4) * F32,
        "end of forward": 0,
    }


def test_autograd_keeps_each_tensor_once_where_it_is_first_needed(mlp: Profile) -> None:
    wide, narrow, moments = BATCH * 10 * F32, BATCH * 6 * F32, 2 * BATCH * F32
    assert by_name(mlp, "stash") == {
        "up": narrow,  # its input
        "act": wide,  # tanh keeps its output …
        "down": 0,  # … which is the input here
        "norm": narrow + moments,  # and nothing for the sine: the inputs need no gradient
        "head": narrow,
        "end of forward": 0,
    }


def test_bytes_are_those_of_all_kernels_and_the_update_counts_once_a_step(byte_device: Device) -> None:
    """A product between elementwise operations, which become one kernel where they follow one another."""
    model = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Sigmoid())
    profile = profile_module(model, (torch.ones(3, 5),), device=byte_device)
    rows, wide, weights = 3 * 5 * F32, 3 * 7 * F32, 5 * 7 * F32
    forward = by_name(profile, "C_fwd")
    assert forward["0"] + forward["1"] == 2 * rows  # the inputs are read, what the product reads is written
    assert forward["2"] == rows + weights + wide
    assert forward["3"] + forward["end of forward"] == 3 * wide  # both results are saved for the backward pass
    assert profile.meta["update_per_step_s"] == 7 * weights


def test_the_model_is_left_as_it_was(unit_device: Device) -> None:
    model = MLP().eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    profile_module(model, (torch.ones(BATCH, 6),), device=unit_device)
    assert not model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_profiling_twice_gives_the_same_profile(unit_device: Device) -> None:
    one, other = (profile_module(MLP(), (torch.ones(BATCH, 6),), device=unit_device) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    assert (one.names, one.layers, one.meta) == (other.names, other.layers, other.meta)


@pytest.mark.parametrize("key", ["gpt2", "t5"])
def test_flop_are_those_of_flop_counter_mode_running_the_model_itself(
    key: str, builders: Builders, unit_device: Device, with_values: Callable[..., Any]
) -> None:
    model, kwargs = builders[key](attn_implementation="eager")
    profile = profile_module(model, kwargs=kwargs, device=unit_device)
    real, inputs = with_values(model, kwargs)
    counter = FlopCounterMode(display=False)
    with counter:
        loss = real(**inputs).loss
        forward = counter.get_total_flops()
        loss.backward()
    assert profile.C_fwd.sum() == profile.meta["forward_flop"] == forward
    assert profile.C.sum() == forward + profile.meta["backward_flop"] == counter.get_total_flops()


def test_attention_runs_as_one_kernel_that_computes_the_scores_again_in_the_backward_pass(
    builders: Builders, profiled: Profiled, unit_device: Device
) -> None:
    fused = profiled("gpt2")[1]
    model, kwargs = builders["gpt2"](attn_implementation="eager")
    written_out = profile_module(model, kwargs=kwargs, device=unit_device)
    scores = 2 * (2 * 4 * 16 * 16 * 8)  # FLOP: 2 layers × 2 samples × 4 heads × [16, 8]·[8, 16]
    assert fused.C_fwd.sum() == written_out.C_fwd.sum()
    assert fused.C.sum() == written_out.C.sum() + 2 * scores
    probabilities = 2 * (2 * 4 * 16 * 16) * F32
    assert fused.stash.sum() < written_out.stash.sum() - probabilities


def test_profiling_and_planning_price_a_model_by_one_clock(builders: Builders) -> None:
    """A profile charged each operator as a kernel of its own, and the traced step of automap plan what is fused."""
    (model, kwargs), device = builders["t5"](), read_device("v100")
    profile = profile_module(model, kwargs=kwargs, device=device)
    traced = clock_profile(instruction_graph(step_module(model, kwargs=kwargs)), device)
    assert profile.C.sum() == pytest.approx(traced.C.sum(), rel=1e-9)
    assert profile.meta["roofline_s"] == traced.meta["roofline_s"]


@pytest.mark.parametrize("key", ["bert", "gpt2", "t5"])
def test_every_parameter_is_counted_once(key: str, profiled: Profiled) -> None:
    model, profile = profiled(key)
    assert profile.W.sum() == F32 * sum(parameter.numel() for parameter in model.parameters())
    assert profile.meta["unused_parameters"] == []


def test_tied_embeddings_count_once_and_are_reported(profiled: Profiled) -> None:
    profile = profiled("t5")[1]
    (shared,) = profile.shared_parameters
    assert (shared.name, shared.nbytes) == ("shared.weight", 100 * 32 * F32)
    assert [profile.layers[shared.instructions[i]] for i in (0, -1)] == ["encoder.embed_tokens", "lm_head"]
    reads = [profile.names[i] for i in shared.instructions]
    assert reads == ["encoder.embed_tokens", "before decoder.block.0", "end of forward"]


def test_unused_and_frozen_parameters_are_no_weights(unit_device: Device) -> None:
    model = MLP()
    model.spare = nn.Linear(3, 3)
    model.up.requires_grad_(False)
    profile = profile_module(model, (torch.ones(BATCH, 6),), device=unit_device)
    assert profile.meta["unused_parameters"] == ["spare.weight", "spare.bias"]
    assert profile.W.sum() == F32 * (60 + 12 + 28)


def test_values_that_skip_over_a_cut_are_counted(profiled: Profiled) -> None:
    """Between T5's decoder layers: hidden states, the encoder's output, the relative bias with its mask."""
    A = by_name(profiled("t5")[1], "A")
    hidden = 2 * 16 * 32 * F32
    bias = 4 * 16 * 16 * F32  # heads × tokens × tokens, read by both layers
    attended, causal = 16, 16 * 16  # bytes of the boolean masks
    assert A["encoder.block.0.layer.1"] == hidden + bias + attended
    # Hugging Face's cross-attention has a bias, too, made of zeros.
    assert A["decoder.block.0.layer.2"] == 2 * hidden + 2 * bias + causal + attended
    assert A["encoder"] == hidden


def test_a_module_called_twice_names_no_cut(unit_device: Device) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.one, self.two = nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 6)
            self.alias = self.act

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.alias(self.two(self.act(self.one(x)).sin()))

    names = profile_module(Twice(), (torch.ones(2, 6),), device=unit_device).names
    assert names == ("one", "two", "end of forward")


def test_modules_that_forward_makes_itself_name_no_cut(unit_device: Device) -> None:
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.Sequential(nn.Tanh(), self.layers[0], nn.Tanh())(x)
            for layer in self.layers[1:]:
                x = layer(x)
            return x

    names = profile_module(Makes(), (torch.ones(2, 6),), device=unit_device).names
    assert names == ("layers.0", "layers.1", "end of forward")


def test_dropout_keeps_one_byte_an_element(unit_device: Device) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 6))
    profile = profile_module(model, (torch.ones(BATCH, 6),), device=unit_device)
    assert profile.stash.tolist() == [BATCH * 6 * F32, BATCH * 6, BATCH * 6 * F32]


@pytest.mark.parametrize(
    ("returned", "roots"),
    [
        (lambda a, b: {"loss": a.sum(), "other": b.sum()}, {"a"}),
        (lambda a, b: (b.sum(), a), {"b"}),
        (lambda a, b: (a, b), {"a", "b"}),
        (lambda a, b: [a, b.detach()], {"a"}),
        (lambda a, b: {"loss": a.sum().detach(), "other": b}, {"b"}),
    ],
)
def test_the_backward_pass_starts_from_the_loss_or_from_all_outputs(
    returned: Callable[..., Any], roots: set[str], unit_device: Device
) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.a, self.b = nn.Tanh(), nn.Linear(6, 5), nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> Any:
            x = self.act(x)
            return returned(self.a(x), self.b(x))

    profile = profile_module(Two(), (torch.ones(BATCH, 6),), device=unit_device)
    assert profile.meta["backward_flop"] == len(roots) * 2 * BATCH * 6 * 5


def test_float32_is_float32_unless_torch_is_told_otherwise() -> None:
    device = ideal_device("both", {"float32": 1.0, "tf32": 1e9}, 1.0, 1e30)
    convolution = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(16, 2))
    inputs = (torch.ones(1, 3, 2, 2),)
    profile = profile_module(convolution, inputs, device=device)
    assert profile.C_fwd.sum() == pytest.approx(2 * (4 * 3 * 4 + 16 * 2))
    torch.set_float32_matmul_precision("high")
    try:
        assert profile_module(convolution, inputs, device=device).C_fwd.tolist() == pytest.approx([0, 0], abs=1e-6)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_gradient_of_a_grouped_convolution_costs_as_much_as_the_convolution(
    kind: type[nn.Conv2d], groups: int, unit_device: Device
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), kind(4, 8, 3, groups=groups))
    profile = profile_module(model, (torch.ones(2, 3, 5, 5),), device=unit_device)
    positions = 9 if kind is nn.Conv2d else 25
    first, grouped = 2 * 2 * 25 * 3 * 4, 2 * 2 * positions * 9 * 4 * 8 // groups
    assert profile.meta["forward_flop"] == first + grouped
    assert profile.meta["backward_flop"] == first + 2 * grouped  # the model's inputs have no gradient


def test_winograd_saves_multiplications_of_3x3_convolutions_where_the_device_does_so(unit_device: Device) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, stride=2))
    plain, saving = (
        profile_module(model, (torch.ones(1, 3, 9, 9),), device=replace(unit_device, winograd=on))
        for on in (False, True)
    )
    assert (plain.C_fwd / saving.C_fwd).tolist() == pytest.approx([2.25, 1.0])
    assert ((plain.C - plain.C_fwd) / (saving.C - saving.C_fwd)).tolist() == pytest.approx([2.25, 1.0])


PUBLISHED = {  # arXiv 1810.04805 says 340 M with heads left out; the exact numbers of the released checkpoints
    "bert-large": 335_141_888,
    "gpt2-medium": 354_823_168,
    "t5-base": 222_903_552,
}


@pytest.mark.parametrize("key", list(PUBLISHED))
def test_released_models_have_their_published_number_of_parameters(key: str, builders: Builders) -> None:
    large = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    build = {
        "bert-large": lambda: builders["bert"](**large, vocab_size=30522),
        "gpt2-medium": lambda: builders["gpt2"](n_layer=24, n_embd=1024, n_head=16, vocab_size=50257),
        "t5-base": lambda: builders["t5"](
            num_layers=12, d_model=768, d_kv=64, num_heads=12, d_ff=3072, vocab_size=32128
        ),
    }
    model, kwargs = build[key]()
    profile = profile_module(model, kwargs=kwargs, device=read_device("v100"))
    heads = 0
    if key == "bert-large":  # the published number is that of the encoder with its pooler
        heads = sum(parameter.numel() for parameter in model.cls.parameters())
        heads -= model.cls.predictions.decoder.weight.numel()
    assert profile.W.sum() == (PUBLISHED[key] + heads) * F32


def test_a_model_without_parameters_is_refused(unit_device: Device) -> None:
    with pytest.raises(BadInput, match="no trainable parameter"):
        profile_module(nn.Sequential(nn.ReLU(), nn.Tanh()), (torch.ones(2),), device=unit_device)


def test_inputs_that_forward_does_not_take_are_refused(unit_device: Device) -> None:
    with pytest.raises(BadInput, match="does not take the example inputs: missing a required argument: 'x'"):
        profile_module(MLP(), device=unit_device)
    with pytest.raises(BadInput, match="export refuses its forward pass"):
        profile_module(MLP(), (torch.ones(2, 7),), device=unit_device)


class Branches(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x.sum()


class Selects(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[..., None][x[0] > 0].sum() + self.head(x[x[:, 0] > 0]).sum()


def test_a_refusal_names_the_line_of_the_model_and_nothing_else_is_printed(
    unit_device: Device, capfd: pytest.CaptureFixture[str]
) -> None:
    """torch.export prints the graph so far and logs its own traceback; none of it helps who wrote the model."""
    line = Branches.forward.__code__.co_firstlineno + 1
    with pytest.raises(BadInput, match=rf"refuses its forward pass in test_profile\.py:{line}: "):
        profile_module(Branches(), (torch.ones(2, 8),), device=unit_device)
    with pytest.raises(BadInput, match="refuses its forward pass: a and b must have same reduction dim"):
        profile_module(nn.Linear(8, 8), (torch.ones(2, 7),), device=unit_device)
    assert capfd.readouterr() == ("", "")


class Talks(MLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("forward sees", tuple(x.shape))
        return super().forward(x)


def test_what_forward_prints_goes_to_stderr(unit_device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    profile_module(Talks(), (torch.ones(2, 6),), device=unit_device)
    out, err = capfd.readouterr()
    assert out == ""
    assert "forward sees (2, 6)\n" in err


@pytest.mark.parametrize("model", [Branches(), Selects()], ids=["branch", "size"])
def test_what_depends_on_data_is_refused_in_one_sentence(model: nn.Module, unit_device: Device) -> None:
    with pytest.raises(BadInput, match="data") as caught:
        profile_module(model, (torch.ones(BATCH, 6),), device=unit_device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4)), "0 has sparse gradients"),
        (nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True, mode="sum"), nn.Linear(4, 4)), "0 has sparse gradients"),
    ],
)
def test_sparse_gradients_are_refused_in_one_sentence(model: nn.Module, sentence: str, unit_device: Device) -> None:
    """A NotImplementedError of SparseTensorImpl came with its traceback."""
    with pytest.raises(BadInput, match=f"{sentence}.*; make it with sparse=False"):
        profile_module(model, (torch.zeros(2, 3, dtype=torch.long),), {}, device=unit_device)


def test_what_torch_export_refuses_is_told_in_its_own_words(builders: Builders, unit_device: Device) -> None:
    model, kwargs = builders["gpt2"]()
    with pytest.raises(BadInput, match=r"DynamicCache.*; .*use_cache=False"):
        profile_module(model, kwargs={**kwargs, "use_cache": True}, device=unit_device)


def test_a_model_that_keeps_a_cache_for_generation_is_profiled_without_it(
    builders: Builders, unit_device: Device, profiled: Profiled
) -> None:
    with_cache, kwargs = builders["gpt2"](use_cache=True)
    profile, (_, without) = profile_module(with_cache, kwargs=kwargs, device=unit_device), profiled("gpt2")
    assert with_cache.config.use_cache is True
    assert profile.names == without.names
    for array in ("C", "C_fwd", "A", "W", "stash"):
        assert getattr(profile, array).tolist() == getattr(without, array).tolist()


def test_outputs_without_gradients_are_refused(unit_device: Device) -> None:
    class Detached(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).detach()

    with pytest.raises(BadInput, match="no output depends on a trainable parameter"):
        profile_module(Detached(), (torch.ones(BATCH, 6),), device=unit_device)


def test_a_model_of_one_module_is_refused(unit_device: Device) -> None:
    with pytest.raises(BadInput, match="no place to cut"):
        profile_module(nn.Linear(6, 6), (torch.ones(BATCH, 6),), device=unit_device)


def test_the_attention_kernel_is_the_function_itself() -> None:
    """On shapes that the meta device runs, both give results of the same shape and element type."""
    from automap_models.torch_export.trace import fused_attention

    with torch.device("meta"):
        q, k = torch.ones(2, 4, 5, 8), torch.ones(2, 4, 7, 8)
        mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    with sdpa_kernel(SDPBackend.MATH):
        expected = nn.functional.scaled_dot_product_attention(q, k, k, mask)
    assert fused_attention(q, k, k, mask).shape == expected.shape


class Blocks(nn.Module):
    """Attention and a convolution: what has samples stands in a product's count, its rows, and its depth."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.queries, self.keys, self.values = (nn.Linear(32, 32) for _ in range(3))
        self.norm, self.dropout = nn.LayerNorm(32), nn.Dropout(0.1)
        self.along = nn.Conv1d(32, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        heads = [of(x).unflatten(-1, (4, 8)).transpose(1, 2) for of in (self.queries, self.keys, self.values)]
        x = self.norm(x + self.dropout(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)))
        return nn.functional.cross_entropy(self.head(self.along(x.mT).mean(-1)), labels)


@cache
def blocks(samples: int) -> Profile:
    inputs = torch.zeros(samples, 128, dtype=torch.long), torch.zeros(samples, dtype=torch.long)
    return profile_module(Blocks(), inputs, device=read_device("v100"))


@pytest.mark.parametrize(("traced", "samples"), [(8, 2), (2, 16), (256, 1)])
def test_another_micro_batch_takes_what_it_takes_when_it_is_traced_itself(traced: int, samples: int) -> None:
    """But for what is fused: that is decided at the size that was traced."""
    scaled, own = rescaled(blocks(traced), samples), blocks(samples)
    assert scaled.C.sum() == pytest.approx(own.C.sum(), rel=0.03)
    assert scaled.C_fwd.sum() == pytest.approx(own.C_fwd.sum(), rel=0.03)


def test_replicas_gain_what_the_clock_says() -> None:
    """t(N) / t(⌈N/d⌉), which is far from d where kernels are small."""
    problem = StagedProblem(blocks(4), Cluster(1, 4, 1e9, 1e9, 1e9), 1, 4, schedule="1f1b")
    times_s = {d: float(blocks(4 // d).C.sum()) for d in (1, 2, 4)}
    assert problem.speeds[[1, 2, 4]] == pytest.approx([times_s[1] / of for of in times_s.values()], rel=1e-3)
    assert problem.speeds[4] < 1.5
