"""What the benchmarks share, and that ours runs in them; the peers are no dependency of the tests."""

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import common
import decode_speed
import prepare_scale
import prepare_speed
import scaling_page
import scaling_point
import shapes
import stopwatch
import sweep_speed
import train_speed
from shapes import Shape

from ablate import frozen

SMALL = Shape(8, 2, 2, 12, 29, num_sentences=7, shortest=3, longest=5, rounds=2)


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Keep what a worker leaves behind in the test's folder, as `common.run` does."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_page_names_every_script_that_has_a_command_line():
    folder = Path(common.__file__).parent
    named = re.findall(r"^\| `(\w+\.py)` ", (folder / "README.md").read_text(), re.MULTILINE)
    said = re.compile(r"ArgumentParser\(description=__doc__|arguments\(__doc__")
    assert sorted(named) == sorted(path.name for path in folder.glob("*.py") if said.search(path.read_text()))


def test_sentences_are_the_same_every_time_within_their_bounds_and_without_control_symbols():
    shape = dataclasses.replace(SMALL, num_sentences=500)
    drawn = shapes.sentences(shape, seed=1)
    assert {len(words) for words in drawn} == {2, 3, 4}  # the end symbol makes them 3 to 5
    assert {int(i) for words in drawn for i in words} == set(range(4, 28))  # the last id is Marian's padding
    for once, again in zip(drawn, shapes.sentences(shape, seed=1), strict=True):
        np.testing.assert_array_equal(once, again)


def test_tokens_count_the_end_symbol_and_not_the_padding():
    pair = [np.array([5, 6, 7]), np.array([8])]
    np.testing.assert_array_equal(shapes.padded(pair, eos_id=1, pad_id=0), [[5, 6, 7, 1], [8, 1, 0, 0]])
    assert shapes.num_tokens(pair) == 6


def numbers(speed: float, memory: float) -> dict[str, float]:
    return {"tokens_per_s": speed, "tokens_per_cpu_s": speed / 2, "peak_mb": memory}


def test_contenders_take_turns_and_one_that_fails_is_left_out():
    turns = []

    def measure(name):
        turns.append(name)
        if name == "c" and turns.count("c") == 2:
            raise RuntimeError("no such module")
        return numbers(len(turns), 1)

    results, failed = common.take_turns(["a", "b", "c"], 3, measure)
    assert turns == [*"abc", *"abc", *"ab"]
    assert results == {"a": [numbers(n, 1) for n in (1, 4, 7)], "b": [numbers(n, 1) for n in (2, 5, 8)]}
    assert failed == {"c": "no such module"}


def test_the_table_gives_medians_and_how_we_stand():
    results = {
        "ours": [numbers(3000, 300), numbers(9000, 310), numbers(2000, 290)],
        "torch": [numbers(1500, 600), numbers(1400, 620), numbers(1600, 500)],
    }
    lines = common.markdown(results, {"joeynmt": "not installed"}).splitlines()
    assert lines[2] == "| ours | 3,000 | 2,000 – 9,000 | 1.00 | 1,500 | 1.00 | 300 | 1.00 |"
    assert lines[3] == "| torch | 1,500 | 1,400 – 1,600 | 2.00 | 750 | 2.00 | 600 | 0.50 |"
    assert lines[-1] == "joeynmt was not measured: not installed"


def test_the_table_does_without_ours():
    assert "| torch | 1,500 | 1,500 – 1,500 | – | 750 | – | 600 | – |" in common.markdown(
        {"torch": [numbers(1500, 600)]}, {}
    )


def test_a_workers_last_line_is_its_result_and_its_failure_is_one_line(tmp_path):
    script = tmp_path / "bench.py"
    script.write_text(
        "import sys, json\nif 'bad' in sys.argv: sys.exit('first\\nlast')\nprint('noise')\n"
        "threads = float(sys.argv[sys.argv.index('--threads') + 1])\n"
        "print(json.dumps({'tokens_per_s': threads, 'peak_mb': 3.0}))\n"
    )
    measure = common.in_process(script, "small", 2, str(tmp_path))
    assert measure("good") == {"tokens_per_s": 2, "peak_mb": 3}
    with pytest.raises(RuntimeError, match=r"^last$"):
        measure("bad")


def test_work_is_timed_by_the_clock_and_by_the_processor():
    found = common.timed(lambda: time.sleep(0.2) or 1000)
    assert 1000 < found["tokens_per_s"] <= 5000  # nothing but waiting for 0.2 s
    assert found["tokens_per_cpu_s"] > 2 * found["tokens_per_s"]


def test_memory_is_the_peak_of_a_process_alone():
    held = np.ones(30_000_000)  # 240 MB that a child must not count
    code = "import numpy as np, common; np.ones(25_000_000); print(common.peak_mb())"
    done = subprocess.run([sys.executable, "-c", code], cwd=common.__file__.rpartition("/")[0], capture_output=True)
    assert 200 < float(done.stdout) < 200 + 150  # that array, freed again, and an interpreter with NumPy
    assert common.peak_mb() > held.nbytes / 1e6


def test_a_run_leaves_its_numbers_with_machine_and_versions(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(common, "in_process", lambda *arguments: lambda name: numbers(5, 2))
    monkeypatch.setattr(sys, "argv", ["x", "--json", str(tmp_path / "sub" / "x.json"), "--repeats", "2"])
    given = common.arguments("", ["little"], ["ours", "torch"], "x")
    common.run(Path("x_speed.py"), given, SMALL)
    written = json.loads((tmp_path / "sub" / "x.json").read_text())
    assert written["results"] == {name: [numbers(5, 2)] * 2 for name in ("ours", "torch")}
    assert (written["benchmark"], written["shape"], written["d_ff"]) == ("x_speed", "little", 12)
    assert written["machine"]["memory_gb"] > 0 and "torch" in written["versions"]
    assert "| torch | 5 |" in capsys.readouterr().out


def test_a_benchmark_without_repeats_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["x", "--repeats", "0"])
    with pytest.raises(SystemExit):
        common.arguments("", ["little"], ["ours"], "x")
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ours", "ours-bf16", "torch", "products"])
def test_training_is_measured(name):
    assert train_speed.work(name, SMALL, threads=1)["tokens_per_s"] > 0


def test_decoding_is_measured_on_translations_of_the_length_asked_for():
    assert decode_speed.work("ours", SMALL, threads=1)["tokens_per_s"] > 0


def test_a_fit_finds_the_coefficients_that_made_the_numbers_and_none_below_zero():
    rng = np.random.default_rng(1)
    counts = [{"a": x, "b": y, "c": z} for x, y, z in rng.uniform(1, 9, (6, 3))]
    exact = [2 * count["a"] + 3 * count["b"] for count in counts]
    assert scaling_page.fit(counts, exact) == pytest.approx({"a": 2, "b": 3, "c": 0}, abs=1e-9)
    errors, spread = scaling_page.leave_one_out(counts, exact)
    assert errors == pytest.approx([0] * 6, abs=1e-9) and spread == pytest.approx(dict.fromkeys("abc", 0), abs=1e-9)
    assert scaling_page.fit(counts, [4 * count["a"] - count["c"] for count in counts])["c"] == 0


def test_a_fits_errors_are_relative():
    counts = [{"a": 1.0}, {"a": 1.0}]
    assert scaling_page.fit(counts, [1.0, 3.0]) == pytest.approx({"a": 1.2})  # least (x - 1)² + (x / 3 - 1)²
    assert scaling_page.leave_one_out(counts, [1.0, 3.0])[0] == pytest.approx([3 / 1 - 1, 1 / 3 - 1])


def test_coefficients_are_written_in_the_unit_that_suits_them():
    assert scaling_page.with_unit(2.1e-3, 4e-4, "seconds") == "2.1 ± 0.4 ms"
    assert scaling_page.with_unit(0.0, 4e-9, "seconds") == "0 ± 4 ns"
    assert scaling_page.with_unit(1.5e-5, 0.0, "memory_mb") == "15 ± 0 bytes"


def test_a_point_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling_point, "TIMED_S", 0.01)
    cfg = shapes.our_config(SMALL, "optim.batch_tokens=12", "data.vocab_size=29")
    frozen.save(cfg, tmp_path / "config.yaml")
    found = scaling_point.work({"config": str(tmp_path / "config.yaml"), "length": 4})
    assert found["update_s"] > 0 and found["peak_mb"] > 50
    sentences = scaling_point.sentences(cfg, length=4)
    assert len(sentences) == 8 * 3 and set(sentences.src_lengths) == {4}


def test_a_part_within_another_is_counted_once(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(time, "time", lambda: next(now))
    monkeypatch.setattr(time, "process_time", lambda: 0.5)
    watch = stopwatch.Stopwatch()  # at 0
    with watch.on("outer"):  # 1: the rest had 1
        inner = watch.watched(lambda: "done", "inner")
        assert inner() == "done"  # 2: outer had 1; 3: inner had 1
    watch.charge()  # 4: outer had 1 more; 5
    assert {part: wall_s for part, (wall_s, _) in watch.seconds.items()} == {"the rest": 2, "outer": 2, "inner": 1}


def test_training_is_told_from_what_is_beside_it():
    parts = {"a": [1.0, 0.5], "b": [3.0, 1.5], sweep_speed.TRAINING: [9.0, 8.0], sweep_speed.COMMAND: [5.0, 4.0]}
    lines = sweep_speed.markdown(parts, {"ours": {"wall_s": 2.0, "cpu_s": 1.0}}).splitlines()
    assert "| a | 0.50 | 5.0% | 1.00 |" in lines
    assert "| **beside training** | 2.00 | 20.0% | 4.00 |" in lines
    assert "| **the run** | 10.00 | 100.0% | 13.00 |" in lines
    assert "| once a sweep: `ablate.run`, to plan and to write the table | 4.00 | | 5.00 |" in lines
    assert lines[-1] == "| ours | 1.00 | 2.00 |"


@pytest.mark.parametrize("name", ["ours", "sentencepiece"])
def test_preparing_is_measured_by_step(name, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_speed, "VOCAB_SIZE", 320)
    monkeypatch.setenv("ABLATE_DATA", "")  # `ours` sets it
    prepare_speed.write_text(tmp_path, pairs=60)
    text = (tmp_path / "train.src").read_text()
    prepare_speed.write_text(tmp_path, pairs=60)
    assert (tmp_path / "train.src").read_text() == text and len(text.splitlines()) == 60
    (tmp_path / "out").mkdir()
    found = prepare_speed.CONTENDERS[name](tmp_path, tmp_path / "out", 60)
    steps = list(prepare_speed.STEPS.values())
    assert all(found[step] > 0 for step in (steps if name == "ours" else steps[1:]))
    assert found["per_cpu_s"] == pytest.approx(120 / sum(found[step] for step in steps))
    assert f"| {name} |" in prepare_speed.markdown({name: found})


def test_a_corpus_is_prepared_by_one_process_and_by_two_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_scale, "VOCAB_SIZE", 400)
    monkeypatch.setattr(prepare_scale, "WORDS", 300)
    monkeypatch.setattr(prepare_scale, "SAMPLE_S", 0.05)
    for seed, name in enumerate(("train.src", "train.tgt", "dev.src", "dev.tgt")):
        prepare_scale.write_side(tmp_path / name, 300, seed)
    results = {number: prepare_scale.prepare(tmp_path, tmp_path / f"data{number}", number) for number in (1, 2)}
    assert results[1]["sha256"] == results[2]["sha256"]
    for found in results.values():
        assert found["wall_s"] == pytest.approx(sum(found[step] for step in prepare_speed.STEPS.values()), abs=0.1)
        assert 0 < found["cpu_s"] < 600
        assert 20 < found["peak_mb"] < 2000
        found |= {"per_s": 1.0, "per_cpu_s": 1.0}
    assert prepare_scale.library_rate(tmp_path, tmp_path / "data1") > 0
    assert len(prepare_scale.markdown(results).splitlines()) == 4
