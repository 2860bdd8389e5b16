"""Whether what is to run on devices made of this host has room in its memory."""

from __future__ import annotations

import os

from automap_models.core.units import size

_SHARE = 0.6
"""Of the memory that is free: so much a run may take."""


def shortage(needed_bytes: float) -> str:
    """What a run would take and what is free, in words, where it is too much; else nothing."""
    free_bytes = float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if needed_bytes <= _SHARE * free_bytes:
        return ""
    return f"running it on this host takes {size(needed_bytes)}, {size(free_bytes)} are free"
