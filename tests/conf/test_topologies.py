"""Every shipped cluster can be asked for by name."""

from __future__ import annotations

import pytest

from automap_models.formats.hardware_yaml import read_cluster
from automap_models.resources import conf_dir

NAMES = sorted(path.stem for path in (conf_dir() / "topo").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_cluster_loads_under_its_own_name(name: str) -> None:
    assert read_cluster(name).name == name


@pytest.mark.parametrize(("name", "nodes"), [("A", 2), ("B", 3), ("C", 4)])
def test_the_papers_clusters_are_as_its_table_2_has_them(name: str, nodes: int) -> None:
    cluster = read_cluster(name)
    assert (cluster.nodes, cluster.devices_per_node) == (nodes, 8)
    assert (cluster.intra, cluster.inter, cluster.memory) == (130e9, 25e9 / 8, 32e9)
