"""Small real tokenizers, trained in memory, one for each way of treating spaces and special tokens.

Words the tests use are in the corpus; every other character falls back to bytes or to `<unk>`.
"""

import json
from functools import cache
from string import ascii_uppercase

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "The answer is Paris and in the year a b the capital of France is Paris.",
    "The capital of France is Lyon and the capital of Italy is Rome in the year 1999.",
    "Who wrote Hamlet? William Shakespeare wrote Hamlet in England in the year 1600.",
    "Question: what is the capital of Spain?\nAnswer: Madrid is the capital of Spain.",
] * 4

SPECIALS = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]

CHAT_TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

_LLAMA3_WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+")


def gpt2_like() -> PreTrainedTokenizerFast:
    """Byte-level, nothing before a text, a space belongs to the word after it."""
    return _wrapped(_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)))


def prefix_space_like() -> PreTrainedTokenizerFast:
    """Byte-level, and the tokenizer itself puts a space before a text."""
    return _wrapped(_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)))


def llama3_like() -> PreTrainedTokenizerFast:
    """Byte-level with its own split into words, and bos before a text."""
    split = pre_tokenizers.Split(_LLAMA3_WORDS, behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = _byte_level(pre_tokenizers.Sequence([split, byte_level]))
    return _wrapped(tokenizer, "<s> $A")


def bos_and_eos_like() -> PreTrainedTokenizerFast:
    """Byte-level with bos before and eos after a text."""
    return _wrapped(_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), "<s> $A </s>")


def with_chat(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Give a tokenizer a chat template, which writes bos itself."""
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def metaspace_first_like() -> PreTrainedTokenizerFast:
    """SentencePiece as in today's Llama 2: a space is put before the first part of a text."""
    return _metaspace("first")


def metaspace_always_like() -> PreTrainedTokenizerFast:
    """SentencePiece as in T5: a space is put before every part of a text."""
    return _metaspace("always")


def llama2_legacy_like() -> PreTrainedTokenizerFast:
    """SentencePiece as a converted Llama 2: a normaliser prepends the space, nothing is split."""
    tokenizer = Tokenizer.from_str(_sentencepiece())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = _piece_decoder(strips_first=True)
    return _wrapped(tokenizer, "<s> $A")


def gemma_like() -> PreTrainedTokenizerFast:
    """SentencePiece without the dummy space: spaces become the mark, none is added."""
    tokenizer = Tokenizer.from_str(_sentencepiece())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = _piece_decoder(strips_first=False)
    return _wrapped(tokenizer, "<s> $A")


def word_level() -> PreTrainedTokenizerFast:
    """Whole words between white space; an unknown word is `<unk>`."""
    tokenizer = Tokenizer(WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(CORPUS, WordLevelTrainer(special_tokens=SPECIALS))
    return _wrapped(tokenizer)


def without_unknown() -> PreTrainedTokenizerFast:
    """Capital letters only, bos before a text; any other character has no token at all."""
    vocabulary = {mark: number for number, mark in enumerate(["<s>", "</s>", *ascii_uppercase])}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrapped(tokenizer, "<s> $A")


def _metaspace(prepend_scheme: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_str(_sentencepiece())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = _piece_decoder(strips_first=True)
    return _wrapped(tokenizer, "<s> $A")


def _byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, _trainer(alphabet, SPECIALS))
    return tokenizer


@cache
def _sentencepiece() -> str:
    """Train pieces that start with the mark or hold none, with bytes for other characters."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    bytes_as_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = [chr(code) for code in range(33, 127)]
    lines = [line for text in CORPUS for line in text.split("\n")]
    tokenizer.train_from_iterator(lines, _trainer(alphabet, SPECIALS + bytes_as_pieces))
    content = json.loads(tokenizer.to_str())
    # The trainer takes the pieces for bytes only as special tokens, which a text could then name.
    content["added_tokens"] = content["added_tokens"][: len(SPECIALS)]
    return json.dumps(content)


def _trainer(alphabet: list[str], special_tokens: list[str]) -> BpeTrainer:
    return BpeTrainer(
        vocab_size=700,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )


def _piece_decoder(*, strips_first: bool) -> decoders.Decoder:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips_first else steps)


def _wrapped(tokenizer: Tokenizer, template: str | None = None) -> PreTrainedTokenizerFast:
    if template is not None:
        marks = [(mark, tokenizer.token_to_id(mark)) for mark in ("<s>", "</s>")]
        tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=marks)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
