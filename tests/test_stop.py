import os
import signal

import pytest
from tiny import wait_until

from ablate import stop as stop_module
from ablate.stop import StopFlag


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_asks_for_a_stop_and_does_nothing_else(number):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)}
    stop = StopFlag()
    try:
        stop.listen()
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        assert stop.reason == number.name
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_a_file_asks_for_a_stop_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(stop_module, "LOOK_EVERY_S", 0.01)
    stop = StopFlag()
    stop.watch_file(tmp_path / "cancelled")
    assert not stop()
    (tmp_path / "cancelled").touch()
    wait_until(stop, "the file to be seen")
    assert stop.reason == "cancelled"


def test_the_first_reason_stays():
    stop = StopFlag()
    stop.set("SIGUSR2")
    assert stop.heed(1)
    assert stop.reason == "SIGUSR2"


def test_a_stop_that_another_rank_was_asked_for_names_it():
    stop = StopFlag()
    assert not stop.heed(None)
    assert not stop()
    assert stop.heed(0)
    assert stop()
    assert stop.reason == "rank 0 was asked to stop"
