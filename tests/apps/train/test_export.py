"""A policy file says what it is and does what the trained module does, or is not there."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline.encoding import EncodedProblems, encode
from automap_models.envs.pipeline.env import Partial, Problems, episode_steps, legal_actions, legal_cuts, reset
from automap_models.formats.dataset import read_dataset
from automap_models.onnx_runtime import OnnxFile
from automap_models.planners.staged.policy_file import KIND, Policy
from automap_models.rl.networks.pipeline import LookAheadQNetwork
from automap_models.train import export
from automap_models.train.build import build_data, build_module
from automap_models.train.rainbow import RainbowModule
from automap_models.version import __version__

pytestmark = pytest.mark.slow  # an export takes 15 s, most of it torch's own

MakeConfig = Callable[..., DictConfig]
POINTS, MAX_STAGES, MAX_DEVICES = 16, 4, 16
STATES = 1_000
"""A tenth of what an export compares of itself."""


@dataclass(frozen=True)
class Exported:
    """A policy file with all that it was made from."""

    path: Path
    module: RainbowModule
    config: dict[str, Any]
    report: dict[str, float]


@pytest.fixture(scope="module")
def exported(
    flat_policy: tuple[RainbowModule, onnx.ModelProto],
    tmp_path_factory: pytest.TempPathFactory,
    compose_tiny: MakeConfig,
) -> Exported:
    """The paper's network, around the graph that tests share."""
    flat, model = flat_policy
    config = compose_tiny("agent=paper", "agent.size.hidden=16", f"env.max_devices={MAX_DEVICES}")
    module, data, path = build_module(config), build_data(config), tmp_path_factory.mktemp("p") / "policy.onnx"
    module.online.load_state_dict(flat.online.state_dict())
    module.episodes = 4321
    data.setup()
    plain: Any = OmegaConf.to_container(config, resolve=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "planner_model", lambda *_: model)
        report = export.export_policy(module, data, path, plain, STATES)
    return Exported(path, module, plain, report)


@pytest.fixture(scope="module")
def look_ahead(compose_tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The look-ahead network with weights as large as trained ones, for up to 40 devices: in units of two beyond 32."""
    config = compose_tiny("agent=default", "agent.size.hidden=16", "env.max_devices=40")
    module, data, path = build_module(config), build_data(config), tmp_path_factory.mktemp("p") / "policy.onnx"
    torch.manual_seed(1)
    for weight in module.online.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    data.setup()
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return Exported(path, module, plain, export.export_policy(module, data, path, plain, STATES))


@pytest.fixture(scope="module")
def one_step(compose_tiny: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The network without tables, which the older exporter traces, with weights as large as trained ones."""
    config = compose_tiny("agent=one_step", "agent.size.hidden=16", f"env.max_devices={MAX_DEVICES}")
    module, data, path = build_module(config), build_data(config), tmp_path_factory.mktemp("p") / "policy.onnx"
    torch.manual_seed(1)
    for weight in module.online.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    data.setup()
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return Exported(path, module, plain, export.export_policy(module, data, path, plain, STATES))


@pytest.fixture(scope="module")
def records(random_problems: Callable[..., list[StagedProblem]]) -> list[StagedProblem]:
    """Problems of two to four stages on 1 … 16 devices, of which some have no plan that fits."""
    return random_problems(7, 120, POINTS, stages=(2, MAX_STAGES), memory=(0.5, 20.0))


def start_of(problems: Problems) -> Partial:
    return reset(len(problems.stages), MAX_STAGES)


def assert_agrees(policy_file: Exported, records: list[StagedProblem]) -> None:
    """Both on the data set, where it is kept for that, and on more problems."""
    assert [path.name for path in policy_file.path.parent.iterdir()] == ["policy.onnx"]
    report = export.check_parity(policy_file.module, policy_file.path, Problems.from_encoded(encode(records)), STATES)
    assert policy_file.report["states"] >= STATES
    assert report["states"] >= STATES
    for agreement in (policy_file.report, report):
        assert agreement["largest_difference"] <= 1e-5
        assert agreement["equal_actions"] == 1.0


def assert_plans_in_batches_of_any_size_and_beams_of_any_width(
    policy_file: Exported, records: list[StagedProblem]
) -> None:
    """The best first cuts are the same whatever the beam; where there are too few, plans count as -∞."""
    policy, encoded = Policy(policy_file.path), encode(records)
    problems = Problems.from_encoded(encoded)
    possible = legal_cuts(problems, start_of(problems)).sum(1).numpy()
    widest = policy.plans(encoded, POINTS + 3)
    assert widest[0].shape == widest[1].shape == (len(records), POINTS, MAX_STAGES - 1)
    np.testing.assert_array_equal((widest[2] > -np.inf).sum(1), possible)
    assert (np.diff(widest[2] > -np.inf, axis=1).sum(1) <= 1).all()  # those without a plan come last
    assert possible.min() < 3 < possible.max() < POINTS
    for beam in (1, 3):
        for batch in (1, 3, 17):
            plans = policy.plans(encoded.take(slice(0, batch)), beam)
            assert_same_plans(plans, [array[:batch, :beam] for array in widest])


def assert_the_plan_of_a_problem_is_its_own(policy_file: Exported, records: list[StagedProblem]) -> None:
    """Two, three and four stages in one batch, and each problem alone."""
    policy = Policy(policy_file.path)
    assert {record.stages for record in records} == {2, 3, 4}
    together = policy.plans(encode(records), 2)
    alone = [policy.plans(encode([record]), 2) for record in records]
    assert_same_plans([np.concatenate(arrays) for arrays in zip(*alone, strict=True)], together)


def assert_same_plans(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> None:
    """Equal but for plans of the same length: decisions that tie exactly may fall either way by rounding."""
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
    (cuts, device_cuts, reward), (their_cuts, their_device_cuts, their_reward) = ours, theirs
    np.testing.assert_allclose(reward, their_reward, rtol=1e-6)
    real = reward > -np.inf
    np.testing.assert_array_equal(cuts[..., 0][real], their_cuts[..., 0][real])
    equal = (cuts == their_cuts).all(2) & (device_cuts == their_device_cuts).all(2)
    assert equal[real].sum() >= real.sum() - max(1, 0.02 * real.sum())


def assert_rewards_are_earned(policy_file: Exported, records: list[StagedProblem]) -> None:
    """By the cost model in float64: ideal / L, or minus the fraction of device memory that a plan takes."""
    cuts, device_cuts, rewards = Policy(policy_file.path).plans(encode(records), 3)
    out_of_memory = 0
    for i, record in enumerate(records):
        boundaries = record.stages - 1
        assert (cuts[i, :, boundaries:] == -1).all()
        assert (device_cuts[i, :, boundaries:] == -1).all()
        for row, reward in enumerate(rewards[i].tolist()):
            if np.isinf(reward):
                continue
            cut_after = record.grid.to_instructions(cuts[i, row, :boundaries].tolist())
            devices = tuple(device_cuts[i, row, :boundaries].tolist())
            plan = StagedPlan(cut_after, devices, record.micro_batches, "policy")
            assert plan.check_valid(record) == (True, "")
            cost = plan_cost(record, plan)
            need = cost.memory_bytes.max() / record.cluster.memory
            if abs(need - 1) > 1e-5:
                ideal = record.profile.C.sum() * record.micro_batches / record.cluster.devices
                assert reward == pytest.approx(ideal / cost.length_s if cost.feasible else -need, rel=2e-5)
                out_of_memory += not cost.feasible
    assert 0 < out_of_memory < rewards.size / 2


def assert_only_legal_states_are_compared(policy_file: Exported, records: list[StagedProblem]) -> None:
    """One state at the start; from each first cut that is followed one at each later step."""
    problems = Problems.from_encoded(encode(records))
    count = 0
    look_ahead = isinstance(policy_file.module.online, LookAheadQNetwork)
    for state in export.visited(export.plan(Policy(policy_file.path), problems, export.BEAM, tables=look_ahead)):
        assert (state.partial.step == state.partial.step[0]).all()
        assert state.cuts == (int(state.partial.step[0]) % 2 == 0)
        done = (state.partial.cuts >= 0).sum(1) + (state.partial.device_cuts >= 0).sum(1)
        assert torch.equal(done, state.partial.step)
        legal = legal_actions(state.problems, state.partial, policy_file.module.size.max_devices)
        half = legal[:, :POINTS] if state.cuts else legal[:, POINTS:]
        assert half.gather(1, state.action.unsqueeze(1)).all()
        count += len(done)
    followed = legal_cuts(problems, start_of(problems)).sum(1).clamp(max=export.BEAM)
    assert count == int((1 + followed * (episode_steps(problems) - 1)).sum())


CHECKS = [
    assert_agrees,
    assert_plans_in_batches_of_any_size_and_beams_of_any_width,
    assert_the_plan_of_a_problem_is_its_own,
    assert_rewards_are_earned,
    assert_only_legal_states_are_compared,
]


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__.removeprefix("assert_") for check in CHECKS])
def test_the_paper_s_network_becomes_a_planner(
    check: Callable[[Exported, list[StagedProblem]], None], exported: Exported, records: list[StagedProblem]
) -> None:
    check(exported, records if check is assert_agrees else records[:60])


def test_problems_of_two_stages_alone_are_compared_too(exported: Exported, records: list[StagedProblem]) -> None:
    """The loop over further stages then makes no round, and its outputs have no shape to rely on."""
    two_stages = Problems.from_encoded(encode([record for record in records if record.stages == 2]))
    assert export.check_parity(exported.module, exported.path, two_stages, STATES)["states"] > len(two_stages.stages)


def test_the_look_ahead_network_becomes_a_planner(
    look_ahead: Exported, records: list[StagedProblem], random_problems: Callable[..., list[StagedProblem]]
) -> None:
    """All in one test: its export takes a minute. Clusters of up to 16 devices and of 33 to 40, in units of two."""
    sizes = {"stages": (2, MAX_STAGES), "memory": (0.5, 20.0), "clusters": [(11, 3), (5, 7), (5, 8)]}
    mixed = [record for pair in zip(records, random_problems(8, 120, POINTS, **sizes), strict=True) for record in pair]
    for check in CHECKS:
        check(look_ahead, mixed if check is assert_agrees else mixed[:120])
    assert_tells_nothing_of_the_machine(look_ahead)
    assert look_ahead.report["equal_table_entries"] >= export.EQUAL_ENTRIES


def test_the_file_takes_the_fields_of_a_problem_and_the_width_of_the_beam(exported: Exported) -> None:
    session = OnnxFile(exported.path).session
    shapes = {value.name: value.shape for value in session.get_inputs()}
    scalars = ("nodes", "devices_per_node", "inter_over_intra", "state_over_memory", "stages", "micro_batches")
    assert shapes == {
        "arrays": ["batch", 5, POINTS],
        "cut_mask": ["batch", POINTS],
        **{name: ["batch"] for name in scalars},
        "beam": [1],
    }
    plans = {value.name: value.shape for value in session.get_outputs()[:3]}
    assert plans == {
        "cuts": ["batch", "beam", MAX_STAGES - 1],
        "device_cuts": ["batch", "beam", MAX_STAGES - 1],
        "reward": ["batch", "beam"],
    }


def test_the_file_says_what_it_is(exported: Exported, groups: Path) -> None:
    metadata = OnnxFile(exported.path).metadata
    canonical = json.dumps(exported.config, sort_keys=True)
    assert metadata["automap_kind"] == KIND
    assert metadata["automap_version"] == __version__
    assert metadata["config_sha256"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert json.loads(metadata["config"]) == exported.config
    sizes = tuple(metadata[name] for name in ("points", "max_stages", "max_devices", "episodes"))
    assert sizes == ("16", "4", "16", "4321")
    opsets = {entry.domain: entry.version for entry in onnx.load(exported.path).opset_import}
    assert opsets[""] == int(metadata["opset"]) == export.OPSET


def test_the_file_holds_the_ranges_of_the_problems_trained_on(exported: Exported, groups: Path) -> None:
    metadata = OnnxFile(exported.path).metadata
    trained_on = EncodedProblems.from_mapping(read_dataset(groups)).take(slice(None, 188))
    scalars = {name: array for name, array in trained_on.as_dict().items() if array.ndim == 1}
    scalars["devices"] = trained_on.nodes * trained_on.devices_per_node
    del scalars["instructions"]
    ranges = json.loads(metadata["ranges"])
    assert ranges.keys() == scalars.keys()
    for name, array in scalars.items():
        low, high = ranges[name]
        assert 0.99 * array.min() <= low <= array.min()
        assert array.max() <= high <= 1.01 * array.max()


def test_the_file_holds_nothing_about_the_machine_it_was_made_on(exported: Exported) -> None:
    assert_tells_nothing_of_the_machine(exported)


def assert_tells_nothing_of_the_machine(policy_file: Exported) -> None:
    graph = onnx.load(policy_file.path)
    graph.ClearField("metadata_props")
    for trace in (b"site-packages", b".py", str(Path.home()).encode() + b"/", str(Path(__file__).parents[3]).encode()):
        assert trace not in graph.SerializeToString()


def weights_of(model: onnx.ModelProto, later: bool) -> onnx.TensorProto:
    """The largest weights of the network that makes the first cut, or of its copy in the loop over stages."""
    graph = model.graph
    if later:
        (loop,) = (node for node in graph.node if node.op_type == "Loop")
        (graph,) = (attribute.g for attribute in loop.attribute if attribute.name == "body")
    largest: onnx.TensorProto = max(graph.initializer, key=lambda tensor: len(tensor.raw_data))
    return largest


@pytest.mark.parametrize("damage", ["first cut", "later decisions", "mask"])
def test_a_file_that_decides_otherwise_is_refused_and_does_not_stay(
    damage: str, exported: Exported, compose_tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter hands over a graph of other weights, or one that masks otherwise."""
    wrong = onnx.load(exported.path)
    if damage != "mask":
        weight = weights_of(wrong, damage == "later decisions")
        weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) * 1.01).astype(np.float32).tobytes()

    monkeypatch.setattr(export, "planner_model", lambda *_: wrong)
    if damage == "mask":
        monkeypatch.setattr(export, "legal_actions", lambda *arguments: ~legal_actions(*arguments))
    (tmp_path / "policy.onnx").write_bytes(b"an older one")
    data = build_data(compose_tiny())
    data.setup()
    with pytest.raises(RuntimeError, match="legal" if damage == "mask" else "differs from the trained one"):
        export.export_policy(exported.module, data, tmp_path / "policy.onnx", exported.config, STATES)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    assert (tmp_path / "policy.onnx").read_bytes() == b"an older one"


def initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Of a graph and of those inside its loops and branches."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from initializers(attribute.g)


def test_values_of_hundreds_agree_in_proportion(
    exported: Exported, records: list[StagedProblem], tmp_path: Path
) -> None:
    """After 409,600 episodes of experiment=paper its values reached 25, and their rounding 2e-5: the export failed."""
    module, model = copy.deepcopy(exported.module), onnx.load(exported.path)
    weight = max(module.online.parameters(), key=torch.numel)
    own = weight.detach().numpy()
    for copied in initializers(model.graph):
        values = np.frombuffer(copied.raw_data, np.float32) if len(copied.raw_data) == own.nbytes else np.empty(0)
        if np.array_equal(np.sort(values), np.sort(own, axis=None)):
            copied.raw_data = (values * np.float32(100)).tobytes()
    with torch.no_grad():
        weight.mul_(100.0)
    onnx.save(model, tmp_path / "policy.onnx")
    problems = Problems.from_encoded(encode(records))
    report = export.check_parity(module, tmp_path / "policy.onnx", problems, STATES)
    assert report["states"] >= STATES


def test_values_that_are_what_large_ones_leave_agree_up_to_their_rounding(
    exported: Exported, records: list[StagedProblem], tmp_path: Path
) -> None:
    """1,000 added to all advantages goes out again with their mean, and takes digits along, as weights did after 1.4
    million episodes of experiment=paper. Of a network that adds nothing such a file is refused.
    """
    module, model = copy.deepcopy(exported.module), onnx.load(exported.path)
    bias = module.online.advantage.bias
    own, changed = bias.detach().numpy().copy(), 0
    for copied in initializers(model.graph):
        values = np.frombuffer(copied.raw_data, np.float32) if len(copied.raw_data) == own.nbytes else np.empty(0)
        if np.array_equal(values, own):
            copied.raw_data = (values + np.float32(1000)).tobytes()
            changed += 1
    assert changed
    onnx.save(model, tmp_path / "policy.onnx")
    problems = Problems.from_encoded(encode(records))
    with pytest.raises(RuntimeError, match="differs from the trained one"):
        export.check_parity(module, tmp_path / "policy.onnx", problems, STATES)
    with torch.no_grad():
        bias.add_(1000.0)
    assert export.check_parity(module, tmp_path / "policy.onnx", problems, STATES)["states"] >= STATES


@pytest.mark.slow
def test_a_policy_without_tables_is_exported_whole(one_step: Exported, records: list[StagedProblem]) -> None:
    """It agrees with torch, in batches of any size, and pays what the environment pays."""
    assert_agrees(one_step, records)
    assert_plans_in_batches_of_any_size_and_beams_of_any_width(one_step, records)
    assert_rewards_are_earned(one_step, records)
    assert_only_legal_states_are_compared(one_step, records)
    assert_tells_nothing_of_the_machine(one_step)
