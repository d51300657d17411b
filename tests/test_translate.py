import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import StopAt, tiny_run

from ablate.compose import compose
from ablate.data import corpus as corpora
from ablate.frozen import save
from ablate.rundir import RunDir, read_json, write_json
from ablate.scale import scaled
from ablate.translate import main
from ablate.worker import DONE, STOPPED, StopFlag, take


def translate(monkeypatch, capsys, data: bytes, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return main(list(arguments)), *capsys.readouterr()


def test_a_folder_that_is_no_run_is_named(tmp_path, monkeypatch, capsys):
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(tmp_path / "nowhere"))
    assert (code, out) == (2, "")
    assert err.startswith("error: RUN='")
    assert "nowhere': no runs are called so" in err


def test_a_file_in_a_run_is_no_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "record.json").write_text("{}")
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(tmp_path / "record.json"))
    assert (code, out) == (2, "")
    assert "record.json': no runs are called so" in err


def test_a_run_without_a_checkpoint_is_refused(tmp_path, monkeypatch, capsys):
    run = RunDir(tmp_path / "seed1")
    write_json(run.identity, {"fingerprint": "0" * 12, "science": {}, "digests": {}, "corpus": str(tmp_path)})
    save(scaled(compose(["preset=smoke", "device=cpu"])), run.config)
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(run.path))
    assert (code, out) == (2, "")
    assert "has no checkpoint" in err


def test_a_run_of_which_only_the_record_was_kept_has_no_checkpoint(tmp_path, monkeypatch, capsys):
    run = RunDir(tmp_path / "seed1")
    write_json(run.record, {"schema": 1})
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(run.path))
    assert (code, out, err) == (2, "", f"error: RUN='{run.path}': has no checkpoint\n")


def test_text_that_is_not_utf8_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    code, out, err = translate(monkeypatch, capsys, b"Gr\xfc\xdfe\n", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "utf-8" in err


@pytest.mark.parametrize(
    "arguments", [[], ["run", "another"], ["run", "--threads", "many"], ["run", "--threads", "-3"]]
)
def test_wrong_arguments_show_the_usage(arguments, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        translate(monkeypatch, capsys, b"", *arguments)
    assert stopped.value.code == 2
    assert "usage: python -m ablate.translate" in capsys.readouterr().err


def dev_sources(run: RunDir) -> list[str]:
    identity = read_json(run.identity)
    return corpora.reopen(Path(identity["corpus"]), identity["digests"]).text("dev", "src")


def test_a_trained_run_translates_as_its_evaluation_did(workplace, monkeypatch, capsys):
    run = tiny_run()
    assert take(run, StopFlag()) == DONE
    capsys.readouterr()
    sources = dev_sources(run)
    shortest_first = sorted(sources, key=len)  # D3: the order of the input, whatever is decoded first
    hypotheses = dict(zip(sources, run.hypotheses("dev").read_text().splitlines(), strict=True))
    code, out, err = translate(monkeypatch, capsys, "\n".join(shortest_first).encode(), str(run.path), "--threads", "1")
    assert (code, out.splitlines()) == (0, [hypotheses[source] for source in shortest_first])
    assert "5/5 sentences" in err
    assert "not finished" not in err


def test_lines_stay_lines(workplace, monkeypatch, capsys):
    run = tiny_run()
    assert take(run, StopAt(4)) == STOPPED
    one, two = dev_sources(run)[:2]
    capsys.readouterr()
    code, out, err = translate(monkeypatch, capsys, f"{one}\n{two}\n".encode(), str(run.path))
    assert (code, out.count("\n")) == (0, 2)
    assert "note: the run is not finished" in err
    first, second = out.splitlines()
    # T2: a byte order mark, Windows' line ends, empty lines; T1: a line separator within a line.
    text = f"\ufeff{one}\r\n\r\n{two}\n\n{one}\u2028{two}"
    lines = translate(monkeypatch, capsys, text.encode(), str(run.path))[1].split("\n")
    assert len(lines) == 6
    assert (lines[:4], lines[5]) == ([first, "", second, ""], "")
    assert translate(monkeypatch, capsys, b"", str(run.path))[:2] == (0, "")
    assert translate(monkeypatch, capsys, b"\n", str(run.path))[:2] == (0, "\n")


def test_a_device_that_is_not_there_is_refused(workplace, monkeypatch, capsys):
    run = tiny_run()
    assert take(run, StopAt(1)) == STOPPED
    capsys.readouterr()
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(run.path), "--device", "tpu")
    assert (code, out) == (2, "")
    assert "device='tpu': is not present; this machine has: cpu" in err
