"""A cluster by the name of a shipped config or from a YAML file (formats.md, "cluster")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from automap_models.core.cluster import Cluster
from automap_models.errors import BadInput
from automap_models.formats.yaml_fields import YamlFields, find_yaml, load_yaml, shipped_names

SIZES = ("nodes", "devices_per_node")
RATES = ("intra", "inter", "memory")
_KEYS = f"it needs {', '.join((*SIZES, *RATES))} and may have name"


def known_clusters() -> list[str]:
    """Names of the shipped clusters, sorted."""
    return shipped_names("topo")


def read_cluster(name_or_path: str | Path) -> Cluster:
    """The shipped cluster of that name, or the one in that YAML file (`./A` is a file, `A` is the shipped one).

    Raises:
        BadInput: neither a known name nor a readable file, or a key that is missing, unknown or has a wrong value.
    """
    path = find_yaml(name_or_path, "topo", "cluster")
    return cluster_from_mapping(load_yaml(path, _KEYS), source=str(path), name=path.stem)


def cluster_from_mapping(document: object, *, source: str, name: str = "cluster") -> Cluster:
    """The cluster that a parsed YAML document describes.

    Args:
        document: a mapping with the keys of formats.md; numbers may be written as text (YAML reads `130e9` as one).
        source: where it comes from, for messages.
        name: the cluster's name where the document has none.

    Raises:
        BadInput: naming the key at fault.
    """
    fields = YamlFields(document, source, required=(*SIZES, *RATES), optional=("name",), do=_KEYS)
    label = fields.text("name", name)
    values: dict[str, Any] = {key: fields.whole(key) for key in SIZES}
    values |= {key: fields.number(key) for key in RATES}
    try:
        return Cluster(**values, name=label)
    except BadInput as error:
        raise BadInput(error.what, where=source, do=error.do) from None
