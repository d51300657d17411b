"""How long the table takes with many records: `python benchmarks/table_speed.py [--seeds 500]`.

Writes synthetic records of all twenty rows of Table 3, preset smoke, and times planning, collecting and writing in this
process, then the whole command in one of its own; and planning 1,000 runs of which none is done.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from records import finish

from ablate.ask import plan_of, reader
from ablate.compose import session
from ablate.plan import Plan, plan_from
from ablate.table import build, write

Done = TypeVar("Done")


def synthesise(plan: Plan) -> None:
    """Write a record for every run of a plan, each with scores of its own."""
    rng = np.random.default_rng(1)
    for runs in plan.rows.values():
        paper = runs[0].cfg.row.paper
        template = finish(runs[0], ppl=1.0, bleu=1.0)
        for planned in runs:
            ppl, bleu = rng.normal(paper.ppl_dev, 0.05), rng.normal(paper.bleu_dev, 0.2)
            template |= {"seed": planned.cfg.seed, "dev": {**template["dev"], "ppl": ppl, "bleu": bleu}}
            planned.run.path.mkdir(parents=True, exist_ok=True)
            planned.run.record.write_text(json.dumps(template, indent=1))


def timed(name: str, do: Callable[[], Done]) -> Done:
    """Do something and print how long it took."""
    start = time.perf_counter()
    done = do()
    print(f"{name:<42} {time.perf_counter() - start:6.2f} s")
    return done


def main() -> None:
    """Write, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="of each of the twenty rows (default: %(default)s)")
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_DATA"] = f"{folder}/data"
        settings = ["preset=smoke", f"seeds={seeds}", f"runs_dir={folder}/runs"]
        arguments = reader("table", "", ("md",)).parse_args(["table3", *settings])
        with session():
            synthesise(plan_from(["+sweep=table3", *settings], prepare=True, say=lambda text: None))
        print(f"{20 * seeds:,} records")
        plan = timed("plan: compose 20 rows, read the records", lambda: plan_of(arguments))
        table = timed("build: means, intervals, tests", lambda: build(plan))
        for form in ("md", "tex", "csv", "html"):
            timed(f"write: {form}", lambda form=form: write(table, form))
        command = [sys.executable, "-m", "ablate.table", "table3", *settings]
        quiet = subprocess.DEVNULL
        timed("python -m ablate.table, all in all", lambda: subprocess.run(command, check=True, stdout=quiet))
        new = ["+sweep=table3", "preset=smoke", "seeds=50", f"runs_dir={folder}/none"]
        print("1,000 runs, none done")
        with session():
            timed("plan: compose 20 rows, look for the runs", lambda: plan_from(new, prepare=False))
        command = [sys.executable, "-m", "ablate.run", *new, "plan_only=true"]
        timed("python -m ablate.run … plan_only=true", lambda: subprocess.run(command, check=True, stdout=quiet))


if __name__ == "__main__":
    main()
