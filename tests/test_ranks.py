import pytest

from ablate.ranks import Ranks
from ablate.rundir import RunDir, read_json

TASK = {  # of a job step of 6 tasks on 2 nodes
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "6",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
}


def test_a_process_is_by_itself_unless_it_is_told_otherwise_even_in_a_job_of_several_tasks():
    assert Ranks.of_environment({}) == Ranks.of_environment(TASK) == Ranks(rank=0, count=1, local=0, num_nodes=1)


def test_a_worker_learns_its_place_from_the_environment_that_its_launcher_wrote():
    ranks = Ranks.on_this_machine(3)
    assert [(place.rank, place.count, place.local, place.num_nodes) for place in ranks] == [
        (0, 3, 0, 1),
        (1, 3, 1, 1),
        (2, 3, 2, 1),
    ]
    assert [Ranks.of_environment(place.environment()) for place in ranks] == ranks


def test_a_task_of_a_job_step_has_slurms_place():
    assert Ranks.of_slurm(TASK) == Ranks(rank=4, count=6, local=1, num_nodes=2, meeting="4711.0.0")


def test_two_attempts_never_meet():
    first, second = Ranks.on_this_machine(2)[0], Ranks.on_this_machine(2)[1]
    assert first.meeting != second.meeting
    requeued = Ranks.of_slurm({**TASK, "SLURM_RESTART_COUNT": "1"})
    assert requeued.meeting != Ranks.of_slurm(TASK).meeting


def test_outside_a_job_step_there_is_no_place():
    with pytest.raises(KeyError, match="SLURM_PROCID"):
        Ranks.of_slurm({"SLURM_JOB_ID": "4711"})


def test_the_others_are_told_that_there_is_nothing_to_do_where_there_are_others(tmp_path):
    run = RunDir(tmp_path)
    assert Ranks().dismiss(run, 3) == 3
    assert list(tmp_path.iterdir()) == []
    leader = Ranks.on_this_machine(2)[0]
    assert leader.dismiss(run, 3) == 3
    assert read_json(run.meeting(leader.meeting)) == {"exit": 3}
