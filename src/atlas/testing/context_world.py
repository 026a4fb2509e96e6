"""What happens in a bench of context: ordinary work in which facts are planted, and the questions about them.

A fact is a statement with a value. Most are about a thing ("the brass lantern") and stand among twenty statements
that each share a word with it. The others have no name of their own: only the title of their turn says what they are
about, among hundreds of titles that each share a word with it. A third is stated again later with another value, which
then is the one that counts. Two turns are the same, word for word, and have a code that no other turn has. Everything is drawn from one seed, a turn at a time, so that a long bench needs no memory.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal, TypeAlias

import msgspec

from atlas.testing.context_words import load_words, new_value, prose

Place: TypeAlias = Literal["user", "reply", "tool", "failed", "deep"]

PLACES_OF_THINGS: Final[tuple[Place, ...]] = ("user", "reply", "tool", "failed", "deep")
# Within 100 KB nothing but its own words tells a statement from the rest, so those are asked for by their words.
PLACES_OF_TOPICS: Final[tuple[Place, ...]] = ("user", "reply", "tool", "failed")
DOCUMENTS: Final = 3
DISTRACTORS: Final = 20
DEEP_SIZE: Final = 100_000
_ASKED_WORDS: Final = 16
_STATEMENTS: Final = (
    "The {key} is filed under {value}.",
    "For the {key} we settled on {value}.",
    "{value} is what the {key} goes by.",
    "Somebody put {value} on the {key}.",
    "The label of the {key} reads {value}.",
)
_RESULTS: Final = (
    "It came to {value} on the day.",
    "The outcome is registered as {value}.",
    "{value} is what they wrote down.",
)
_QUESTIONS: Final = (
    "Which code belongs to the {key}?",
    "Can I have the code of the {key}?",
    "Does the {key} have a code, and which?",
    "Our {key}: what code was that?",
)
_TOPIC_QUESTIONS: Final = (
    "What was the upshot of the {key}?",
    "Can you remind me how the {key} turned out?",
    "Which code did the {key} bring?",
)
_OPENINGS: Final = ("Look into the {key}, please.", "Take care of the {key}.", "Time for the {key}.", "Do the {key}.")


class Plant(msgspec.Struct, frozen=True):
    """A statement of a fact in a turn."""

    turn: int
    place: Place
    value: str


class Fact(msgspec.Struct, frozen=True):
    """Something to ask for later: the last plant has the value that counts, the others are out of date."""

    key: str
    by_title: bool
    question: str
    plants: tuple[Plant, ...]

    @property
    def value(self) -> str:
        """The answer."""
        return self.plants[-1].value

    @property
    def turns(self) -> tuple[int, ...]:
        """Where it stands."""
        return tuple(plant.turn for plant in self.plants)

    @property
    def kind(self) -> str:
        """What a report counts it under: where it counts, and whether only the title leads there."""
        return self.plants[-1].place + (" by title" if self.by_title else "")


class Happening(msgspec.Struct, frozen=True):
    """One turn: what the user says, what the tools return (a failure begins with `!`), and the reply."""

    user: str
    documents: tuple[str, ...]
    reply: str


class World:
    """Everything that happens, drawn from one seed."""

    def __init__(self, seed: int, turns: int, facts: int) -> None:
        self._seed = seed
        self._turns = turns
        words = load_words()
        random = Random(seed)
        adjectives, nouns, places, works = (
            random.sample(words[name], len(words[name])) for name in ("adjectives", "nouns", "places", "works")
        )
        self._filler = words["filler"]
        # A distractor shares one word with what is asked for and takes the other from words that no question has.
        self._asked = (adjectives[:_ASKED_WORDS], nouns[:_ASKED_WORDS])
        self._other = (adjectives[_ASKED_WORDS:], nouns[_ASKED_WORDS:])
        half = len(places) // 2
        self._asked_topics = (places[:half], works[:half])
        self._other_topics = (places[half:], works[half:])
        self.facts = self._facts(random, facts)
        # No fact is planted in these, and none of them takes a note.
        self.twins = (1, turns - (turns % 5 == 0))
        self.twin_code = new_value(random)
        self._planted = {plant.turn: (fact, plant) for fact in self.facts for plant in fact.plants}

    def happening(self, turn: int) -> Happening:
        """What happens in a turn; the same each time it is asked for."""
        random = Random(f"{self._seed}/{'twin' if turn in self.twins else turn}")
        user = f" {prose(random, self._filler, random.randint(60, 200))}"
        reply = f"That is done. {prose(random, self._filler, random.randint(120, 320))}"
        if turn not in self._planted:
            topic = self._other_pair(random, self._asked_topics, self._other_topics)
            documents = [self._document(random) for _ in range(DOCUMENTS)]
            if turn in self.twins:
                documents[0] += f"\nThe dial stood at {self.twin_code}."
            return Happening(random.choice(_OPENINGS).format(key=topic) + user, tuple(documents), reply)
        fact, plant = self._planted[turn]
        topic = fact.key if fact.by_title else self._other_pair(random, self._asked_topics, self._other_topics)
        documents = [self._document(random, is_plain=fact.by_title) for _ in range(DOCUMENTS)]
        told = self._told(random, fact, plant)
        match plant.place:
            case "user" if fact.by_title:
                # Far behind the words that the title is made from, in another passage.
                user += f" {prose(random, self._filler, 2_000)} {told}"
            case "user":
                user += f"\n{told}"
            case "reply":
                reply += f"\n{told}"
            case "tool":
                documents[random.randrange(DOCUMENTS)] = told
            case "failed":
                documents[random.randrange(DOCUMENTS)] = f"!{told}"
            case "deep":
                before, after = (prose(random, self._filler, DEEP_SIZE // 2) for _ in range(2))
                documents[random.randrange(DOCUMENTS)] = f"{before}\n{told}\n{after}"
        return Happening(random.choice(_OPENINGS).format(key=topic) + user, tuple(documents), reply)

    def _told(self, random: Random, fact: Fact, plant: Plant) -> str:
        """The fact in its surroundings: what it stands among, or words that say nothing."""
        if fact.by_title:
            before, after = (prose(random, self._filler, size) for size in (60, 40))
            return f"{before} {random.choice(_RESULTS).format(value=plant.value)} {after}"
        statements = [random.choice(_STATEMENTS).format(key=fact.key, value=plant.value)]
        for number in range(DISTRACTORS):
            pair = fact.key.split()
            pair[number % 2] = random.choice(self._other[number % 2])
            statements.append(random.choice(_STATEMENTS).format(key=" ".join(pair), value=new_value(random)))
        random.shuffle(statements)
        return "\n".join(statements)

    def _document(self, random: Random, *, is_plain: bool = False) -> str:
        """What a tool usually returns: prose, and unless it is plain a few statements that nobody asks about."""
        parts = [prose(random, self._filler, random.randint(200, 700))]
        for _ in range(0 if is_plain else 4):
            pair = self._other_pair(random, self._asked, self._other)
            parts.append(random.choice(_STATEMENTS).format(key=pair, value=new_value(random)))
        random.shuffle(parts)
        return "\n".join(parts)

    def _other_pair(
        self, random: Random, asked: tuple[list[str], list[str]], other: tuple[list[str], list[str]]
    ) -> str:
        """Two words of which one occurs in questions."""
        if random.randrange(2):
            return f"{random.choice(asked[0])} {random.choice(other[1])}"
        return f"{random.choice(other[0])} {random.choice(asked[1])}"

    def _facts(self, random: Random, count: int) -> tuple[Fact, ...]:
        """A third is asked by title, a third is stated twice; the places take turns."""
        things, topics = ([f"{one} {two}" for one in a for two in b] for a, b in (self._asked, self._asked_topics))
        random.shuffle(things)
        random.shuffle(topics)
        again = set(random.sample(range(count), count // 3))
        turns = random.sample(range(2, self._turns - self._turns // 30), count + len(again))
        facts = []
        for number in range(count):
            by_title = number % 3 == 0
            places = PLACES_OF_TOPICS if by_title else PLACES_OF_THINGS
            when = sorted(turns.pop() for _ in range(2 if number in again else 1))
            where = [places[(number // 3 + shift) % len(places)] for shift in range(len(when))]
            plants = tuple(Plant(turn, place, new_value(random)) for turn, place in zip(when, where, strict=True))
            key = (topics if by_title else things).pop()
            question = random.choice(_TOPIC_QUESTIONS if by_title else _QUESTIONS).format(key=key)
            facts.append(Fact(key, by_title, question, plants))
        return tuple(facts)
