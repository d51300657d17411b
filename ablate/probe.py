"""Look around where runs would happen, for `ablate.doctor`: what a job on a node, or a process here, finds there."""

import os
import platform
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ablate.record import code_digest
from ablate.rundir import Held, lock, read_json, write_json

QUESTION, LOCK = "question.json", "lock"
TIMEOUT_S = 10.0  # for W&B's server


def answer(folder: str) -> None:
    """Answer `question.json` in this folder beside it, in `answer.<node>.json`; one process of each node does.

    The question: `corpora`, a folder; `runs`, the folder of runs; `wandb`, an address, or null. Whoever asks holds the
    folder's lock.
    """
    if os.environ.get("SLURM_LOCALID", "0") != "0":
        return
    asked = read_json(Path(folder) / QUESTION)
    found = {
        **{"host": os.environ.get("SLURMD_NODENAME", platform.node()), "time": time.time()},
        **{"package": str(Path(__file__).parent), "code": code_digest(), "python": sys.executable},
        "locks": locks(Path(folder) / LOCK),
        "corpora": os.path.isdir(asked["corpora"]),
        "free_bytes": shutil.disk_usage(asked["runs"]).free,
        "driver": Path("/dev/nvidiactl").exists(),
        "wandb": unreachable(asked["wandb"]) if asked["wandb"] else "",
        **torch_facts(),
    }
    write_json(Path(folder) / f"answer.{os.environ.get('SLURM_NODEID', '0')}.json", found)


def locks(path: Path) -> str:
    """Say what is wrong with locks, given a file that another process has locked; empty if nothing is."""
    try:
        with lock(path):
            return "a lock that this machine holds was given to another process there"
    except Held:
        return ""
    except OSError as err:
        return str(err)


def torch_facts() -> dict[str, Any]:
    """Tell which torch is there, and which GPUs it can multiply on; `torch_error` if something fails."""
    facts: dict[str, Any] = {"torch": "", "gpus": [], "torch_error": ""}
    try:
        import torch

        facts["torch"] = f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.version.cuda else torch.__version__
        for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            ones = torch.ones(2, 2, device=f"cuda:{number}")
            assert (ones @ ones).sum().item() == 8
            facts["gpus"].append(torch.cuda.get_device_name(number))
    except Exception as err:  # whatever it is, it is the answer
        facts["torch_error"] = f"{type(err).__name__}: {err}"
    return facts


def unreachable(address: str) -> str:
    """Say why a server cannot be reached; empty if it answers, whatever it says."""
    try:
        urllib.request.urlopen(address, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError:
        pass  # an answer
    except (OSError, ValueError) as err:
        return str(err)
    return ""


if __name__ == "__main__":
    answer(sys.argv[1])
