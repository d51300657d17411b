import subprocess
import sys

import pytest

from ablate.refuse import refuses


@refuses(ValueError, KeyError)
def main(err: Exception | None = None) -> int:
    if err:
        raise err
    return 3


def test_an_error_that_the_user_can_mend_is_one_line_and_exit_code_2(capsys):
    assert main(err=UnicodeError("field=1: must be 2")) == 2  # a kind of ValueError
    assert capsys.readouterr() == ("", "error: field=1: must be 2\n")


def test_any_other_error_stays_what_it_is(capsys):
    with pytest.raises(OSError, match="the disk is full"):
        main(OSError("the disk is full"))
    assert capsys.readouterr() == ("", "")


def test_without_an_error_the_exit_code_is_the_command_s_own(capsys):
    assert main() == 3
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "library", "extra"),
    [("figures", "matplotlib", "analysis"), ("dashboard", "wandb_workspaces", "dashboard")],
)
def test_a_command_without_its_library_says_which_extra_brings_it(command, library, extra):
    program = (
        f"import runpy, sys; sys.modules[{library!r}] = None; runpy.run_module('ablate.{command}', run_name='__main__')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {library} is not installed; the extra '{extra}' brings it: pip install")
    assert ended.stderr.count("\n") == 1
