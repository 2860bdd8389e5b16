"""A sweep as a JSON document and as CSV: the same figures, one entry or line a combination."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import automap_models
from automap_models.core.microbatch import profiled_size
from automap_models.core.profile import Profile
from automap_models.formats.files import write_atomically
from automap_models.formats.plan_json import dumps
from automap_models.formats.plan_report import SCHEMA, cluster_document

from ..sweeps import Row, best_rows


def sweep_document(profile: Profile, rows: list[Row]) -> dict[str, Any]:
    """The sweep as plain Python numbers, lists and dictionaries; lengths in seconds."""
    best = best_rows(rows)
    return {
        "schema": SCHEMA,
        "kind": "sweep",
        "model": profile.model,
        "rows": [_row(row, best.get(row.cluster.name) is row) for row in rows],
        "provenance": {
            "automap_version": automap_models.__version__,
            "profile_fingerprint": profile.fingerprint,
            "profile_microbatch_size": profiled_size(profile),
        },
    }


def _row(row: Row, best: bool) -> dict[str, Any]:
    outcome, plan = row.outcome, row.outcome.plan
    return {
        "cluster": cluster_document(row.cluster),
        "stages": row.stages,
        "micro_batches": row.micro_batches,
        "microbatch_size": row.microbatch_size,
        "length_s": None if row.length_s is None else float(row.length_s),
        "efficiency": row.efficiency,
        "best_of_cluster": best,
        "planner": plan.planner if plan else None,
        "cuts": list(plan.cuts) if plan else None,
        "device_cuts": list(plan.device_cuts) if plan else None,
        "optimality": {"bound_s": plan.optimality.value, "proof": plan.optimality.proof}
        if plan and plan.optimality
        else None,
        "error": str(outcome.error) if outcome.error else None,
        "outside": outcome.outside,
    }


def write_rows(path: Path, document: Mapping[str, Any]) -> None:
    """Write a sweep's document as .json, or its rows as .csv.

    Raises:
        BadInput: the file cannot be written.
    """
    text = dumps(document) + "\n" if path.suffix.lower() == ".json" else _csv(document["rows"])

    def write(file: BinaryIO) -> None:
        file.write(text.encode("utf-8", errors="backslashreplace"))

    write_atomically(path, write)


def _csv(rows: list[dict[str, Any]]) -> str:
    flat = [_flat(row) for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without nesting: the cluster's and the proof's fields as columns, cuts with spaces between."""
    cluster, proof = row["cluster"], row["optimality"] or {}
    flat = {"cluster": cluster["name"], **{key: cluster[key] for key in cluster if key != "name"}}
    flat |= {key: value for key, value in row.items() if key not in ("cluster", "optimality")}
    flat |= {key: "" if row[key] is None else " ".join(map(str, row[key])) for key in ("cuts", "device_cuts")}
    return flat | {"bound_s": proof.get("bound_s"), "proof": proof.get("proof")}
