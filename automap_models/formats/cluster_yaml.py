"""A cluster by the name of a shipped config or from a YAML file (formats.md, "cluster")."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.core.resources import conf_dir
from automap_models.errors import BadInput

SIZES = ("nodes", "devices_per_node")
RATES = ("intra", "inter", "memory")
_KEYS = f"it needs {', '.join((*SIZES, *RATES))} and may have name"

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 1  # YAML aliases make small files with values that would fill the screen


def known_clusters() -> list[str]:
    """Names of the shipped clusters, sorted."""
    return sorted(path.stem for path in (conf_dir() / "topo").glob("*.yaml"))


def read_cluster(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, or the one in that YAML file (`./A` is a file, `A` is the shipped one).

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    known = known_clusters()
    if str(name_or_path) in known:
        path = conf_dir() / "topo" / f"{name_or_path}.yaml"
    else:
        path = Path(name_or_path)
        if not path.exists():
            raise BadInput(
                f"{str(name_or_path)!r} is neither a known cluster nor a file",
                where="cluster",
                do=f"choose from {', '.join(known)} or give a YAML file",
            )
    return cluster_from_mapping(_load(path), source=str(path), name=path.stem)


def cluster_from_mapping(document: object, *, source: str, name: str = "cluster") -> Cluster:
    """The cluster that a parsed YAML document describes.

    Args:
        document: a mapping with the keys of formats.md; numbers may be written as text (YAML reads `130e9` as one).
        source: where it comes from, for messages.
        name: the cluster's name where the document has none.

    Raises:
        BadInput: naming the key at fault.
    """
    if not isinstance(document, Mapping):
        raise BadInput(f"holds {_SHORT.repr(document)}, not `key: value` lines", where=source, do=_KEYS)
    for key in document:
        if key not in (*SIZES, *RATES, "name"):
            raise BadInput(f"unknown key {_SHORT.repr(key)}", where=source, do=_KEYS)
    for key in (*SIZES, *RATES):
        if key not in document:
            raise BadInput(f"key {key} is missing", where=source, do=_KEYS)
    label = document.get("name", name)
    if not isinstance(label, str) or not label.strip():
        raise BadInput(
            f"name is {_SHORT.repr(label)}", where=source, do="give a text, in quotes if it looks like a number"
        )
    values: dict[str, Any] = {key: _whole(key, document[key], source) for key in SIZES}
    values |= {key: _number(key, document[key], source) for key in RATES}
    try:
        return Cluster(**values, name=label)
    except BadInput as error:
        raise BadInput(error.what, where=source, do=error.do) from None


def _load(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror or error})", where=str(path), do="check the path and its permissions"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        raise BadInput(f"is not valid YAML{place}", where=str(path), do=_KEYS) from error


def _number(key: str, value: object, source: str) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BadInput(f"{key} is {_SHORT.repr(value)}", where=source, do="give a number such as 130e9")


def _whole(key: str, value: object, source: str) -> int:
    number = _number(key, value, source)
    if not number.is_integer():
        raise BadInput(f"{key} is {_SHORT.repr(value)}", where=source, do="give a whole number ≥ 1")
    return int(number)
