"""Translate any number of sentences: in batches of similar length, on all threads, in the order they came in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from ablate.beam import Hypothesis, Model, beam_search
from ablate.config import DecodeConfig
from ablate.data.batch import source_batches
from ablate.device import keep_freed_memory

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Iterable[T], num_threads: int, at_once: int) -> Iterator[R]:
    """Do work on items, some at once, each on its share of the threads, and give the results in the items' order.

    Args:
        work: calls torch.
        items: what to do it on.
        num_threads: torch's own; at least as many as items at once.
        at_once: items.
    """
    if at_once == 1:
        yield from map(work, items)
        return
    each = num_threads // at_once
    try:
        with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(each,)) as pool:
            yield from pool.map(work, items)
    finally:
        torch.set_num_threads(num_threads)  # for threads to come; this one's own is what it was


def translate_all(
    model: Model,
    sentences: Sequence[np.ndarray],
    decode: DecodeConfig,
    device: str | torch.device,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Hypothesis]:
    """Translate sentences in batches of similar length (`source_batches`) and give the results in the input's order.

    On a CPU each of torch's threads translates batches of its own, or each two of an even number if the model is large.
    Steps are short: threads that share those of a small model mostly wait for each other.

    Args:
        model: as `beam_search`.
        sentences: source ids with EOS.
        decode: beam search's settings, and how many sentences at once.
        device: where the model is.
        on_progress: told, after each batch, how many sentences are done and how many there are.
        should_stop: asked before every step of every batch, by whichever thread.

    Raises:
        PositionError: before the first step, if the longest sentence needs more learned positions than there are.
        Stopped: when `should_stop` says so.
    """
    on_cpu = torch.device(device).type == "cpu"
    num_threads = torch.get_num_threads() if on_cpu else 1
    if on_cpu:
        keep_freed_memory()
    at_once = num_threads // 2 if model.large and num_threads % 2 == 0 else num_threads  # batches
    each = max(1, min(decode.batch_sentences, -(-len(sentences) // at_once)))  # so that no thread goes without

    def search(batch: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, list[Hypothesis]]:
        index, ids = batch
        src = torch.from_numpy(ids).to(device)
        best = beam_search(model, src, decode.beam_size, decode.length_penalty, decode.max_extra, should_stop)
        return index, best

    found: dict[int, Hypothesis] = {}
    for index, best in in_threads(search, source_batches(sentences, each), num_threads, at_once):
        found |= dict(zip(index.tolist(), best, strict=True))
        on_progress(len(found), len(sentences))
    return [found[i] for i in range(len(sentences))]
