import pytest
from configs import write_rows
from records import finish

from ablate.compose import session
from ablate.cost import PAPER_FLOPS_PER_S, PAPER_GPUS, PAPER_HOURS, describe, spans
from ablate.launch import freeze
from ablate.plan import Plan, plan_from
from ablate.rundir import lock, write_json, write_text


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def planned(*overrides: str) -> Plan:
    with session():
        return plan_from(["preset=smoke", *overrides], prepare=True, say=lambda text: None)


def test_the_plan_says_rows_seeds_parameters_steps_operations_hours_and_states():  # P10
    asked = planned("+sweep=row_A", "seeds=2")
    finish(asked.rows["base"][0], ppl=9.0, bleu=9.0)  # trained for 36 s: 0.01 hours
    freeze(asked.rows["A_h1"][0])
    write_text(asked.rows["A_h1"][0].run.error, "NonFiniteLoss: loss is nan at update 7\n")
    freeze(asked.rows["A_h4"][1])
    write_json(asked.rows["A_h4"][1].run.heartbeat, {"time": 1.0, "state": "training", "step": 20, "total": 60})
    freeze(asked.rows["A_h4"][0])
    with lock(asked.rows["A_h4"][0].run.lock):
        asked = planned("+sweep=row_A", "seeds=2")
        lines = describe(asked, workers=2).splitlines()
    assert " ".join(lines[0].split()) == "row seeds parameters as the paper steps FLOPs hours MB state"
    assert [line.split()[0] for line in lines[1:6]] == ["base", "A_h1", "A_h4", "A_h16", "A_h32"]
    base = asked.runs[0]
    numbers = ["2", f"{base.params_actual:,}", f"{base.params_paper:,}", "60", f"{base.flops:.1e}", "0.010"]
    assert lines[1].split()[1:8] == [*numbers, f"{base.memory_mb:.0f}"]
    assert [line.split(maxsplit=8)[8] for line in lines[1:5]] == [
        "done (seed 1); to run (seed 2)",
        "failed: NonFiniteLoss: loss is nan at update 7 (seed 1); to run (seed 2)",
        "running: starting (seed 1); stopped: killed (seed 2)",
        "to run",
    ]
    assert "10 runs: 1 done, 6 to run, 1 failed, 1 running, 1 to continue. " in lines[6]
    assert "hours in all" in lines[6]
    assert [(run.rows[0], run.cfg.seed) for run in asked.to_run][:3] == [("base", 2), ("A_h1", 2), ("A_h4", 2)]
    assert "the median of 1 finished runs here" in "\n".join(lines)


def test_operations_are_those_counted_and_the_papers_way_time_times_rate():
    asked = planned("+row=A_h4", "seeds=2", "cluster.sustained_gflops=2")
    finish(asked.runs[0], ppl=9.0, bleu=9.0)  # 36 s; the other seed is expected to take as long
    said = describe(planned("+row=A_h4", "seeds=2", "cluster.sustained_gflops=2"), workers=1)
    assert (
        f"Training FLOPs in all: {2 * asked.runs[0].flops:.1e}, matrix products counted; 1.4e+11" in said
    )  # 72 s × 2e9
    assert "P100" not in said


def test_the_papers_preset_also_says_what_the_papers_runs_cost():
    cost = {row: hours * 3600 * PAPER_GPUS * PAPER_FLOPS_PER_S for row, hours in PAPER_HOURS.items()}
    assert cost == {
        "base": pytest.approx(3.3e18, rel=0.01),
        "big": pytest.approx(2.3e19, rel=0.01),
    }  # Table 2 prints these
    with session():
        plan = plan_from(["preset=paper", "+sweep=row_A"], prepare=False)
    assert plan.configs["base"].data.name == "wmt14_ende"
    said = describe(plan, workers=1)
    assert "base 12 h × 8 P100 × 9.5 TFLOPS = 3.3e+18, big 84 h × 8 P100 × 9.5 TFLOPS = 2.3e+19" in said
    # 8 GPUs × 4,096 in the authors' program, 100,000 steps (section 5.2)
    assert "Tokens a side: at most 8 × 4,096 an update (padded), 3.3e+09 in all of a run." in said
    assert "65,126,400" in said  # base by the paper's accounting


def test_a_row_equal_to_another_is_said_and_not_counted_twice(own_folder):  # P9
    with session(write_rows(own_folder, {"again": "model: {d_model: 512}"}, ["again"])):
        said = describe(plan_from(["preset=smoke", "+sweep=s", "seeds=3"], prepare=False), workers=1)
    assert "again        equals base at this preset: the same runs fill both" in said
    assert "3 runs: " in said


@pytest.mark.parametrize(
    ("seeds", "text"),
    [([4], "seed 4"), ([1, 2], "seeds 1–2"), ([1, 2, 3, 7, 9, 10], "seeds 1–3, 7, 9–10"), ([2, 4], "seeds 2, 4")],
)
def test_seeds_are_written_shortly(seeds, text):
    assert spans(seeds) == text
