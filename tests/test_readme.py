"""What README promises, done as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tiny import TINY

README = Path(__file__).resolve().parent.parent / "README.md"


def section(title: str) -> str:
    """Give a section of README, without its heading."""
    return README.read_text("utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str) -> list[str]:
    """Give the code blocks of a text."""
    return re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_from_an_idea_to_its_row_in_the_table_in_ten_lines(workplace):
    """Run README's lines by a shell, each command with settings that make it a matter of seconds."""
    ten, table, difference, _ = blocks(section("A row of your own"))
    assert len(ten.splitlines()) == 10
    shim = workplace / "bin" / "python"
    shim.parent.mkdir()
    settings = " ".join([*TINY, "optim.train_steps=8000"])
    shim.write_text(f'#!/bin/sh\ncase "$2" in *diff) set -- "$@" ;; *) set -- "$@" {settings} ;; esac\n')
    with open(shim, "a") as file:
        file.write(f'exec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    env = {**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}

    def shell(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, timeout=600)

    done = shell(ten.replace(" seeds=3", ""))
    assert done.returncode == 0, done.stdout + done.stderr
    again = shell(table.replace(" --seeds 3", ""))
    assert again.returncode == 0, again.stderr
    for text in (done.stdout, again.stdout):
        assert re.search(r"^\| base .*\| 1/1 ", text, re.MULTILINE)
        assert re.search(r"^\| gelu .*\| 1/1 ", text, re.MULTILINE)
    said = shell(difference)
    assert said.stdout == "model.activation: 'relu' | 'gelu'\n"
