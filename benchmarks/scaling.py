"""How a training's time and memory grow with its sizes: `python benchmarks/scaling.py`, about five minutes.

Measures seconds per update and peak memory of a run's own loop (`ablate.train.Trainer`; one thread, float32, a process
per point), varying tokens per batch, V, d_model, N, sentence length, h and dropout around preset quick's base; fits the
cost model of `ablate.estimate` to that (non-negative least squares on relative errors); and holds it against rows of
Table 3 at presets quick and smoke, on their corpora, which the fit has not seen. Seconds are processor time.

Writes the coefficients (`ablate/costs.json`, which `plan_only=true` goes by), `benchmarks/scaling.md` with its plots
(`scaling.svg`), and the measurements (`benchmarks/results/scaling.json`). `--refit` measures nothing and fits again.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from common import about, child
from scaling_page import Measured, write_page

from ablate import frozen
from ablate.compose import session
from ablate.config import Config
from ablate.estimate import Lengths, Load
from ablate.identity import science as science_of
from ablate.plan import plan_from

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scaling.json"
CENTRE: dict[str, Any] = {"tokens": 384, "V": 2000, "d_model": 128, "N": 3, "length": 16, "h": 8, "dropout": 0.1}
VARIED: dict[str, list[Any]] = {
    "tokens": [64, 128, 256, 768, 1536, 3072],
    "V": [512, 1000, 8000, 24000],
    "d_model": [32, 64, 256, 512],
    "N": [1, 2, 6],
    "length": [4, 8, 32, 64, 128],
    "h": [1, 2, 32],
    "dropout": [0.0],
}
CORNERS: list[dict[str, Any]] = [
    {"h": 32, "d_model": 64, "tokens": 768, "length": 12},
    {"d_model": 32, "V": 512, "tokens": 512, "length": 10},
    {"d_model": 64, "N": 6, "h": 4, "V": 4000, "tokens": 1024, "length": 24, "dropout": 0.0},
    {"d_model": 256, "N": 6, "V": 8000, "tokens": 768, "length": 32},
    {"d_model": 512, "N": 6, "V": 16000, "tokens": 512, "length": 32},
]
ROWS = {
    "quick": ["base", "A_h1", "A_h32", "B_dk16", "C_N2", "C_N8", "C_d256", "C_d1024", "C_ff4096", "D_drop0", "big"],
    "smoke": ["base", "A_h32", "C_N8", "C_d1024", "D_drop0", "big"],
}


def sized(base: Config, sizes: dict[str, Any]) -> Config:
    """Give a configuration of these sizes; d_k, d_v and d_ff follow d_model as base's do."""
    d, h = sizes["d_model"], sizes["h"]
    model = replace(base.model, d_model=d, d_ff=4 * d, num_heads=h, d_k=d // h, d_v=d // h, num_layers=sizes["N"])
    optim = replace(base.optim, batch_tokens=sizes["tokens"])
    return replace(
        base,
        model=replace(model, dropout=sizes["dropout"]),
        optim=optim,
        data=replace(base.data, vocab_size=sizes["V"]),
    )


def measure(scratch: Path, name: str, cfg: Config, science: dict[str, Any], load: Load, **point: Any) -> Measured:
    """Measure one point in a process of its own."""
    file = scratch / "config.yaml"
    frozen.save(cfg, file)
    told = json.dumps({"config": str(file), **point})
    numbers = child([str(HERE / "scaling_point.py"), told], 1, str(scratch))
    print(f"{name:<28} {1000 * numbers['update_s']:9.1f} ms {numbers['peak_mb']:7.0f} MB", file=sys.stderr, flush=True)
    return Measured(name, point.get("sizes", {}), science, asdict(load), **numbers)


def measure_all() -> dict[str, list[Measured]]:
    """Measure the points to fit, and the rows to check with."""
    done: dict[str, list[Measured]] = {"fit": [], "rows": []}
    with tempfile.TemporaryDirectory() as folder, session():
        scratch = Path(folder)
        plans = {
            preset: plan_from(["+sweep=table3", f"preset={preset}", "device=cpu"], prepare=True) for preset in ROWS
        }
        base = plans["quick"].configs["base"]
        points = [CENTRE, *({**CENTRE, key: value} for key, values in VARIED.items() for value in values)]
        for sizes in [*points, *({**CENTRE, **corner} for corner in CORNERS)]:
            cfg, length = sized(base, sizes), sizes["length"]
            tokens = max(1, sizes["tokens"] // length) * length
            load = Load(tokens, tokens, length, length)
            name = " ".join(f"{key}={value}" for key, value in sizes.items() if value != CENTRE[key]) or "centre"
            done["fit"].append(measure(scratch, name, cfg, science_of(cfg, {}), load, length=length, sizes=sizes))
        for preset, rows in ROWS.items():
            corpus = plans[preset].corpus
            assert corpus is not None
            lengths = Lengths.of(corpus.split("train"))
            for row in rows:
                planned = plans[preset].rows[row][0]
                optim = planned.cfg.optim
                load = lengths.load(optim.batch_tokens, optim.batch_counting)
                name = f"{preset} {row}"
                done["rows"].append(
                    measure(scratch, name, planned.cfg, planned.science, load, corpus=str(corpus.folder))
                )
    return done


def main() -> None:
    """Measure, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refit", action="store_true", help="use the measurements of results/scaling.json")
    if not parser.parse_args().refit:
        told, measured = about(), measure_all()
        written = {**told, **{kind: [asdict(one) for one in found] for kind, found in measured.items()}}
        RESULTS.write_text(json.dumps(written, indent=1) + "\n")
    write_page(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
