import pytest
import torch
from transformers import AutoTokenizer

from ultraedit import Edit, InputError, evaluate, load_model
from ultraedit.tokens import Encoder
from ultraedit.world import counterfactual_edits, sentences, world_facts
from ultraedit.world.train import build_tokenizer, train_world_model

FACTS = world_facts()


def test_one_seed_makes_one_world():
    assert world_facts(3) == world_facts(3)
    assert world_facts(3) != world_facts(4)


def test_no_question_has_two_answers():
    prompts = [prompt for prompt, _ in sentences(FACTS)]
    assert len(set(prompts)) == len(prompts)


def test_every_fact_is_told_in_statements_and_questions():
    for fact in FACTS:
        prompts = fact.prompts()
        assert len(prompts) >= 4
        assert {prompt.endswith("?") for prompt in prompts} == {True, False}
        assert all(fact.subject in prompt for prompt in prompts)


def test_answers_are_of_one_to_three_words_and_not_all_of_one():
    lengths = {len(fact.answer.split()) for fact in FACTS}
    assert lengths == {1, 2, 3}


def test_one_seed_makes_one_stream_of_edits():
    assert counterfactual_edits(FACTS, 20, seed=1) == counterfactual_edits(FACTS, 20, seed=1)
    assert counterfactual_edits(FACTS, 20, seed=1) != counterfactual_edits(FACTS, 20, seed=2)


def test_a_shorter_stream_is_the_beginning_of_a_longer_one():
    assert counterfactual_edits(FACTS, 200)[:50] == counterfactual_edits(FACTS, 50)


def test_an_edit_changes_one_fact_to_another_answer_of_its_relation():
    truth = {fact.prompts()[0]: fact for fact in FACTS}
    edits = counterfactual_edits(FACTS, 200)
    assert len({edit.prompt for edit in edits}) == 200
    for edit in edits:
        fact = truth[edit.prompt]
        others = {other.answer for other in FACTS if other.relation == fact.relation}
        assert edit.subject == fact.subject
        assert edit.rephrasings == fact.prompts()[1:]
        assert edit.target in others - {fact.answer}


def test_unrelated_probes_ask_for_facts_that_are_never_edited():
    truth = {fact.prompts()[0]: fact.answer for fact in FACTS}
    edits = counterfactual_edits(FACTS, len(FACTS) // 2)
    edited = {edit.prompt for edit in edits}
    for edit in edits:
        assert len(edit.unrelated) == 2
        assert not edited & {probe.prompt for probe in edit.unrelated}
        assert all(truth[probe.prompt] == probe.answer for probe in edit.unrelated)


@pytest.mark.parametrize("count", [0, len(FACTS) // 2 + 1])
def test_a_count_that_leaves_nothing_to_compare_with_is_refused(count):
    with pytest.raises(InputError, match=f"got a count of {count}"):
        counterfactual_edits(FACTS, count)


def test_the_tokenizer_puts_the_space_on_the_answer(tmp_path):
    pairs = sentences(FACTS)
    build_tokenizer(" ".join(pair) for pair in pairs).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    examples = Encoder(tokenizer, vocabulary=len(tokenizer)).encode(_known(FACTS[:40]))
    for example, fact in zip(examples, FACTS, strict=False):
        whole = tokenizer(f"{fact.prompts()[0]} {fact.answer}")["input_ids"]
        assert list(example.prompt + example.answer) == whole
    assert any(len(example.answer) > 1 for example in examples)


def test_training_is_repeatable_and_leaves_the_random_numbers_alone(tmp_path):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    steps = []
    for name in ("first", "second"):
        train_world_model(
            tmp_path / name, facts=FACTS[:8], epochs=1, on_step=lambda *step: steps.append(step)
        )
    assert torch.equal(torch.rand(1), expected)
    half = len(steps) // 2
    assert steps[:half] == steps[half:]
    assert [step[:2] for step in steps[:half]] == [(n, half) for n in range(1, half + 1)]
    first, second = (load_model(tmp_path / name)[0] for name in ("first", "second"))
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    assert first.config.eos_token_id == load_model(tmp_path / "first")[1].eos_token_id


@pytest.mark.slow
def test_the_trained_model_knows_the_world_in_every_phrasing(tmp_path):
    train_world_model(tmp_path)
    model, tokenizer = load_model(tmp_path)
    known = [Edit(f.prompts()[0], f.answer, rephrasings=f.prompts()[1:]) for f in FACTS]
    scores = evaluate(model, known, tokenizer).to_dict()
    for family in ("efficacy", "generalization"):
        assert scores[family]["exact_match"] >= 99
        assert scores[family]["generated_match"] >= 99


def _known(facts):
    return [Edit(fact.prompts()[0], fact.answer).question for fact in facts]
