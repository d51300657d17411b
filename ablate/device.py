"""Which device a run gets, found out without torch where that is possible; and how it keeps its memory."""

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from ablate.errors import ConfigError


def resolve_device(device: str) -> str:
    """Turn "auto" into the device that is there, and make sure that any other is.

    torch is asked in a process of its own, and only where a driver suggests that there is something to ask about:
    planning on a laptop or a login node does without it.

    Raises:
        ConfigError: if the device asked for is not there.
    """
    if device == "cpu":
        return device
    plausible = [
        name
        for name, there in {
            "cuda": Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists() or shutil.which("nvidia-smi"),
            "mps": platform.system() == "Darwin" and platform.machine() == "arm64",
        }.items()
        if there
    ]
    present = [name for name in plausible if torch_has(name)]
    if device == "auto":
        return present[0] if present else "cpu"
    if device not in present:
        raise ConfigError("device", device, f"is not present; this machine has: {', '.join(['cpu', *present])}")
    return device


def torch_has(device: str) -> bool:
    """Ask torch whether a device works."""
    question = {"cuda": "torch.cuda.is_available()", "mps": "torch.backends.mps.is_available()"}[device]
    return ask_torch(f"int({question})") == 1


@functools.cache
def visible_gpus() -> list[str]:
    """Name the GPUs that processes started from here see, as CUDA_VISIBLE_DEVICES does."""
    count = ask_torch("torch.cuda.device_count()")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return chosen.split(",")[:count] if chosen else list(map(str, range(count)))


def ask_torch(question: str) -> int:
    """Ask torch for a number, in a process of its own; 0 where that fails."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    code = f"import torch; print({question})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else 0


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGE_BLOCKS = (2**30, 2**25)  # bytes: larger ones go back at once; older versions allow no more than the second


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, since it soon asks for the same again; tell whether it could be done.

    glibc otherwise hands it back to the system and gets it anew, page by page, which takes 5 % of training on a CPU.
    The most memory held at once hardly changes. Elsewhere (macOS, musl) nothing is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    blocks_kept = any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGE_BLOCKS)
    return bool(blocks_kept and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
