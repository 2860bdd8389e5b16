"""The paper's models: published sizes, the smallest cuts, XLA's totals, and what tracing the largest one takes."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from automap_models import workloads
from automap_models.core.profile import Profile
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.profile import profile_from_graph

BATCH, LENGTH = 16, 512
MODELS = {  # parameters (T5: as published; BERT with 48 layers of width 1024: 637.5 M), width of the smallest cut
    "t5_base": (222_903_552, 768),
    "bert48": (637_500_000, 1024),
}

PEAK = """
import json, resource
from automap_models import workloads
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
graph = instruction_graph(trace(workloads.build("t5_11b")))
parameters = [a.kind == "parameter" for a in graph.arguments]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([peak, float(graph.value_bytes[: len(parameters)][parameters].sum()) / 4]))
"""


@pytest.mark.parametrize("name", MODELS)
def test_parameters_smallest_cut_and_flop(name: str) -> None:
    parameters, width = MODELS[name]
    step = workloads.build(name, batch=BATCH, sequence=LENGTH)
    graph = instruction_graph(trace(step))
    profile = profile_from_graph(graph, graph.flop / 1e12)  # as if by a device of a TFLOP/s
    assert profile.W.sum() == pytest.approx(4 * parameters, rel=1e-4)
    assert smallest_interior_cut(profile) == BATCH * LENGTH * width * 4
    total = jax.jit(step.function).lower(*step.arguments).cost_analysis()["flops"]
    assert graph.flop.sum() == pytest.approx(total, rel=0.01)
    assert profile.meta["unattributed_share"] < 0.01


def smallest_interior_cut(profile: Profile) -> float:
    """The fewest bytes across a cut that leaves each side at least a tenth of the time."""
    done = np.cumsum(profile.C) / profile.C.sum()
    return float(profile.A[(done > 0.1) & (done < 0.9)].min())


def test_t5_11b_is_traced_in_less_than_4_gb() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak_bytes, parameters = json.loads(done.stdout)
    assert peak_bytes < 4e9
    assert parameters == pytest.approx(11.307e9, rel=1e-3)
