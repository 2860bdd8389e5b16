"""Measured stage times of a running job: times.json, or a trace of Perfetto, Chrome or Kineto (docs/how-to/replan.md).

times.json lists either `stages` (`index`, one sample a micro-batch of the stage's slowest replica) or `devices`
(`device`, one sample a micro-batch of that device's part), each with `forward_s` and `backward_s`, a number or a list
of them. `automap run` writes one of what it measured, with all the rest under `run`: the times of a stage where each of
its replicas is measured as one, of devices where a plan's stages have several; and the step as a row of measured steps.

In a trace the complete events (`"ph": "X"`) called or categorised `forward` and `backward` count, on rows
whose thread or process is named after its stage, device or rank (`stage 2`, `device 17`), as formats.chrome_trace
writes them.

torch.profiler (Kineto) writes one file a rank, whose number stands in `distributedInfo`, and names rows after threads:
annotations count there, `Forward 0` and `Backward 0` of torch's GPipe and 1F1B, or `PP:2F0` and `PP:2B0` of its other
schedules. Those of the GPU go before those of the CPU, which end when kernels have been launched. A folder is all the
files of its ranks.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from automap_models.core.cluster import MAX_DEVICES
from automap_models.core.observed import Observed, PlacedPlan, Unit
from automap_models.core.profile import LARGEST_S, FloatArray
from automap_models.core.run_record import RunRecord
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.errors import BadInput
from automap_models.formats.plan import read
from automap_models.formats.schema import Document, Foreign, decode_json, read_bytes, wrong
from automap_models.formats.staged_plan import StagedDocument
from automap_models.simulate.engine import Timeline

PASSES = ("forward", "backward")

_TRACK = re.compile(r"\b(device|rank|stage)\W{0,2}(\d{1,9})\b", re.IGNORECASE)
_ANNOTATIONS = ("gpu_user_annotation", "user_annotation")
_ACTION = re.compile(r"pp:\d+([fb])\d+")
_DO = "see docs/how-to/replan.md for what the file may hold"

Seconds = Annotated[float, Meta(gt=0, le=LARGEST_S)]
Samples = Seconds | Annotated[list[Seconds], Meta(min_length=1)]
Number = Annotated[int, Meta(ge=0, lt=MAX_DEVICES)]


class Times(Document):
    """A sample for each micro-batch, seconds."""

    forward_s: Samples
    backward_s: Samples


class StageTimes(Times):
    """Times of a stage: of its slowest replica."""

    number: Number = msgspec.field(name="index")


class DeviceTimes(Times):
    """Times of a device: of its part of a micro-batch."""

    number: Number = msgspec.field(name="device")


class TimesDocument(Document):
    """A times.json; `run` is what else `automap run` says of itself, `rows` what `automap calibrate` reads."""

    schema: Literal[1]
    kind: Literal["observed"]
    stages: list[StageTimes] | UnsetType = UNSET
    devices: list[DeviceTimes] | UnsetType = UNSET
    run: dict[str, Any] | UnsetType = UNSET
    rows: list[Any] | UnsetType = UNSET


class Event(Foreign):
    """An event of a trace; tools write numbers, texts and nothing for the same key."""

    ph: Any = None
    name: Any = None
    cat: Any = ""
    pid: Any = None
    tid: Any = None
    dur: Any = None
    args: Any = None


class TraceDocument(Foreign):
    """A trace of Perfetto, Chrome or Kineto."""

    traceEvents: list[Event]
    distributedInfo: Any = None

    @property
    def rank(self) -> int | None:
        """Of the process that the trace is of; None where it does not say."""
        rank = self.distributedInfo.get("rank") if isinstance(self.distributedInfo, Mapping) else None
        return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < MAX_DEVICES else None


def read_observed(path: str | os.PathLike[str]) -> Observed:
    """The measured times in a times.json or a trace, whose content says which, or in a folder of traces, one a rank.

    Raises:
        BadInput: the file is neither, or a time in it is no positive number, naming the stage or device; the folder has
            no traces, or two of a device.
    """
    if Path(path).is_dir():
        return _of_ranks(sorted(Path(path).glob("*.json")), str(path))
    content, where = read_bytes(path, 256 << 20), str(path)  # a profiler's trace of a few steps has some megabytes
    if "traceEvents" in decode_json(content, dict[str, msgspec.Raw], where=where, do=_DO):
        return observed_in_trace(decode_json(content, TraceDocument, where=where, do=_DO), where)
    return observed_in_times(decode_json(content, TimesDocument, where=where, do=_DO), where)


def _of_ranks(files: list[Path], where: str) -> Observed:
    """The times of all devices that files are about."""
    if not files:
        raise BadInput("has no file that ends in .json", where=where, do=_DO)
    forward: dict[int, FloatArray] = {}
    backward: dict[int, FloatArray] = {}
    for file in files:
        observed = read_observed(file)
        if observed.unit != "device" or forward.keys() & observed.forward_s.keys():
            what = "has times of stages, not of devices" if observed.unit != "device" else "has times of a device again"
            raise BadInput(what, where=observed.where, do="give a folder with one trace of each rank")
        forward |= observed.forward_s
        backward |= observed.backward_s
    return Observed("device", forward, backward, where)


def observed_in_times(document: TimesDocument, where: str) -> Observed:
    """The times in a times.json; see `read_observed`."""
    if (document.stages is UNSET) == (document.devices is UNSET):
        raise BadInput("lists not exactly one of stages and devices", where=where, do=_DO)
    unit: Unit = "stage" if document.devices is UNSET else "device"
    forward: dict[int, FloatArray] = {}
    backward: dict[int, FloatArray] = {}
    rows: Sequence[StageTimes | DeviceTimes] = document.stages or document.devices or ()
    for i, row in enumerate(rows):
        number = row.number
        if number in forward:
            what = f"$.{unit}s[{i}]: {unit} {number} is listed twice"
            raise BadInput(what, where=where, do="put all its samples into one list")
        forward[number], backward[number] = (np.atleast_1d(np.array(s, float)) for s in (row.forward_s, row.backward_s))
    return _complete(Observed(unit, forward, backward, where))


def observed_in_trace(document: TraceDocument, where: str) -> Observed:
    """The times in a trace.

    Rows of devices go before rows of stages where it has both; without such rows the annotations of the rank in
    `distributedInfo` count, those of the GPU where there are any.
    """
    rows, rank = _rows(document.traceEvents), document.rank
    passes = [(i, event, name) for i, event in enumerate(document.traceEvents) if (name := _pass(event))]
    # Annotations of the host end when work is launched, those of the GPU when it is done.
    annotation = next((kind for kind in _ANNOTATIONS for _, event, _ in passes if event.cat == kind), _ANNOTATIONS[0])
    times: dict[Unit, dict[str, dict[int, list[float]]]] = {
        "device": {name: {} for name in PASSES},
        "stage": {name: {} for name in PASSES},
    }
    for i, event, name in passes:
        if rows or rank is None:
            owner = rows.get((str(event.pid), str(event.tid))) or rows.get((str(event.pid), None))
        else:
            owner = ("device", rank) if event.cat == annotation else None
        if owner is not None:
            unit, number = owner
            times[unit][name].setdefault(number, []).append(_seconds(event, i, where))
    unit = "device" if any(times["device"].values()) else "stage"
    forward, backward = ({n: np.array(v) for n, v in times[unit][name].items()} for name in PASSES)
    if passes and not forward and not backward:
        raise BadInput(
            "has forward and backward passes, but neither rows named after a stage, device or rank nor a rank in "
            "distributedInfo",
            where=where,
            do="profile after torch.distributed.init_process_group, or name the rows (docs/how-to/replan.md)",
        )
    return _complete(Observed(unit, forward, backward, where))


def _complete(observed: Observed) -> Observed:
    """Something was measured, and forward and backward alike."""
    if not observed.forward_s and not observed.backward_s:
        raise BadInput("holds no forward or backward times of stages or devices", where=observed.where, do=_DO)
    for number in sorted(set(observed.forward_s) ^ set(observed.backward_s)):
        lacks = "backward" if number in observed.forward_s else "forward"
        raise BadInput(f"{observed.unit} {number} has no {lacks} times", where=observed.where, do=_DO)
    return observed


def _rows(events: list[Event]) -> dict[tuple[str, str | None], tuple[Unit, int]]:
    """(process, thread) → whose row it is; (process, None) where the whole process is one's.

    Both are texts: tools write numbers and names for either.
    """
    rows: dict[tuple[str, str | None], tuple[Unit, int]] = {}
    for event in events:
        if event.ph != "M" or event.name not in ("thread_name", "process_name"):
            continue
        name = event.args.get("name") if isinstance(event.args, Mapping) else None
        named = dict[str, str]((unit.lower(), number) for unit, number in _TRACK.findall(str(name)))
        for unit in ("device", "rank", "stage"):
            if unit in named and int(named[unit]) < MAX_DEVICES:
                thread = str(event.tid) if event.name == "thread_name" else None
                rows[str(event.pid), thread] = ("stage" if unit == "stage" else "device", int(named[unit]))
                break
    return rows


def _seconds(event: Event, i: int, where: str) -> float:
    number = event.dur if isinstance(event.dur, int | float) and not isinstance(event.dur, bool) else math.nan
    if not 0 < number <= LARGEST_S * 1e6:
        raise wrong(f"$.traceEvents[{i}].dur", event.dur, "a positive number of microseconds", where, _DO)
    return number * 1e-6


def _pass(event: Event) -> str | None:
    """`forward` or `backward` if the event is complete and its category that, or its name that or torch's for it."""
    if event.ph != "X":
        return None
    category, name = (str(text).lower() for text in (event.cat, event.name))
    if action := _ACTION.fullmatch(name):
        return PASSES[action[1] == "b"]
    return next((kind for kind in PASSES if category == kind or re.match(rf"{kind}\b", name)), None)


def read_running(path: Path, problem: StagedProblem, plan: StagedPlan) -> tuple[PlacedPlan, FloatArray]:
    """The plan with its devices, as they are numbered or as an earlier adjustment put them, and their slowdowns [D].

    Raises:
        BadInput: the adjustment in the file is none of this plan.
    """
    devices, do = problem.cluster.devices, "write the file again"
    with read(path, StagedDocument) as document:
        earlier = document.adjustment
        if earlier is UNSET:
            return PlacedPlan(plan, tuple(range(devices))), np.ones(devices)
        running = PlacedPlan(plan, tuple(earlier.device_order), tuple(earlier.idle))
        valid, objection = running.check_valid(problem)
        if not valid:
            raise BadInput(f"$.adjustment: {objection}", do=do)
        if len(earlier.slowdown) != devices:
            raise wrong("$.adjustment.slowdown", earlier.slowdown, f"{devices} positive numbers", do=do)
    return running, np.array(earlier.slowdown, dtype=np.float64)


FORWARD, BACKWARD, UPDATE, REDUCTION = "F", "BIW", "U", "G"
"""Kinds of passes that a part of the step consists of."""


def run_document(record: RunRecord, predicted: Timeline) -> dict[str, Any]:
    """The JSON document of a run.

    Args:
        predicted: one step of the plan under the schedule that ran.
    """
    check = record.comparison
    return {
        "schema": 1,
        "kind": "observed",
        **_times(record),
        "rows": [] if record.row is None else [dict(record.row)],
        "run": {
            "model": record.plan.model,
            "backend": record.backend,
            "executor": record.executor,
            "device": record.device,
            "clock": record.clock,
            "schedule": record.schedule.name,
            "processes": record.processes,
            "micro_batches": record.plan.micro_batches,
            "losses": [float(step.loss) for step in record.steps],
            "warmup": record.warmup,
            "step_s": {"predicted": predicted.length_s, "measured": record.step_s},
            "stages": list(_stages(record, predicted)),
            "check": None if check is None else {"agrees": check.agrees, **asdict(check)},
            "memory_bytes": record.memory_bytes,
            "no_row": record.no_row,
            "notes": list(record.notes),
        },
    }


def _times(record: RunRecord) -> dict[str, Any]:
    """`stages`, or `devices` where a stage has several that were measured."""

    def samples(stage: int, replica: int | None) -> dict[str, Any]:
        def listed(kinds: str) -> list[float]:
            return [float(value) for value in record.samples(stage, replica, kinds)]

        return {"forward_s": listed(FORWARD), "backward_s": listed(BACKWARD)}

    if all(len(replicas) == 1 for replicas in record.replicas):
        return {"stages": [{"index": s, **samples(s, replicas[0])} for s, replicas in enumerate(record.replicas)]}
    return {
        "devices": [
            {"device": record.plan.stages[s].devices[0] + (replica or 0), **samples(s, replica)}
            for s, replicas in enumerate(record.replicas)
            for replica in replicas
        ]
    }


def _stages(record: RunRecord, predicted: Timeline) -> Iterator[dict[str, Any]]:
    """Of each stage what was predicted and measured; its share is of the passes of all stages."""
    idle, predicted_idle = idle_shares(record), predicted_idle_shares(record, predicted)
    stages, passes = record.plan.stages, record.plan.micro_batches
    whole_s = sum(stage.forward_s + stage.backward_s for stage in stages) or np.inf
    busy_s = [record.per_step(s, FORWARD + BACKWARD) for s in range(len(stages))]
    for s, stage in enumerate(stages):
        rank, share = record.schedule.rank_of[s], (stage.forward_s + stage.backward_s) / whole_s
        yield {
            "index": s,
            "replicas": stage.replicas,
            "forward_s": {"predicted": passes * stage.forward_s, "measured": record.per_step(s, FORWARD)},
            "backward_s": {"predicted": passes * stage.backward_s, "measured": record.per_step(s, BACKWARD)},
            "reduction_s": {"predicted": stage.all_reduce_s, "measured": record.per_step(s, REDUCTION)},
            "update_s": {"predicted": None, "measured": record.per_step(s, UPDATE)},
            "share": {"predicted": float(share), "measured": busy_s[s] / sum(busy_s)},
            "idle_share": {"predicted": float(predicted_idle[rank]), "measured": float(idle[rank])},
        }


def idle_shares(record: RunRecord) -> FloatArray:
    """[ranks] share of a step on the wall in which a rank's first replica runs no pass, reduction or update; median."""
    shares = []
    for step in record.counted:
        passes: list[list[tuple[float, float]]] = [[] for _ in range(record.schedule.ranks)]
        for one in step.passes:
            if not one.replica:
                passes[record.schedule.rank_of[one.stage]].append((one.start_s, one.end_s))
        shares.append([1.0 - _covered_s(spans) / step.length_s for spans in passes])
    return np.asarray(np.median(shares, axis=0))


def predicted_idle_shares(record: RunRecord, predicted: Timeline) -> FloatArray:
    """[ranks] the same of the predicted step."""
    work: list[list[tuple[float, float]]] = [[] for _ in range(record.schedule.ranks)]
    for interval in predicted.intervals:
        if not interval.kind.startswith("send"):
            work[interval.resource].append((interval.start_s, interval.end_s))
    return np.asarray([1.0 - _covered_s(spans) / (predicted.length_s or np.inf) for spans in work])


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one span goes on: reductions and updates may run beside passes."""
    covered_s, until_s = 0.0, 0.0
    for start_s, end_s in sorted(spans):
        covered_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return covered_s
