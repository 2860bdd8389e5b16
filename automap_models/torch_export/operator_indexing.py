"""Rows and elements by index: looked up, written and added."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from automap_models.torch_export.factors import Call, Described, Label, Labels, Roles, size_bytes, without_broadcast


def _rows(table: Tensor, dim: int, index: Tensor, result: Tensor) -> list[Described]:
    """Rows of a table by index: where it is sharded, each device looks up its own, and the results are summed."""
    index_labels = tuple(("index", i) for i in range(index.dim()))
    of_table: Labels = tuple("row" if d == dim else d for d in range(table.dim()))
    of_result = (*of_table[:dim], *index_labels, *of_table[dim + 1 :])
    moved = size_bytes(index) + 2 * size_bytes(result)
    return [
        Described(
            "gather", ((table, of_table), (index, index_labels)), ((result, of_result),), _SUMMED_ROWS, 0.0, moved
        )
    ]


_SUMMED_ROWS = Roles(reduced=frozenset({"row"}))


def embedding(call: Call) -> list[Described]:
    """Rows of a table of embeddings by their numbers."""
    return _rows(call.arguments["weight"], 0, call.arguments["indices"], call.results[0])


def index_select(call: Call) -> list[Described]:
    """Slices along one dimension by their numbers."""
    a = call.arguments
    return _rows(a["self"], a["dim"] % max(a["self"].dim(), 1), a["index"], call.results[0])


def index_call(call: Call) -> list[Described]:
    """x[:, index]: by one index as `_rows`; by several, everything that they stand for stays whole."""
    table, indices = call.arguments["self"], list(call.arguments["indices"])
    at = [dim for dim, index in enumerate(indices) if index is not None]
    if len(at) == 1:
        return _rows(table, at[0], indices[at[0]], call.results[0])
    result = call.results[0]
    return [_several(call, table, at, result, "gather")]


def _several(call: Call, whole: Tensor, at: Sequence[int], picked: Tensor, word: str) -> Described:
    """x[i, j, :]: dimensions of the indices come where the first of these stands, or first if they stand apart.

    An index that counts from 0 to the end, as the one of the samples in a mask, picks everything in order.
    """
    indices = [call.arguments["indices"][dim] for dim in at]
    rank = max(index.dim() for index in indices)
    together = list(at) == list(range(at[0], at[0] + len(at)))
    first = at[0] if together else 0
    of_table: list[Label | None] = [("row", dim) if dim in at else dim for dim in range(whole.dim())]
    others = [label for dim, label in enumerate(of_table) if dim not in at]
    index_labels = [("index", i) for i in range(rank)]
    of_result = (*others[:first], *index_labels, *others[first:])
    tied: set[Label] = set()
    for dim, index, counts in zip(at, indices, call.arguments["counting"], strict=True):
        along = [i for i, size in enumerate(index.shape) if size > 1]
        if counts and len(along) == 1 and index.numel() == whole.shape[dim]:
            of_table[dim] = index_labels[rank - index.dim() + along[0]]
            tied.add(of_table[dim])
    operands = [(whole, tuple(of_table))]
    for index in indices:
        own = index_labels[rank - index.dim() :]
        operands.append(
            (index, tuple(None if size == 1 else label for label, size in zip(own, index.shape, strict=True)))
        )
    roles = Roles(whole=frozenset({*(("row", dim) for dim in at), *index_labels} - tied))
    return Described(word, tuple(operands), ((picked, of_result),), roles, 0.0, 2 * size_bytes(picked))


def gather(call: Call) -> list[Described]:
    """out[i, j] = x[i, index[i, j]]: along the dimension as `_rows`, the others are one; shorter ones stay whole."""
    a, (result,) = call.arguments, call.results
    of_table, of_index, whole = _paired(a["self"], a["index"], a["dim"])
    roles = Roles(frozenset({"row"}), frozenset(whole))
    moved = size_bytes(a["index"]) + 2 * size_bytes(result)
    return [
        Described("gather", ((a["self"], of_table), (a["index"], of_index)), ((result, of_index),), roles, 0.0, moved)
    ]


def _paired(table: Tensor, index: Tensor, dim: int) -> tuple[Labels, Labels, set[Label]]:
    """Labels of a tensor and of an index of the same rank into one of its dimensions, and those that stay whole."""
    dim %= max(table.dim(), 1)
    whole: set[Label] = set()
    of_table: list[Label | None] = []
    of_index: list[Label | None] = []
    for d, (size, own) in enumerate(zip(table.shape, index.shape, strict=True)):
        if d == dim:
            of_table.append("row")
            of_index.append("index")
        elif size == own:
            of_table.append(d)
            of_index.append(d)
        else:
            of_table.append(d)
            of_index.append(("part", d))
            whole.update({d, ("part", d)})
    return tuple(of_table), tuple(of_index), whole


def scatter(call: Call) -> list[Described]:
    """x with numbers put in, or added, at an index along one dimension: each device writes its own rows."""
    a, (result,) = call.arguments, call.results
    of_table, of_index, whole = _paired(a["self"], a["index"], a["dim"])
    operands = [(a["self"], of_table), (a["index"], of_index)]
    if isinstance(a.get("src"), Tensor):
        operands.append((a["src"], of_index if a["src"].shape == a["index"].shape else (None,) * a["src"].dim()))
    roles = Roles(whole=frozenset({*whole, "index"}))
    return [Described("scatter", tuple(operands), ((result, of_table),), roles)]


def embedding_backward(call: Call) -> list[Described]:
    """The gradient of a table: rows of gradients added at their indices."""
    a, (result,) = call.arguments, call.results
    index = a["indices"]
    of_index = tuple(("index", i) for i in range(index.dim()))
    operands = ((a["grad_output"], (*of_index, "d")), (index, of_index))
    roles = Roles(reduced=frozenset(of_index))
    return [Described("scatter", operands, ((result, ("row", "d")),), roles, float(a["grad_output"].numel()))]


def index_put(call: Call) -> list[Described]:
    """x with numbers put in at indices. Onto zeros, as gradients are, sums over the indices are sums of results."""
    a, (result,) = call.arguments, call.results
    indices, table, values = list(a["indices"]), a["self"], a["values"]
    at = [dim for dim, index in enumerate(indices) if index is not None]
    picked = _several(call, table, at, values, "scatter")
    (_, of_values), of_table = picked.results[0], picked.operands[0][1]
    if len(of_values) != values.dim():  # broadcast values
        of_values = (None,) * values.dim()
    roles = picked.roles
    if len(at) == 1 and a.get("onto_zeros") and a["accumulate"]:
        index_labels = frozenset(label for label in of_values if isinstance(label, tuple) and label[0] == "index")
        roles = Roles(reduced=index_labels)
    operands = (*picked.operands, (values, without_broadcast(of_values, values)))
    return [Described("scatter", operands, ((result, of_table),), roles, float(values.numel()))]
