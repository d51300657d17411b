"""Examine a prepared corpus: whether it is whole, of its languages, and of sides that belong together.

Everything is counted on the packed ids, a chunk at a time; 4.5 million pairs took 16 seconds of processor time.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64, Shaped, UInt64

from ablate.data.build import vocabulary_of
from ablate.data.corpus import Corpus
from ablate.data.packed import Packed
from ablate.data.source import SIDES, digest_of, read_lines
from ablate.data.subword import EOS
from ablate.finding import Finding, Level

CHUNK = 200_000  # sentences looked at at once
WINDOW = 1_000  # pairs whose lengths are compared with those of their neighbours
LAGS = (-2, -1, 1, 2)  # lines by which one side may have slipped
SLIPPED = 0.2  # how much better the lengths of shifted sides must correlate
ENOUGH, TOGETHER = 100, 0.3  # pairs whose lengths can be compared; how well those of translations correlate at least
FOREIGN = 0.5  # nats per subword by which a sentence must look more like the other language
FEWEST, TELLING = 5, 0.02  # subwords in which, and share of common words from which on a language can be told
COPIES, MIXED, UNEQUAL = 0.01, 0.01, 0.01  # shares of training pairs from which on to warn
RATIO = 3.0  # of lengths, times the usual one, beyond which a pair is unequal
COMMON_WORDS = {  # the most frequent function words that the others lack
    "en": "the of and to is that for it with was be this are not you but",
    "de": "der die und das nicht ist den zu mit sich ein auf für dem eine",
    "fr": "le les des et est une dans que pour pas du qui sur nous ce il",
}


def examine(corpus: Corpus) -> Iterator[Finding]:
    """Examine a prepared corpus, and give what is found as it is found."""
    damaged = list(whole(corpus))
    yield from damaged
    if any(finding.level == "error" for finding in damaged):
        return
    train = Sides(corpus.split("train"))
    yield lengths(train)
    yield copies(train)
    yield repeated(corpus, train)
    yield from languages(corpus, train)
    yield from alignment(train)


def whole(corpus: Corpus) -> Iterator[Finding]:
    """Check that the files hold what the manifest says: vocabulary, numbers of pairs, ids, end symbols, text."""
    for split, pairs in corpus.manifest["pairs"].items():
        try:
            wrong = [*_wrong_ids(corpus, split, pairs), *_wrong_text(corpus, split)]
        except (OSError, ValueError, EOFError) as err:  # a file that is missing, or not of its kind any more
            wrong = [str(err)]
        said = f"{'; '.join(wrong)}: delete {corpus.folder} and prepare it again" if wrong else f"{pairs:,} pairs"
        yield Finding("error" if wrong else "ok", split, said)


def _wrong_ids(corpus: Corpus, split: str, pairs: int) -> Iterator[str]:
    packed = corpus.split(split)
    for side in SIDES:
        ids, offsets = getattr(packed, f"{side}_ids"), getattr(packed, f"{side}_offsets")
        if len(offsets) - 1 != pairs or offsets[-1] != len(ids) or (np.diff(offsets) < 1).any():
            yield f"{side} has {len(offsets) - 1:,} sentences, {len(ids):,} subwords of {offsets[-1]:,}"
        elif int(ids.max()) >= corpus.manifest["vocab_size"] or not (ids[offsets[1:] - 1] == EOS).all():
            yield f"{side} has ids beyond the vocabulary, or a sentence without its end"


def _wrong_text(corpus: Corpus, split: str) -> Iterator[str]:
    """Tell what makes scores wrong that the ids do not show; train's text is not kept."""
    if digest_of(vocabulary_of(corpus.folder)) != corpus.digests["vocab"]:
        yield "the vocabulary is another"
    if split != "train":
        sides = [read_lines(corpus.folder / f"{split}.{side}.txt") for side in SIDES]
        text = "".join(f"{src}\n{tgt}\n" for src, tgt in zip(*sides, strict=True))
        if hashlib.sha256(text.encode()).hexdigest() != corpus.manifest["text_digests"][split]:
            yield "the text is another"


@dataclass(frozen=True)
class Sides:
    """The two sides of a split, and what several checks need of them."""

    packed: Packed

    @cached_property
    def lengths(self) -> tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]:
        """Give both sides' lengths in subwords, without the end symbol."""
        return self.packed.src_lengths - 1, self.packed.tgt_lengths - 1

    @cached_property
    def hashes(self) -> tuple[UInt64[np.ndarray, " pairs"], UInt64[np.ndarray, " pairs"]]:
        """Give a number for each sentence of both sides: equal for equal subwords, else different but by chance."""
        packed = self.packed
        return _hashes(packed.src_ids, packed.src_offsets), _hashes(packed.tgt_ids, packed.tgt_offsets)


def _chunks(
    ids: Shaped[np.ndarray, " tokens"], offsets: Int64[np.ndarray, " bounds"]
) -> Iterator[tuple[Shaped[np.ndarray, " chunk"], Int64[np.ndarray, " begins"]]]:
    """Give the ids of `CHUNK` sentences at once, and where each begins in them."""
    for first in range(0, len(offsets) - 1, CHUNK):
        bounds = offsets[first : first + CHUNK + 1]
        yield ids[bounds[0] : bounds[-1]], bounds[:-1] - bounds[0]


def _hashes(
    ids: Shaped[np.ndarray, " tokens"], offsets: Int64[np.ndarray, " bounds"]
) -> UInt64[np.ndarray, " sentences"]:
    parts = []
    for chunk, begins in _chunks(ids, offsets):
        lengths = np.diff(begins, append=len(chunk))
        place = (np.arange(len(chunk)) - np.repeat(begins, lengths)).astype(np.uint64)
        mixed = (chunk.astype(np.uint64) + np.uint64(1)) * (2 * place + np.uint64(0x9E3779B97F4A7C15))
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        parts.append(np.add.reduceat(mixed, begins))
    return np.concatenate(parts)


def lengths(train: Sides) -> Finding:
    """Show how long sentences are."""
    bounds = np.array([0, 1, 11, 21, 31, 41, 51, 76, 101, 151, 1 << 62])
    lines = []
    counted = [np.histogram(side, bounds)[0] for side in train.lengths]
    for i in range(len(bounds) - 1):
        name = "empty" if i == 0 else f"{bounds[i]}-{bounds[i + 1] - 1}" if i < len(bounds) - 2 else f"{bounds[i]}-"
        shares = [100 * count[i] / count.sum() for count in counted]
        lines.append(f"{name:>8} {shares[0]:5.1f} % {shares[1]:5.1f} %  " + "█" * round(shares[0] / 2))
    quantiles = [np.quantile(side, [0.5, 0.99, 1]).astype(int).tolist() for side in train.lengths]
    said = ", ".join(
        f"{side} median {middle}, 99 % up to {most}, longest {top}"
        for side, (middle, most, top) in zip(SIDES, quantiles, strict=True)
    )
    empty = int(sum((side == 0).sum() for side in train.lengths))
    level: Level = "warning" if empty else "ok"
    return Finding(level, "lengths", f"in subwords: {said}\n{'':>8}     src     tgt\n" + "\n".join(lines))


def copies(train: Sides) -> Finding:
    """Count the pairs whose sides are equal: a model learns to copy from few (Ott et al. 2018)."""
    equal = np.flatnonzero(train.hashes[0] == train.hashes[1])
    return _share("copies", equal, len(train.packed), COPIES, "have the same text on both sides")


def repeated(corpus: Corpus, train: Sides) -> Finding:
    """Count sentences of dev and test that training has seen."""
    said, most = [], 0.0
    for split in corpus.manifest["pairs"]:
        if split != "train":
            seen = np.isin(Sides(corpus.split(split)).hashes[0], train.hashes[0])
            said.append(f"{seen.mean():.1%} of {split}'s sources")
            most = max(most, float(seen.mean()))
    return Finding("warning" if most > 0.05 else "ok", "seen before", f"{', '.join(said)} stand in train, too")


def languages(corpus: Corpus, train: Sides) -> Iterator[Finding]:
    """Tell sentences in the other side's language, by each side's subwords; and sides under the wrong names."""
    vocab_size, packed = corpus.manifest["vocab_size"], train.packed
    counts = [np.ones(vocab_size), np.ones(vocab_size)]  # one more than there are, so that no logarithm is infinite
    sides = ((packed.src_ids, packed.src_offsets), (packed.tgt_ids, packed.tgt_offsets))
    for count, (ids, offsets) in zip(counts, sides, strict=True):
        for chunk, _ in _chunks(ids, offsets):
            count += np.bincount(chunk, minlength=vocab_size)
    lean = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())  # above 0: the source's
    lean[EOS] = 0.0
    src = _means(lean, packed.src_ids, packed.src_offsets)
    tgt = _means(lean, packed.tgt_ids, packed.tgt_offsets)
    long = np.minimum(*train.lengths) >= FEWEST
    src_foreign, tgt_foreign = long & (src < -FOREIGN), long & (tgt > FOREIGN)
    total = len(packed)
    yield _share("sides swapped", np.flatnonzero(src_foreign & tgt_foreign), total, MIXED, "look swapped")
    one = np.flatnonzero(src_foreign ^ tgt_foreign)
    yield _share("one language", one, total, MIXED, "look as if both sides were of one language")
    yield names(corpus)


def names(corpus: Corpus) -> Finding:
    """Check by common words of dev that each side is of the language that the configuration says."""
    said = corpus.manifest["languages"]
    if not {said["src"], said["tgt"]} <= set(COMMON_WORDS):
        return Finding("ok", "language names", f"not checked: known are {', '.join(COMMON_WORDS)}")
    known = {language: set(common.split()) for language, common in COMMON_WORDS.items()}
    listed, right = [], True
    for side in SIDES:
        words = " ".join(corpus.text("dev", side)).lower().split()
        share = {language: sum(word in known[language] for word in words) / max(1, len(words)) for language in known}
        found = max(share, key=lambda language: share[language])
        told = share[found] >= TELLING
        right &= found == said[side] or not told
        listed.append(f"{side} looks {found} ({share[found]:.0%} common words)" if told else f"{side} cannot be told")
    level: Level = "ok" if right else "error"
    return Finding(level, "language names", f"{', '.join(listed)}; named {said['src']} → {said['tgt']}")


def _means(
    values: Float64[np.ndarray, " vocab"], ids: Shaped[np.ndarray, " tokens"], offsets: Int64[np.ndarray, " bounds"]
) -> Float64[np.ndarray, " sentences"]:
    sums = [np.add.reduceat(values[chunk], begins) for chunk, begins in _chunks(ids, offsets)]
    return np.concatenate(sums) / np.diff(offsets)


def alignment(train: Sides) -> Iterator[Finding]:
    """Suspect pairs that do not belong together: of unequal lengths, in another order, or in stretches a line off."""
    src, tgt = (np.log(side + 1.0) for side in train.lengths)
    ratio = tgt - src
    unequal = np.flatnonzero(np.abs(ratio - np.median(ratio)) > np.log(RATIO))
    said = f"differ over {RATIO:g} times more than usual in length"
    yield _share("lengths unequal", unequal, len(ratio), UNEQUAL, said)
    if len(ratio) >= ENOUGH:
        together = _correlation(src, tgt)
        said = f"lengths of src and tgt correlate with {together:.2f}"
        if together < TOGETHER:
            yield Finding("error", "order", f"{said}, translations do with 0.7 and more: are both sides in one order?")
        else:
            yield Finding("ok", "order", said)
    windows = range(0, len(src) - WINDOW + 1, WINDOW)
    slipped = [first for first in windows if _slipped(src[first : first + WINDOW], tgt[first : first + WINDOW])]
    where = ", ".join(f"{first:,}-{first + WINDOW - 1:,}" for first in slipped[:5])
    said = f"{len(slipped)} of {len(windows)} stretches of {WINDOW:,} pairs fit better a line or two off"
    yield Finding("error", "alignment", f"{said}: {where}") if slipped else Finding("ok", "alignment", said)


def _slipped(src: Float64[np.ndarray, " window"], tgt: Float64[np.ndarray, " window"]) -> bool:
    """Tell whether lengths correlate better with those of the lines before or after."""
    return max(_correlation(src, tgt, lag) for lag in LAGS) > _correlation(src, tgt) + SLIPPED


def _correlation(src: Float64[np.ndarray, " pairs"], tgt: Float64[np.ndarray, " pairs"], lag: int = 0) -> float:
    ours, theirs = src[max(0, -lag) : len(src) - max(0, lag)], tgt[max(0, lag) : len(tgt) + min(0, lag)]
    return float(np.corrcoef(ours, theirs)[0, 1]) if ours.std() and theirs.std() else 0.0


def _share(what: str, found: Int64[np.ndarray, " found"], total: int, limit: float, said: str) -> Finding:
    where = f", such as {', '.join(f'{number:,}' for number in found[:5].tolist())}" if len(found) else ""
    level: Level = "warning" if len(found) > limit * total else "ok"
    return Finding(level, what, f"{len(found):,} of {total:,} training pairs ({len(found) / total:.2%}) {said}{where}")
