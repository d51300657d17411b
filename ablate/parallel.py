"""One run in several processes: how they meet, add up, agree and part. For one process all of it does nothing.

Each process computes its share of an update (`data.batch.share`); the gradients are summed in one piece after the last
backward pass, and every process takes the same step. Not by DistributedDataParallel, although its sums are the same: it
wants as many backward passes from every process, and a short batch may leave one without a sentence.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.nn import Parameter

from ablate import checkpoint
from ablate.errors import ConfigError
from ablate.ranks import Ranks
from ablate.rundir import RunDir, read_json, write_json
from ablate.stop import Stopped

MEETING_S = 600.0  # for all processes to start, on however many machines
SILENCE_S = 1800.0  # longer than rank 0 takes for a dev set or a checkpoint; who is dead is noticed at once
POLL_S = 0.1

T = TypeVar("T")


class Lost(RuntimeError):
    """Another process of the run has ended, or is not heard of."""


class Dismissed(Exception):
    """Rank 0 has nothing to do for the others; `code` is their exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def reaching_others() -> Iterator[None]:
    """Turn what torch raises when another process does not answer into `Lost`."""
    try:
        yield
    except RuntimeError as err:
        raise Lost("another rank was lost") from err


class Group:
    """The processes of a run. Every method but the last three is called by all of them, in the same order."""

    def __init__(self, ranks: Ranks, store: Store | None = None) -> None:
        """Stand for the processes that `meet` brought together; for one alone there is no store."""
        self.rank, self.count, self.store = ranks.rank, ranks.count, store

    def total(self, numbers: Tensor) -> Tensor:
        """Add up tensors of one shape over the processes, in place; bit for bit the same on all."""
        if self.count > 1:
            with reaching_others():
                dist.all_reduce(numbers)
        return numbers

    def total_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Add up `.grad` over the processes; None, on one that had no sentence, counts as zero."""
        if self.count == 1:
            return
        owners = list(parameters)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in owners])
        parts = self.total(flat).split([p.numel() for p in owners])
        for parameter, part in zip(owners, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def same(self, parameters: Iterable[Parameter]) -> None:
        """Give all processes rank 0's parameters: the same seed gives others on another kind of processor."""
        if self.count > 1:
            with reaching_others():
                for parameter in parameters:
                    dist.broadcast(parameter.data, 0)

    def first(self, number: int) -> int:
        """Give rank 0's number."""
        return int(self.total(torch.tensor(number if self.rank == 0 else 0)))

    def which(self, flag: bool) -> int | None:
        """Tell which process says yes, the highest rank of several; None if none does."""
        if self.count == 1:
            return 0 if flag else None
        said = torch.tensor(self.rank if flag else -1)
        with reaching_others():
            dist.all_reduce(said, dist.ReduceOp.MAX)
        return None if said < 0 else int(said)

    def newest(
        self, checkpoints: Path, science: dict[str, Any], device: str, say: Callable[[str], None]
    ) -> checkpoint.State | None:
        """Read, in every process, the checkpoint that rank 0 finds to be the newest (`checkpoint.newest`)."""
        if self.rank == 0:
            checkpoint.sweep(checkpoints)
            state = checkpoint.newest(checkpoints, science, device, say)
            self.first(state["progress"]["step"] if state else 0)
            return state
        step = self.first(0)  # another machine may list the folder as it was a moment ago
        return checkpoint.load(checkpoint.folder(checkpoints, step), science, device) if step else None

    def end(self, code: int) -> int:
        """Let the other processes go, with this exit code. Only rank 0 does so, when everything is written."""
        if self.store is not None:
            with suppress(Lost):
                self.store.set("end", str(code))
                self.which(False)  # they have read it
        return code

    def until_end(self, should_stop: Callable[[], bool]) -> int:
        """Wait until rank 0 is through, and give its exit code.

        To go earlier would not do: some clusters end a job when one of its processes does. A request to stop is passed
        on.
        """
        assert self.store is not None, "rank 0 does not wait for itself"
        with reaching_others():
            while not self.store.check(["end"]):
                if should_stop():
                    self.store.set("stop", str(self.rank))
                time.sleep(POLL_S)
            code = int(self.store.get("end"))
        self.which(False)
        return code

    def asked(self) -> int | None:
        """Tell rank 0 which process, waiting in `until_end`, was asked to stop; None: none."""
        if self.store is None or not self.store.check(["stop"]):
            return None
        return int(self.store.get("stop"))


ALONE = Group(Ranks())


@contextmanager
def meet(run: RunDir, ranks: Ranks, device: str, should_stop: Callable[[], bool]) -> Iterator[Group]:
    """Bring the processes of an attempt together.

    Rank 0, which holds the run's lock, listens on a free port and writes into the run's folder where: no port that
    another run may have, and no list of nodes to be understood.

    Raises:
        Dismissed: if rank 0 has nothing to do.
        Lost: if one of those that came is gone again.
        Stopped: when `should_stop` says so.
        TimeoutError: if not all have come in time.
    """
    if ranks.count == 1:
        yield ALONE
        return
    if ranks.num_nodes == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    deadline = time.monotonic() + MEETING_S

    def wait_for(ask: Callable[[], T], what: str) -> T:
        while not (answer := ask()):
            if should_stop():
                raise Stopped
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} within {MEETING_S:.0f} s")
            time.sleep(POLL_S)
        return answer

    place = run.meeting(ranks.meeting)
    if ranks.rank == 0:
        host = "localhost" if ranks.num_nodes == 1 else socket.gethostname()
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        write_json(place, {"host": host, "port": store.port}, durable=False)
    else:
        said = wait_for(lambda: read_json(place), "rank 0 has not called")
        if "exit" in said:
            raise Dismissed(said["exit"])
        with reaching_others():
            store = TCPStore(said["host"], said["port"], is_master=False)
    with reaching_others():
        store.add("here", 1)
        wait_for(lambda: store.add("here", 0) == ranks.count, f"not all of {ranks.count} ranks have come")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",  # gloo for `which`, which must not wait for the GPU
            store=PrefixStore("group", store),
            rank=ranks.rank,
            world_size=ranks.count,
            timeout=timedelta(seconds=SILENCE_S),
        )
    if ranks.rank == 0:
        place.unlink()
    try:
        yield Group(ranks, store)
    except BaseException:
        if device != "cuda":  # NCCL would wait for those that are lost
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def take_gpu(ranks: Ranks) -> None:
    """Make "cuda" mean this process's own GPU: the only one it sees, or the one of its place on this machine.

    Raises:
        ConfigError: if this machine has fewer GPUs than processes.
    """
    num_gpus = torch.cuda.device_count()
    index = 0 if num_gpus == 1 else ranks.local  # SLURM may show each task its own only; NCCL refuses a shared one
    if index >= num_gpus:
        allowed = f"is one process per GPU; process {ranks.local + 1} of {socket.gethostname()} finds {num_gpus} there"
        raise ConfigError("cluster.ranks", ranks.count, allowed)
    torch.cuda.set_device(index)
