import pytest

from ablate.prepare import main

SMALL = ["data=synthetic", "data.vocab_size=340", "data.num_train=60", "data.num_dev=7", "data.num_test=5"]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_it_prepares_once_and_describes_the_corpus(root, capsys):
    assert main(SMALL) == 0
    first = capsys.readouterr()
    assert "train: 60 pairs" in first.out
    assert str(root) in first.out
    assert "learning 340 subwords" in first.err
    assert main(SMALL) == 0
    assert capsys.readouterr() == (first.out, "")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SMALL, "data.vocab_size=90000"], "data.vocab_size=90000: the training text allows at most"),
        (["data=files"], "data.train_src=None: is needed, with data.train_tgt; or data.train_tsv"),
        (["data=nosuch"], "nosuch"),
    ],
)
def test_what_the_user_can_mend_is_one_message_and_exit_code_2(overrides, message, capsys):
    assert main(overrides) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err
    assert message in err


def test_help_says_where_the_data_goes(root, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert str(root) in capsys.readouterr().out.replace("\n", "")


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "file" / "data"))
    assert main(SMALL) == 2
    assert "error: [Errno 20] Not a directory: " in capsys.readouterr().err
