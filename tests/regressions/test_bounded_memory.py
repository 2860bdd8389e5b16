"""Searches stay within the memory of a laptop: tables of plans once took 24 GB on 128 nodes, and were killed."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.planners.staged.improve import Moves

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "t5_11b_v100.npz"
CLUSTER = """
{nodes: 64, devices_per_node: 8, intra: 450 GB/s, inter: 3200 Gbit/s, memory: 80 GB, device: h100, name: large}
"""
LIMIT_BYTES = 4 * 2**30
"""Of addresses, of which a process that has imported numba and numpy takes more than half, used or not."""


def test_pipelines_of_very_many_stages_come_of_dividing_stages_and_of_no_table() -> None:
    profile = Profile.create(*np.ones((3, 128)))
    for stages, count in ((32, 1), (33, 0)):
        problem = StagedProblem(profile, Cluster(64, 8, 1e11, 1e10, 1e12), stages, 64, schedule="1f1b")
        assert len(Moves(problem).constructed()) == count


def test_a_plan_for_512_devices_fits_four_gigabytes(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(CLUSTER, encoding="utf-8")
    code = "import sys; from automap_models.infer.app import infer; sys.exit(infer())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLE), "--topo", "large.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
    )
    assert done.returncode == 0, done.stderr
    assert "a step" in done.stdout
