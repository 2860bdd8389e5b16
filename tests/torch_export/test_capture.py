"""What a user's factory may return."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from automap_models.errors import BadInput

torch = pytest.importorskip("torch")

from automap_models.torch_export.capture import read_example  # noqa: E402

MODEL = torch.nn.Linear(2, 2)
X = torch.ones(3, 2)


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ((MODEL, X), 1, set()),
        ((MODEL, (X, X)), 2, set()),
        ((MODEL, [X]), 1, set()),
        ((MODEL, {"input": X}), 0, {"input"}),
        ((MODEL, (X,), {"flag": True}), 1, {"flag"}),
    ],
)
def test_inputs_are_a_tensor_a_tuple_or_keywords(returned: Any, args: int, kwargs: set[str]) -> None:
    example = read_example(returned, "m:f")
    assert example.model is MODEL
    assert (len(example.args), set(example.kwargs)) == (args, kwargs)


@pytest.mark.parametrize("returned", [MODEL, (X, MODEL), (MODEL, 3), (MODEL,), None, (MODEL, (X,), 5)])
def test_anything_else_is_refused_with_what_to_return(returned: Any) -> None:
    with pytest.raises(BadInput, match=r"m:f: returned a .*; return \(model, tensor\)"):
        read_example(returned, "m:f")


def test_without_torch_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport automap_models.torch_export.capture"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "BadInput" in done.stderr
    assert "pip install 'automap-models[torch]'" in done.stderr
