import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from records import finish
from tiny import quiet

from ablate import score
from ablate.bleu import ScoreError
from ablate.compose import session
from ablate.plan import plan_from
from ablate.rundir import write_text


@pytest.fixture
def run(workplace):
    """A finished run whose translations are the references, but for the first."""
    with session():
        planned = plan_from(["preset=smoke"], prepare=True, say=quiet).runs[0]
    finish(planned, 9.0, 9.0)
    references = planned.corpus.text("dev", "tgt")
    write_text(planned.run.hypotheses("dev"), "".join(f"{text}\n" for text in ["Falsch.", *references[1:]]))
    return planned.run


def test_translations_are_scored_again_in_every_way(run, capsys):
    assert score.main([str(run.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(run.path)
    assert [line.split()[0] for line in lines[1:]] == ["bleu", "bleu_tok", "chrf"]
    assert all(90 < float(line.split()[1]) < 100 for line in lines[1:])
    assert "tok:13a" in lines[1]
    assert "compounds:split" in lines[2]


def test_a_run_is_named_as_elsewhere(run, capsys):
    assert score.main(["base/1"]) == 0
    assert Path(capsys.readouterr().out.splitlines()[0]).absolute() == run.path


def test_a_run_of_which_only_record_and_translations_were_kept_is_scored_on_the_corpus_prepared_here(
    run, monkeypatch, tmp_path, capsys
):
    wanted = score.scores_of(run, "dev")
    run.identity.unlink()
    assert score.scores_of(run, "dev") == wanted
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    assert score.main(["base/1"]) == 2
    assert (
        "its corpus, synthetic, is not prepared here; python -m ablate.prepare preset=smoke" in capsys.readouterr().err
    )


def test_a_run_without_translations_is_refused(run, capsys):
    assert score.main([str(run.path), "--split", "test"]) == 2
    assert "has no translations of test" in capsys.readouterr().err
    assert score.main(["nosuch"]) == 2
    assert "RUN='nosuch': no runs are called so" in capsys.readouterr().err


def test_without_comet_it_says_how_to_get_it(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "comet", None)
    assert score.main([str(run.path), "--comet", "Unbabel/wmt22-comet-da"]) == 2
    assert "COMET is not installed" in capsys.readouterr().err


def test_comet_is_given_sources_translations_and_references(monkeypatch):
    """Against a stand-in for its interface: the library's models are gigabytes that no test fetches."""
    asked = []

    def predict(sentences, batch_size, gpus):
        asked.extend(sentences)
        return SimpleNamespace(system_score=0.83)

    comet = ModuleType("comet")
    comet.download_model = lambda name: f"/models/{name}.ckpt"
    comet.load_from_checkpoint = lambda path: SimpleNamespace(predict=predict) if path == "/models/da.ckpt" else None
    monkeypatch.setitem(sys.modules, "comet", comet)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.2")
    found = score.comet_score(["a", "b"], ["x", "y"], ["u", "v"], "da")
    assert found == {"comet": 0.83, "comet_signature": "comet:da|version:2.2"}
    assert asked == [{"src": "a", "mt": "x", "ref": "u"}, {"src": "b", "mt": "y", "ref": "v"}]
    with pytest.raises(ValueError, match="zip"):
        score.comet_score(["a"], ["x", "y"], ["u", "v"], "da")


def test_other_numbers_of_translations_are_refused(run):
    write_text(run.hypotheses("dev"), "Eine.\n")
    with pytest.raises(ScoreError, match="1 hypotheses for 200 references"):
        score.scores_of(run, "dev")
