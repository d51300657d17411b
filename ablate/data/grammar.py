"""The words of a small English-German grammar, with every form they take here, and the phrases made of them.

All is third person singular, present or past; forms are listed, never guessed, but for the regular endings.
"""

import itertools
from typing import NamedTuple


class Phrase(NamedTuple):
    """A noun phrase in English and in the German cases; `it` is its noun's pronoun, nominative and accusative."""

    en: str
    nom: str
    acc: str
    dat: str
    it: tuple[str, str]


class Verb(NamedTuple):
    """A verb form; `prefix` is what German separates in a main clause, empty where there is none."""

    en: str
    de: str
    prefix: str

    @property
    def final(self) -> str:
        """Give the form at the end of a subordinate clause, where nothing is separated."""
        return self.prefix + self.de


class Adjective(NamedTuple):
    """An adjective: English, the German predicate, and the German stem before an ending."""

    en: str
    de: str
    stem: str


def _table(text: str) -> list[list[str]]:
    """Read entries separated by semicolons, their fields by slashes."""
    return [[field.strip() for field in entry.split("/")] for entry in text.split(";")]


GENDERS = "mfn"
PRONOUNS = {"m": ("er", "ihn"), "f": ("sie", "sie"), "n": ("es", "es")}

# By case (nominative, accusative, dative), then gender; and the endings of an adjective that follows.
STRONG = (("e", "e", "e"), ("en", "e", "e"), ("en", "en", "en"))  # after der, dieser
MIXED = (("er", "e", "es"), ("en", "e", "es"), ("en", "en", "en"))  # after ein, mein
DETERMINERS = {
    "the": ((("der", "die", "das"), ("den", "die", "das"), ("dem", "der", "dem")), STRONG),
    "this": ((("dieser", "diese", "dieses"), ("diesen", "diese", "dieses"), ("diesem", "dieser", "diesem")), STRONG),
    "a": ((("ein", "eine", "ein"), ("einen", "eine", "ein"), ("einem", "einer", "einem")), MIXED),
    "my": ((("mein", "meine", "mein"), ("meinen", "meine", "mein"), ("meinem", "meiner", "meinem")), MIXED),
}

# English / gender / German nominative / accusative and dative, where they differ from it
PERSON_NOUNS = _table(
    "man/m/Mann; boy/m/Junge/Jungen; king/m/König; uncle/m/Onkel; guest/m/Gast; student/m/Student/Studenten;"
    "woman/f/Frau; queen/f/Königin; aunt/f/Tante; grandmother/f/Großmutter; child/n/Kind; girl/n/Mädchen"
)
THING_NOUNS = _table(
    "table/m/Tisch; chair/m/Stuhl; key/m/Schlüssel; letter/m/Brief; coat/m/Mantel; spoon/m/Löffel; apple/m/Apfel;"
    "suitcase/m/Koffer; stone/m/Stein; carpet/m/Teppich; lamp/f/Lampe; cup/f/Tasse; bag/f/Tasche; clock/f/Uhr;"
    "flower/f/Blume; box/f/Kiste; bottle/f/Flasche; map/f/Karte; candle/f/Kerze; blanket/f/Decke; book/n/Buch;"
    "picture/n/Bild; bicycle/n/Fahrrad; knife/n/Messer; bed/n/Bett; glass/n/Glas; toy/n/Spielzeug; egg/n/Ei;"
    "ship/n/Schiff; instrument/n/Instrument"
)

# English / German / stem, where it differs
PERSON_ADJECTIVES = [
    Adjective(entry[0], entry[1], entry[-1])
    for entry in _table(
        "old/alt; young/jung; tall/groß; small/klein; tired/müde/müd; friendly/freundlich; clever/klug; rich/reich;"
        "poor/arm; happy/glücklich; famous/berühmt; strong/stark; polite/höflich"
    )
]
THING_ADJECTIVES = [
    Adjective(entry[0], entry[1], entry[-1])
    for entry in _table(
        "old/alt; new/neu; big/groß; small/klein; beautiful/schön; red/rot; green/grün; blue/blau; yellow/gelb;"
        "black/schwarz; white/weiß; heavy/schwer; light/leicht; cheap/billig; expensive/teuer/teur; dark/dunkel/dunkl;"
        "ugly/hässlich; dirty/schmutzig"
    )
]

FEELINGS = [
    Adjective(entry[0], entry[1], entry[1])
    for entry in _table(
        "happy/glücklich; sad/traurig; angry/wütend; proud/stolz; surprised/überrascht; satisfied/zufrieden; calm/ruhig"
    )
]

# English present / past / German present / past / separable prefix
_PLAIN = _table(
    "sees/saw/sieht/sah; buys/bought/kauft/kaufte; finds/found/findet/fand; sells/sold/verkauft/verkaufte;"
    "cleans/cleaned/putzt/putzte; carries/carried/trägt/trug; needs/needed/braucht/brauchte; loves/loved/liebt/liebte;"
    "draws/drew/zeichnet/zeichnete; holds/held/hält/hielt; hides/hid/versteckt/versteckte;"
    "forgets/forgot/vergisst/vergaß"
)
_SEPARABLE = _table(
    "picks up/picked up/hebt/hob/auf; takes along/took along/nimmt/nahm/mit; throws away/threw away/wirft/warf/weg;"
    "brings back/brought back/bringt/brachte/zurück; picks out/picked out/sucht/suchte/aus;"
    "looks at/looked at/sieht/sah/an"
)
_GIVING = _table(
    "gives/gave/gibt/gab; shows/showed/zeigt/zeigte; brings/brought/bringt/brachte; sends/sent/schickt/schickte;"
    "lends/lent/leiht/lieh; promises/promised/verspricht/versprach"
)
_DATIVE = _table(
    "helps/helped/hilft/half; thanks/thanked/dankt/dankte; answers/answered/antwortet/antwortete;"
    "follows/followed/folgt/folgte; trusts/trusted/vertraut/vertraute; listens to/listened to/hört/hörte/zu"
)
_STANDING = _table("stands/stood/steht/stand; lies/lay/liegt/lag; is/was/ist/war")
_KNOWING = _table("knows/knew/weiß/wusste; says/said/sagt/sagte; believes/believed/glaubt/glaubte")
_PRESENT_ADVERBS = _table("today/heute; now/jetzt; every day/jeden Tag")
_PAST_ADVERBS = _table("yesterday/gestern; last week/letzte Woche; two days ago/vor zwei Tagen")


def _tense(table: list[list[str]], tense: int) -> list[Verb]:
    """Take the present (0) or the past (1) of each verb."""
    return [Verb(entry[tense], entry[2 + tense], entry[4] if len(entry) > 4 else "") for entry in table]


def _both(table: list[list[str]]) -> list[Verb]:
    return _tense(table, 0) + _tense(table, 1)


def _dated(table: list[list[str]]) -> list[tuple[list[str], Verb]]:
    """Pair each adverb of time with each verb form of its tense."""
    present = itertools.product(_PRESENT_ADVERBS, _tense(table, 0))
    return [*present, *itertools.product(_PAST_ADVERBS, _tense(table, 1))]


def _phrases(nouns: list[list[str]], adjectives: list[Adjective]) -> list[Phrase]:
    """Make every noun phrase: each determiner, no adjective or one, each noun."""
    phrases = []
    for (determiner, (articles, endings)), adjective, noun in itertools.product(
        DETERMINERS.items(), [None, *adjectives], nouns
    ):
        gender = GENDERS.index(noun[1])
        words_en = [adjective.en, noun[0]] if adjective else [noun[0]]
        article_en = "an" if determiner == "a" and words_en[0][0] in "aeiou" else determiner
        cases = []
        for case, form in enumerate((noun[2], noun[-1], noun[-1])):
            middle = [adjective.stem + endings[case][gender]] if adjective else []
            cases.append(" ".join([articles[case][gender], *middle, form]))
        nom, acc, dat = cases
        phrases.append(Phrase(" ".join([article_en, *words_en]), nom, acc, dat, PRONOUNS[noun[1]]))
    return phrases


PERSONS = _phrases(PERSON_NOUNS, PERSON_ADJECTIVES)
THINGS = _phrases(THING_NOUNS, THING_ADJECTIVES)
PLAIN, SEPARABLE, STANDING, KNOWING = _both(_PLAIN), _both(_SEPARABLE), _both(_STANDING), _both(_KNOWING)
TAKING = PLAIN + SEPARABLE  # verbs with an object in the accusative
DATED_TAKING, DATED_GIVING, DATED_DATIVE = _dated(_PLAIN + _SEPARABLE), _dated(_GIVING), _dated(_DATIVE)
BEING = [Verb("is", "ist", ""), Verb("was", "war", "")]
PLACES = _table("next to/neben; behind/hinter; under/unter; in front of/vor; on/auf")
CONTRASTS = list(itertools.permutations(THING_ADJECTIVES, 2))  # two that differ
