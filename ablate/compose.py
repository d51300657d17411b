"""Compose a run's configuration from the two roots: `conf/` (what a run is) and `sweeps/` (which runs make a table).

The one door to Hydra, beside `run`. A composed configuration is checked and in the paper's units.
"""

import dataclasses
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString, Sweep
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ablate.check import check
from ablate.config import KINDS, Config
from ablate.errors import NOT_SAID, ConfigError, nearest
from ablate.frozen import from_dict

PACKAGE = Path(__file__).resolve().parent
ROOTS = ("conf", "sweeps")
COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)  # what `explain` explains


def root(name: str) -> Path:
    """Find a configuration root, "conf" or "sweeps": inside the installed package, or beside it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def choices(group: str) -> list[str]:
    """List the files of a group, in whichever root; none if there is no such group."""
    return sorted(path.stem for part in ROOTS for path in (root(part) / group).glob("*.yaml"))


def segmented_vocab_size(folder: str | None) -> int:
    """Count the ids of the vocabulary in `data.folder`, for data=wmt16_ende_bpe32k."""
    from ablate.data.segmented import vocab_size  # here, for it loads SentencePiece

    return vocab_size(folder)


OmegaConf.register_new_resolver("segmented_vocab_size", segmented_vocab_size, replace=True)
OmegaConf.register_new_resolver("names", lambda group: ", ".join(choices(group)), replace=True)  # for `--help`
OmegaConf.register_new_resolver("scratch_dir", lambda: f"{tempfile.gettempdir()}/ablate-{os.getuid()}", replace=True)
OmegaConf.register_new_resolver("sweeps_dir", lambda: str(root("sweeps")), replace=True)
ConfigStore.instance().store(name="schema", node=Config)


@contextmanager
def session(config_dir: str | None = None) -> Iterator[None]:
    """Make the two roots, and a folder of the user's own, ready for `compose`; inside `ablate.run` they are already.

    Args:
        config_dir: a folder with the user's own `row/`, `sweep/`, `data/` …; None for none.
    """
    if GlobalHydra.instance().is_initialized():
        yield
        return
    search_path = create_config_search_path(f"file://{root('conf')}")
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError("--config-dir", config_dir, "is not a folder")
        before_schema = SearchPathQuery(provider="schema", path=None)
        search_path.prepend("command-line", f"file://{Path(config_dir).resolve()}", before_schema)
    Hydra.create_main_hydra2("ablate", search_path)
    try:
        yield
    finally:
        GlobalHydra.instance().clear()


def check_choices(overrides: list[str]) -> None:
    """Make sure that groups are given names; at anything else Hydra fails without saying for which group.

    Args:
        overrides: in Hydra's grammar; others pass.

    Raises:
        ConfigError: for `preset=1`, `+row=null` or `data=`, with the names that there are.
        OverrideParseException: for what is not in the grammar.
    """
    for text in overrides:
        group = re.split("[=@]", text.lstrip("+"), maxsplit=1)[0]
        if not group:
            raise ConfigError("override", text, "say NAME=VALUE")
        valid = choices(group) if group.isidentifier() else []
        if "=" not in text or not valid:
            continue
        (override,) = OverridesParser.create().parse_overrides([text])
        given = override.value()
        for chosen in given.list if isinstance(given, ChoiceSweep) else [given]:
            if isinstance(chosen, dict | Sweep | Glob):  # fields of the group; or names that only Hydra's -m knows
                continue
            for name in chosen if isinstance(chosen, list) else [chosen]:
                said = name.text if isinstance(name, QuotedString) else name
                if not (isinstance(said, str) and said):
                    raise ConfigError(group, said, f"is no name; {nearest(str(said), valid)}")


def compose(overrides: list[str], config_dir: str | None = None) -> Config:
    """Compose and check one configuration.

    Args:
        overrides: in Hydra's grammar, such as ["+row=A_h4", "preset=smoke", "model.dropout=0.2"].
        config_dir: see `session`.

    Returns:
        The configuration in the paper's units; `row.name` is the row file's name.

    Raises:
        ConfigError: for an unknown row, group, key or value, with the nearest valid one, and for what `check` refuses.
    """
    for text in overrides:
        if match := re.match(r"(?:\+\+|~)?(row|sweep)[=@]", text):  # would leave base's name on another row
            raise ConfigError(match[1], NOT_SAID, f"nothing is chosen by itself; say +{text.lstrip('+~')}")
    row = next((text.partition("=")[2] for text in overrides if text.startswith("+row=")), None)
    if row is None:
        row, overrides = "base", [*overrides, "+row=base"]
    if not re.fullmatch(r"[\w.-]+", row):
        raise ConfigError("row", row, "one run has one row; for several say +sweep=NAME, or -m +row=A_h1,A_h4")
    with session(config_dir):
        try:
            check_choices(overrides)
            tree = hydra_compose("config", overrides)
        except COMPOSE_ERRORS as err:
            raise explain(err) from err
    cfg = typed(tree)
    cfg.row.name = row
    try:
        check(cfg)
    except ConfigError as err:
        raise ConfigError("row", row, f"does not give a valid run: {err}") from err
    return cfg


def compose_rows(rows: list[str], overrides: list[str]) -> dict[str, Config]:
    """Compose several rows under the same overrides, as `compose` does.

    Hydra takes 80 ms for a row, in pure Python; where a process can be forked all cores share the rows.
    """
    one = partial(compose_row, overrides)
    workers = min(len(rows) // 2, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1
    if workers < 2:
        return {row: one(row) for row in rows}
    with session(), ProcessPoolExecutor(workers, get_context("fork")) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child uses none of theirs
        return dict(zip(rows, pool.map(one, rows, chunksize=math.ceil(len(rows) / workers)), strict=True))


def compose_row(overrides: list[str], row: str) -> Config:
    """Compose one row under overrides; a function of the module, so that another process can be told to call it."""
    return compose([*overrides, f"+row={row}"])


def typed(tree: DictConfig) -> Config:
    """Turn Hydra's configuration into the typed one."""
    try:
        return from_dict(OmegaConf.to_container(tree, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]
    except OmegaConfBaseException as err:
        raise explain(err) from err


def explain(err: Exception) -> ConfigError:
    """Turn Hydra's error into one that names the field, the value or file, and the nearest valid name."""
    if isinstance(err, OverrideParseException):
        field, equals, value = err.override.partition("=")
        allowed = (
            "cannot be read; quotes let a value hold any character: 'NAME=\"VALUE\"', and a list blanks: 'NAME=[A, B]'"
        )
        if not (equals and re.fullmatch(r"[\w@$./:-]+", field.strip("+~"))):
            field, value, allowed = err.override, NOT_SAID, "say NAME=VALUE"
        return ConfigError(field.strip("+~"), value, allowed)
    text = f"{err}\n{err.__cause__ or ''}"
    source = next(iter(re.findall(r"(?:In|Error merging) '(\w+/[^']+)'", text)), "")
    available = re.findall(r"^\t(\w[\w.-]*)$", text.partition("Available options")[2], re.MULTILINE)
    if match := re.search(r"Could not (?:find|load) '(\w+)/([^']+)'", text):
        group, name = match.groups()
        # In a list of names Hydra does not say which there are.
        source = "" if source == f"{group}/{name}" else source
        return ConfigError(group, name, nearest(name, available or choices(group)), source)
    if match := re.search(r"Ambiguous value for argument '\+*(\w+)=([^']+)'", text):
        group, chosen = match.groups()
        several = "one run has one row" if group == "row" else f"for all of them together say '+{group}=[{chosen}]'"
        return ConfigError(group, chosen, f"{several}; for one after the other, -m +{group}={chosen}")
    if match := re.search(r"An item is already at '(row|sweep)'", text):
        return ConfigError(match[1], NOT_SAID, f"there are none: {root('sweeps') / match[1]} is missing")
    if match := re.search(r"An item is already at '([^']+)'", text):
        return ConfigError(match[1], NOT_SAID, "is there already; say it without the +")
    if match := re.search(r"Could not override '(\w+)'\. No match[^\n]*\n[^\n]*use (\S+)", text):
        return ConfigError(match[1], NOT_SAID, f"nothing is chosen by itself; say {match[2]}")
    if match := re.search(r"Multiple values for (\w+)\.", text):
        return ConfigError(match[1], NOT_SAID, "is given twice; only '+sweep=[…,…]' takes several")
    if match := re.search(r"You must specify '(\w+)'", text):
        return ConfigError(match[1], NOT_SAID, f"choose one with {match[1]}=NAME: " + ", ".join(available))
    if match := re.search(r"Key '([^']+)' (?:is )?not in[^\n]*(?:\n\s*full_key: (\S+))?", text):
        key = match[2] or match[1]
        section = key.partition(".")[0]
        if kinds := [kind for kind in KINDS.get(section, ()) if key in kind_fields(section, kind)]:
            named = " and ".join(f"{section}={kind}" for kind in kinds)
            return ConfigError(key, NOT_SAID, f"is a field of {named} only", source)
        return ConfigError(key, NOT_SAID, "no such field; " + nearest(match[1], fields_beside(key)), source)
    if "reference_type=Dict[str, Sweep]" in text:
        return ConfigError("sweep", NOT_SAID, "its file must begin with '# @package sweep.NAME'", source)
    if match := re.search(r"Missing mandatory value: [^\n]*\n\s*full_key: (\S+)", text):
        return ConfigError(match[1], NOT_SAID, "has no value", source)
    if match := re.search(r"^(.+)\n\s*full_key: (\S+)", text, re.MULTILINE):
        return ConfigError(match[2], NOT_SAID, match[1], source)
    return ConfigError("configuration", NOT_SAID, str(err), source)


def kind_fields(section: str, kind: str) -> list[str]:
    """List the dotted fields of one kind of corpus or cluster."""
    return [f"{section}.{field.name}" for field in dataclasses.fields(KINDS[section][kind])]


def fields_beside(key: str) -> list[str]:
    """List what can stand where a dotted key points, whether or not it exists: fields; under data and cluster those of
    all kinds; at the top the groups that are no fields, too.
    """
    schema: Any = Config
    for name in key.split(".")[:-1]:
        schema = next((f.type for f in dataclasses.fields(schema) if f.name == name), Config)
        if name in KINDS:
            return sorted({field.partition(".")[2] for kind in KINDS[name] for field in kind_fields(name, kind)})
        if not dataclasses.is_dataclass(schema):
            return []
    fields = [f.name for f in dataclasses.fields(schema)]
    groups = sorted(path.name for path in root("conf").iterdir() if path.is_dir()) if schema is Config else []
    return [*fields, *(name for name in groups if name not in fields)]
