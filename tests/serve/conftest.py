"""The browser of a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from browser import started

    driver = started()
    yield driver
    driver.quit()
