"""The page of versions is what the packages, the targets and the public configurations of the tests say."""

from __future__ import annotations

import re

from versions import PAGE, text_of


def test_the_page_of_versions_is_current() -> None:
    text = PAGE.read_text("utf-8")
    python = re.search(r"run with ([\d.]+\d),", text)
    assert python is not None
    assert text == text_of(python[1]), "run python tests/versions.py"
