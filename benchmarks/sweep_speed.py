"""What a run costs beside its training: `python benchmarks/sweep_speed.py [--preset quick]`.

Does base's whole run in a process of its own, with a stopwatch on its parts (`stopwatch.py`), `--repeats` times, and
gives medians: seconds of wall time and of processor time, and each part's share of the run's. One thread. Then what the
command around the runs takes: `python -m ablate.run` once all is done, that is composing, planning and the table.

Beside it, the time from a process's start to its first update, in turns with what one would otherwise write:

  ours         a worker: everything a run does before its first update
  hydra        a bare Hydra application: torch, a linear layer and its Adam, W&B offline; no data, no model, no record
  huggingface  transformers' Seq2SeqTrainer with a MarianMT of the same sizes on pairs in memory; without W&B
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import about, child, children_cpu_s, medians, take_turns

from ablate.compose import session
from ablate.launch import freeze
from ablate.plan import plan_from
from ablate.rundir import RunDir

HERE = Path(__file__).parent
TRAINING, ELSEWHERE = "training", "W&B's own process, and ending Python"
COMMAND = "once a sweep: `ablate.run`, to plan and to write the table"
SAY = (
    "import json, os, time; took = time.time() - float(os.environ['STARTED']), time.process_time(); "
    "print(json.dumps(took), flush=True)"
)
PEERS = {
    "hydra": """
import hydra, torch, wandb
from omegaconf import DictConfig, OmegaConf

@hydra.main(version_base="1.3", config_path=None)
def app(cfg: DictConfig) -> None:
    model = torch.nn.Linear(128, 128)
    torch.optim.Adam(model.parameters(), fused=True)
    wandb.init(mode="offline", settings=wandb.Settings(silent=True, console="off", x_disable_stats=True))
    SAY
    wandb.finish()

app()
""",
    "huggingface": """
import os
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

class First(TrainerCallback):
    def on_step_begin(self, args, state, control, **others):
        SAY
        os._exit(0)

sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
         (("layers", 3), ("attention_heads", 8), ("ffn_dim", 512))}
ids = {"pad_token_id": 1999, "eos_token_id": 0, "decoder_start_token_id": 1999, "forced_eos_token_id": 0}
model = MarianMTModel(MarianConfig(vocab_size=2000, d_model=128, **sizes, **ids))
pairs = [{"input_ids": [5] * 20, "labels": [7] * 20} for _ in range(12000)]
settings = Seq2SeqTrainingArguments("out", max_steps=10, report_to=[], use_cpu=True, disable_tqdm=True)
Seq2SeqTrainer(model, settings, train_dataset=pairs, callbacks=[First()]).train()
""",
}


def frozen(folder: Path, *settings: str) -> RunDir:
    """Plan and freeze base's run."""
    with session():
        (planned,) = plan_from([f"runs_dir={folder}", "device=cpu", *settings], prepare=True).runs
    freeze(planned)
    return planned.run


def started(arguments: list[str], scratch: str) -> Any:
    """Run Python in a process of its own that knows when it was started; gives the JSON it prints last."""
    os.environ["STARTED"] = str(time.time())
    return child(arguments, 1, scratch)


def parts_of_a_run(preset: str, scratch: Path) -> dict[str, list[float]]:
    """Do base's run and give its wall and processor seconds by part."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    run = frozen(folder, f"preset={preset}")
    wall_s, cpu_s = time.time(), children_cpu_s()
    parts: dict[str, list[float]] = started([str(HERE / "stopwatch.py"), str(run.path)], str(scratch))["parts"]
    whole = time.time() - wall_s, children_cpu_s() - cpu_s
    parts[ELSEWHERE] = [whole[i] - sum(spent[i] for spent in parts.values()) for i in (0, 1)]
    wall_s, cpu_s = time.time(), children_cpu_s()
    command = [sys.executable, "-m", "ablate.run", f"preset={preset}", f"runs_dir={folder}", "device=cpu"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    parts[COMMAND] = [time.time() - wall_s, children_cpu_s() - cpu_s]
    return parts


def first_update(scratch: Path) -> Any:
    """Make what measures the seconds until one contender's first update."""

    def measure(name: str) -> dict[str, float]:
        if name == "ours":
            run = frozen(Path(tempfile.mkdtemp(dir=scratch)), "preset=quick", "optim.train_steps=50")  # one update
            wall_s, cpu_s = started([str(HERE / "stopwatch.py"), str(run.path)], str(scratch))["first_update"]
        else:
            script = scratch / f"start_{name}.py"
            script.write_text(PEERS[name].replace("SAY", SAY))
            wall_s, cpu_s = started([str(script)], str(scratch))
        print(f"{name:<14} {wall_s:6.2f} s {cpu_s:6.2f} CPU s", file=sys.stderr)
        return {"wall_s": wall_s, "cpu_s": cpu_s}

    return measure


def markdown(parts: dict[str, list[float]], starts: dict[str, dict[str, float]]) -> str:
    """Write both tables."""
    whole = [sum(spent[i] for part, spent in parts.items() if part != COMMAND) for i in (0, 1)]
    beside = [whole[i] - parts[TRAINING][i] for i in (0, 1)]
    shown = {part: spent for part, spent in parts.items() if part not in (TRAINING, COMMAND)}
    shown |= {"**beside training**": beside, TRAINING: parts[TRAINING], "**the run**": whole}
    lines = ["| part of a run | CPU s | share | wall s |", "|---|--:|--:|--:|"]
    lines += [
        f"| {part} | {cpu_s:.2f} | {cpu_s / whole[1]:.1%} | {wall_s:.2f} |" for part, (wall_s, cpu_s) in shown.items()
    ]
    lines.append(f"| {COMMAND} | {parts[COMMAND][1]:.2f} | | {parts[COMMAND][0]:.2f} |")
    lines += ["", "| until the first update | CPU s | wall s |", "|---|--:|--:|"]
    return "\n".join(
        [*lines, *(f"| {name} | {one['cpu_s']:.2f} | {one['wall_s']:.2f} |" for name, one in starts.items())]
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="quick", choices=["quick", "smoke"], help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="runs, and rounds of starts (default: %(default)s)")
    given = parser.parse_args()
    told = about()
    with tempfile.TemporaryDirectory() as folder:
        runs = [parts_of_a_run(given.preset, Path(folder)) for _ in range(given.repeats)]
        starts, failed = take_turns(["ours", *PEERS], given.repeats, first_update(Path(folder)))
    parts = {part: [statistics.median(run[part][i] for run in runs) for i in (0, 1)] for part in runs[0]}
    print(markdown(parts, medians(starts)))
    print(*(f"\n{name} was not measured: {reason}" for name, reason in failed.items()), sep="")
    written = HERE / "results" / f"sweep_speed-{given.preset}.json"
    written.write_text(json.dumps({**told, "runs": runs, "starts": starts, "failed": failed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
