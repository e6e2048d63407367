"""Scores: pure functions of what a model answered, and what each of them means."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

DEFINITIONS = {
    "token_accuracy": (
        "share of answer tokens the model ranks first when the right tokens before them are given "
        "(teacher forcing); mean over probes; the paper's measure"
    ),
    "exact_match": "share of probes where every answer token is ranked first under teacher forcing",
    "generated_match": (
        "share of probes where the text the model writes by itself, greedily, starts with the "
        "answer as whole words; case, punctuation and spacing do not count"
    ),
    "agreement": (
        "share of answer tokens predicted as the unedited model predicted them (specificity only)"
    ),
}

_WORD = re.compile(r"\w+")


@dataclass
class Score:
    """Sums over the probes of one family."""

    probes: int = 0
    token_accuracy: float = 0.0
    exact_match: int = 0
    generated: int = 0
    generated_match: int = 0
    compared: int = 0
    agreement: float = 0.0

    def to_dict(self) -> dict[str, float | int | None]:
        """Return means in percent; None where nothing was measured."""
        return {
            "probes": self.probes,
            "token_accuracy": _percent(self.token_accuracy, self.probes),
            "exact_match": _percent(self.exact_match, self.probes),
            "generated_match": _percent(self.generated_match, self.generated),
            **({"agreement": _percent(self.agreement, self.compared)} if self.compared else {}),
        }


def share_equal(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the share of places where two sequences of one length agree."""
    return sum(a == b for a, b in zip(first, second, strict=True)) / len(first)


def starts_with_words(text: str, answer: str) -> bool:
    """Tell whether a text starts with an answer as whole words, whatever case or punctuation."""
    wanted = _words(answer)
    if not wanted:  # an answer of signs alone, such as +
        return bool(answer.strip()) and text.strip().startswith(answer.strip())
    return _words(text)[: len(wanted)] == wanted


def _words(text: str) -> list[str]:
    """Cut a text into words; a character of a script without case, such as Chinese, is one."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return [
        piece
        for word in _WORD.findall(plain)
        for piece in (word if any(unicodedata.category(c) == "Lo" for c in word) else [word])
    ]


def _percent(total: float, count: int) -> float | None:
    return 100 * total / count if count else None
