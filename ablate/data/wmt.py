"""WMT14 English-German and English-French: training text of statmt.org, newstest2013 for dev, newstest2014 for test."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ablate.config import WmtData
from ablate.data.archive import unpack
from ablate.data.fetch import Remote, fetch
from ablate.data.lines import aligned, lines, text_lines, tidy
from ablate.data.source import SIDES, Counts, Pairs, Say, Source, check_languages
from ablate.errors import ConfigError

STATMT = "https://www.statmt.org"
OTHER = {"wmt14_ende": "de", "wmt14_enfr": "fr"}  # the language beside English
NEWS_COMMENTARY = {  # v9 was given out for WMT14; v11 is what the paper's authors used
    "v9": f"{STATMT}/wmt14/training-parallel-nc-v9.tgz",
    "v11": "https://data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz",
}
# sacreBLEU's names. The paper's test set has 3,003 lines; "wmt14" alone is the 2,737 that WMT14 itself judged.
NEWSTEST = {"dev": "wmt13", "test": "wmt14/full"}
SEGMENT = re.compile(r"<seg.*?>(.*)</seg>")


@dataclass(frozen=True)
class Part:
    """A part of the training text: an archive, and its files but for the language at their end."""

    name: str
    url: str
    stem: str
    ending: str = ""


def source(data: WmtData) -> Source:
    """Describe the corpus; its archives are fetched when the text is read.

    Raises:
        ConfigError: for other languages, limits that nothing meets, or a News Commentary that there is not.
    """
    languages = ("en", OTHER[data.name])
    check_languages(data, languages)
    if data.news_commentary not in NEWS_COMMENTARY or (data.news_commentary, languages[1]) == ("v11", "fr"):
        there = "must be v9 or v11" if languages[1] == "de" else "must be v9: v11 has no French"
        raise ConfigError("data.news_commentary", data.news_commentary, there)
    if not 1 <= data.min_words <= data.max_words:
        allowed = f"must be at least data.min_words={data.min_words}, and that at least 1"
        raise ConfigError("data.max_words", data.max_words, allowed)
    if data.max_ratio < 1:
        raise ConfigError("data.max_ratio", data.max_ratio, "must be at least 1")
    listed = parts(data)
    return Source(
        origin=f"{', '.join(part.name for part in listed)} (statmt.org); dev newstest2013, test newstest2014",
        licence="for research; each part's own terms, see https://www.statmt.org/wmt14/translation-task.html",
        identity={part.name: part.url for part in listed},
        read=lambda counts, say, scratch: _read(data, counts, say, scratch),
    )


def parts(data: WmtData) -> list[Part]:
    """List the parts of the training text, in the corpus's order."""
    pair = f"{OTHER[data.name]}-en"
    news = f"news-commentary-{data.news_commentary}"
    listed = [
        Part("europarl-v7", f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz", f"europarl-v7.{pair}"),
        Part("commoncrawl", f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz", f"commoncrawl.{pair}"),
        Part(news, NEWS_COMMENTARY[data.news_commentary], f"{news}.{pair}"),
    ]
    if OTHER[data.name] == "fr":
        listed += [
            Part("un", f"{STATMT}/wmt13/training-parallel-un.tgz", f"undoc.2000.{pair}"),
            Part("giga-fren", f"{STATMT}/wmt10/training-giga-fren.tar", "giga-fren.release2.fixed", ".gz"),
        ]
    return listed


def newstest(data: WmtData, split: str) -> tuple[Remote, tuple[str, str]]:
    """Give the archive of dev or test as sacreBLEU defines it, with its MD5, and its files' names."""
    from sacrebleu.dataset import DATASETS  # here, so that only who reads the corpus loads it

    defined = DATASETS[NEWSTEST[split]]
    src, tgt = (path.rpartition("/")[2] for path in defined.langpairs[f"{data.src_lang}-{data.tgt_lang}"])
    return Remote(defined.data[0], defined.md5[0]), (src, tgt)


def _read(data: WmtData, counts: Counts, say: Say, scratch: Path) -> Pairs:
    listed = parts(data)
    found = {split: newstest(data, split) for split in NEWSTEST}
    # All are fetched before the first is read, so that what cannot be fetched is known at once.
    archives = {part.name: fetch(Remote(part.url), data, say) for part in listed}
    archives |= {split: fetch(remote, data, say) for split, (remote, _) in found.items()}
    for part in listed:
        names = [f"{part.stem}.{language}{part.ending}" for language in (data.src_lang, data.tgt_lang)]
        say(f"unpacking {part.name}")
        paths = [scratch / name for name in names]
        unpack(archives[part.name], dict(zip(names, paths, strict=True)))
        for src, tgt in _cleaned(data, part.name, paths[0], paths[1], counts):
            yield "train", src, tgt
    for split, (_, files) in found.items():
        paths = [scratch / f"{split}.{side}.sgm" for side in SIDES]
        unpack(archives[split], dict(zip(files, paths, strict=True)))
        src_segments, tgt_segments = (segments(split, path, counts) for path in paths)
        for src, tgt in aligned(split, paths[0], paths[1], src_segments, tgt_segments):
            yield split, src, tgt


def segments(split: str, path: Path, counts: Counts) -> Iterator[str]:
    """Give the sentences of a WMT .sgm file, as sacreBLEU reads them: entities stay as they are."""
    for line in text_lines(split, path, counts):
        if line.startswith("<seg "):
            yield re.sub(r"\s+", " ", SEGMENT.sub(r"\1", line).strip())


def _cleaned(data: WmtData, part: str, src: Path, tgt: Path, counts: Counts) -> Iterator[tuple[str, str]]:
    """Give the pairs of a part that are worth training on; counts the others by reason."""
    pairs = aligned(part, src, tgt, lines(part, src, counts), lines(part, tgt, counts))
    reasons: Counter[str] = Counter()
    for raw_src, raw_tgt in pairs:
        try:
            src_text, src_words = tidy(raw_src.decode())
            tgt_text, tgt_words = tidy(raw_tgt.decode())
        except UnicodeDecodeError:
            reasons["a side is not UTF-8"] += 1
            continue
        fewer, more = min(src_words, tgt_words), max(src_words, tgt_words)
        if not fewer:
            reasons["a side is empty"] += 1
        elif fewer < data.min_words:
            reasons[f"a side under {data.min_words} words"] += 1
        elif more > data.max_words:
            reasons[f"a side over {data.max_words} words"] += 1
        elif more > fewer * data.max_ratio:
            reasons[f"one side over {data.max_ratio:g} times the other's words"] += 1
        else:
            yield src_text, tgt_text
    counts.dropped.update({f"{part}: {reason}": count for reason, count in reasons.items()})
