"""From edits and probes to token batches; the only place that tokenises, pads and masks.

A model reads `prompt + answer[:-1]`; the positions that predict the answer are the last prompt
token and all answer tokens but the last. There is one row of features for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ultraedit.edits import Edit, Probe, Text
from ultraedit.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Encoded = tuple[int, ...] | str
"""Token ids, or the text that no tokenizer was there to encode."""

_IDS_ONLY: Any = {
    "add_special_tokens": False,
    "return_attention_mask": False,
    "return_token_type_ids": False,
    "verbose": False,
}
_SAMPLES = (("The answer is", "Paris"), ("in the", "year"), ("a", "b"))


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model reads."""
        return self.prompt + self.answer[:-1]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer) - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples side by side, padded on the right."""

    ids: Tensor  # (b, t)
    mask: Tensor  # (b, t)
    positions: Tensor  # (m,) where answers are predicted, in the flattened (b * t)
    labels: Tensor  # (m,) the answer tokens
    owners: Tensor  # (m,) the number of the example each row belongs to

    @classmethod
    def build(cls, examples: Sequence[Example], numbers: Sequence[int]) -> Batch:
        """Pad examples to one length and note where their answers are predicted."""
        width = max(len(example) for example in examples)
        ids = torch.zeros(len(examples), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        positions: list[int] = []
        labels: list[int] = []
        owners: list[int] = []
        for row, (example, number) in enumerate(zip(examples, numbers, strict=True)):
            ids[row, : len(example)] = torch.tensor(example.inputs)
            mask[row, : len(example)] = 1
            first = row * width + len(example.prompt) - 1
            positions.extend(range(first, first + len(example.answer)))
            labels.extend(example.answer)
            owners.extend([number] * len(example.answer))
        return cls(ids, mask, torch.tensor(positions), torch.tensor(labels), torch.tensor(owners))


def build_batches(
    examples: Sequence[Example], *, max_tokens: int | None = None, max_examples: int | None = None
) -> Iterator[Batch]:
    """Sort examples by length, longest first, and cut them into batches within the limits."""
    order = sorted(range(len(examples)), key=lambda number: -len(examples[number]))
    while order:
        fitting = len(order) if max_tokens is None else max_tokens // len(examples[order[0]])
        size = max(1, min(fitting, len(order) if max_examples is None else max_examples))
        numbers, order = order[:size], order[size:]
        yield Batch.build([examples[number] for number in numbers], numbers)


class Encoder:
    """Turns text into the token ids of one model, or refuses it with a reason."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        vocabulary: int,
        context: int | None = None,
        chat: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.context = context
        self.chat = chat
        if chat and (tokenizer is None or not tokenizer.chat_template):
            raise InputError(
                "A chat template was asked for, but this model's tokenizer has none; "
                "leave --chat out, or use a tokenizer with a template."
            )
        self._prefix = () if tokenizer is None or chat else self._special_prefix()
        self._space = "" if tokenizer is None or self._supplies_space() else " "
        self._unknown = None if tokenizer is None else _unknown_id(tokenizer)
        self._newline = 0 if tokenizer is None else len(self._plain("\n"))

    @classmethod
    def of(
        cls, config: Any, tokenizer: PreTrainedTokenizerBase | None, *, chat: bool = False
    ) -> Encoder:
        """Return the encoder for a model's configuration, with the limits it sets."""
        text = config.get_text_config()
        context = getattr(text, "max_position_embeddings", None)
        return cls(tokenizer, vocabulary=text.vocab_size, context=context, chat=chat)

    def encode(self, probes: Sequence[Probe]) -> list[Example | InputError]:
        """Encode many probes at once; one that cannot be used becomes the error that says why."""
        prompts = self._encode_prompts([probe.prompt for probe in probes])
        answers = self._encode_answers(probes)
        return [self._example(*pair) for pair in zip(prompts, answers, strict=True)]

    def encode_edits(self, edits: Sequence[Edit]) -> list[Example]:
        """Encode the edits of a turn; the first that cannot be used is named."""
        examples = self.encode([edit.question for edit in edits])
        for edit, example in zip(edits, examples, strict=True):
            if isinstance(example, InputError):
                raise InputError(f"Edit {edit.id!r} cannot be used: {example}.")
        return [example for example in examples if isinstance(example, Example)]

    def problems(self, edits: Sequence[Edit]) -> list[str | None]:
        """Say for each edit why it or one of its probes does not fit this model, or None."""
        pairs = [
            (number, family, probe)
            for number, edit in enumerate(edits)
            for family, probe in edit.probes()
        ]
        found: list[str | None] = [None] * len(edits)
        examples = self.encode([probe for _, _, probe in pairs])
        for (number, family, _), example in zip(pairs, examples, strict=True):
            if isinstance(example, InputError) and found[number] is None:
                place = "" if family == "efficacy" else f" (in its {family} probes)"
                found[number] = f"{example}{place}"
        return found

    def decode(self, ids: Iterable[int]) -> str | None:
        """Return the text of token ids, or None when there is no tokenizer."""
        if self.tokenizer is None:
            return None
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _example(self, prompt: Encoded, answer: Encoded) -> Example | InputError:
        if isinstance(prompt, str) or isinstance(answer, str):
            return InputError(
                "it is text, but the model has no tokenizer: give prompt_ids and target_ids"
                if self.tokenizer is None
                else "the model's tokenizer does not know it, or a part of it"
            )
        if not prompt or not answer:
            return InputError(f"the {'answer' if prompt else 'prompt'} has no tokens")
        largest = max(*prompt, *answer)
        if largest >= self.vocabulary:
            return InputError(f"token id {largest} is outside the vocabulary of {self.vocabulary}")
        length = len(prompt) + len(answer) - 1
        if self.context is not None and length > self.context:
            return InputError(
                f"{length} tokens are more than the model's context of {self.context}"
            )
        return Example(prompt, answer)

    def _encode_prompts(self, prompts: Sequence[Text]) -> list[Encoded]:
        if self.chat:
            return self._encode_texts([self._in_chat(prompt) for prompt in prompts])
        encoded = self._encode_texts([p.rstrip(" ") if isinstance(p, str) else p for p in prompts])
        return [
            self._prefix + ids if isinstance(prompt, str) and not isinstance(ids, str) else ids
            for prompt, ids in zip(prompts, encoded, strict=True)
        ]

    def _in_chat(self, prompt: Text) -> Text:
        if isinstance(prompt, tuple):
            return prompt
        message: Any = [{"role": "user", "content": prompt}]
        return str(
            self.tokenizer.apply_chat_template(  # type: ignore[union-attr]
                message, tokenize=False, add_generation_prompt=True
            )
        )

    def _encode_answers(self, probes: Sequence[Probe]) -> list[Encoded]:
        """Encode answers as they stand after their prompts: a space before them, or a new line."""
        starts = [self._start(probe.prompt) for probe in probes]
        answers = [
            probe.answer if isinstance(probe.answer, tuple) else _after(start, probe.answer)
            for start, probe in zip(starts, probes, strict=True)
        ]
        encoded = zip(starts, answers, self._encode_texts(answers), strict=True)
        return [
            ids if isinstance(text, tuple) else self._known(text, ids, start == "\n")
            for start, text, ids in encoded
        ]

    def _known(self, text: str, ids: Encoded, after_newline: bool) -> Encoded:
        """Return an answer's ids without the new line before it; what is not known stays text."""
        if self._unknown is not None and self._unknown in ids:
            return text
        return ids[self._newline :] if after_newline else ids

    def _start(self, prompt: Text) -> str:
        fresh_line = self.chat or (isinstance(prompt, str) and prompt.rstrip(" ").endswith("\n"))
        return ("" if self._space else "\n") if fresh_line and self.tokenizer else self._space

    def _encode_texts(self, texts: Sequence[Text]) -> list[Encoded]:
        """Encode what is text and pass ids through; what cannot be encoded stays text."""
        words = [text for text in texts if isinstance(text, str)]
        if self.tokenizer is None or not words:
            return list(texts)
        encoded = iter(self._encode_words(words))
        return [next(encoded) if isinstance(text, str) else text for text in texts]

    def _encode_words(self, words: list[str]) -> list[Encoded]:
        try:
            ids = self.tokenizer(words, **_IDS_ONLY)["input_ids"]  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - tokenizers raise no more specific kind
            # One text that has no tokens, such as an unknown word, must not spoil the others.
            parts = ([word] if len(words) == 1 else self._encode_words([word]) for word in words)
            return [part[0] for part in parts]
        return [tuple(one) for one in ids]

    def _plain(self, text: str) -> tuple[int, ...]:
        ids = self._encode_words([text])[0]
        return () if isinstance(ids, str) else ids

    def _special_prefix(self) -> tuple[int, ...]:
        """Return what the tokenizer puts before a text; what it puts after is not wanted."""
        text = next((head for head, _ in _SAMPLES if self._plain(head)), "")
        whole = tuple(self.tokenizer(text)["input_ids"])  # type: ignore[misc]
        plain = self._plain(text) or (self.tokenizer.eos_token_id,)  # type: ignore[union-attr]
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start]
        return () if text else whole

    def _supplies_space(self) -> bool:
        """Tell whether a word encoded alone is what it is after a space in running text."""
        for head, word in _SAMPLES:
            joint, start = self._plain(f"{head} {word}"), self._plain(head)
            if joint[: len(start)] == start:
                return joint[len(start) :] == self._plain(word)
        return False


def _unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id a tokenizer gives to what it does not know; one it also ends with is none."""
    unknown = tokenizer.unk_token_id
    if unknown is None:
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        token = getattr(model, "unk_token", None)
        unknown = None if token is None else tokenizer.get_vocab().get(token)
    return None if unknown == tokenizer.eos_token_id else unknown


def _after(start: str, answer: str) -> str:
    """Put what stands between prompt and answer before it, unless it brings its own new line."""
    answer = answer.lstrip(" ")
    return answer if start == " " and answer[:1].isspace() else start + answer
