"""Look for what is wrong before it costs a run: `python -m ablate.doctor [data=NAME | cluster=NAME …]`."""

import argparse
import sys
from collections.abc import Callable, Iterator

from ablate.compose import compose
from ablate.config import Config
from ablate.data import corpus as corpora
from ablate.data.examine import examine
from ablate.finding import Finding
from ablate.refuse import refuses
from ablate.site import check_cluster

EPILOG = """examples:
  python -m ablate.doctor                  everything, with the default settings
  python -m ablate.doctor data=wmt14_ende  the prepared corpus: counts, lengths, copies, languages, alignment
  python -m ablate.doctor cluster=slurm    a job of these settings: folders, package, GPU, disk, clock, requeueing

Exit code: 0 nothing is wrong (warnings may stand), 1 something is, 2 a setting is wrong."""


def check_data(cfg: Config) -> Iterator[Finding]:
    """Check the prepared corpus; prepares nothing."""
    corpus = corpora.find(cfg.data)
    if corpus is None:
        yield Finding("error", "corpus", f"data={cfg.data.name} is not prepared; give python -m ablate.prepare first")
    else:
        yield from examine(corpus)


# What can be looked at: named on the command line as in data=…, or all if none is named.
SUBJECTS: dict[str, Callable[[Config], Iterator[Finding]]] = {"data": check_data, "cluster": check_cluster}


def subjects(overrides: list[str]) -> list[str]:
    """Tell which subjects the overrides name; all if none."""
    named = [
        name for name in SUBJECTS if any(text.lstrip("+~").startswith((f"{name}=", f"{name}.")) for text in overrides)
    ]
    return named or list(SUBJECTS)


@refuses(ValueError, OSError)  # OSError: a folder that cannot be written, a full disk
def main(argv: list[str] | None = None) -> int:
    """Check what the overrides name and print what is found; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.doctor",
        description="Look for what is wrong before it costs a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for ablate.run")
    parser.add_argument("--config-dir", metavar="FOLDER", help="a folder of your own configuration files")
    args = parser.parse_args(argv)
    wrong = False
    cfg = compose(args.overrides, args.config_dir)
    for name in subjects(args.overrides):
        for finding in SUBJECTS[name](cfg):
            wrong |= finding.level == "error"
            print(finding, flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
