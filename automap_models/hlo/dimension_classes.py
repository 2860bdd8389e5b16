"""The closed form of propagation along one mesh axis without resharding: equivalence classes and their conflicts.

A dimension is sharded if and only if the factor that it follows is, in every operation that reads or makes its value.
So the connected components of the graph of dimensions and factors are sharded as a whole or not at all. One axis can
shard one factor of an operation and one dimension of a value: two classes that meet there conflict, and a class that
meets itself there can never be sharded. Nor can one with a factor that must stay whole, and one whose sizes the axis
does not divide. Where a reduction factor is sharded an all-reduce follows, which is legal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from automap_models.collection import uncollected
from automap_models.core.instruction_graph import IntArray
from automap_models.core.sharding_classes import ShardingClasses, Variable
from automap_models.hlo.module import Module
from automap_models.hlo.rule_sets import RuleSet, undivided
from automap_models.hlo.sharding_rules import Role, ShardingRules

NO_CLASS = -1


@dataclass(frozen=True, eq=False)
class ModuleSharding:
    """A module's rules and the classes that they make.

    Attributes:
        rules: factor mappings of the operations.
        classes: those that hold dimensions of variables; nothing ever shards the others.
        dim_classes: int64 [n], the class of each of the rules' dimensions, -1 for those of no variable.
        factor_classes: int64 [f], the class of each factor, likewise.
    """

    rules: ShardingRules
    classes: ShardingClasses
    dim_classes: IntArray
    factor_classes: IntArray


@uncollected()
def sharding_classes(module: Module, rules: ShardingRules, rule_set: RuleSet) -> ModuleSharding:
    """The classes of a module's variables under a rule set.

    Args:
        rules: the module's, see `shardy.sharding_rules`.

    Raises:
        BadInput: an operation without a rule that the rule set does not cover either.
    """
    n_dims = int(rules.dim_sizes.size)
    nodes = n_dims + int(rules.factor_sizes.size)
    ties = coo_array(
        (np.ones(rules.link_dims.size, np.int8), (rules.link_dims, n_dims + rules.link_factors)), (nodes,) * 2
    )
    component = connected_components(ties, directed=False)[1].astype(np.int64)
    variables = _variables(module)
    of_variables = component[: rules.dim_offsets[len(variables)]]
    number = _numbered(of_variables, int(component.max(initial=-1)) + 1)
    of_node = number[component]
    is_whole = np.zeros(nodes, dtype=np.bool_)
    forbidden_dims, forbidden_factors = undivided(module, rules, rule_set)
    is_whole[rules.whole_dims] = is_whole[forbidden_dims] = True
    is_whole[n_dims:] = (rules.factor_roles & Role.FIXED > 0) | forbidden_factors
    sizes = np.where(is_whole, 1, np.concatenate([rules.dim_sizes, rules.factor_sizes]))
    together = _together(rules, of_node)
    divisors = np.zeros(together.shape[1], dtype=np.int64)  # the greatest common divisor of the sizes in each class
    np.gcd.at(divisors, of_node[of_node != NO_CLASS], sizes[of_node != NO_CLASS])
    meets_itself = together.max(axis=0).toarray().ravel() > 1
    divisors[meets_itself] = 1
    classes = ShardingClasses(variables, number[of_variables], divisors, _conflicts(together, divisors))
    return ModuleSharding(rules, classes, of_node[:n_dims], of_node[n_dims:])


def _variables(module: Module) -> tuple[Variable, ...]:
    """The module's arguments; of several with one name, the later ones get their position as well."""
    first = {argument.name: i for i, argument in reversed(list(enumerate(module.arguments)))}
    return tuple(
        Variable(
            name=argument.name if first[argument.name] == i else f"{argument.name}/{i}",
            shape=tensor.shape,
            dtype=tensor.dtype,
            nbytes=tensor.nbytes,
            kind=argument.kind,
        )
        for i, (argument, tensor) in enumerate(zip(module.arguments, module.argument_types, strict=True))
    )


def _numbered(classes: IntArray, components: int) -> IntArray:
    """[components] class of each component: numbered as their first dimensions come, -1 for the others."""
    distinct, first = np.unique(classes, return_index=True)
    number = np.full(components, NO_CLASS)
    number[distinct[np.argsort(first)]] = np.arange(distinct.size)
    return number


def _together(rules: ShardingRules, of_node: IntArray) -> csr_array:
    """[values + operations, k] how many dimensions of each value, factors of each operation, a class has."""
    owners = np.concatenate([_owners(rules.dim_offsets), len(rules.tensors) + _owners(rules.factor_offsets)])
    classes = of_node != NO_CLASS
    shape = len(rules.tensors) + len(rules.uses), int(of_node.max(initial=-1)) + 1
    counts = coo_array((np.ones(int(classes.sum()), np.int64), (owners[classes], of_node[classes])), shape)
    return counts.tocsr()


def _owners(offsets: IntArray) -> IntArray:
    return np.repeat(np.arange(offsets.size - 1), np.diff(offsets))


def _conflicts(together: csr_array, divisors: IntArray) -> IntArray:
    """[c, 2] pairs i < j of classes that could be sharded but for each other."""
    met = (together.T @ together).tocoo()
    first, second = met.coords
    pairs: NDArray[np.bool_] = (first < second) & (divisors[first] > 1) & (divisors[second] > 1)
    return np.unique(np.stack([first[pairs], second[pairs]], axis=1).astype(np.int64), axis=0)
