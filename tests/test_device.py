import platform
import subprocess
import sys

import pytest

from ablate import device
from ablate.errors import ConfigError

CODE = """
import resource
import numpy as np
from ablate.device import keep_freed_memory
assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2_000_000)  # 16 MB, freed again
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first, second = faults(), faults()
assert first > 50 * (second + 1), (first, second)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone")
def test_freed_memory_is_kept_for_the_next_update():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("asked", "there", "found"),
    [("auto", [], "cpu"), ("auto", ["cuda"], "cuda"), ("cpu", ["cuda"], "cpu"), ("cuda", ["cuda"], "cuda")],
)
def test_a_device_is_what_was_asked_for_or_the_one_that_is_there(asked, there, found, monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(device, "torch_has", lambda name: name in there)
    assert device.resolve_device(asked) == found


@pytest.mark.parametrize(("chosen", "count", "seen"), [("", 3, ["0", "1", "2"]), ("5,7", 2, ["5", "7"]), ("", 0, [])])
def test_gpus_are_named_as_they_are_chosen(chosen, count, seen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr(device, "ask_torch", lambda question: count)
    assert device.visible_gpus.__wrapped__() == seen


def test_torch_is_asked_in_a_process_of_its_own():
    assert device.ask_torch("torch.ones(3).sum().int().item()") == 3
    assert device.ask_torch("torch.nothing") == 0


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(device, "torch_has", lambda name: False)
    for name in ("cuda", "mps"):
        with pytest.raises(ConfigError, match=f"device='{name}': is not present; this machine has: cpu"):
            device.resolve_device(name)
