"""A benchmark's script as a module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def benchmark(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The SCRIPT of the test's module, which finds its neighbours as it does where it is run."""
    script = request.module.SCRIPT
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[script.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(script.parent))
