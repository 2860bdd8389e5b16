"""`automap run --backend jax` as people use it: a process of its own, its record, and its sentences for bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ended_processes import gone

pytest.importorskip("jax")

from automap_models.core.cluster import Cluster
from automap_models.core.passes import build_schedule
from automap_models.core.plan import Plan, Stage
from automap_models.errors import BadInput, RunFailed, UserCodeError
from automap_models.infer.app import main
from automap_models.run.base import RunProblem
from automap_models.run.jax_backend import run
from automap_models.run.jax_process import environment
from automap_models.workloads.source import Source, SourceKind

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "jax_plans.py"
FAST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
MODEL = """
import jax
import jax.numpy as jnp


def make_step(batch=4, width=8, depth=3):
    def loss(params, data):
        x = data["x"]
        for name, kernel in params.items():
            with jax.named_scope(name):
                x = jnp.tanh(x @ kernel)
        return jnp.mean((x - data["y"]) ** 2)

    def step(params, data):
        value, gradients = jax.value_and_grad(loss)(params, data)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    shape = jax.ShapeDtypeStruct
    params = {f"layer_{i}": shape((width, width), jnp.float32) for i in range(depth)}
    return step, (params, {name: shape((batch, width), jnp.float32) for name in ("x", "y")})


def deeper(batch=4):
    return make_step(batch, depth=4)


def raises(batch=4):
    raise OSError("no such weights")


def dies(batch=4):
    import os
    import sys
    print("out of memory, says the operating system", file=sys.stderr)
    os._exit(9)


def stalls(batch=4):
    import os
    import time
    with open("pid", "w") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
"""
CLUSTER = "name: four\nnodes: 1\ndevices_per_node: 4\nintra: 10 GB/s\ninter: 10 GB/s\nmemory: 4 GB\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the user's with models, a cluster, a profile and a plan of (2, 1, 1) devices."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "layers_of_a_user.py").write_text(MODEL, encoding="utf-8")
    (folder / "four.yaml").write_text(CLUSTER, encoding="utf-8")
    return folder


def problem(what: str, samples: int | None = 4, **fields: Any) -> RunProblem:
    """One stage on one device."""
    stage = Stage(0, 5, "dot", (0, 0), 1, 1, None, 1e-3, 1e-3, 0.0, 0.0)
    cluster = Cluster(1, 1, 1e9, 1e9, 1e12)
    plan = Plan("plan.json", "layers", (stage,), 2, samples, "1f1b", 4e-3, None, {}, cluster)
    return RunProblem(plan, Source(what, SourceKind.FACTORY), build_schedule("1f1b", 1, 2), **fields)


def test_the_executor_is_an_option_of_torch() -> None:
    with pytest.raises(BadInput, match="the executor torch is torch's"):
        run(problem("m:f", executor="torch"), print)


def test_the_flags_of_a_users_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    own = environment(5, "cpu")
    assert own["XLA_FLAGS"] == "--xla_dump_to=x --xla_force_host_platform_device_count=5"
    assert own["JAX_PLATFORMS"] == "cpu"
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=x"


@pytest.mark.parametrize(
    ("model", "kind", "match"),
    [
        ("deeper", BadInput, r"plan\.json: was made for another model than layers_of_a_user:deeper"),
        ("raises", UserCodeError, "OSError in the code that it names"),
        ("dies", RunFailed, "ended with exit code 9"),
    ],
)
def test_an_error_of_the_process_is_one_of_this(
    model: str, kind: type[Exception], match: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(kind, match=match) as caught:
        run(problem(f"layers_of_a_user:{model}"), print)
    details = {"raises": "no such weights", "dies": "out of memory, says the operating system"}
    assert details.get(model, "") in getattr(caught.value, "details", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_the_process_does_not_outlive_the_command_however_it_ends(
    sent: signal.Signals, folder: Path, tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole group of processes; a command that is killed cannot stop anybody."""
    shutil.copy(folder / "layers_of_a_user.py", tmp_path)
    program = (
        f"import sys; sys.path[:0] = {[*map(str, Path(__file__).parents[:2]), '.']}\n"
        "from test_jax_backend import problem, run\n"
        "run(problem('layers_of_a_user:stalls'), print)"
    )
    command = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, start_new_session=True)
    end, pid = time.monotonic() + 120, tmp_path / "pid"
    while not (pid.exists() and pid.read_text().endswith("\n")):
        assert command.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    if sent is signal.SIGINT:
        os.killpg(command.pid, sent)
    else:
        command.kill()
    assert command.wait(timeout=60) != 0
    assert gone([int(pid.read_text())])


def test_a_plan_from_profile_to_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replicas (2, 1, 1): profiled, planned, run, checked, and the times read back."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XLA_FLAGS", FAST)
    model = "layers_of_a_user:make_step"
    planned = ["--topo", "four.yaml", "--stages", "3", "--micro-batches", "2", "--out", "plan.json"]
    assert main(["profile", model, "-o", "profile.npz"]) == 0
    assert main(["infer", "profile.npz", *planned]) == 0
    run = ["run", "plan.json", model, "--steps", "2", "--warmup", "0", "--check"]
    capsys.readouterr()
    assert main([*run, "--out", "times.json", "--trace", "run.trace.json"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "by jax (XLA, one controller)" in out
    assert "check as on one process" in out
    document = json.loads(Path("times.json").read_text(encoding="utf-8"))
    check = document["run"]["check"]
    assert check["agrees"]
    assert check["tensors"] == 3
    assert max(check["loss_error"], check["gradient_error"]) <= 1e-5
    assert [len(stage["forward_s"]) for stage in document["stages"]] == [4, 4, 4]  # of 2 steps of 2 micro-batches
    events = json.loads(Path("run.trace.json").read_text(encoding="utf-8"))["traceEvents"]
    measured = [event["cat"] for event in events if event["ph"] == "X" and event["tid"] % 1000]
    assert (measured.count("forward"), measured.count("backward")) == (12, 12)  # 2 steps, 3 stages, 2 micro-batches
    assert measured.count("update") >= 2
    assert main(["infer", "profile.npz", "--topo", "four.yaml", "--plan", "plan.json", "--observed", "times.json"]) == 0


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("gpt", "1-2-1"),
        ("t5", "hybrid 2x2"),
        pytest.param("resnet", "2-2", marks=pytest.mark.thorough),
    ],
)
def test_plans_on_several_devices_are_the_step_itself(model: str, plan: str) -> None:
    """Unequal replicas, equal ones, and stages of replicas that share operators, under four schedules each.

    Losses, gradients, and the bytes that XLA all-reduces; all plans of all models are in benchmarks/results.
    """
    command = [sys.executable, str(SCRIPT), model, "--plans", plan]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
