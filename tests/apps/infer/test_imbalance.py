"""`--imbalance`: a mixture's fullest device has more tokens for its experts than the mean, as somebody measured."""

from __future__ import annotations

import json

import pytest

import automap_models as am
from automap_models.errors import BadInput
from automap_models.infer.app import main

SIZES = ("--gpus", "64xh100", "--sequence", "4096", "--global-batch", "64")
MIXTRAL = ("mixtral-8x7b", *SIZES, "--ep", "8", "--zero", "3", "--recompute", "full", "--price")


def test_tokens_take_as_much_longer_to_experts_and_the_report_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Their way grows by the factor itself; attention, norms and gradients do not, so the step grows by less."""
    documents = []
    for options in ((), ("--imbalance", "1.25")):
        assert main(["plan", *MIXTRAL, *options, "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    even, uneven = documents
    assert (even["imbalance"], uneven["imbalance"]) == (1.0, 1.25)
    ratios = {key: uneven["parts"][key] / even["parts"][key] for key in ("expert_parallel_s", "compute_s")}
    assert ratios["expert_parallel_s"] == pytest.approx(1.25)
    assert 1.0 < ratios["compute_s"] < 1.25
    assert main(["plan", *MIXTRAL, "--imbalance", "1.25"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1.25 times the mean of tokens for the experts of the fullest device" in printed


def test_a_device_that_has_all_experts_has_the_mean() -> None:
    sizes = {"gpus": "16xh100", "sequence": 4096, "global_batch": 64, "ep": 1}
    even, uneven = (am.price("mixtral-8x7b", **sizes, imbalance=x) for x in (1.0, 1.25))
    assert uneven.step_s == even.step_s


@pytest.mark.parametrize(
    ("model", "imbalance", "sentence"),
    [
        ("llama3-8b", 1.2, "`imbalance`: llama3-8b has no experts; leave it out"),
        ("mixtral-8x7b", 0.9, "`imbalance`: is 0.9; give a number from 1 on"),
    ],
)
def test_what_has_no_imbalance_is_refused_by_name(model: str, imbalance: float, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        am.price(model, gpus="16xh100", imbalance=imbalance)
