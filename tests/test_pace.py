import dataclasses
import platform
from typing import Any

import pytest
from configs import SMOKE

from ablate.estimate import Lengths, guess
from ablate.pace import measured_pace

CFG = dataclasses.replace(SMOKE, device="cpu")
GUESSED = guess(Lengths(), "cpu", 2.0)  # 2e9 operations a second


def done(flops_per_s: float, **changes: Any) -> dict[str, Any]:
    """Give what counts of the record of a run that was finished here, by default in this way."""
    last = {"device": "cpu: some model", "host": platform.node(), "ranks": 1, **changes}
    return {"timing": {"train_s": 3.0, "flops_per_s": flops_per_s}, "science": {}, "provenance": [{}, last]}


def test_the_pace_is_the_median_of_measured_to_estimated_times():
    pace, source = measured_pace(GUESSED, [done(1e9), None, done(4e9), done(0.5e9)], [], CFG)
    assert pace == 2.0  # of 2, 0.5 and 4
    assert source == "from cluster.sustained_gflops=2, times 2.00, the median of 3 finished runs here"


def test_other_runs_of_the_preset_tell_it_only_where_none_of_the_plans_does():
    assert measured_pace(GUESSED, [done(1e9)], (pytest.fail("read") for _ in "once"), CFG)[0] == 2.0
    assert measured_pace(GUESSED, [None], [done(8e9)], CFG)[0] == 0.25


@pytest.mark.parametrize("change", [{"device": "cuda: some card"}, {"host": "elsewhere"}, {"ranks": 2}])
def test_runs_of_another_machine_device_or_number_of_processes_do_not_tell_it(change):
    pace, source = measured_pace(GUESSED, [done(1e9, **change)], [done(1e9, **change)], CFG)
    assert (pace, source) == (1.0, "from cluster.sustained_gflops=2; nothing measured here yet")
