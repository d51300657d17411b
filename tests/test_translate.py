import io
import sys
from types import SimpleNamespace

import pytest

from ablate.compose import compose
from ablate.config import save, scaled
from ablate.rundir import RunDir, write_json
from ablate.translate import main


def translate(monkeypatch, capsys, data: bytes, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return main(list(arguments)), *capsys.readouterr()


def test_a_folder_that_is_no_run_is_named(tmp_path, monkeypatch, capsys):
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(tmp_path / "nowhere"))
    assert (code, out) == (2, "")
    assert err.startswith("error: RUN='")
    assert "nowhere': no such run; give a folder runs/PRESET/ROW/FINGERPRINT/seedK" in err


def test_a_run_without_a_checkpoint_is_refused(tmp_path, monkeypatch, capsys):
    run = RunDir(tmp_path / "seed1")
    write_json(run.identity, {"fingerprint": "0" * 12, "science": {}, "digests": {}, "corpus": str(tmp_path)})
    save(scaled(compose(["preset=smoke", "device=cpu"])), run.config)
    code, out, err = translate(monkeypatch, capsys, b"Hello.\n", str(run.path))
    assert (code, out) == (2, "")
    assert "has no checkpoint" in err


def test_text_that_is_not_utf8_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    code, out, err = translate(monkeypatch, capsys, b"Gr\xfc\xdfe\n", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "utf-8" in err


@pytest.mark.parametrize("arguments", [[], ["run", "another"], ["run", "--threads", "many"]])
def test_wrong_arguments_show_the_usage(arguments, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        translate(monkeypatch, capsys, b"", *arguments)
    assert stopped.value.code == 2
    assert "usage: python -m ablate.translate" in capsys.readouterr().err
