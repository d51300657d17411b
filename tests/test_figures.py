import pytest
from records import finish

from ablate import figures
from ablate.plan import Plan, plan_from


def planned(*overrides: str) -> Plan:
    return plan_from(["preset=smoke", *overrides], prepare=True, say=lambda text: None)


def test_the_command_writes_each_figure_in_each_format_and_the_same_again(workplace, capsys):
    plan = planned("+sweep=row_A", "seeds=2")
    for seed, run in enumerate(plan.rows["base"]):
        finish(run, 9.0 + seed, 21.0)
    for seed, run in enumerate(plan.rows["A_h1"]):
        finish(run, 12.0 + 2 * seed, 17.0)
    asked = ["row_A", "--preset", "smoke", "--seeds", "2", "--format", "svg,png,pdf", "--out"]
    for folder in ("one", "two"):
        assert figures.main([*asked, folder]) == 0
    names = {f"{name}.{form}" for name in ("forest", "settings", "curves", "rates") for form in ("svg", "png", "pdf")}
    assert {path.name for path in (workplace / "one").iterdir()} == names
    assert sorted(capsys.readouterr().out.split())[: len(names)] == sorted(f"one/{name}" for name in names)
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    for name in names:
        data = (workplace / "one" / name).read_bytes()
        assert data.startswith(starts[name[-3:]])
        assert data == (workplace / "two" / name).read_bytes()


def test_without_records_every_row_is_there_and_marked(workplace, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.update({path.stem: figure}))
    assert figures.main(["row_B", "preset=smoke", "seeds=3"]) == 0
    labels = [tick.get_text() for tick in drawn["forest"].axes[0].get_yticklabels()]
    assert labels == ["base (not run)", "B_dk16 (not run)", "B_dk32 (not run)"]
    curves = drawn["curves"].axes[0].get_legend_handles_labels()[1]
    assert curves == ["base (not run)", "B_dk16 (not run)", "B_dk32 (not run)"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["row_A", "--format", "gif"], "--format='gif'"),
        (["row_Z"], "row_Z"),
        (["row_A", "preset=smok"], "did you mean 'smoke'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(workplace, capsys, arguments, said):
    assert figures.main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err
    assert list(workplace.iterdir()) == []
