"""Which settings two runs differ in: `python -m ablate.diff RUN RUN`."""

import argparse
import sys
from pathlib import Path

from ablate.config import diff
from ablate.rundir import RunDir, read_json


def main(argv: list[str] | None = None) -> int:
    """Print the keys whose values differ; returns 0 if there are none, 1 if there are, 2 if a run is not there."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.diff", description="Say which settings two runs differ in: everything in a fingerprint."
    )
    parser.add_argument("runs", nargs=2, metavar="RUN", help="a run's folder: runs/PRESET/ROW/FINGERPRINT/seedK")
    arguments = parser.parse_args(argv)
    identities = [read_json(RunDir(Path(run)).identity) for run in arguments.runs]
    for run, identity in zip(arguments.runs, identities, strict=True):
        if identity is None:
            print(f"error: RUN={run!r}: no such run; give a folder that holds identity.json", file=sys.stderr)
            return 2
    changed = diff(identities[0]["science"], identities[1]["science"])
    for key, (first, second) in changed.items():
        print(f"{key}: {first!r} | {second!r}")
    if not changed:
        print(f"no difference: both are {identities[0]['fingerprint']}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
