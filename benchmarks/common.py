"""What the benchmarks share: one process per measurement, turns, the report.

A benchmark is a script with a table of contenders. Called by a user it measures nothing itself: it starts itself once
per contender and round with `--worker NAME`, one process at a time, and the contenders take turns within a round, so
that whatever else the machine does falls on all of them alike and memory is each contender's own. No torch here: a
parent that holds much memory would show in its children's peak.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from shapes import Shape

from ablate.record import git

OURS = "ours"
TIME_LIMIT_S = 1800  # of one process
LIBRARIES = ("ablate", "torch", "numpy", "transformers", "ctranslate2", "joeynmt")


def timed(work: Callable[[], int]) -> dict[str, float]:
    """Do the work that is measured and give its numbers.

    Processor time is that of all threads. With one thread, other load on the machine hardly touches it, while it can
    halve what is done per second of wall time.

    Args:
        work: returns the tokens it did.
    """
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    tokens = work()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {"tokens_per_s": tokens / wall_s, "tokens_per_cpu_s": tokens / cpu_s, "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Give the most memory this process has held at once."""
    try:  # what getrusage calls a peak includes, on Linux, the parent's
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # bytes on macOS


def machine() -> dict[str, Any]:
    """Describe the machine, and how busy it is."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor()
    return {
        "processor": processor,
        "cores": psutil.cpu_count(logical=False),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": platform.python_version(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Give the versions of the libraries that are installed here."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def about() -> dict[str, Any]:
    """Say where and with what numbers are measured: machine, versions, commit."""
    return {"machine": machine(), "versions": versions(), "commit": git("rev-parse", "--short", "HEAD")}


def children_cpu_s() -> float:
    """Give the processor time of all processes that this one has started and that have ended, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def arguments(doc: str, shapes: Iterable[str], contenders: Iterable[str], name: str) -> argparse.Namespace:
    """Read a benchmark's command line.

    Args:
        doc: the script's docstring.
        shapes: that it has; the first is the default.
        contenders: that it has; all are the default.
        name: the script's, for the name of the JSON file.
    """
    shapes, contenders = list(shapes), list(contenders)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=shapes, default=shapes[0], help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="processes per contender; medians (default: 3)")
    cores = psutil.cpu_count(logical=False) or 1
    parser.add_argument("--threads", type=int, default=cores, help="of each process (default: cores, %(default)s)")
    parser.add_argument("--contenders", nargs="+", choices=contenders, default=contenders, metavar="NAME")
    parser.add_argument("--json", type=Path, help="where the numbers go (default: results/SCRIPT-SHAPE.json)")
    parser.add_argument("--worker", choices=contenders, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.repeats < 1 or given.threads < 1:
        parser.error("--repeats and --threads must be at least 1")
    given.json = given.json or Path(__file__).parent / "results" / f"{name}-{given.shape}.json"
    return given


def take_turns(
    contenders: Sequence[str], repeats: int, measure: Callable[[str], dict[str, float]]
) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """Measure every contender once a round, in turns; one that fails is left out from then on.

    Args:
        contenders: in the order of their turns.
        repeats: rounds.
        measure: gives the numbers of one process, or raises RuntimeError.

    Returns:
        The numbers of each contender's processes; why others failed.
    """
    results: dict[str, list[dict[str, float]]] = {}
    failed: dict[str, str] = {}
    for _ in range(repeats):
        for name in contenders:
            if name in failed:
                continue
            try:
                results.setdefault(name, []).append(measure(name))
            except RuntimeError as err:
                failed[name] = str(err)
                results.pop(name)
    return results, failed


def in_process(script: Path, shape: str, threads: int, scratch: str) -> Callable[[str], dict[str, float]]:
    """Make what measures one contender in a process of its own: the last line it prints is JSON.

    Args:
        script: the benchmark.
        shape: its name.
        threads: of the process.
        scratch: its folder for temporary files.
    """

    def measure(name: str) -> dict[str, float]:
        numbers = child([str(script), "--worker", name, "--shape", shape, "--threads", str(threads)], threads, scratch)
        compiled = f"  compiled in {numbers['compile_s']:.0f} s" if "compile_s" in numbers else ""
        speed = f"{numbers['tokens_per_s']:10,.0f} tokens/s {numbers['peak_mb']:9,.0f} MB"
        print(f"{name:<14} {speed}{compiled}", file=sys.stderr)
        return numbers

    return measure


def child(arguments: Sequence[str], threads: int, scratch: str) -> Any:
    """Run Python in a process of its own, in the folder `scratch`; give the JSON that is the last line it prints.

    Raises:
        RuntimeError: if it fails, with the last line it says.
    """
    limits = {variable: str(threads) for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    environment = {**os.environ, **limits, "TMPDIR": scratch}
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(
            command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not finished after {TIME_LIMIT_S} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def medians(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Give the median of each number of each contender."""
    return {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in results.items()
    }


def markdown(results: dict[str, list[dict[str, float]]], failed: dict[str, str]) -> str:
    """Write the table of medians, how we stand to each, and the lowest and highest tokens/s."""
    middle = medians(results)
    ours = middle.get(OURS)
    lines = [
        "| | tokens/s | lowest – highest | ours ÷ it | tokens per CPU second | ours ÷ it | peak MB | ours ÷ it |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, numbers in middle.items():
        speeds = [one["tokens_per_s"] for one in results[name]]
        compared = ("tokens_per_s", "tokens_per_cpu_s", "peak_mb")
        ratios = {key: f"{ours[key] / numbers[key]:.2f}" if ours else "–" for key in compared}
        cells = [name, f"{numbers['tokens_per_s']:,.0f}", f"{min(speeds):,.0f} – {max(speeds):,.0f}"]
        cells += [ratios["tokens_per_s"], f"{numbers['tokens_per_cpu_s']:,.0f}", ratios["tokens_per_cpu_s"]]
        cells += [f"{numbers['peak_mb']:,.0f}", ratios["peak_mb"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"\n{name} was not measured: {reason}" for name, reason in failed.items())])


def run(script: Path, given: argparse.Namespace, shape: Shape) -> None:
    """Measure all contenders asked for, print the table, write the numbers with machine and versions."""
    described = {"benchmark": script.stem, "shape": given.shape, **asdict(shape), "threads": given.threads, **about()}
    with tempfile.TemporaryDirectory() as scratch:
        measure = in_process(script, given.shape, given.threads, scratch)
        results, failed = take_turns(given.contenders, given.repeats, measure)
    print(markdown(results, failed))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps({**described, "results": results, "failed": failed}, indent=1) + "\n")
