import platform
import subprocess
import sys

import pytest

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
