"""The passes of one step on JAX's devices: what a program reads is moved to its sub-mesh, and what it returns is kept.

in_order     one pass after another is handed to XLA, in an order in which none comes before its inputs; devices
             work at the same time all the same, because XLA does not wait
measured     the same, but each pass ends before the next one starts: its times are its own
overlapped   a thread for each rank plays the rank's passes and waits for what others make: lanes of a real step
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from automap_models.core.passes import Action, Schedule
from automap_models.core.run_record import Pass
from automap_models.errors import BadInput
from automap_models.hlo.step_cut import ProgramKey
from automap_models.run.jax_programs import CompiledProgram, StepPrograms

_PROGRAMS: Mapping[str, str] = {"F": "F", "B": "BIW", "I": "I", "W": "W"}
"""Pass of a schedule → the programs that it runs, of those that there are; a whole backward pass may be two."""

StoredValues = dict[tuple[int, int], Any]
"""(argument, stage) → its array there."""


class StepPasses:
    """One step: the values of its micro-batches while somebody still reads them, and its sums.

    Args:
        programs: of the step.
        schedule: the order of passes.
        stored: parameters and state; what micro-batches pass on is replaced in it.
        parts: [M] the inputs of each micro-batch, by argument.
        clock: what `Pass.busy_s` is read from.

    Attributes:
        totals: value → its sum over the micro-batches so far.
        passes: what was measured.
    """

    def __init__(
        self,
        programs: StepPrograms,
        schedule: Schedule,
        stored: StoredValues,
        parts: Sequence[Mapping[int, Any]],
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._programs, self._schedule, self._stored, self._parts = programs, schedule, stored, parts
        self._clock = clock
        self._compiled = programs.compiled
        self._values: list[dict[tuple[int, int], Any]] = [{} for _ in parts]
        readers = Counter(v for program in programs.cut.of_kind("FBIW") for v in program.inputs)
        self._readers = [readers.copy() for _ in parts]
        self._lock = threading.Condition()
        self._done: set[tuple[ProgramKey, int]] = set()
        self._failure: BaseException | None = None
        self._began = time.perf_counter()
        self.totals: dict[int, Any] = {}
        self.passes: list[Pass] = []

    # ---- three ways to play a step ---------------------------------------------------------------------------------

    def in_order(self, *, measured: bool = False) -> dict[int, Any]:
        """Play all passes and updates; returns what the updates return.

        Args:
            measured: whether to wait for each and note it, with the processor time of the whole process.
        """
        for action in self._schedule.in_turn:
            self._noted(action, measured)
        for stage in self._programs.reductions:
            self._reduce(stage, measured)
        updated: dict[int, Any] = {}
        for key in self._updates():
            self._update(key, updated, measured)
        return updated

    def overlapped(self) -> dict[int, Any]:
        """Play all passes in a thread for each rank, then the updates of each level likewise; note them all.

        Raises:
            BaseException: whatever a thread raised; the others end, too.
        """
        self._began = time.perf_counter()
        self._threads([[partial(self._noted, action, True) for action in order] for order in self._schedule.orders])
        self._threads([[partial(self._reduce, stage, True)] for stage in self._programs.reductions])
        updated: dict[int, Any] = {}
        for level in sorted({key.level for key in self._updates()}):
            self._threads(
                [[partial(self._update, key, updated, True)] for key in self._updates() if key.level == level]
            )
        return updated

    def _updates(self) -> Iterator[ProgramKey]:
        return (key for key in self._compiled if key.kind == "U")

    def _threads(self, work: Sequence[Sequence[Callable[[], None]]]) -> None:
        """One thread after the other is given its calls, which all of them make at the same time."""

        def play(calls: Sequence[Callable[[], None]]) -> None:
            try:
                for call in calls:
                    call()
                    if self._failure is not None:
                        return
            except BaseException as error:
                with self._lock:
                    self._failure = self._failure or error
                    self._lock.notify_all()

        threads = [threading.Thread(target=play, args=(calls,), daemon=True) for calls in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _timed(self, action: tuple[str, int, int], measured: bool, play: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """What is played; where it is measured, when it is over and its times are noted."""
        kind, stage, m = action
        start, used = time.perf_counter(), self._clock()
        results = play()
        if measured:
            jax.block_until_ready(results)  # type: ignore[no-untyped-call]
            busy, end = self._clock() - used, time.perf_counter()
            self.passes.append(Pass(kind, stage, None, m, start - self._began, end - self._began, busy))
        return results

    def _reduce(self, stage: int, measured: bool) -> None:
        """Sum what a stage's replicas have added up for themselves."""
        reduction = self._programs.reductions[stage]
        given = [self.totals[v] for v in reduction.values]
        totals = self._timed(("G", stage, 0), measured, lambda: reduction.call(*given))
        with self._lock:
            self.totals |= zip(reduction.values, totals, strict=True)

    def _noted(self, action: Action, measured: bool) -> None:
        """Play a pass, as soon as there is what it reads."""
        if measured:
            self._wait(action)
        self._timed(action, measured, lambda: self._play(action))
        with self._lock:
            self._done.update((key, action.micro_batch) for key in self._keys(action))
            self._lock.notify_all()

    def _keys(self, action: Action) -> list[ProgramKey]:
        keys = [ProgramKey(kind, action.stage) for kind in _PROGRAMS.get(action.kind, "")]  # type: ignore[arg-type]
        return [key for key in keys if key in self._compiled]

    def _wait(self, action: Action) -> None:
        """Wait until everything that a pass reads was made."""
        keys = self._keys(action)
        source, arguments = self._programs.cut.source, self._programs.arguments
        needed = {
            (source[v, key.stage], action.micro_batch)
            for key in keys
            for v in self._compiled[key].program.inputs
            if v >= arguments
        } - {(key, action.micro_batch) for key in keys}
        with self._lock:
            self._lock.wait_for(lambda: self._failure is not None or needed <= self._done)

    # ---- one pass --------------------------------------------------------------------------------------------------

    def _play(self, action: Action) -> list[Any]:
        results: list[Any] = []
        for key in self._keys(action):
            results += self._run(self._compiled[key], action.micro_batch)
        return results

    def _run(self, compiled: CompiledProgram, m: int) -> list[Any]:
        program, stage = compiled.program, compiled.program.key.stage
        with self._lock:
            given = [self._given(v, stage, m) for v in program.inputs]
            sums = [self._sum(v, stage) for v in compiled.summed]
        returned = list(compiled.call(*given, *sums))
        passed = len(compiled.passed)
        with self._lock:
            for v, value in zip(compiled.passed, returned[:passed], strict=True):
                self._values[m][v, stage] = value
            self.totals |= zip(compiled.summed, returned[passed:], strict=True)
            self._pass_on(stage, m)
            for v in program.inputs:
                self._release(v, m)
        return returned

    def _given(self, v: int, stage: int, m: int) -> Any:
        """A value of a micro-batch on a stage's devices."""
        values, moved = self._values[m], self._programs.shardings.moved
        if (v, stage) in values:
            return values[v, stage]
        if v < self._programs.arguments and v not in self._parts[m]:
            return self._stored[v, stage]
        value = self._parts[m][v] if v in self._parts[m] else values[v, self._programs.cut.source[v, stage].stage]
        values[v, stage] = moved(value, v, stage)
        return values[v, stage]

    def _sum(self, v: int, stage: int) -> Any:
        if v not in self.totals:
            kind = self._programs.sum_of(v, stage)
            self.totals[v] = jnp.zeros(kind.shape, kind.dtype, device=kind.sharding)
        return self.totals[v]

    def _pass_on(self, stage: int, m: int) -> None:
        """Let the next micro-batch find the state that this one made; this one's backward pass still reads its own."""
        for argument, v in self._programs.cut.threaded.items():
            if (v, stage) in self._values[m]:
                if (argument, stage) in self._stored:
                    self._values[m].setdefault((argument, stage), self._stored[argument, stage])
                self._stored[argument, stage] = self._values[m].pop((v, stage))

    def _release(self, v: int, m: int) -> None:
        """Forget a value that nobody reads any more."""
        self._readers[m][v] -= 1
        if not self._readers[m][v]:
            for key in [key for key in self._values[m] if key[0] == v]:
                del self._values[m][key]

    # ---- one update ------------------------------------------------------------------------------------------------

    def _update(self, key: ProgramKey, updated: dict[int, Any], measured: bool) -> None:
        """Play an update; what it returns is added to `updated`."""
        compiled = self._compiled[key]

        def play() -> Sequence[Any]:
            return compiled.call(*(self._gathered(v, key.stage, updated) for v in compiled.program.inputs))

        returned = self._timed(("U", key.stage, 0), measured, play)
        updated |= zip(compiled.program.outputs, returned, strict=True)

    def _gathered(self, v: int, stage: int, updated: Mapping[int, Any]) -> Any:
        """What an update reads: a sum, what another update made, or what the stage holds."""
        if v >= self._programs.arguments:
            value = self.totals[v] if v in self.totals else updated[v]
            return self._programs.shardings.moved(value, v, stage)
        if v in self._parts[0]:
            what = "the update of the parameters reads an input"
            raise BadInput(what, where=self._programs.module.name, do="let it depend on gradients and state alone")
        return self._stored[v, stage]
