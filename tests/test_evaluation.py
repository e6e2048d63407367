"""Scores: against plain loops, whatever the batches."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tiny_models import CONFIGS, build_tiny, token_edits, traces
from ultraedit.editor import Editor
from ultraedit.edits import FAMILIES, Edit, Probe
from ultraedit.errors import InputError
from ultraedit.evaluation import evaluate
from ultraedit.evaluation.generate import generate
from ultraedit.evaluation.scores import Score, share_equal, starts_with_words


def rich_edits(n: int = 6, seed: int = 0) -> list[Edit]:
    """Make edits with probes of every family, some with more of them than others."""
    rng = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, 190) for _ in range(rng.randint(low, high)))

    return [
        Edit(
            prompt_ids=edit.prompt_ids,
            target_ids=edit.target_ids,
            rephrasings=tuple(ids(2, 9) for _ in range(number % 3)),
            unrelated=tuple(Probe(ids(2, 9), ids(1, 4)) for _ in range(2)),
            personas=(ids(2, 9),) if number % 2 else (),
            reasoning=(Probe(ids(2, 9), ids(1, 3)),),
            id=str(number),
        )
        for number, edit in enumerate(token_edits(n, seed))
    ]


def plain_predictions(model: Any, probe: Probe) -> list[int]:
    ids = torch.tensor([probe.prompt + probe.answer[:-1]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(probe.prompt) - 1 :]
    return logits.argmax(-1).tolist()


def plain_writing(model: Any, prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Write greedily with one full pass a token, without cache or batch."""
    ids = list(prompt)
    for _ in range(length):
        with torch.no_grad():
            token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token == 2:
            break
        ids.append(token)
    return tuple(ids[len(prompt) :])


def knowing(model: Any, edits: list[Edit]) -> list[Edit]:
    """Replace the target of every other edit by what the model says anyway."""
    return [
        Edit(prompt_ids=e.prompt_ids, target_ids=plain_writing(model, e.prompt_ids, 3) or (5,))
        if number % 2
        else e
        for number, e in enumerate(edits)
    ]


@pytest.mark.parametrize("architecture", CONFIGS)
def test_token_accuracy_and_exact_match_are_those_of_a_plain_loop(architecture):
    model = build_tiny(architecture)
    edits = knowing(model, token_edits(6))
    shares = []
    for edit in edits:
        predicted = plain_predictions(model, edit.question)
        shares.append(share_equal(predicted, edit.target_ids))
    found = evaluate(model, edits, generated=False).to_dict()["efficacy"]
    assert found["probes"] == 6
    assert found["token_accuracy"] == pytest.approx(100 * sum(shares) / 6)
    assert found["exact_match"] == pytest.approx(100 * sum(share == 1 for share in shares) / 6)
    assert found["exact_match"] > 0
    assert found["generated_match"] is None


@pytest.mark.parametrize("architecture", CONFIGS)
def test_what_is_written_is_what_a_plain_loop_writes(architecture):
    model = build_tiny(architecture)
    prompts = [edit.prompt_ids for edit in token_edits(9, 4)]
    lengths = [1 + number % 5 for number in range(9)]
    expected = [plain_writing(model, *pair) for pair in zip(prompts, lengths, strict=True)]
    for max_tokens in (1, 10**6):
        assert generate(model, prompts, lengths, max_tokens=max_tokens) == expected


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_answers_are_written_up_to_the_end_of_the_context_and_not_past_it(architecture, together):
    model = build_tiny(architecture)
    model.generation_config.eos_token_id = model.config.eos_token_id = None
    # The last token written is never read, so prompt and answer may have 65 tokens together.
    prompts = [tuple(range(3, 3 + length)) for length in (57, 60, 61, 62, 63, 64)]
    edits = [
        Edit(prompt_ids=ids, target_ids=plain_writing(model, ids, min(4, 65 - len(ids))))
        for ids in prompts
    ]
    for turn in [edits] if together else [[edit] for edit in edits]:
        found = evaluate(model, turn).to_dict()["efficacy"]
        assert found["exact_match"] == found["generated_match"] == 100


def test_generated_match_counts_ids_where_there_is_no_text(llama):
    edits = knowing(llama, token_edits(6))
    rows: list[dict[str, Any]] = []
    found = evaluate(llama, edits, on_answer=rows.append).to_dict()["efficacy"]
    for edit, row in zip(edits, rows, strict=True):
        written = plain_writing(llama, edit.prompt_ids, len(edit.target_ids))
        assert row["generated_match"] == (written == edit.target_ids)
        assert row["generated"][: len(written)] == list(written)
    share = sum(row["generated_match"] for row in rows) / 6
    assert found["generated_match"] == pytest.approx(100 * share)
    assert found["generated_match"] >= 50


@pytest.mark.parametrize("max_tokens", [1, 30, 100])
def test_scores_do_not_depend_on_the_batch_size(llama, max_tokens):
    edits = rich_edits()
    expected = evaluate(llama, edits, max_tokens=10**6)
    found = evaluate(llama, edits, max_tokens=max_tokens)
    assert found.to_dict() == expected.to_dict()
    assert found.unrelated_predictions == expected.unrelated_predictions


def test_scores_do_not_depend_on_how_many_edits_are_looked_at_together(llama, monkeypatch):
    edits = rich_edits()
    expected = evaluate(llama, edits).to_dict()
    steps: list[int] = []
    monkeypatch.setattr("ultraedit.evaluation._WINDOW", 4)
    assert evaluate(llama, iter(edits), on_progress=steps.append).to_dict() == expected
    assert steps == [4, 2]


def test_every_family_counts_its_own_probes(llama):
    edits = rich_edits(6)
    rows: list[dict[str, Any]] = []
    result = evaluate(llama, edits, on_answer=rows.append).to_dict()
    wanted = {
        "efficacy": 6,
        "generalization": sum(number % 3 for number in range(6)),
        "specificity": 12,
        "personas": 3,
        "reasoning": 6,
    }
    assert tuple(wanted) == FAMILIES
    assert result["edits"] == 6
    assert {family: result[family]["probes"] for family in FAMILIES} == wanted
    assert {f: sum(row["family"] == f for row in rows) for f in FAMILIES} == wanted


def test_every_familys_accuracy_is_that_of_a_plain_loop(llama):
    edits = rich_edits()
    result = evaluate(llama, edits, generated=False).to_dict()
    for family in FAMILIES:
        shares = [
            share_equal(plain_predictions(llama, probe), probe.answer)
            for edit in edits
            for name, probe in edit.probes()
            if name == family
        ]
        expected = 100 * sum(shares) / len(shares)
        assert result[family]["token_accuracy"] == pytest.approx(expected)


def test_a_family_without_probes_has_no_score(llama):
    result = evaluate(llama, token_edits(3)).to_dict()
    for family in FAMILIES[1:]:
        assert result[family]["probes"] == 0
        assert result[family]["token_accuracy"] is None


def test_agreement_of_a_model_with_itself_is_whole(llama):
    edits = rich_edits()
    before = evaluate(llama, edits, generated=False)
    assert "agreement" not in before.to_dict()["specificity"]
    after = evaluate(llama, edits, generated=False, before=before)
    assert after.to_dict()["specificity"]["agreement"] == 100
    assert "agreement" not in after.to_dict()["efficacy"]


def test_agreement_falls_when_a_model_is_changed_a_lot(llama):
    edits = rich_edits()
    before = evaluate(llama, edits, generated=False)
    Editor(llama, lr=0.1).apply(edits)
    after = evaluate(llama, edits, generated=False, before=before)
    shares = [
        share_equal(plain_predictions(llama, probe), earlier)
        for probe, earlier in zip(
            [probe for edit in edits for probe in edit.unrelated],
            _cut(before.unrelated_predictions, edits),
            strict=True,
        )
    ]
    agreement = after.to_dict()["specificity"]["agreement"]
    assert agreement == pytest.approx(100 * sum(shares) / len(shares))
    assert agreement < 100


def _cut(predictions: Any, edits: list[Edit]) -> list[list[int]]:
    rest = list(predictions)
    sizes = [len(probe.answer) for edit in edits for probe in edit.unrelated]
    return [[rest.pop(0) for _ in range(size)] for size in sizes]


def test_an_earlier_evaluation_of_other_edits_is_refused(llama):
    before = evaluate(llama, rich_edits(3), generated=False)
    with pytest.raises(InputError, match="made with other edits"):
        evaluate(llama, rich_edits(6), generated=False, before=before)


def test_editing_raises_efficacy_in_the_evaluation_too(llama):
    editor = Editor(llama, lr=1e-2)
    edits = token_edits(4)
    before = editor.evaluate(edits).to_dict()["efficacy"]["token_accuracy"]
    for _ in range(12):
        editor.apply(edits)
    assert editor.evaluate(edits).to_dict()["efficacy"]["token_accuracy"] > before + 25


def test_evaluation_leaves_no_mark_on_the_model(llama):
    llama.train()
    own = llama.generation_config
    before = traces(llama)
    evaluate(llama, rich_edits(2))
    assert traces(llama) == before
    assert llama.generation_config is own


def test_the_models_own_sampling_settings_do_not_matter(llama):
    expected = evaluate(llama, rich_edits()).to_dict()
    llama.generation_config.do_sample = True
    llama.generation_config.temperature = 5.0
    llama.generation_config.repetition_penalty = 9.0
    assert evaluate(llama, rich_edits()).to_dict() == expected


def test_a_probe_that_cannot_be_asked_is_named(llama):
    edit = Edit(prompt_ids=(5,), target_ids=(6,), unrelated=(Probe((5,), (1999,)),), id="odd")
    with pytest.raises(InputError, match=r"Edit 'odd'.*specificity.*1999"):
        evaluate(llama, [edit])


def word_tokenizer() -> Any:
    """Build a tokenizer of whole words for a tiny model."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {f"word{number}": number for number in range(3, 199)}
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "<s>": 1, "</s>": 2, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="</s>")


def test_with_a_tokenizer_text_is_asked_and_text_is_compared(llama):
    tokenizer = word_tokenizer()
    written = plain_writing(llama, (7, 9), 2)
    answer = " ".join(f"WORD{token}" for token in written).lower()
    right = Edit(prompt="word7 word9", target=answer)
    wrong = Edit(prompt="word7 word9", target="word3 word3 word3")
    rows: list[dict[str, Any]] = []
    result = evaluate(llama, [right, wrong], tokenizer, on_answer=rows.append).to_dict()
    assert [row["generated_match"] for row in rows] == [True, False]
    assert rows[0]["generated"].startswith(answer)
    assert result["efficacy"]["generated_match"] == 50
    assert result["efficacy"]["exact_match"] == 50


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("Paris", "Paris", True),
        (" Paris, the capital", "Paris", True),
        ("paris.", "PARIS", True),
        ("Parisian", "Paris", False),
        ("In Paris", "Paris", False),
        ("New York City", "New York", True),
        ("New  York", "New York", True),
        ("New Yorker", "New York", False),
        ("New", "New York", False),
        ("the U.S.", "the U.S", True),
        ("St. John's", "St John's", True),
        ("'Hamlet' (1603)", "Hamlet", True),
        ("1969", "1969", True),
        ("19690", "1969", False),
        ("北京是首都", "北京", True),
        ("北京", "北京市", False),
        ("南京", "北京", False),
        ("東京タワー", "東京", True),
        ("Málaga is", "Málaga", True),
        ("Ma\u0301laga", "M\u00e1laga", True),
        ("Malaga", "Málaga", False),
        ("STRASSE", "Straße", True),
        ("\uff30\uff41\uff52\uff49\uff53", "Paris", True),
        ("", "Paris", False),
        ("Paris", "", False),
        ("?!", "?!", True),
    ],
)
def test_a_text_starts_with_an_answer_as_whole_words(text, answer, expected):
    assert starts_with_words(text, answer) is expected


def test_a_score_is_a_mean_in_percent():
    score = Score(probes=4, token_accuracy=3.0, exact_match=2)
    assert score.to_dict() == {
        "probes": 4,
        "token_accuracy": 75.0,
        "exact_match": 50.0,
        "generated_match": None,
    }


def test_a_damaged_model_is_not_scored(llama):
    with torch.no_grad():
        llama.model.layers[0].mlp.up_proj.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="not finite"):
        evaluate(llama, [Edit(prompt_ids=(5, 6), target_ids=(0,))])
