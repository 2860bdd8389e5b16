"""The work of a GPT as the literature lists it: its products, what it keeps and what it sums.

Products and parameters: Narayanan et al. (2104.04473, appendix). Saved bytes: Korthikanti et al. (2205.05198, section
4):

    layer norms 4·s·h · input of q, k, v 2 · q, k 4 · v 2 · input of the projection 2 · dropout mask 1
    input of the perceptron 2 · of its second product and of GeLU 8 + 8 · dropout mask 1       together 34·s·h
    softmax, its dropout mask and output: (2 + 1 + 2)·a·s² in the attention core
    embedding: dropout mask s·h · head: layer norm and product 4·s·h, logits in fp32 4·s·v
"""

from __future__ import annotations

import numpy as np

from automap_models.core.model_work import Amounts, Kernels, LayerWork, Mark, ModelWork, WorkKind, WorkPass
from automap_models.core.strategy import TransformerShape

TOKEN = int(Mark.SAMPLES | Mark.TOKENS)
TENSOR = int(Mark.TENSOR)
BYTES = 2
NONE = Amounts(np.zeros(0), np.zeros(0, np.int8))


def amounts(*pairs: tuple[float, int]) -> Amounts:
    """Values with their marks."""
    return Amounts(np.array([value for value, _ in pairs]), np.array([mark for _, mark in pairs], np.int8))


class KernelList:
    """Kernels of a layer in the making."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, bool, tuple[float, ...], tuple[int, ...]]] = []
        self.moved: list[tuple[int, float, int, bool]] = []

    def product(
        self,
        of_pass: int,
        sizes: tuple[float, float, float, float],
        marks: tuple[int, int, int, int],
        scores: str = "",
        core: bool = False,
    ) -> None:
        """A product, which moves its operands and its result; `scores` names which of a (rows × depth), b, c are."""
        kernel = len(self.rows)
        self.rows.append((of_pass, WorkKind.PRODUCT, core, sizes, marks))
        n, rows, columns, depth = sizes
        for name, extent, (i, j) in (
            ("a", rows * depth, (1, 3)),
            ("b", depth * columns, (3, 2)),
            ("c", rows * columns, (1, 2)),
        ):
            self.moved.append((kernel, BYTES * n * extent, marks[0] | marks[i] | marks[j], name in scores))

    def linear(self, tokens: float, columns: float, depth: float, split: str) -> None:
        """A linear layer forward and backward, whose `columns` or `depth` tp divides."""
        c, d = (TENSOR, 0) if split == "columns" else (0, TENSOR)
        self.product(WorkPass.FORWARD, (1, tokens, columns, depth), (0, TOKEN, c, d))
        self.product(WorkPass.INPUT, (1, tokens, depth, columns), (0, TOKEN, d, c))
        self.product(WorkPass.WEIGHT, (1, depth, columns, tokens), (0, d, c, TOKEN))

    def memory(self, of_pass: int, moved: float, mark: int, core: bool = False) -> None:
        """A kernel that moves so many bytes, scores where it is of the core."""
        self.moved.append((len(self.rows), moved, mark, core))
        self.rows.append((of_pass, WorkKind.MEMORY, core, (1, 1, 1, 1), (0, 0, 0, 0)))

    def done(self) -> Kernels:
        """All of them."""
        passes, kinds, core, sizes, marks = zip(*self.rows, strict=True)
        kernels, moved, moved_marks, scores = zip(*self.moved, strict=True)
        return Kernels(
            np.array(passes, np.int8),
            np.array(kinds, np.int8),
            np.array(core),
            np.array(sizes, float),
            np.array(marks, np.int8),
            np.array(kernels),
            np.array(moved),
            np.array(moved_marks, np.int8),
            np.array(scores),
            np.zeros(len(scores), np.bool_),
        )


def _block(s: float, h: float, a: float) -> LayerWork:
    k, both = KernelList(), TOKEN | TENSOR
    for of_pass, moved in ((WorkPass.FORWARD, 8 * s * h), (WorkPass.INPUT, 12 * s * h)):
        k.memory(of_pass, moved, TOKEN)  # layer norms, dropout and residual
        k.memory(of_pass, moved, TOKEN)
        k.memory(of_pass, 2 * moved, both)  # GeLU
        k.memory(of_pass, 6 * a * s * s, both, core=True)  # softmax and dropout
    k.linear(s, 3 * h, h, "columns")
    k.linear(s, h, h, "depth")
    k.linear(s, 4 * h, h, "columns")
    k.linear(s, h, 4 * h, "depth")
    heads, queries = TENSOR, TOKEN
    d = h / a
    k.product(WorkPass.FORWARD, (a, s, s, d), (heads, queries, 0, 0), "c", core=True)
    k.product(WorkPass.FORWARD, (a, s, d, s), (heads, queries, 0, 0), "a", core=True)
    for _ in range(2):
        k.product(WorkPass.INPUT, (a, s, d, s), (heads, queries, 0, 0), "a", core=True)
        k.product(WorkPass.INPUT, (a, s, s, d), (heads, queries, 0, 0), "c", core=True)
    sums = amounts((2 * s * h, TOKEN), (2 * s * h, TOKEN))
    return LayerWork(
        name="block",
        kernels=k.done(),
        parameters=amounts((12 * h * h + 7 * h, TENSOR), (6 * h, 0)),
        saved=amounts((10 * s * h, TOKEN), (24 * s * h, both)),
        saved_core=amounts((5 * a * s * s, both)),
        saved_for_weights=amounts((4 * s * h, TOKEN), (10 * s * h, both)),
        boundary=amounts((2 * s * h, TOKEN)),
        sums_forward=sums,
        sums_backward=sums,
        exchanged=NONE,
        context=amounts((4 * s * h, both)),
    )


def _embedding(s: float, h: float, v: float) -> LayerWork:
    k = KernelList()
    k.memory(WorkPass.FORWARD, 6 * s * h, TOKEN)
    k.memory(WorkPass.WEIGHT, 6 * s * h, TOKEN)
    return LayerWork(
        name="embedding",
        kernels=k.done(),
        parameters=amounts((v * h, TENSOR), (s * h, 0)),
        saved=amounts((s * h, TOKEN)),
        saved_core=NONE,
        saved_for_weights=NONE,
        boundary=amounts((2 * s * h, TOKEN)),
        sums_forward=amounts((2 * s * h, TOKEN)),
        sums_backward=NONE,
        exchanged=NONE,
        context=NONE,
    )


def _head(s: float, h: float, v: float) -> LayerWork:
    k = KernelList()
    k.linear(s, v, h, "columns")
    k.memory(WorkPass.FORWARD, 8 * s * v, TOKEN | TENSOR)
    k.memory(WorkPass.INPUT, 6 * s * v, TOKEN | TENSOR)
    return LayerWork(
        name="head",
        kernels=k.done(),
        parameters=amounts((2 * h, 0)),
        saved=amounts((4 * s * h, TOKEN), (4 * s * v, TOKEN | TENSOR)),
        saved_core=NONE,
        saved_for_weights=amounts((2 * s * h, TOKEN)),
        boundary=NONE,
        sums_forward=NONE,
        sums_backward=amounts((2 * s * h, TOKEN)),
        exchanged=NONE,
        context=NONE,
    )


def gpt_work(
    layers: int, hidden: int, heads: int, sequence: int = 2048, vocabulary: int = 51200, name: str = "GPT"
) -> ModelWork:
    """A GPT in 16 bits, whose head shares the embedding's weights."""
    shape = TransformerShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        sequence=sequence,
        vocabulary=vocabulary,
    )
    s, h, a, v = map(float, (sequence, hidden, heads, vocabulary))
    return ModelWork(
        shape=shape,
        layers=(_embedding(s, h, v), _block(s, h, a), _head(s, h, v)),
        order=(0, *[1] * layers, 2),
        dtype="bfloat16",
        tied=v * h,
    )
