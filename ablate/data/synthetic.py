"""An English-German corpus of any size from a small grammar (`grammar.py`), made on the spot.

It holds what a translation model must learn to be right: gender and case on article and adjective, the verb second in
main clauses and last in subordinate ones, prefixes that separate, and pronouns that agree with a noun said earlier.
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ablate.config import SyntheticData
from ablate.data import grammar as g
from ablate.data.grammar import Adjective, Phrase, Verb
from ablate.data.source import Pairs, Source
from ablate.errors import ConfigError

GRAMMAR_VERSION = "1"  # raise it when a sentence number would give another sentence


def source(data: SyntheticData) -> Source:
    """Describe the corpus of a grammar seed.

    Raises:
        ConfigError: for a size out of range, or languages the grammar does not speak.
    """
    for field, only in (("src_lang", "en"), ("tgt_lang", "de")):
        if getattr(data, field) != only:
            raise ConfigError(f"data.{field}", getattr(data, field), f"the grammar speaks only {only!r}")
    sizes = {"dev": data.num_dev, "test": data.num_test, "train": data.num_train}
    for split, size in sizes.items():
        if size < 1:
            raise ConfigError(f"data.num_{split}", size, "must be at least 1")
    grammar = Grammar(data.grammar_seed)
    if sum(sizes.values()) > len(grammar):
        most = len(grammar) - data.num_dev - data.num_test
        raise ConfigError("data.num_train", data.num_train, f"the grammar has only {most:,} sentences for training")
    return Source(
        origin=f"a small grammar, version {GRAMMAR_VERSION}, seed {data.grammar_seed}",
        licence="none needed: made on the spot",
        identity={"grammar": GRAMMAR_VERSION},
        read=lambda counts, say, scratch: _read(grammar, sizes),
    )


def _read(grammar: "Grammar", sizes: dict[str, int]) -> Pairs:
    """Give consecutive sentence numbers to dev, test and train: no two share a sentence, and dev outlives num_train."""
    numbers = itertools.count()
    for split, size in sizes.items():
        for number in itertools.islice(numbers, size):
            yield split, *grammar.pair(number)


class Grammar:
    """All sentences of the grammar, numbered in an order that the seed shuffles; different numbers, different English.

    Templates take turns, so each kind of sentence is equally frequent in any stretch of numbers.
    """

    def __init__(self, seed: int):
        self._orders = [Shuffled(template.size, f"{seed}/{template.say.__name__}") for template in TEMPLATES]

    def __len__(self) -> int:
        return len(TEMPLATES) * min(template.size for template in TEMPLATES)

    def pair(self, number: int) -> tuple[str, str]:
        """Give sentence `number` in English and in German, in microseconds and without making those before it."""
        turn, kind = divmod(number, len(TEMPLATES))
        template, rest = TEMPLATES[kind], self._orders[kind][turn]
        chosen = []
        for options in template.choices:
            rest, place = divmod(rest, len(options))
            chosen.append(options[place])
        en, de = template.say(*chosen)
        return f"{en[0].upper()}{en[1:]}.", f"{de[0].upper()}{de[1:]}."


class Shuffled:
    """A permutation of range(size) that needs no memory: a Feistel network on the next power of four, walked until
    it lands inside (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    """

    ROUNDS = 4

    def __init__(self, size: int, key: str):
        self._size = size
        self._half = max(1, math.ceil(math.log2(max(size, 2)) / 2))  # bits of each half
        digest = hashlib.sha256(key.encode()).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8]) | 1 for i in range(self.ROUNDS)]

    def __getitem__(self, number: int) -> int:
        half, mask = self._half, (1 << self._half) - 1
        while True:
            left, right = number >> half, number & mask
            for key in self._keys:
                left, right = right, left ^ ((((right + key) * key & (1 << 64) - 1) >> 29) & mask)
            number = left << half | right
            if number < self._size:
                return number


@dataclass(frozen=True)
class Template:
    """A kind of sentence: what can be chosen, and how the choice is said in both languages."""

    say: Callable[..., tuple[str, str]]
    choices: tuple[Sequence[Any], ...]

    @cached_property
    def size(self) -> int:
        """Count the sentences of this kind."""
        return math.prod(map(len, self.choices))


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def act(who: Phrase, verb: Verb, what: Phrase) -> tuple[str, str]:
    """Say "The man picks up the key" and "Der Mann hebt den Schlüssel auf"."""
    return f"{who.en} {verb.en} {what.en}", _join(who.nom, verb.de, what.acc, verb.prefix)


def act_when(when: tuple[list[str], Verb], who: Phrase, what: Phrase) -> tuple[str, str]:
    """Say "Today the man picks up the key" and "Heute hebt der Mann den Schlüssel auf"."""
    (en, de), verb = when
    return f"{en} {who.en} {verb.en} {what.en}", _join(de, verb.de, who.nom, what.acc, verb.prefix)


def give_when(when: tuple[list[str], Verb], who: Phrase, whom: Phrase, what: Phrase) -> tuple[str, str]:
    """Say "Today the man gives the woman a key" and "Heute gibt der Mann der Frau einen Schlüssel"."""
    (en, de), verb = when
    return f"{en} {who.en} {verb.en} {whom.en} {what.en}", _join(de, verb.de, who.nom, whom.dat, what.acc)


def help_when(when: tuple[list[str], Verb], who: Phrase, whom: Phrase) -> tuple[str, str]:
    """Say "Today the man helps the woman" and "Heute hilft der Mann der Frau"."""
    (en, de), verb = when
    return f"{en} {who.en} {verb.en} {whom.en}", _join(de, verb.de, who.nom, whom.dat, verb.prefix)


def stand(what: Phrase, verb: Verb, place: list[str], where: Phrase) -> tuple[str, str]:
    """Say "The lamp stands next to the table" and "Die Lampe steht neben dem Tisch"."""
    return f"{what.en} {verb.en} {place[0]} {where.en}", f"{what.nom} {verb.de} {place[1]} {where.dat}"


def know_that(who: Phrase, knows: Verb, whom: Phrase, verb: Verb, what: Phrase) -> tuple[str, str]:
    """Say "The man knows that the woman picks up the key" and "Der Mann weiß, dass die Frau den Schlüssel aufhebt"."""
    en = f"{who.en} {knows.en} that {whom.en} {verb.en} {what.en}"
    return en, f"{who.nom} {knows.de}, dass {whom.nom} {what.acc} {verb.final}"


def feel_because(who: Phrase, be: Verb, how: Adjective, whom: Phrase, verb: Verb, what: Phrase) -> tuple[str, str]:
    """Say "The man is calm because the woman saw the key" and "Der Mann ist ruhig, weil die Frau den Schlüssel sah"."""
    en = f"{who.en} {be.en} {how.en} because {whom.en} {verb.en} {what.en}"
    return en, f"{who.nom} {be.de} {how.de}, weil {whom.nom} {what.acc} {verb.final}"


def it_is(what: Phrase, be: Verb, how: tuple[Adjective, Adjective]) -> tuple[str, str]:
    """Say "The table is old, but it is heavy" and "Der Tisch ist alt, aber er ist schwer"."""
    en = f"{what.en} {be.en} {how[0].en}, but it {be.en} {how[1].en}"
    return en, f"{what.nom} {be.de} {how[0].de}, aber {what.it[0]} {be.de} {how[1].de}"


def act_because_it(who: Phrase, verb: Verb, what: Phrase, be: Verb, how: Adjective) -> tuple[str, str]:
    """Say "The man buys the table because it is old" and "Der Mann kauft den Tisch, weil er alt ist"."""
    en = f"{who.en} {verb.en} {what.en} because it {be.en} {how.en}"
    return en, f"{_join(who.nom, verb.de, what.acc, verb.prefix)}, weil {what.it[0]} {how.de} {be.de}"


def act_on_it(what: Phrase, be: Verb, how: Adjective, who: Phrase, verb: Verb) -> tuple[str, str]:
    """Say "The table is old, but the man needs it" and "Der Tisch ist alt, aber der Mann braucht ihn"."""
    en = f"{what.en} {be.en} {how.en}, but {who.en} {verb.en} it"
    return en, f"{what.nom} {be.de} {how.de}, aber {who.nom} {verb.de} {what.it[1]}"


TEMPLATES = (
    Template(act, (g.PERSONS, g.TAKING, g.THINGS)),
    Template(act_when, (g.DATED_TAKING, g.PERSONS, g.THINGS)),
    Template(give_when, (g.DATED_GIVING, g.PERSONS, g.PERSONS, g.THINGS)),
    Template(help_when, (g.DATED_DATIVE, g.PERSONS, g.PERSONS)),
    Template(stand, (g.THINGS, g.STANDING, g.PLACES, g.THINGS)),
    Template(know_that, (g.PERSONS, g.KNOWING, g.PERSONS, g.TAKING, g.THINGS)),
    Template(feel_because, (g.PERSONS, g.BEING, g.FEELINGS, g.PERSONS, g.TAKING, g.THINGS)),
    Template(it_is, (g.THINGS, g.BEING, g.CONTRASTS)),
    Template(act_because_it, (g.PERSONS, g.TAKING, g.THINGS, g.BEING, g.THING_ADJECTIVES)),
    Template(act_on_it, (g.THINGS, g.BEING, g.THING_ADJECTIVES, g.PERSONS, g.PLAIN)),
)
