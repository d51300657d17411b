"""WMT14 in small: archives of the original layout, and sacreBLEU's test sets beside them."""

import gzip
import hashlib
import io
import tarfile

import sacrebleu.dataset

from ablate.data.synthetic import Grammar

STATMT = "www.statmt.org"
NC11 = "data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz"


def tar(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def text(sentences: list[str]) -> bytes:
    return "".join(f"{sentence}\n" for sentence in sentences).encode()


def sgm(sentences: list[str], kind: str = "refset") -> bytes:
    body = "".join(f'<seg id="{i}">{sentence}</seg>\n' for i, sentence in enumerate(sentences, start=1))
    return (
        f'<{kind} setid="x"><doc docid="d" genre="news" origlang="en">\n<p>\n{body}</p>\n</doc>\n</{kind}>\n'.encode()
    )


def pairs(begin: int, end: int) -> tuple[list[str], list[str]]:
    """Give sentences of the grammar: English, and German that stands for the other language, too."""
    src, tgt = zip(*(Grammar(4).pair(i) for i in range(begin, end)), strict=True)
    return list(src), list(tgt)


def files(other: str = "de", **parts: tuple[bytes, bytes]) -> dict[str, bytes]:
    """Make every archive of WMT14 English and `other`; `parts` gives a part's English and other text."""

    def sides(name: str, begin: int, end: int) -> tuple[bytes, bytes]:
        en, foreign = pairs(begin, end)
        return parts.get(name, (text(en), text(foreign)))

    ep, cc, nc = sides("europarl", 0, 300), sides("commoncrawl", 300, 400), sides("news", 400, 450)
    other_languages = {"training/europarl-v7.cs-en.cs": b"x\n", "training/europarl-v7.cs-en.en": b"x\n"}
    made = {
        f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz": other_languages
        | {f"training/europarl-v7.{other}-en.{other}": ep[1], f"training/europarl-v7.{other}-en.en": ep[0]},
        f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz": {
            f"commoncrawl.{other}-en.annotation": b"x\n",
            f"commoncrawl.{other}-en.{other}": cc[1],
            f"commoncrawl.{other}-en.en": cc[0],
        },
        f"{STATMT}/wmt14/training-parallel-nc-v9.tgz": {
            f"training/news-commentary-v9.{other}-en.{other}": nc[1],
            f"training/news-commentary-v9.{other}-en.en": nc[0],
        },
        NC11: {
            f"training-parallel-nc-v11/news-commentary-v11.{other}-en.{other}": nc[1],
            f"training-parallel-nc-v11/news-commentary-v11.{other}-en.en": nc[0],
        },
        f"{STATMT}/wmt13/training-parallel-un.tgz": {
            f"un/undoc.2000.{other}-en.{other}": text(pairs(450, 470)[1]),
            f"un/undoc.2000.{other}-en.en": text(pairs(450, 470)[0]),
        },
    }
    giga = pairs(470, 480)
    return {place: tar(members) for place, members in made.items()} | {
        f"{STATMT}/wmt10/training-giga-fren.tar": tar(
            {
                "giga-fren.release2.fixed.en.gz": gzip.compress(text(giga[0])),
                "giga-fren.release2.fixed.fr.gz": gzip.compress(text(giga[1])),
            },
            "w",
        ),
        **newstests(other),
    }


def newstests(other: str, dev: int = 9, test: int = 11) -> dict[str, bytes]:
    """Make sacreBLEU's two archives."""
    (dev_en, dev_other), (test_en, test_other) = pairs(500, 500 + dev), pairs(600, 600 + test)
    stem = {"de": "deen", "fr": "fren"}[other]
    return {
        "statmt.org/wmt13/test.tgz": tar(
            {"test/newstest2013-src.en.sgm": sgm(dev_en), f"test/newstest2013-src.{other}.sgm": sgm(dev_other)}
        ),
        "statmt.org/wmt14/test-full.tgz": tar(
            {
                f"test-full/newstest2014-{stem}-src.en.sgm": sgm(test_en, "srcset"),
                f"test-full/newstest2014-{stem}-ref.{other}.sgm": sgm(test_other),
            }
        ),
    }


def trust(monkeypatch, files: dict[str, bytes]) -> None:
    """Make sacreBLEU know the digests of our test sets for those of its own."""
    for name in ("wmt13", "wmt14/full"):
        known = sacrebleu.dataset.DATASETS[name]
        content = files[known.data[0].removeprefix("https://")]
        monkeypatch.setattr(known, "md5", [hashlib.md5(content).hexdigest()])
