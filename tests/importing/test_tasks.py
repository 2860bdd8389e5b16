"""Tasks of SkyPilot and jobs of Kubernetes: the script inside is read, and changed where it stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting

TASK = """\
# it's a task of ours
resources: {accelerators: "H100:8"}
num_nodes: 2
envs:
  TP: 4
setup: |
  pip install -r requirements.txt  # python is there
run: |
  torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP \\
    --num-layers 32 --micro-batch-size 1 --global-batch-size 64 --bf16
"""


def test_a_task_s_script_is_read_with_its_variables_and_changed_in_place(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(TASK)
    setting = read_setting(str(path), {})
    strategy = setting.strategy(16)
    assert (strategy.tp, strategy.dp, strategy.global_batch, strategy.precision) == (4, 4, 64, "bf16")
    changed = setting.rewrite(replace(strategy, micro_batch=2))
    assert changed == TASK.replace("--micro-batch-size 1", "--micro-batch-size 2")
    assert read_setting(str(path), {"TP": "2"}).strategy(16).tp == 2  # what is set outside counts
    shared = " --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"  # as it is priced
    assert setting.rewrite(replace(strategy, zero=1)) == TASK.replace(" $TP", f" $TP{shared}")


@pytest.mark.parametrize("text", ["run: echo torchrun\n", "run: |\n  echo hello\n", "a: [1, |\n"])
def test_a_yaml_without_such_a_script_is_of_no_program(text: str, tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"is of no program that is known|is not valid YAML"):
        read_setting(str(path), {})
