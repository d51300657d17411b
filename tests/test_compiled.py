import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import EVERY, TINY

from ablate.compiled import Gain, typical
from ablate.data.batch import Batches
from ablate.data.packed import Packed

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("gain", "said"),
    [  # 38 s ÷ 8 ms = 4,750
        (Gain(38.0, 0.069, 0.061), "takes 61 ms instead of 69 (1.13 x): repaid after 4,750 of 9,000 batches"),
        (Gain(76.0, 0.069, 0.061), "too little for the 9,000 batches to come: compile=false is faster here"),
        (Gain(38.0, 0.061, 0.069), "takes 69 ms instead of 61 (0.88 x); compile=false is faster here"),
    ],
)
def test_what_compiling_gains_is_said_also_when_it_is_nothing(gain, said):
    assert gain.words(9000).startswith(f"compiled in {gain.compile_s:.0f} s: the gradient of a batch ")
    assert gain.words(9000).endswith(said)


def batches_of(lengths: list[tuple[int, int]], batch_tokens: int) -> Batches:
    sides = [[list(range(n)) for n in side] for side in zip(*lengths, strict=True)]
    return Batches(Packed.of(*sides), batch_tokens, "padded", seed=1)


def test_code_is_made_for_several_sentences_of_several_subwords():
    lone = [(9, 8), (9, 6), (9, 9), (9, 7)]  # fill a batch of 11 slots each
    for chosen in (typical(batches_of([*lone, (3, 5), (4, 2)], 11)), typical(batches_of([(3, 5), (4, 2)], 11))):
        assert (chosen.src.shape, chosen.tgt.shape) == ((2, 4), (2, 5))
    assert typical(batches_of(lone, 11)).src.shape == (1, 9)  # there is no other


@pytest.fixture
def compiler() -> None:
    """Ask for a C++ compiler; ABLATE_NEED_CXX=1 makes its absence an error."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        if os.environ.get("ABLATE_NEED_CXX"):
            pytest.fail("ABLATE_NEED_CXX is set: no C++ compiler")
        pytest.skip("no C++ compiler")


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, which also gets the compiler's cache."""
    known = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1"}
    variables = {**os.environ, **known, **environment}
    return subprocess.run([sys.executable, *arguments], env=variables, cwd=folder, capture_output=True, text=True)


def train(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Train with and without the compiler, in a process of its own."""
    return python(folder, str(TESTS / "compiling.py"), str(folder), **environment)


@pytest.mark.usefixtures("compiler")
def test_compiled_layers_give_the_same_losses_and_a_resumed_run_the_same_bits(tmp_path):  # R1
    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["resumed exactly"]
    (loss, history), (compiled_loss, compiled_history) = found["plain"], found["compiled"]
    assert compiled_loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(compiled_history, history, rtol=1e-5)
    assert found["translations"][0] == found["translations"][1]
    assert [step for step, _ in history] == [5, 10]
    assert found["gain"]["compile_s"] > 1 and min(found["gain"].values()) > 0
    assert done.stderr.count("compiled in ") == 2
    assert "resumed after update 8" in done.stderr


def test_without_a_compiler_the_run_ends_before_it_trains_and_says_what_it_needs(tmp_path):
    done = train(tmp_path, CXX=str(tmp_path / "g++"))
    assert done.returncode == 1
    assert "ConfigError: compile=True: torch's compiler failed; on a CPU it needs a C++ compiler" in done.stderr
    assert not (tmp_path / "whole" / "checkpoints").exists()


@pytest.mark.usefixtures("compiler")
def test_the_command_trains_with_it_in_bfloat16_and_the_record_says_what_it_gained(tmp_path):
    command = ["-m", "ablate.run", *TINY, "precision=bf16"]
    records = {}
    for name, setting in (("plain", "false"), ("compiled", "true")):
        done = python(tmp_path, *command, f"compile={setting}", f"runs_dir={name}")
        assert done.returncode == 0, done.stderr
        (path,) = tmp_path.glob(f"{name}/**/record.json")
        records[name] = json.loads(path.read_text())
    history, compiled_history = (done["dev"]["history"][:2] for done in records.values())  # then rounding has grown
    assert [step for step, _ in history] == [EVERY, 2 * EVERY]
    np.testing.assert_allclose(compiled_history, history, rtol=5e-3)
    (plain,), (compiled,) = (done["provenance"] for done in records.values())
    assert "compile" not in plain
    assert sorted(compiled["compile"]) == ["compile_s", "compiled_batch_s", "plain_batch_s"]
    assert "compiled in " in (path.parent / "log.txt").read_text()
