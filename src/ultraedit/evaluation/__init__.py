"""Evaluation: ask a model every probe of some edits, whoever edited it, and score the answers."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ultraedit.capture import answer
from ultraedit.edits import FAMILIES, Edit, Family, Probe, as_edits, in_turns
from ultraedit.errors import InputError
from ultraedit.evaluation.generate import Ids, generate
from ultraedit.evaluation.scores import Score, share_equal, starts_with_words
from ultraedit.tokens import Encoder, Example

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Evaluation", "evaluate"]

_WINDOW = 256
"""Edits whose probes are sorted by length together."""
_LOOK_AHEAD = 4
"""Tokens written past the answer's length, to see whether its last word ends there."""


@dataclass
class Evaluation:
    """The scores of a model on some edits."""

    edits: int = 0
    scores: dict[Family, Score] = field(default_factory=lambda: {f: Score() for f in FAMILIES})
    unrelated_predictions: array[int] = field(default_factory=lambda: array("i"))
    """Tokens predicted on the specificity probes, for a later evaluation to compare with."""

    def to_dict(self) -> dict[str, Any]:
        """Return every family's scores in percent; families without probes only count them."""
        return {"edits": self.edits, **{name: s.to_dict() for name, s in self.scores.items()}}


@dataclass(frozen=True)
class Asked:
    """A probe and everything the model answered to it."""

    edit: Edit
    family: Family
    probe: Probe
    example: Example
    predicted: Ids
    written: Ids | None


@torch.inference_mode(False)
def evaluate(
    model: PreTrainedModel,
    edits: Iterable[Edit | Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    encoder: Encoder | None = None,
    generated: bool = True,
    before: Evaluation | None = None,
    max_tokens: int = 8192,
    on_progress: Callable[[int], None] = lambda n_edits: None,
    on_answer: Callable[[dict[str, Any]], None] | None = None,
) -> Evaluation:
    """Ask a model all probes of a stream of edits, in bounded memory.

    `before` is the evaluation of the unedited model on the same edits, for agreement;
    `on_answer` sees every probe with what was answered.
    """
    encoder = encoder or Encoder.of(model.config, tokenizer)
    result = Evaluation()
    for window in in_turns(edits, _WINDOW):
        chosen = as_edits(window)
        asked = _ask(model, chosen, encoder, generated=generated, max_tokens=max_tokens)
        for one in asked:
            row = _score(one, result, encoder, before)
            if on_answer is not None:
                on_answer(row)
        result.edits += len(chosen)
        on_progress(len(chosen))
    if before is not None and before.edits != result.edits:
        raise InputError("The earlier evaluation was made with other edits.")
    return result


def _ask(
    model: PreTrainedModel,
    edits: Sequence[Edit],
    encoder: Encoder,
    *,
    generated: bool,
    max_tokens: int,
) -> list[Asked]:
    probes = [(edit, family, probe) for edit in edits for family, probe in edit.probes()]
    examples = _encoded(encoder, probes)
    answers = answer(model, examples, max_tokens=max_tokens)
    if not bool(torch.isfinite(answers.log_probs).all()):
        owner = int(answers.owners[~torch.isfinite(answers.log_probs)][0])
        raise InputError(
            f"The model's answers are not finite, first for edit {probes[owner][0].id!r}: its "
            "weights are damaged, or too large for their precision."
        )
    sizes = [len(example.answer) for example in examples]
    predicted = [tuple(rows.tolist()) for rows in answers.predicted.split(sizes)]
    written: Sequence[Ids | None] = [None] * len(examples)
    if generated:
        prompts = [example.prompt for example in examples]
        lengths = [
            _room(size, example, encoder) for size, example in zip(sizes, examples, strict=True)
        ]
        written = generate(model, prompts, lengths, max_tokens=max_tokens)
    together = zip(probes, examples, predicted, written, strict=True)
    return [Asked(*probe, example, tokens, text) for probe, example, tokens, text in together]


def _encoded(encoder: Encoder, probes: Sequence[tuple[Edit, Family, Probe]]) -> list[Example]:
    examples: list[Example] = []
    encoded = encoder.encode([probe for _, _, probe in probes])
    for (edit, family, _), example in zip(probes, encoded, strict=True):
        if isinstance(example, InputError):
            raise InputError(f"Edit {edit.id!r} has a probe for {family} that fails: {example}.")
        examples.append(example)
    return examples


def _room(size: int, example: Example, encoder: Encoder) -> int:
    """Return how many tokens may be written before the model's context is full."""
    wanted = size + _LOOK_AHEAD
    if encoder.context is None:
        return wanted
    return min(wanted, encoder.context - len(example.prompt) + 1)


def _score(
    one: Asked, result: Evaluation, encoder: Encoder, before: Evaluation | None
) -> dict[str, Any]:
    score = result.scores[one.family]
    accuracy = share_equal(one.predicted, one.example.answer)
    score.probes += 1
    score.token_accuracy += accuracy
    score.exact_match += accuracy == 1
    text = matches = None
    if one.written is not None:
        text, matches = _read(one, encoder)
        score.generated += 1
        score.generated_match += matches
    if one.family == "specificity":
        if before is not None:
            start = len(result.unrelated_predictions)
            earlier = before.unrelated_predictions[start : start + len(one.predicted)]
            if len(earlier) != len(one.predicted):
                raise InputError("The earlier evaluation was made with other edits.")
            score.compared += 1
            score.agreement += share_equal(one.predicted, earlier)
        result.unrelated_predictions.extend(one.predicted)
    return {
        "edit": one.edit.id,
        "family": one.family,
        "prompt": one.probe.prompt,
        "answer": one.probe.answer,
        "predicted": encoder.decode(one.predicted) or list(one.predicted),
        "token_accuracy": 100 * accuracy,
        "generated": text,
        "generated_match": matches,
    }


def _read(one: Asked, encoder: Encoder) -> tuple[str | list[int], bool]:
    """Return what was written and whether it starts with the answer; ids count without text."""
    written = one.written or ()
    text, answer_text = encoder.decode(written), encoder.decode(one.example.answer)
    if text is None or answer_text is None:
        return list(written), written[: len(one.example.answer)] == one.example.answer
    return text, starts_with_words(text, answer_text)
