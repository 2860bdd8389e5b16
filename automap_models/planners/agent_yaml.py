"""What the YAML files of agents that learn while they search have in common (conf/search, conf/online)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields

from automap_models.errors import BadInput
from automap_models.formats.yaml_fields import YamlFields
from automap_models.rl.learner import LearnerConfig

LEARNER = tuple(field.name for field in fields(LearnerConfig))


@dataclass(frozen=True)
class AgentFields:
    """The fields of a mapping in such a file; the methods raise BadInput for a value that cannot be meant.

    Attributes:
        given: the mapping.
        largest: what a whole number may be at most, by its key, so that none fills the memory.
    """

    given: YamlFields
    largest: Mapping[str, int]

    def section(self, key: str, required: Collection[str], do: str) -> AgentFields:
        """The mapping under a key; `do` says in messages what belongs there."""
        source = f"{self.given.source}, {key}"
        inner = YamlFields(self.given.document[key], source, required=required, optional=(), do=do)
        return AgentFields(inner, self.largest)

    def count(self, key: str, least: int = 1) -> int:
        """A whole number from `least` to what fits."""
        number, most = self.given.number(key), self.largest[key]
        if not (least <= number <= most and number.is_integer()):
            do = f"give a whole number from {least} to {most:,}"
            raise BadInput(f"{key} is {number:g}", where=self.given.source, do=do)
        return int(number)

    def share(self, key: str) -> float:
        """A number from 0 to 1."""
        number = self.given.number(key)
        if not 0 <= number <= 1:
            raise BadInput(f"{key} is {number:g}", where=self.given.source, do="give a number from 0 to 1")
        return number

    def positive(self, key: str) -> float:
        """A finite number greater than 0."""
        number = self.given.number(key)
        if not 0 < number < float("inf"):
            raise BadInput(f"{key} is {number:g}", where=self.given.source, do="give a number greater than 0")
        return number

    def flag(self, key: str) -> bool:
        """True or false."""
        return self.given.flag(key, False)

    def learner(self) -> LearnerConfig:
        """The mapping as the settings of a learner; its keys are LEARNER."""
        return LearnerConfig(
            learning_rate=self.positive("learning_rate"),
            batch=self.count("batch"),
            iterations=self.count("iterations"),
            replay=self.count("replay"),
            alpha=self.share("alpha"),
            beta=self.share("beta"),
            target_every=self.count("target_every"),
            gradient_clip=self.positive("gradient_clip"),
        )
