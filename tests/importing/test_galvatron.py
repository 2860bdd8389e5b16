"""Galvatron's JSON: what is read of it beside what `automap export` writes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import automap_models as am
from automap_models.errors import BadInput
from automap_models.importing.reader import read_setting

CONFIG: dict[str, Any] = {
    **{"pp_deg": 2, "tp_sizes_enc": "2,2,2", "tp_consecutive_flags": "1,1,1", "dp_types_enc": "0,0,0", "vtp": 2},
    **{"checkpoint": "0,1,0", "global_bsz": 16, "chunks": 4, "pp_division": "2,1", "pipeline_type": "gpipe"},
    "default_dp_type": "zero2",
}


def written(folder: Path, **values: object) -> str:
    (folder / "galvatron.json").write_text(json.dumps({**CONFIG, **values}, indent=2))
    return str(folder / "galvatron.json")


def test_the_batch_of_a_device_follows_from_the_step_s_and_which_blocks_recompute_is_counted(tmp_path: Path) -> None:
    """16 samples in 4 micro-batches are 4 at a time on 8 devices in 2 stages of tp 2: 2 for each of two replicas."""
    strategy = read_setting(written(tmp_path), {}).strategy(8)
    assert (strategy.dp, strategy.micro_batch, strategy.micro_batches) == (2, 2, 4)
    assert (strategy.schedule, strategy.zero, strategy.layers, strategy.recompute_blocks) == (
        "gpipe",
        2,
        (2, 1),
        (1, 0),
    )


def test_samples_that_its_replicas_do_not_share_are_refused_as_it_would(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="16 samples are no multiple of dp 2 × 3 micro-batches"):
        read_setting(written(tmp_path, chunks=3), {}).strategy(8)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"tp_sizes_enc": "2,1,2"}, r"tp_sizes_enc \(line 3\): is 1, 2, and is priced alike in all layers alone"),
        ({"dp_types_enc": "0,0,1"}, r"dp_types_enc .* is 0, 1, and is priced alike"),
        ({"tp_sizes_enc": "2,2"}, "tp_sizes_enc .* is no text of 3 whole numbers, one a layer"),
        ({"checkpoint": "1"}, "checkpoint .* is no text of 3 whole numbers"),
        ({"pp_division": "2,x"}, "pp_division .* is no text of whole numbers"),
        ({"pp_deg": 3}, "is no strategy of Galvatron"),
        ({"pipeline_type": "1F1B"}, "is no strategy of Galvatron"),
    ],
)
def test_what_a_strategy_has_no_words_for_is_refused_by_its_line(
    values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_setting(written(tmp_path, **values), {})


def test_a_key_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    unread = read_setting(written(tmp_path, zigzag=7, use_sp="1,1,1", cp_sizes_enc="1,1,1"), {}).unread
    assert unread == {"zigzag": "line 13", "use_sp": "line 14"}


def test_another_model_than_its_layers_make_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gpt2 has layers 12, and the file says 3"):
        am.doctor(written(tmp_path), gpus="8xa100", model="gpt2")


def test_deepspeed_s_batch_of_a_device_follows_likewise(tmp_path: Path) -> None:
    """It was asked for, though DeepSpeed works it out of the two that are there: 128 = 4 steps × 4 samples × 8."""
    (tmp_path / "zero.json").write_text(
        '{"train_batch_size": 128, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}'
    )
    assert read_setting(str(tmp_path / "zero.json"), {}).strategy(8).micro_batch == 4
