import pytest

from ablate import named
from ablate.named import NotOne, find, runs_folder, select
from ablate.rundir import RunDir, write_json

RUNS = [
    ("smoke", "base", "0123456789ab", 1),
    ("smoke", "base", "0123456789ab", 2),
    ("smoke", "A_h1", "0199999999ab", 1),
    ("quick", "base", "aaaaaaaaaaaa", 1),
]


@pytest.fixture
def root(tmp_path):
    for preset, row, identity, seed in RUNS:
        write_json(RunDir.of(tmp_path, preset, row, identity, seed).identity, {"fingerprint": identity})
    (tmp_path / "smoke" / "base" / "notes").mkdir()
    return tmp_path


def test_runs_are_found_in_the_order_of_their_names(root):
    assert find(root) == [RunDir.of(root, *RUNS[number]) for number in (3, 2, 0, 1)]


def test_a_copy_that_somebody_made_of_a_runs_folder_is_no_run(root):
    write_json(RunDir(root / "smoke" / "base" / "0123456789ab" / "seed1.old").identity, {"fingerprint": "0123456789ab"})
    assert len(find(root)) == 4


def test_the_record_that_was_kept_of_a_run_stands_for_it(root, tmp_path):
    kept = RunDir.of(root, "smoke", "E_learned", "bbbbbbbbbbbb", 1)
    write_json(kept.record, {"schema": 1})
    assert len(find(root)) == 5
    assert select(root, "E_learned") == select(tmp_path / "elsewhere", str(kept.path)) == kept


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("A_h1", 2),
        ("A_h1/1", 2),
        ("A_h1/seed1", 2),
        ("smoke/base/2", 1),
        ("quick/base", 3),
        ("quick", 3),
        ("019", 2),
        ("0123/2", 1),
        ("0123456789ab/seed1", 0),
        ("base/aaaaaa", 3),
        ("smoke/base/0123456789ab/seed2", 1),
    ],
)
def test_a_run_is_meant_by_its_row_fingerprint_and_seed(root, name, meant):
    assert select(root, name) == RunDir.of(root, *RUNS[meant])


def test_a_run_is_meant_by_its_folder_wherever_it_is(root, monkeypatch):
    monkeypatch.chdir(root / "smoke" / "base")
    assert select(root / "elsewhere", "0123456789ab/seed2") == RunDir.of(root, *RUNS[1])
    assert select(root / "elsewhere", str(root / "smoke/A_h1/0199999999ab/seed1/")) == RunDir.of(root, *RUNS[2])


def test_a_name_of_several_runs_lists_them(root):
    with pytest.raises(NotOne) as refused:
        select(root, "base")
    assert str(refused.value).splitlines() == [
        f"RUN='base': 3 runs are called so; under {root} there are",
        "  quick/base/aaaaaaaaaaaa/seed1",
        "  smoke/base/0123456789ab/seed1",
        "  smoke/base/0123456789ab/seed2",
    ]


@pytest.mark.parametrize("name", ["A_h4", "01", "2/base", "base/3", "nosuch/A_h1"])  # "01" is too short
def test_a_name_of_no_run_lists_what_there_is(root, name, monkeypatch):
    monkeypatch.setattr(named, "MAX_LISTED", 2)
    with pytest.raises(NotOne) as refused:
        select(root, name)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"RUN={name!r}: no runs are called so; under {root} there are"
    assert lines[1:] == ["  quick/base/aaaaaaaaaaaa/seed1", "  smoke/A_h1/0199999999ab/seed1", "  … and 2 more"]


def test_the_folder_of_runs_is_that_of_the_environment(monkeypatch):
    assert runs_folder() == "runs"
    monkeypatch.setenv("ABLATE_RUNS", "/elsewhere")
    assert runs_folder() == "/elsewhere"


def test_that_there_are_no_runs_at_all_is_said(tmp_path):
    with pytest.raises(NotOne, match=r"no runs are called so; under .* there are none$"):
        select(tmp_path, "A_h4")
