"""What the commands that read runs are asked for: sweeps and settings, without a run being started or a corpus made."""

import argparse
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ablate.compose import session
from ablate.plan import Plan, plan_from


def reader(module: str, description: str, formats: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """Make the arguments of a command that reads what runs there are; `plan_of` takes what it parses."""
    parser = argparse.ArgumentParser(
        prog=f"python -m ablate.{module}",
        description=description,
        epilog="Nothing is left out: what has no records says so. Settings must be those of the runs (preset=smoke).",
    )
    parser.add_argument(
        "asked",
        nargs="*",
        metavar="SWEEP|SETTING=VALUE",
        help="sweeps (default: table3), and settings as given to ablate.run: preset=smoke data=files …",
    )
    parser.add_argument("--preset", help="short for the setting preset=…")
    parser.add_argument("--seeds", type=int, help="short for the setting seeds=… (default: all there are)")
    parser.add_argument("--runs", help="the folder of runs; short for the setting runs_dir=…")
    parser.add_argument("--config-dir", help="a folder with rows and sweeps of your own")
    if formats:
        parser.add_argument("--format", choices=formats, default="md", help="md for people (default), csv for programs")
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Plan what `reader`'s arguments ask for, without making a corpus; says on standard error if there is none.

    Raises:
        ConfigError: as `plan_from`.
    """
    short = {"preset": arguments.preset, "seeds": arguments.seeds, "runs_dir": arguments.runs}
    settings = [text for text in arguments.asked if "=" in text or text.startswith("~")]
    sweeps = [text for text in arguments.asked if text not in settings] or ["table3"]
    settings += [f"{name}={value}" for name, value in short.items() if value is not None]
    with session(arguments.config_dir), no_garbage():
        plan = plan_from([f"+sweep=[{','.join(sweeps)}]", *settings], prepare=False, every_seed=True)
        gc.freeze()  # nor look through them later: a command keeps them to its end
    if not plan.digests:
        print("note: the corpus is not prepared here, so no run can be told to be of these rows", file=sys.stderr)
    return plan


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect no garbage while thousands of records are read: all are kept, and walking over them takes a second."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
