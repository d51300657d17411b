"""How large the dashboard is and how fast it opens: `python benchmarks/report_speed.py [--seeds 3] [--steps 2000]`.

Writes synthetic records, logs and translations of all twenty rows of Table 3, preset smoke; times the command's parts
in this process; then opens the page in Chromium, a new one each time, and tells the median time from the start of
navigation until everything is drawn. `--out FILE` keeps the page.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import chromium
from records import finish
from table_speed import timed

from ablate.ask import plan_of, reader
from ablate.compose import session
from ablate.plan import Plan, plan_from
from ablate.report import render
from ablate.view import content


def synthesise(plan: Plan, steps: int) -> None:
    """Write a record, a log of so many steps and translations for every run of a plan, each with its own numbers."""
    rng = np.random.default_rng(1)
    assert plan.corpus is not None
    references = [line.split() for line in plan.corpus.text("dev", "tgt")]
    words = sorted({word for line in references for word in line})
    for row, runs in plan.rows.items():
        paper = runs[0].cfg.row.paper
        for planned in runs:
            if planned.rows[0] != row:
                continue
            ppl, bleu = 3 * rng.normal(paper.ppl_dev, 0.06), rng.normal(paper.bleu_dev, 0.25)
            finish(planned, ppl, bleu)
            at = np.arange(1, steps + 1)
            loss = np.log(ppl) + 5 * np.exp(-at / steps * 6) + rng.normal(0, 0.05, steps)
            numbers = ({"step": int(i), "loss": float(x), "learning_rate": 1e-4} for i, x in zip(at, loss, strict=True))
            lines = [json.dumps({"attempt": 1, "time": 1.0, **line}) for line in numbers]
            for i in range(steps // 20, steps + 1, steps // 20):
                lines.append(json.dumps({"attempt": 1, "time": 1.0, "step": i, "dev_ppl": float(np.exp(loss[i - 1]))}))
            planned.run.metrics.write_text("\n".join(lines) + "\n")
            said = [[rng.choice(words) if rng.random() < 0.15 else word for word in line] for line in references]
            planned.run.hypotheses("dev").write_text("".join(" ".join(line) + "\n" for line in said))


def opening_ms(page: Path) -> float:
    """Open a page in a new Chromium; gives the milliseconds until it is loaded and its scripts have run."""
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(page.as_uri())
        return tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")


def main() -> None:
    """Write, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="of each of the twenty rows (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2000, help="that each run logged (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="openings (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="where to keep the page (default: nowhere)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_DATA"] = f"{folder}/data"
        settings = ["preset=smoke", f"seeds={asked.seeds}", f"runs_dir={folder}/runs"]
        with session():
            synthesise(plan_from(["+sweep=table3", *settings], prepare=True, say=lambda text: None), asked.steps)
        plan = plan_of(reader("report", "").parse_args(["table3", *settings]))
        print(f"{len(plan.runs)} runs × {asked.steps:,} steps")
        view = timed("read records and logs, judge", lambda: content(plan, str, 8))
        text = timed("write the page", lambda: render(view))
        page = asked.out or Path(folder) / "report.html"
        page.write_text(text)
        print(f"{'size':<42} {page.stat().st_size / 1e6:6.2f} MB")
        times = [opening_ms(page.absolute()) for _ in range(asked.repeats)]
        print(f"{'opened and drawn, median':<42} {statistics.median(times) / 1000:6.2f} s")


if __name__ == "__main__":
    main()
