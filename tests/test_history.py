import json
import math
import time

import pandas as pd
import pytest
import wandb
from records import finish

from ablate.draw import learning_curves
from ablate.errors import ConfigError
from ablate.history import curves, histories, plan_for
from ablate.plan import Plan, plan_from
from ablate.table import build, write

STEPS = 5_000


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def planned(seeds: int = 1) -> Plan:
    return plan_from(["preset=smoke", "+sweep=row_B", f"seeds={seeds}"], prepare=True, say=lambda text: None)


def log(run, num_steps: int = STEPS, attempt: int = 1, first: int = 1) -> None:
    """Write a log as the tracker does: a line of training a step, one of dev perplexity every thousand."""
    lines = []
    for step in range(first, num_steps + 1):
        line = {"attempt": attempt, "step": step, "time": 1e9 + step}
        numbers = {"learning_rate": 1e-6 * step, "src_tgt_tokens_per_s": 900.0 + step % 7}
        lines.append({**line, "loss": 6.0 + math.sin(step), **numbers})
        if step % 1000 == 0:
            lines.append({**line, "dev_ppl": 1e5 / step})
    run.path.mkdir(parents=True, exist_ok=True)
    with open(run.metrics, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


class Service:
    """Stands for W&B's, which no test can reach: a run's history as the public interface gives it, and its summary."""

    def __init__(self, plan: Plan) -> None:
        self.asked: list[str] = []
        self.runs = {
            f"ablate/{one.fingerprint}-{one.cfg.seed}": one.run for one in plan.runs if one.run.metrics.exists()
        }

    def __call__(self) -> "Service":
        return self

    def run(self, name: str) -> "Service":
        self.asked.append(name)
        if name not in self.runs:
            raise ValueError(f"Could not find run <Run {name} (not found)>")
        self.found = self.runs[name]
        self.summary = {"bleu": 1.0}
        if self.found.record.exists():
            self.summary["record"] = self.found.record.read_text()
        return self

    def scan_history(self):
        """Give every line, with W&B's own names, and None where the line does not have a number of other lines."""
        for i, text in enumerate(self.found.metrics.read_text().splitlines()):
            line = json.loads(text)
            own = {"_step": i, "_timestamp": line.pop("time"), "_runtime": float(i)}
            yield {"loss": None, "dev_ppl": None, **own, "trainer_step": line.pop("step"), **line}

    def history(self, **arguments):
        raise AssertionError("gives a sample")


@pytest.fixture
def service(monkeypatch):
    """Finish base and (B)'s first row, the latter after a kill; its second is not run. W&B has the same."""
    plan = planned()
    log(plan.rows["base"][0].run)
    finish(plan.rows["base"][0], 9.0, 21.0)
    log(plan.rows["B_dk16"][0].run, 2_500)
    log(plan.rows["B_dk16"][0].run, attempt=2, first=2_001)
    finish(plan.rows["B_dk16"][0], 11.0, 19.0)
    stub = Service(plan)
    monkeypatch.setattr(wandb, "Api", stub)
    return stub


def test_table_and_curves_from_wandb_equal_those_from_the_local_log(service):  # W5
    here, there = plan_for("row_B", "smoke", 1, "runs"), plan_for("row_B", "smoke", 1, "runs", "wandb")
    assert there.runs_dir.name == "runs-wandb"
    assert len(service.asked) == 3
    assert write(build(there), "csv") == write(build(here), "csv")
    ours, theirs = histories(here), histories(there)
    pd.testing.assert_frame_equal(ours, theirs[ours.columns])
    assert there.rows["base"][0].run.record.read_bytes() == here.rows["base"][0].run.record.read_bytes()


@pytest.mark.parametrize("source", ["local", "wandb"])
def test_no_line_of_a_long_history_is_left_out(service, source):  # W5
    lines = histories(plan_for("row_B", "smoke", 1, "runs", source))
    for row in ("base", "B_dk16"):
        own = lines[lines["row"] == row]
        assert list(own["step"].dropna().unique()) == list(range(1, STEPS + 1))
        assert own["loss"].count() == STEPS  # of a step that two attempts logged, one
        assert list(own["dev_ppl"].dropna()) == [100.0, 50.0, 1e5 / 3000, 25.0, 20.0]
    curve = next(line for line in learning_curves(lines, "").axes[0].lines if line.get_label() == "base")
    assert len(curve.get_xdata()) == STEPS
    assert curve.get_ydata()[2] == 6.0 + math.sin(3)


def test_what_wandb_has_of_a_finished_run_is_fetched_once(service):
    plan_for("row_B", "smoke", 1, "runs", "wandb")
    service.asked.clear()
    plan = plan_for("row_B", "smoke", 1, "runs", "wandb")
    assert service.asked == [f"ablate/{plan.rows['B_dk32'][0].fingerprint}-1"]  # it may have begun since


def test_an_error_of_wandb_is_not_taken_for_a_missing_run(service, monkeypatch):
    def refuse(name):
        raise ValueError("Unable to fetch user data from W&B, please verify your API key is valid.")

    monkeypatch.setattr(service, "run", refuse)
    with pytest.raises(ValueError, match="API key"):
        plan_for("row_B", "smoke", 1, "runs", "wandb")


def test_a_run_that_logged_nothing_keeps_its_place(own_folder):
    plan = planned(seeds=2)
    log(plan.rows["base"][0].run, 3)
    lines = histories(plan)
    assert list(zip(lines["row"], lines["seed"], lines["step"].fillna(0), strict=True)) == [
        ("base", 1, 1), ("base", 1, 2), ("base", 1, 3), ("base", 2, 0),
        ("B_dk16", 1, 0), ("B_dk16", 2, 0), ("B_dk32", 1, 0), ("B_dk32", 2, 0),
    ]  # fmt: skip
    assert list(lines["block"].unique()) == ["base", "B"]
    assert set(lines["state"][3:]) == {"new"}


def test_an_unknown_source_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"source='wand'.*did you mean 'wandb'"):
        plan_for("row_B", "smoke", 1, "runs", "wand")


def test_a_corpus_that_is_not_prepared_is_said_since_no_run_can_be_found_without(own_folder, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(own_folder / "nothing"))
    with pytest.raises(ConfigError, match=r"data='synthetic': is not prepared here"):
        plan_for("row_B", "smoke", 1, "runs")


def test_long_histories_are_read_in_seconds(own_folder):
    plan = planned()
    for run in plan.runs:
        log(run.run)
    start_s = time.process_time()
    assert len(histories(plan)) == 3 * (STEPS + 5)
    assert time.process_time() - start_s < 3


def test_a_curve_has_the_mean_and_the_span_of_the_seeds_that_are_there():
    lines = pd.DataFrame(
        [
            {"row": "base", "block": "base", "seed": 1, "step": 10, "loss": 4.0},
            {"row": "base", "block": "base", "seed": 1, "step": 20, "loss": 2.0},
            {"row": "base", "block": "base", "seed": 1, "step": 20, "dev_ppl": 7.5},
            {"row": "base", "block": "base", "seed": 2, "step": 10, "loss": 5.0},
            {"row": "A_h1", "block": "A", "seed": 1, "step": math.nan},
        ]
    )
    loss, ppl = curves(lines, ["loss", "dev_ppl", "nobody_logged"], 100)
    assert (loss.row, loss.block, loss.column, loss.logged) == ("base", "base", "loss", 2)
    assert loss.points == [(10, 4.5, 4.0, 5.0, 2), (20, 2.0, 2.0, 2.0, 1)]
    assert ppl.points == [(20, 7.5, 7.5, 7.5, 1)]


@pytest.mark.parametrize(
    ("count", "kept"),
    [(3, [1, 2, 3]), (4, [1, 3, 4]), (9, [1, 4, 7, 9]), (10, [1, 5, 9, 10])],  # every 1st, 2nd, 3rd and 4th, of 3
)
def test_a_long_curve_keeps_every_kth_point_and_the_last(count, kept):
    lines = pd.DataFrame({"row": "base", "block": "base", "seed": 1, "step": range(1, count + 1), "loss": 1.0})
    (curve,) = curves(lines, ["loss"], 3)
    assert [point[0] for point in curve.points] == kept
    assert curve.logged == count
