"""A training step cut into the programs that the stages of a plan run.

Every stage has a forward program F and a backward program B, which run once a micro-batch, and update programs U, which
run once a global batch. A backward pass that a schedule splits is two programs: I, what stages before it wait for, and
W, the rest.

    micro-batch ── F0 ── F1 ── F2 ┐      U0   U1   U2
                   │     │     │  loss    ↑    ↑    ↑
                   B0 ── B1 ── B2 ┘       gradients, averaged over the micro-batches

An instruction belongs

- forward: to the stage whose instructions it is among.
- backward: to the stage of its forward instruction (attribution.py), or to an earlier one that it reads.
- update: to the stage of the parameter that it updates. A scalar made of several stages' values, such as the norm of
  all gradients, belongs to the first stage; what waits for it is an update program of a higher level.

Three sorts of instructions belong nowhere, and are copied to wherever they are read: those made of constants alone,
views, and those made of the step's state alone, such as the count of steps.

A gradient that is the sum of several stages' parts, that of tied weights for one, is added up in the update: the sum
over micro-batches of a sum is the sum of the sums.

State that the forward pass reads and that depends on no gradient, such as batch statistics, goes from micro-batch to
micro-batch, as if they were steps of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from automap_models.core.dag import post_order
from automap_models.core.instruction_graph import InstructionGraph, Phase
from automap_models.cost.kernel_traffic import PART_OPCODE
from automap_models.errors import BadInput
from automap_models.hlo.attribution import homes
from automap_models.hlo.liveness import NEVER, Liveness

ProgramKind = Literal["F", "B", "I", "W", "U"]
"""Forward, whole backward, gradients of what came in, gradients of the weights, update."""

VIEWS = frozenset({"reshape", "broadcast_in_dim", "broadcast", PART_OPCODE})
"""Opcodes of what is copied to its readers: it computes nothing."""
LINEAR = frozenset({"add", "concatenate", "convert", "negate", "reshape", "transpose"})
"""Opcodes of what may come after a sum over micro-batches instead of before it."""


class ProgramKey(NamedTuple):
    """Which program: what it does, of which stage, and for updates how often it waits for another stage's."""

    kind: ProgramKind
    stage: int
    level: int = 0


@dataclass(frozen=True)
class Program:
    """A part of a step that one stage runs.

    Attributes:
        key: which one.
        operations: of the module, in execution order.
        inputs: value ids that it takes: arguments of the step and values that other programs make.
        outputs: value ids that it returns, because others, or the caller, need them.
    """

    key: ProgramKey
    operations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class StepCut:
    """The programs of a step.

    Attributes:
        stages: how many there are.
        programs: each after those that it reads, of one micro-batch.
        source: (value, the stage that reads it) → the program that makes it; not of arguments.
        threaded: state argument → what it is after a micro-batch.
        returned: argument → the value that replaces it after a global batch; itself where it stays.
        results: value ids of what else the step returns, the loss among it.
        wanted: further values that the programs return, such as gradients.
    """

    stages: int
    programs: Mapping[ProgramKey, Program]
    source: Mapping[tuple[int, int], ProgramKey]
    threaded: Mapping[int, int]
    returned: Mapping[int, int]
    results: tuple[int, ...]
    wanted: tuple[int, ...] = ()

    def of_kind(self, kinds: str) -> Iterator[Program]:
        """The programs of these kinds."""
        return (program for key, program in self.programs.items() if key.kind in kinds)

    def averaged(self) -> tuple[int, ...]:
        """Values of micro-batches that updates read or the step returns; ascending."""
        written = {v for program in self.of_kind("FBIW") for v in program.outputs}
        read = {v for program in self.of_kind("U") for v in program.inputs} | set(self.results)
        read |= set(self.wanted)
        read |= set(self.returned.values()) - set(self.threaded.values())
        return tuple(sorted(written & read))

    def holders(self, argument: int) -> tuple[int, ...]:
        """The stages whose programs read an argument."""
        return tuple(sorted({key.stage for key, program in self.programs.items() if argument in program.inputs}))


def cut_step(
    graph: InstructionGraph,
    cuts: Sequence[int],
    returned: Mapping[int, int],
    *,
    wanted: Sequence[int] = (),
    split_backward: bool = False,
) -> StepCut:
    """The programs of the stages of a plan.

    Args:
        graph: the step's.
        cuts: [S-1] the last forward instruction of each stage but the last.
        returned: argument → value that the step returns in its place; of parameters and state.
        wanted: further values to return, see `gradients`.
        split_backward: whether the backward pass is two programs.

    Raises:
        BadInput: state goes from micro-batch to micro-batch through several stages, or a cut is out of range.
    """
    liveness = Liveness(graph)
    if any(not 0 <= a < liveness.forward.size - 1 for a in cuts):
        what = f"the plan's cuts {list(cuts)} are not among the {liveness.forward.size} forward instructions"
        raise BadInput(what, where=graph.model, do="give the model that the plan was made for")
    owners = _Owners(graph, liveness, cuts)
    cut = _Cut(graph, owners, returned, wanted).resolved()
    return _Cut(graph, owners, returned, wanted, split=cut).resolved() if split_backward else cut


def gradients(graph: InstructionGraph, returned: Mapping[int, int]) -> dict[int, int]:
    """Parameter → the value of the backward pass, of its shape, that its update reads; of those that have one."""
    reads, producers, phases = Liveness(graph).reads, graph.producers.tolist(), graph.phases.tolist()
    of_parameters: dict[int, int] = {}
    for argument, v in returned.items():
        pending, visited = [v], {v}
        while pending and graph.arguments[argument].kind == "parameter":
            i = producers[pending.pop()]
            if i < 0 or phases[i] != Phase.UPDATE:
                continue
            for u in reads[i]:
                same = graph.shapes[u] == graph.shapes[argument] and u not in visited
                if same and producers[u] >= 0 and phases[producers[u]] == Phase.BACKWARD:
                    of_parameters.setdefault(argument, u)
                elif same:
                    visited.add(u)
                    pending.append(u)
    return of_parameters


class _Owners:
    """The program that each instruction belongs to.

    Attributes:
        key: [n] the program; None for one that is copied to its readers.
        kept_only: [n] whether an instruction is made of state alone, in the update of parameters and state.
        free: [n] whether it is made of constants, or is a view.
        of_gradients: [n] whether it depends on the backward pass.
    """

    def __init__(self, graph: InstructionGraph, liveness: Liveness, cuts: Sequence[int]) -> None:
        self.graph, self.stages = graph, len(cuts) + 1
        self.reads, self.results = liveness.reads, liveness.results
        self.producers: list[int] = graph.producers.tolist()
        self.phases: list[int] = graph.phases.tolist()
        self.key: list[ProgramKey | None] = [None] * len(graph)
        self._classify()
        self._late = self._late_sums()
        home = homes(liveness)
        stage_of_position = np.searchsorted(np.asarray(cuts, dtype=np.int64), np.arange(liveness.forward.size))
        self._home_stage = [NEVER if h == NEVER else int(stage_of_position[h]) for h in home.tolist()]
        self._assign()

    def _classify(self) -> None:
        kinds = {"parameter": 1, "state": 2, "input": 4}
        depends = [kinds[argument.kind] for argument in self.graph.arguments]
        gradients = [False] * len(depends)
        self.kept_only, self.free, self.of_gradients = list[bool](), list[bool](), list[bool]()
        for i, read in enumerate(self.reads):
            dependence, of_gradients = 0, self.phases[i] == Phase.BACKWARD
            for v in read:
                dependence |= depends[v]
                of_gradients |= gradients[v]
            depends += [dependence] * len(self.results[i])
            gradients += [of_gradients] * len(self.results[i])
            self.free.append(not dependence or self._is_view(i))
            allowed = {0, 2, 1, 3} if self.phases[i] == Phase.UPDATE else {0, 2}
            self.kept_only.append(dependence in allowed and not of_gradients)
            self.of_gradients.append(of_gradients)

    def _is_view(self, i: int) -> bool:
        return self.graph.opcodes[i] in VIEWS and len(self.reads[i]) == len(self.results[i]) == 1

    def is_copied(self, i: int) -> bool:
        """Whether an instruction belongs nowhere."""
        return self.free[i] or self.kept_only[i]

    def _late_sums(self) -> list[bool]:
        """[n] backward instructions that may as well run in the update, since only that reads them."""
        only_update = [True] * len(self.graph.shapes)
        late = [False] * len(self.reads)
        for i in range(len(self.reads) - 1, -1, -1):
            if self.phases[i] == Phase.UPDATE:
                continue
            linear = self.graph.opcodes[i] in LINEAR and "f" in self.graph.dtypes[self.results[i][0]]
            late[i] = self.phases[i] == Phase.BACKWARD and linear and all(only_update[v] for v in self.results[i])
            if not late[i]:
                for v in self.reads[i]:
                    only_update[v] = False
        return late

    def _assign(self) -> None:
        for i in range(len(self.reads)):
            if self.is_copied(i):
                continue
            if self.phases[i] == Phase.FORWARD:
                self.key[i] = ProgramKey("F", self._home_stage[i])
            elif self.phases[i] == Phase.BACKWARD and not self._is_late(i):
                self.key[i] = ProgramKey("B", self._backward_stage(i))
            else:
                self.key[i] = self._update_key(i)

    def _is_late(self, i: int) -> bool:
        """Whether a backward instruction adds up what different stages make, or follows one that does."""
        keys = set(self._operand_keys(i))
        return self._late[i] and (len(keys) > 1 or any(key.kind == "U" for key in keys))

    def _operand_keys(self, i: int) -> list[ProgramKey]:
        """Of each operand that is neither an argument nor copied; views are looked through."""
        makers = [self.producers[self.source_of(v)] for v in self.reads[i]]
        return [key for maker in makers if maker >= 0 and (key := self.key[maker]) is not None]

    def source_of(self, v: int) -> int:
        """What a view shows."""
        while self.producers[v] >= 0 and self._is_view(self.producers[v]):
            v = self.reads[self.producers[v]][0]
        return v

    def _backward_stage(self, i: int) -> int:
        home = self._home_stage[i]
        before = [key.stage for key in self._operand_keys(i) if key.kind == "B"]
        return min([self.stages - 1 if home == NEVER else home, *before])

    def _update_key(self, i: int) -> ProgramKey:
        keys = self._operand_keys(i)
        stages = {key.stage for key in keys}
        scalar = all(self.graph.shapes[v] == () for v in self.results[i])
        home = self._home_stage[i]
        between = (scalar and stages) or home == NEVER
        stage = (next(iter(stages)) if len(stages) == 1 else 0) if between else home
        level = max((key.level + (key.stage != stage) for key in keys if key.kind == "U"), default=0)
        return ProgramKey("U", stage, level)


class _Cut:
    """The programs, grown from what the step returns back to its arguments.

    Args:
        split: the cut with whole backward programs, whose I and W are wanted.
    """

    def __init__(
        self,
        graph: InstructionGraph,
        owners: _Owners,
        returned: Mapping[int, int],
        wanted: Sequence[int],
        split: StepCut | None = None,
    ) -> None:
        self.graph, self.owners, self.returned, self.wanted = graph, owners, returned, tuple(wanted)
        self.arguments = len(graph.arguments)
        self.key = list(owners.key)
        self.operations: dict[ProgramKey, set[int]] = defaultdict(set)
        self.inputs: dict[ProgramKey, set[int]] = defaultdict(set)
        self.outputs: dict[ProgramKey, set[int]] = defaultdict(set)
        self.source: dict[tuple[int, int], ProgramKey] = {}
        if split is not None:
            self._split(split)

    def resolved(self) -> StepCut:
        """All that the step returns, with all that this needs."""
        threaded = self._threaded()
        results = [v for v in self.graph.outputs.tolist() if v not in set(self.returned.values())]
        for v in dict.fromkeys((*results, *self.wanted)):
            self._return(v, None)
        for argument, v in self.returned.items():
            if argument not in threaded and v >= self.arguments:
                self._return(v, argument)
        self._thread(threaded)
        programs = {key: self._program(key) for key in sorted(self.operations, key=self._turn)}
        return StepCut(
            self.owners.stages, programs, self.source, threaded, dict(self.returned), tuple(results), self.wanted
        )

    def _turn(self, key: ProgramKey) -> tuple[int, int, int]:
        """Where a program stands in one micro-batch's order."""
        if key.kind == "U":
            return (3, key.level, key.stage)
        return (0, key.stage, 0) if key.kind == "F" else (1, -key.stage, key.kind == "W")

    def _program(self, key: ProgramKey) -> Program:
        inside = tuple(sorted(self.operations[key]))
        return Program(key, inside, tuple(sorted(self.inputs[key])), tuple(sorted(self.outputs[key])))

    def _split(self, cut: StepCut) -> None:
        """Let backward instructions that another stage's wait for be I, the others W."""
        for program in cut.of_kind("B"):
            stage, inside = program.key.stage, set(program.operations)
            needed = {
                v
                for other in cut.of_kind("B")
                if other.key.stage != stage
                for v in set(other.inputs) & set(program.outputs)
            }
            waited = self._ancestors(needed, inside)
            for i in inside:
                if not self.owners.is_copied(i):
                    self.key[i] = ProgramKey("I" if i in waited else "W", stage)

    def _threaded(self) -> dict[int, int]:
        """State that goes from micro-batch to micro-batch → its next value."""
        reads, phases = self.owners.reads, self.owners.phases
        threaded: dict[int, int] = {}
        for argument, v in self.returned.items():
            if self.graph.arguments[argument].kind != "state" or v < self.arguments:
                continue
            if self.owners.of_gradients[self.owners.producers[v]]:
                continue
            readers = [i for i, read in enumerate(reads) if argument in read]
            needed = self._ancestors([v], range(len(reads)))
            in_pass = any(phases[i] != Phase.UPDATE for i in readers)
            if in_pass and all(phases[i] != Phase.UPDATE or i in needed for i in readers):
                threaded[argument] = v
        return threaded

    def _ancestors(self, values: Iterable[int], inside: Container[int]) -> set[int]:
        """The instructions among some that values are made by, one behind the other."""

        def makers(some: Iterable[int]) -> list[int]:
            return [i for v in some if (i := self.owners.producers[v]) in inside]

        return set(post_order(lambda i: makers(self.owners.reads[i]), makers(values)))

    def _thread(self, threaded: Mapping[int, int]) -> None:
        """Let the stages that read such state also make its next value."""
        for argument, v in threaded.items():
            i = self.owners.producers[v]
            key = self.key[i]
            stages = {k.stage for k, read in self.inputs.items() if argument in read}
            if key is None:
                for stage in stages or {0}:
                    self._demand(ProgramKey("F", stage), [v])
                    self.outputs[ProgramKey("F", stage)].add(v)
                    self.source[v, stage] = ProgramKey("F", stage)
                continue
            self._demand(key, [v])
            self.outputs[key].add(v)
            self.source[v, key.stage] = key
            others = stages - {key.stage}
            if others:
                name = self.graph.arguments[argument].name
                what = f"state {name} is made by stage {key.stage} and read by stage {min(others)}"
                raise BadInput(what, where=self.graph.model, do="cut the model before or after the layer that keeps it")

    def _return(self, v: int, argument: int | None) -> None:
        """Make a program return a value that the caller gets."""
        if v < self.arguments:
            return
        key = self.key[self.owners.producers[v]]
        if key is None:
            source = self.owners.source_of(v)
            producer = self.key[self.owners.producers[source]] if source >= self.arguments else None
            key = self._returning(v, argument) if producer is None else producer
        self._demand(key, [v])
        self.outputs[key].add(v)
        self.source[v, key.stage] = key

    def _returning(self, v: int, argument: int | None) -> ProgramKey:
        """The program that returns what belongs nowhere: of the update, or where an input is part of it."""
        if argument is None and self._reads_input(v):
            return ProgramKey("F", self.owners.stages - 1)
        readers = [key.stage for key, read in self.inputs.items() if argument in read]
        return ProgramKey("U", min(readers, default=0))

    def _reads_input(self, v: int) -> bool:
        read = (
            u for i in self._ancestors([v], range(len(self.graph))) for u in self.owners.reads[i] if u < self.arguments
        )
        return any(self.graph.arguments[u].kind == "input" for u in read)

    def _demand(self, key: ProgramKey, values: Iterable[int]) -> None:
        """Give a program what it needs to have these values, and every program that it reads likewise."""
        pending = [(key, v) for v in values]
        while pending:
            program_key, v = pending.pop()
            i = self.owners.producers[v]
            if i < 0:
                self.inputs[program_key].add(v)
                continue
            if i in self.operations[program_key]:
                continue
            maker = self._maker(program_key, i)
            if maker == program_key:
                self.operations[program_key].add(i)
                pending += [(program_key, u) for u in self.owners.reads[i]]
                continue
            self.inputs[program_key].add(v)
            self.outputs[maker].add(v)
            self.source[v, program_key.stage] = maker
            pending.append((maker, v))

    def _maker(self, program_key: ProgramKey, i: int) -> ProgramKey:
        """The program that a program has an instruction from: itself where that is copied."""
        key = self.key[i]
        if key is not None:
            return key
        if not self.owners.free[i] and self.owners.phases[i] == Phase.FORWARD and program_key.kind in "BIW":
            return ProgramKey("F", program_key.stage)
        return program_key
