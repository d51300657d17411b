"""Which settings two runs differ in: `python -m ablate.diff RUN RUN`."""

import argparse
import sys
from pathlib import Path

from ablate import record
from ablate.identity import diff
from ablate.named import runs_folder, select
from ablate.refuse import refuses
from ablate.rundir import read_json


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Print the keys whose values differ; returns 0 if there are none, 1 if there are, 2 if a run is not there."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.diff", description="Say which settings two runs differ in: everything in a fingerprint."
    )
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a run's folder or its name, as A_h4/2")
    arguments = parser.parse_args(argv)
    runs = [select(Path(runs_folder()), name) for name in arguments.runs]
    first, second = (read_json(run.identity) or record.accept(run, read_json(run.record)) for run in runs)
    changed = diff(first["science"], second["science"])
    for key, (one, other) in changed.items():
        print(f"{key}: {one!r} | {other!r}")
    if not changed:
        print(f"no difference: both are {first['fingerprint']}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
