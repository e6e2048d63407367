"""A small invented world: who lives where, works as what, plays and collects which thing.

Every relation is told in the same few phrasings for everybody, so a model that has learned the
world knows that they ask for one thing, and an edit made in the first can be tested in the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ultraedit.edits import Edit, Probe
from ultraedit.errors import InputError

_PEOPLE = 110
_TOWNS = 32
_UNRELATED = 2


@dataclass(frozen=True, slots=True)
class Fact:
    """Something true in the world."""

    subject: str
    relation: str
    answer: str

    def prompts(self) -> tuple[str, ...]:
        """Return every way to ask for the answer; the first is the one that edits use."""
        return tuple(text.format(self.subject) for text in _PHRASINGS[self.relation])


_PHRASINGS = {
    "home": (
        "{} lives in the town of",
        "Where does {} live?",
        "The home of {} is in",
        "Letters to {} are sent to",
    ),
    "profession": (
        "{} works as a",
        "What is the profession of {}?",
        "For a living, {} is a",
        "The work of {} is that of a",
    ),
    "instrument": (
        "{} plays the",
        "Which instrument does {} play?",
        "In the orchestra, {} is heard on the",
        "The instrument of {} is the",
    ),
    "collection": (
        "{} is a collector of",
        "What does {} collect?",
        "The shelves of {} are full of",
        "On every journey, {} looks for",
    ),
}

_ANSWERS = {
    "profession": (
        "baker, weaver, sailor, tailor, carpenter, gardener, teacher, printer, potter, mason, "
        "judge, doctor, beekeeper, clockmaker, shepherd, miller, barber, cook, nurse, poet, "
        "painter, dancer, jeweller, saddler, cooper, roofer, lighthouse keeper, bridge builder, "
        "ferry pilot, book binder, maker of maps, mender of nets"
    ),
    "instrument": (
        "cello, flute, harp, lute, trumpet, oboe, viola, drum, piano, clarinet, tuba, bagpipe, "
        "mandolin, violin, bassoon, trombone, guitar, zither, banjo, gong, triangle, recorder, "
        "bugle, fiddle, harmonica, accordion, church organ, steel pan, French horn, tin whistle, "
        "glass bells, double bass"
    ),
    "collection": (
        "stamps, coins, shells, beetles, teapots, buttons, postcards, feathers, fossils, masks, "
        "ribbons, spoons, candles, kites, lanterns, mirrors, pebbles, puppets, thimbles, bottles, "
        "medals, tickets, posters, corks, marbles, acorns, old maps, rare keys, wooden toys, "
        "paper birds, letters from soldiers, songs of miners"
    ),
}

_ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ei"]
_MIDDLES = ["l", "m", "n", "r", "s", "t", "v", "nd", "lm", "rk", "st"]


def world_facts(seed: int = 0) -> list[Fact]:
    """Return everything that is true: one fact for each person and relation."""
    rng = random.Random(seed)
    towns = _invent(rng, _TOWNS, endings=("a", "eth", "um", "o Hill", "os on Sea"))
    people = _invent(rng, _PEOPLE, endings=("a", "o", "is", "el"))
    families = _invent(rng, _PEOPLE, endings=("sen", "ov", "er", "any"))
    answers = {"home": towns, **{name: words.split(", ") for name, words in _ANSWERS.items()}}
    return [
        Fact(f"{person} {family}", relation, answer)
        for relation in _PHRASINGS
        for person, family, answer in zip(
            people, families, _dealt(answers[relation], _PEOPLE, rng), strict=True
        )
    ]


def sentences(facts: Iterable[Fact]) -> list[tuple[str, str]]:
    """Return every fact in every phrasing, as pairs of prompt and answer."""
    return [(prompt, fact.answer) for fact in facts for prompt in fact.prompts()]


def counterfactual_edits(facts: Sequence[Fact], count: int, seed: int = 0) -> list[Edit]:
    """Return edits that each make one fact untrue; half of the facts are never edited.

    Those are what the unrelated probes ask for. A shorter stream is the beginning of a longer one.
    """
    half = len(facts) // 2
    if not 1 <= count <= half:
        raise InputError(
            f"Between 1 and {half} of the {len(facts)} facts can be edited, so that the rest can "
            f"show what stays as it was; got a count of {count}."
        )
    rng = random.Random(seed)
    order = rng.sample(facts, len(facts))
    edited, untouched = order[:count], order[half:]
    return [_edit(fact, _other_answer(fact, facts, rng), untouched, rng) for fact in edited]


def _edit(fact: Fact, target: str, untouched: Sequence[Fact], rng: random.Random) -> Edit:
    prompt, *rephrasings = fact.prompts()
    unrelated = rng.sample(untouched, min(_UNRELATED, len(untouched)))
    return Edit(
        prompt=prompt,
        target=target,
        subject=fact.subject,
        rephrasings=tuple(rephrasings),
        unrelated=tuple(Probe(other.prompts()[0], other.answer) for other in unrelated),
    )


def _other_answer(fact: Fact, facts: Iterable[Fact], rng: random.Random) -> str:
    answers = {other.answer for other in facts if other.relation == fact.relation}
    # Sorted, because the order of a set of text differs from one process to the next.
    return rng.choice(sorted(answers - {fact.answer}))


def _dealt(answers: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return answers in random order, each about as often as any other."""
    deck = [answers[number % len(answers)] for number in range(count)]
    return rng.sample(deck, count)


def _invent(rng: random.Random, count: int, *, endings: Sequence[str]) -> list[str]:
    """Return different names that can be spoken."""
    names: dict[str, None] = {}
    while len(names) < count:
        start = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES)
        names[start.capitalize() + rng.choice(endings)] = None
    return list(names)
