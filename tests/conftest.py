"""What all tests share."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest
from tiers import durations, tiers

from automap_models.core.cluster import Cluster
from automap_models.core.mesh import MeshAxis
from automap_models.core.profile import Profile
from automap_models.core.sharding import ShardingProblem
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.core.staged import StagedProblem

# What a test costs decides how many examples it draws: the few that are dear say so themselves.
hypothesis.settings.register_profile("same examples every time", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.register_profile("new examples every time", deadline=None, max_examples=400)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same examples every time"))


def pytest_configure() -> None:
    """Give the programs under test one environment, wherever the tests are run from.

    Ctrl-C reaches them even if the tests run in a shell's background, which ignores it; reports are 100 columns wide,
    as they are in a file, even where a shell exports the size of its window.
    """
    # XLA's code is run once or twice: less time goes into making it than it would save.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    gc.disable()  # until everything is collected: it would look through what the imports make again and again
    os.environ.pop("COLUMNS", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have what the process that starts them has
        os.environ["AUTOMAP_CACHE"] = tempfile.mkdtemp(prefix="automap-tests-")
    else:
        _compile_once()


def _compile_once() -> None:
    """Have a function compiled by one worker at a time: what another one needs as well it then finds in numba's cache.

    In a fresh checkout each worker would spend a minute on the same functions. None calls itself, so that two that wait
    for one another there are not.
    """
    from filelock import FileLock
    from numba.core.dispatcher import Dispatcher

    folder, locks, own = Path(os.environ["AUTOMAP_CACHE"], "locks"), dict[str, FileLock](), Dispatcher.compile
    folder.mkdir(exist_ok=True)

    def compile_alone(self: Any, signature: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}.lock"
        with locks.setdefault(name, FileLock(folder / name)):
            return own(self, signature)

    Dispatcher.compile = compile_alone


def pytest_unconfigure() -> None:
    """Remove the cache that all tests share, beside the user's own: a model that several trace is traced once."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["AUTOMAP_CACHE"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that are not fast, unless they are marked by hand."""
    unmarked = [item for item in items if not any(map(item.get_closest_marker, ("slow", "thorough", "random")))]
    tier = tiers([item.nodeid for item in unmarked], durations())
    for item in unmarked:
        if item.nodeid in tier:
            item.add_marker(tier[item.nodeid])


def pytest_collection_finish() -> None:
    """Collections of garbage pass over what the imports made, half a million objects that stay to the end anyway.

    They are rarer than usual, too: what tests make is looked through when it is many megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data kept outside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the reference data folder is not beside the checkout")
    return folder


@pytest.fixture(scope="session")
def reference_model() -> ModuleType:
    """tests/reference_model.py, the cost model once more: `evaluate`, `coarsened` and `reference_vectors`."""
    path = Path(__file__).with_name("reference_model.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def vectors(reference_model: ModuleType) -> dict[str, list[dict[str, Any]]]:
    """`cost` and `coarsening` cases with expected values: the reference data's, or else the reference model's own."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data" / "cost_vectors.json"
    cases: dict[str, list[dict[str, Any]]] = (
        json.loads(path.read_text()) if path.is_file() else reference_model.reference_vectors()
    )
    return cases


@pytest.fixture(scope="session")
def random_problems() -> Callable[..., list[StagedProblem]]:
    """A function that draws small pipeline problems of all sorts from a seed (`draw_problems`)."""
    return draw_problems


@pytest.fixture(scope="session")
def flat_policy(
    random_problems: Callable[..., list[StagedProblem]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """The paper's network for 16 points, 4 stages and 16 devices, with random weights, and its policy file.

    All tests share it, and so do the processes of pytest-xdist.
    """
    return _exported("flat", random_problems, tmp_path_factory)


@pytest.fixture(scope="session")
def choice_policy(
    random_problems: Callable[..., list[StagedProblem]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    """The same of the network that is shared by all choices."""
    return _exported("choices", random_problems, tmp_path_factory)


def _exported(
    network: str, random_problems: Callable[..., list[StagedProblem]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    import torch
    from filelock import FileLock

    from automap_models.envs.pipeline.encoding import encode
    from automap_models.envs.pipeline.env import Problems
    from automap_models.train import export
    from automap_models.train.rainbow import RainbowModule

    size = {"points": 16, "max_stages": 4, "max_devices": 16, "hidden": 16}
    module = RainbowModule(network, "ideal_over_length", size, {}, {}, seed=1).eval()
    torch.manual_seed(1)
    for weight in module.online.parameters():
        torch.nn.init.normal_(weight, std=0.2)  # as large as trained ones
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    file = folder / f"{network}.onnx"
    with FileLock(file.with_suffix(".lock")):
        if not file.exists():
            problems = Problems.from_encoded(encode(random_problems(11, 60, memory=(2.0, 50.0))))
            export.write_policy(module, problems, export.policy_metadata(module, problems, {}), file)
    return module, file


def draw_problems(
    seed: int,
    count: int,
    granularity: int = 16,
    stages: tuple[int, int] = (2, 4),
    instructions: tuple[int, int] = (4, 40),
    memory: tuple[float, float] = (0.2, 20.0),
    clusters: Sequence[tuple[int, int]] = (),
) -> list[StagedProblem]:
    """Problems whose computation, transfers, gradients and memory each decide now and then.

    Args:
        stages, instructions: smallest and largest S and n.
        memory: range of the device memory over what one of S equal stages on equal devices needs.
        clusters: nodes and devices in each to choose from, where not any of one to four.
    """
    random = np.random.default_rng(seed)
    return [_draw_problem(random, granularity, stages, instructions, memory, clusters) for _ in range(count)]


def _draw_problem(
    random: np.random.Generator,
    granularity: int,
    stages: tuple[int, int],
    instructions: tuple[int, int],
    memory: tuple[float, float],
    clusters: Sequence[tuple[int, int]],
) -> StagedProblem:
    S = int(random.integers(*stages, endpoint=True))
    n = int(random.integers(max(instructions[0], S), max(instructions[1], S), endpoint=True))
    nodes, per_node = (int(size) for size in (random.choice(clusters) if clusters else random.integers(1, 5, 2)))
    while nodes * per_node < S:
        per_node += 1
    inter = 1e9
    C = random.random(n) * (random.random(n) < 0.9) + 1e-3
    A = inter * random.random(n) * 10 ** random.uniform(-3, 0)
    W = inter * random.random(n) * (random.random(n) < 0.6) * 10 ** random.uniform(-2, 1)
    stash = random.random(n) * W.mean() * 10 ** random.uniform(-1, 1)
    micro_batches = int(random.integers(1, 33))
    need = (4 * W.sum() + stash.sum() * min(micro_batches, S) * S / (nodes * per_node)) / S + 1.0
    cluster = Cluster(
        nodes,
        per_node,
        intra=inter * 10 ** random.uniform(-0.3, 2),
        inter=inter,
        memory=float(need * np.exp(random.uniform(*np.log(memory)))),
    )
    profile = Profile.create(C, A, W, C_fwd=C * random.random(n), stash=stash)
    return StagedProblem(profile, cluster, S, micro_batches, granularity=granularity)


@pytest.fixture(scope="session")
def random_sharding_problem() -> Callable[..., ShardingProblem]:
    """A function that draws a small sharding problem from a seed (`draw_sharding_problem`)."""
    return draw_sharding_problem


def draw_sharding_problem(seed: int, classes: tuple[int, int] = (1, 10)) -> ShardingProblem:
    """Classes of one-dimensional parameters of all sizes, some of them dead, some in conflict.

    Args:
        classes: smallest and largest number of them.
    """
    random = np.random.default_rng(seed)
    k = int(random.integers(classes[0], classes[1] + 1))
    own = np.concatenate([np.arange(k), random.integers(0, k, int(random.integers(0, 10)))])
    divisors = random.choice([1, 4], k, p=[0.2, 0.8])
    divisors[0] = 4
    pairs = [(a, b) for a, b in combinations(range(k), 2) if divisors[a] > 1 < divisors[b] and random.random() < 0.4]
    variables = tuple(
        Variable(f"p{i}", (4,), "f32", float(random.integers(1, 100)), "parameter") for i in range(own.size)
    )
    drawn = ShardingClasses(variables, own, divisors, np.array(pairs, dtype=np.int64).reshape(-1, 2))
    return ShardingProblem("drawn", drawn, Cluster(1, 8, 1e9, 1e9, 1e9), (MeshAxis("model", 4),))


@pytest.fixture(scope="session")
def hard_sharding_problem() -> ShardingProblem:
    """600 classes in 12,000 conflicts: nothing but greedy decisions comes to a good plan within seconds."""
    random, k = np.random.default_rng(0), 600
    conflicts = np.unique(np.sort(random.integers(0, k, (12_000, 2)), axis=1), axis=0)
    conflicts = conflicts[conflicts[:, 0] < conflicts[:, 1]]
    variables = tuple(Variable(f"p{i}", (4,), "f32", 16.0, "parameter") for i in range(k))
    classes = ShardingClasses(variables, np.arange(k), np.full(k, 4), conflicts)
    return ShardingProblem("hard", classes, Cluster(1, 8, 1e9, 1e9, 1e9), (MeshAxis("model", 4),))
