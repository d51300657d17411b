from submitted import LONG, SLOW, command, events, hurry, job_of, records, runs, wait_for_update
from tiny import wait_until

from ablate import record


def test_a_run_in_two_tasks_on_two_nodes_is_stopped_goes_on_and_is_the_local_pool_s(cluster):  # S4, S9
    two = ["cluster.ranks=2", *LONG]
    assert command(*two, *SLOW, "cluster.nodes=2")[0] == 0
    (one,) = runs().values()
    wait_for_update(one, 5)
    cluster.say("scancel", "--signal=USR2", job_of(one))  # to both
    wait_until(lambda: events(one, "ended"), "the stop")
    hurry()
    wait_until(one.record.exists, "the record")
    wait_until(lambda: len(events(one, "ended")) == 2, "the end of the job")
    assert command(*two, "runs_dir=local")[0] == 0
    assert records() == records("local")
    assert [attempt["ranks"] for attempt in record.read(one)["provenance"]] == [2, 2]
    stop, end = events(one, "ended")  # a line each: rank 0 alone writes
    assert (stop["reason"], stop["then"], end["code"]) == ("time limit", "requeued", 0)
    assert len(events(one, "started")) == 2
    said = one.log.read_text()
    for once in (f"stopped after update {stop['step']};", f"resumed after update {stop['step']}\n", ", attempt 2\n"):
        assert said.count(once) == 1
