"""Multi30k, task 1: English and German descriptions of pictures, from its repository."""

from ablate.config import Multi30kData
from ablate.data.fetch import Remote, fetch
from ablate.data.lines import aligned, filled, text_lines
from ablate.data.source import CorpusError, Counts, Pairs, Say, Source, check_languages

HOME = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
FILES = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
SIZES = {"train": 29_000, "dev": 1_014, "test": 1_000}  # as its README counts


def source(data: Multi30kData) -> Source:
    """Describe the corpus; its files are fetched when the text is read.

    Raises:
        ConfigError: for other languages than English and German, in either direction.
    """
    check_languages(data, ("en", "de"))
    return Source(
        origin=f"Multi30k task 1 (Elliott et al. 2016), {HOME}",
        licence="its authors' terms, see https://github.com/multi30k/dataset",
        identity={"home": HOME},
        read=lambda counts, say, scratch: _read(data, counts, say),
    )


def _read(data: Multi30kData, counts: Counts, say: Say) -> Pairs:
    languages = (data.src_lang, data.tgt_lang)
    for split, name in FILES.items():
        paths = [fetch(Remote(f"{HOME}/{name}.{language}.gz"), data, say) for language in languages]
        src_lines, tgt_lines = (text_lines(split, path, counts) for path in paths)
        pairs = list(aligned(split, paths[0], paths[1], src_lines, tgt_lines))
        if len(pairs) != SIZES[split]:
            raise CorpusError(f"{paths[0]}: {len(pairs):,} pairs; Multi30k's {split} has {SIZES[split]:,}")
        yield from filled(split, iter(pairs), counts)
