"""Text becomes the ids that running text has, and batches say where answers are predicted."""

from functools import cache
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenizers_made_here as made_here
from ultraedit.edits import Edit, Probe
from ultraedit.errors import InputError
from ultraedit.tokens import Batch, Encoder, Example, build_batches

BYTE_LEVEL = ["gpt2_like", "llama3_like", "bos_and_eos_like", "prefix_space_like"]
SENTENCEPIECE = ["metaspace_first_like", "metaspace_always_like", "llama2_legacy_like"]
KINDS = [*BYTE_LEVEL, *SENTENCEPIECE, "gemma_like", "word_level"]
WITH_BOS = ["llama3_like", "bos_and_eos_like", *SENTENCEPIECE, "gemma_like"]

PROMPT, ANSWER = "The capital of France is", "Paris"


@cache
def tokenizer_of(kind):
    return getattr(made_here, kind)()


@cache
def encoder_of(kind):
    return Encoder(tokenizer_of(kind), vocabulary=1000)


def encode(kind, prompt, answer):
    [example] = encoder_of(kind).encode([Probe(prompt, answer)])
    assert isinstance(example, Example)
    return example


def running_text(kind, text):
    """Return the ids of a text as its tokenizer gives them, without an end."""
    tokenizer = tokenizer_of(kind)
    ids = tuple(tokenizer(text)["input_ids"])
    return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids


def spelled(kind, ids):
    """Return the text that ids spell, with every space in its place."""
    pieces = "".join(tokenizer_of(kind).convert_ids_to_tokens(ids))
    return pieces.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n").replace("<0x0A>", "\n")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["Paris", " Paris", "   Paris", "Rome in Italy", "1999."])
@pytest.mark.parametrize("end", ["", " ", "   "])
def test_an_answer_has_exactly_one_space_before_it(kind, answer, end):
    example = encode(kind, PROMPT + end, answer)
    space = "" if kind == "word_level" else " "
    words = answer.replace(" ", "") if kind == "word_level" else answer.lstrip(" ")
    assert spelled(kind, example.answer).replace("<unk>", words) == space + words
    assert not spelled(kind, example.prompt).endswith(" ")
    joint = running_text(kind, f"{PROMPT} {answer.lstrip(' ')}")
    assert example.prompt + example.answer == joint


letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?()-'é東"
sentences = st.lists(st.text(alphabet=letters, min_size=1, max_size=6), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(prompt=sentences.map(" ".join), answer=sentences.map(" ".join))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "word_level"])
def test_an_answer_is_the_tail_of_the_running_text(kind, prompt, answer):
    example = encode(kind, prompt, answer)
    assert example.prompt + example.answer == running_text(kind, f"{prompt} {answer}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["Paris", "  Paris"])
def test_an_answer_on_a_fresh_line_gets_no_space(kind, answer):
    example = encode(kind, "Question: what?\n", answer)
    assert spelled(kind, example.answer) == "Paris"
    joint = running_text(kind, "Question: what?\nParis")
    assert example.prompt + example.answer == joint


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [PROMPT, "a", "a\n", "é"])
def test_bos_comes_once_and_first_and_eos_never(kind, prompt):
    tokenizer = tokenizer_of(kind)
    example = encode(kind, prompt, ANSWER)
    ids = example.prompt + example.answer
    assert ids.count(tokenizer.bos_token_id) == (kind in WITH_BOS)
    assert (ids[0] == tokenizer.bos_token_id) == (kind in WITH_BOS)
    assert tokenizer.eos_token_id not in ids


def test_bos_comes_also_where_the_tokenizer_lacks_most_letters():
    tokenizer = tokenizer_of("without_unknown")
    assert encode("without_unknown", "ROME", "OLD").prompt == tuple(tokenizer("ROME")["input_ids"])


@pytest.mark.parametrize("kind", KINDS)
def test_many_probes_are_encoded_as_each_alone(kind):
    probes = [
        Probe(PROMPT, ANSWER),
        Probe((1, 2), "Rome"),
        Probe("Who wrote Hamlet?\n", (3, 4)),
        Probe((5,), (6,)),
        Probe("In the year", " 1600"),
    ]
    together = encoder_of(kind).encode(probes)
    alone = [encoder_of(kind).encode([probe])[0] for probe in probes]
    assert list(map(str, together)) == list(map(str, alone))
    assert together[3] == Example((5,), (6,))


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_template_is_used_when_asked_for(kind):
    tokenizer = made_here.with_chat(getattr(made_here, kind)())
    encoder = Encoder(tokenizer, vocabulary=1000, chat=True)
    [example] = encoder.encode([Probe(PROMPT, "  Paris")])
    chat = f"<s><|user|>\n{PROMPT}\n<|assistant|>\n"
    joint = tokenizer(f"{chat}Paris", add_special_tokens=False)["input_ids"]
    assert example.prompt + example.answer == tuple(joint)
    assert spelled(kind, example.answer) == "Paris"
    assert example.prompt.count(tokenizer.bos_token_id) == 1


def test_a_chat_template_is_left_aside_when_not_asked_for():
    tokenizer = made_here.with_chat(made_here.llama3_like())
    [example] = Encoder(tokenizer, vocabulary=1000).encode([Probe(PROMPT, ANSWER)])
    assert example == encode("llama3_like", PROMPT, ANSWER)


def test_ids_are_not_put_into_a_chat():
    tokenizer = made_here.with_chat(made_here.llama3_like())
    encoder = Encoder(tokenizer, vocabulary=1000, chat=True)
    assert encoder.encode([Probe((1, 2), (3,))]) == [Example((1, 2), (3,))]


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_a_chat_without_a_template_is_refused(kind):
    tokenizer = None if kind is None else tokenizer_of(kind)
    with pytest.raises(InputError, match="chat template"):
        Encoder(tokenizer, vocabulary=1000, chat=True)


def test_ids_pass_through_without_a_tokenizer_and_text_is_refused():
    encoder = Encoder(None, vocabulary=10)
    assert encoder.encode([]) == []
    found = encoder.encode([Probe((1, 2), (9,)), Probe("What?", (1,)), Probe((1,), "That")])
    assert found[0] == Example((1, 2), (9,))
    for refusal in found[1:]:
        assert isinstance(refusal, InputError)
        assert "prompt_ids and target_ids" in str(refusal)


def test_ids_outside_the_vocabulary_are_refused_with_the_numbers():
    encoder = Encoder(None, vocabulary=10)
    for probe in (Probe((1, 10), (2,)), Probe((1,), (2, 10))):
        [refusal] = encoder.encode([probe])
        assert str(refusal) == "token id 10 is outside the vocabulary of 10"


def test_a_text_longer_than_the_context_is_refused_with_the_numbers():
    encoder = Encoder(None, vocabulary=10, context=5)
    fitting, refusal = encoder.encode([Probe((1, 2), (3,) * 4), Probe((1, 2, 3), (4,) * 4)])
    assert isinstance(fitting, Example)
    assert len(fitting) == 5
    assert str(refusal) == "6 tokens are more than the model's context of 5"


def test_a_text_without_tokens_is_refused():
    [refusal] = encoder_of("without_unknown").encode([Probe("ROME", "is old")])
    assert str(refusal) == "the answer has no tokens"


def test_the_limits_come_from_the_models_configuration():
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=20, n_positions=4, bos_token_id=None, eos_token_id=None)
    encoder = Encoder.of(config, None)
    refusals = encoder.encode([Probe((1,), (20,)), Probe((1, 2, 3), (4, 5, 6))])
    assert [str(refusal) for refusal in refusals] == [
        "token id 20 is outside the vocabulary of 20",
        "5 tokens are more than the model's context of 4",
    ]


def test_the_first_edit_of_a_turn_that_cannot_be_used_is_named():
    encoder = Encoder(None, vocabulary=10)
    good, bad = Edit([1], [2], id="good"), Edit([1], [30], id="bad")
    assert encoder.encode_edits([good, good]) == [Example((1,), (2,))] * 2
    with pytest.raises(InputError, match=r"Edit 'bad' cannot be used: token id 30 .* 10\."):
        encoder.encode_edits([good, bad, Edit([1], [40], id="worse")])


@pytest.mark.parametrize(
    ("field", "family"),
    [
        ("rephrasings", "generalization"),
        ("unrelated", "specificity"),
        ("personas", "personas"),
        ("reasoning", "reasoning"),
    ],
)
def test_a_problem_names_the_family_of_the_probe(field, family):
    value = [[99]] if field in ("rephrasings", "personas") else [[[1], [99]]]
    edits = [Edit([1], [2]), Edit([1], [2], **{field: value}), Edit([1], [98])]
    assert Encoder(None, vocabulary=10).problems(edits) == [
        None,
        f"token id 99 is outside the vocabulary of 10 (in its {family} probes)",
        "token id 98 is outside the vocabulary of 10",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_encoded_can_be_read_again_without_special_tokens(kind):
    example = encode(kind, PROMPT, ANSWER)
    decoded = encoder_of(kind).decode(example.prompt + example.answer)
    assert decoded.strip() == f"{PROMPT} {ANSWER}"
    assert Encoder(None, vocabulary=10).decode([1]) is None


ids = st.lists(st.integers(0, 99), min_size=1, max_size=7).map(tuple)
examples = st.lists(st.builds(Example, prompt=ids, answer=ids), min_size=1, max_size=9)


def test_the_model_reads_all_but_the_last_answer_token():
    example = Example((1, 2, 3), (4, 5))
    assert example.inputs == (1, 2, 3, 4)
    assert len(example) == 4
    assert len(Example((1,), (2,))) == 1


@settings(deadline=None)
@given(examples)
def test_a_batch_is_what_a_plain_loop_makes(found):
    numbers = [10 + 3 * number for number in range(len(found))]
    batch = Batch.build(found, numbers)
    width = max(len(example.prompt) + len(example.answer) - 1 for example in found)
    ids, mask, rows = [], [], []
    for row, (example, number) in enumerate(zip(found, numbers, strict=True)):
        padding = [0] * (width - len(example))
        ids.append([*example.prompt, *example.answer[:-1], *padding])
        mask.append([1] * len(example) + padding)
        for step, token in enumerate(example.answer):
            rows.append((row * width + len(example.prompt) - 1 + step, token, number))
    assert batch.ids.tolist() == ids
    assert batch.mask.tolist() == mask
    columns = (batch.positions.tolist(), batch.labels.tolist(), batch.owners.tolist())
    assert list(zip(*columns, strict=True)) == rows
    assert {t.dtype for t in (batch.ids, batch.positions, batch.labels)} == {torch.int64}


@settings(deadline=None)
@given(examples)
def test_each_position_reads_the_token_before_the_one_it_predicts(found):
    batch = Batch.build(found, range(len(found)))
    read = batch.ids.flatten()[batch.positions].tolist()
    before = [t for e in found for t in (e.prompt + e.answer)[len(e.prompt) - 1 : -1]]
    assert read == before
    assert batch.mask.flatten()[batch.positions].all()


@settings(deadline=None)
@given(examples, st.none() | st.integers(1, 60), st.none() | st.integers(1, 5))
def test_batches_hold_each_example_once_longest_first_within_the_limits(found, tokens, count):
    order = []
    for batch in build_batches(found, max_tokens=tokens, max_examples=count):
        rows = len(batch.ids)
        assert count is None or rows <= count
        assert tokens is None or rows == 1 or batch.ids.numel() <= tokens
        assert batch.ids.shape[1] == batch.mask.sum(1).max()
        order += [number for number, _ in groupby(batch.owners.tolist())]
    assert order == sorted(range(len(found)), key=lambda number: (-len(found[number]), number))


@settings(deadline=None)
@given(examples, st.integers(1, 60))
def test_batches_are_as_full_as_the_limit_allows(found, tokens):
    batches = list(build_batches(found, max_tokens=tokens))
    for batch in batches[:-1]:
        assert (len(batch.ids) + 1) * batch.ids.shape[1] > tokens


def test_without_limits_there_is_one_batch_and_without_examples_none():
    assert len(list(build_batches([Example((1,), (2,))] * 9))) == 1
    assert list(build_batches([], max_tokens=8)) == []


def test_a_word_the_tokenizer_cannot_encode_is_refused_and_spoils_no_other():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"Rome": 0, "is": 1, "old": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=words), vocabulary=3)
    known, unknown = encoder.encode([Probe("Rome is", "old"), Probe("Rome is", "new")])
    assert known == Example((0, 1), (2,))
    assert str(unknown) == "the model's tokenizer does not know it, or a part of it"


def test_an_answer_the_tokenizer_does_not_know_is_refused():
    [refusal] = encoder_of("word_level").encode([Probe("The capital is", "Zanzibarxyz")])
    assert str(refusal) == "the model's tokenizer does not know it, or a part of it"


def test_ids_are_taken_as_they_are_even_where_one_means_unknown():
    unknown = tokenizer_of("word_level").get_vocab()["<unk>"]
    [example] = encoder_of("word_level").encode([Probe((5, unknown), (unknown,))])
    assert example == Example((5, unknown), (unknown,))


def test_a_new_line_between_prompt_and_answer_stands_alone():
    encoder = encoder_of("gpt2_like")
    inside, before, after = encoder.encode(
        [Probe("Say", "\nParis"), Probe("Say\n", "Paris"), Probe("Say\n ", "Paris")]
    )
    assert before == after
    assert encoder.decode(inside.answer) == "\nParis"
    assert encoder.decode(before.answer) == "Paris"
