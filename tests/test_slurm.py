import pytest
from commands import Commands, commands  # noqa: F401 – a fixture

from ablate import slurm
from ablate.slurm import Job, Unreachable


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)


def controller(commands: Commands, state: str) -> None:  # noqa: F811
    commands.add(
        "scontrol", f'[ "$1" = show ] && echo "JobId=12 ArrayJobId=12 JobName=a b JobState={state} Reason=None"; exit 0'
    )


def test_a_running_job_is_requeued(commands):  # noqa: F811 – S4
    controller(commands, "RUNNING")
    assert slurm.requeue("12_3", 0.0) == "requeued"
    assert commands.calls("scontrol") == ["show job -o 12_3", "requeue 12_3"]


def test_a_requeue_whose_command_slurm_kills_with_the_job_is_one(commands):  # noqa: F811 – S4
    asked = f"grep -q requeue {commands.folder}/scontrol.calls"
    commands.add(
        "scontrol",
        f'[ "$1" = requeue ] && kill $$; {asked} && echo JobState=COMPLETING || echo JobState=RUNNING',
    )
    assert slurm.requeue("12_3", 60.0) == "requeued"
    assert commands.calls("scontrol") == ["show job -o 12_3", "requeue 12_3", "show job -o 12_3"]


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "CANCELLED"])
def test_a_job_that_slurm_requeued_or_cancelled_itself_is_left_alone(commands, state):  # noqa: F811 – S4, S6
    controller(commands, state)
    assert slurm.requeue("12_3", 0.0) == f"left: SLURM has it as {state}"
    assert commands.calls("scontrol") == ["show job -o 12_3"]


def test_a_controller_that_is_away_for_a_moment_is_waited_for(commands):  # noqa: F811
    commands.add("scontrol", f"[ $(wc -l < {commands.folder}/scontrol.calls) -lt 5 ] && exit 1; echo JobState=RUNNING")
    assert slurm.requeue("12", 60.0) == "requeued"
    commands.add("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    with pytest.raises(Unreachable, match="scontrol: Requested operation is presently disabled"):
        slurm.requeue("12", 0.0)


@pytest.mark.parametrize(("shown", "size"), [("MaxArraySize            = 64", 64), ("MaxJobCount = 7", 0)])
def test_the_site_says_how_long_an_array_may_be(commands, shown, size):  # noqa: F811
    commands.add("scontrol", f"echo 'Configuration data\n{shown}\nMessageTimeout = 10 sec'")
    assert slurm.max_array_size() == size


def test_what_a_site_has_is_listed_if_it_can_be(commands):  # noqa: F811
    commands.add("sinfo", "printf 'high\nlow\nlow\n'")
    assert slurm.choices(["sinfo", "-h", "-o", "%R"]) == ["high", "low"]
    commands.add("sinfo", "exit 1")
    assert slurm.choices(["sinfo"]) == []


def test_an_unknown_state_counts_as_alive():
    assert Job("1", "a", "CONFIGURING").alive
    assert not Job("1", "a", "COMPLETED").alive
