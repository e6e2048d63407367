"""What every method is: features of a turn in, a shift out, the weights as they were."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ultraedit.edits import Edit
from ultraedit.shift import Shift
from ultraedit.sites import Site
from ultraedit.tokens import Encoder, Example

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ultraedit.capture import Answers


@dataclass(frozen=True)
class Turn:
    """Edits applied together: what they say, and the same as token ids."""

    edits: tuple[Edit, ...]
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Proposal:
    """What a method wants to do in a turn."""

    shift: Shift
    answers: Answers | None = None
    """How the model answered the edits before the turn, when the method saw it anyway."""


class Method(ABC):
    """A way to turn edits into a shift, with what it remembers from turn to turn."""

    Config: ClassVar[type[Any]]
    """The dataclass of its settings."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Fields that every edit must have for this method, beside prompt and target."""

    def __init__(
        self, config: Any, model: PreTrainedModel, sites: Sequence[Site], encoder: Encoder
    ) -> None:
        self.config = config
        self.model = model
        self.sites = sites
        self.encoder = encoder

    @abstractmethod
    def compute_shift(self, turn: Turn) -> Proposal:
        """Return the shift for a turn; weights and lifelong state stay as they were."""

    @abstractmethod
    def commit(self) -> None:
        """Fold the turn last computed into the lifelong state: its shift is in the weights now."""

    def finish(self) -> Shift | None:
        """Return a last shift when the stream of edits ends, if the method has one."""
        return None

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the method remembers, as named tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state_dict` returned."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but was given {sorted(state)}")
