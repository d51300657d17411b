import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import finish

from ablate import view
from ablate.history import curves
from ablate.plan import Plan, plan_from
from ablate.report import render
from ablate.rundir import write_text


def planned(*overrides: str) -> Plan:
    return plan_from(["preset=smoke", *overrides], prepare=True, say=lambda text: None)


def shown(plan: Plan, num_sentences: int = 3) -> dict:
    return view.content(plan, lambda file: f"at/{file.name}", num_sentences)


def test_a_cell_sorts_by_its_number_and_one_without_a_number_by_nothing(workplace):
    plan = planned("+sweep=row_B", "seeds=2")
    finish(plan.rows["base"][0], 9.5, 21.0)
    finish(plan.rows["B_dk16"][0], 12.0, 1234.5)
    table = shown(planned("+sweep=row_B", "seeds=2"))["table"]
    keys = [column.key for column in table["columns"]]
    cells = {row["name"]: dict(zip(keys, row["cells"], strict=True)) for block in table["blocks"] for row in block}
    assert cells["base"]["ppl"] == ("9.50", 9.5)
    assert cells["B_dk16"]["d_ppl"] == ("+2.50", 2.5)
    assert cells["B_dk16"]["bleu"] == ("1,234.5", 1234.5)
    assert cells["B_dk32"]["ppl"] == ("—", "")
    assert cells["B_dk32"]["d_bleu"] == ("—", "")
    assert cells["B_dk32"]["paper_ppl"] == ("5.01", 5.01)  # Table 3, rows (B)
    assert cells["B_dk16"]["d_k"] == ("1", 1)
    assert [row["name"] for block in table["blocks"] for row in block] == ["base", "B_dk16", "B_dk32"]


def test_the_figures_numbers_are_json_without_nan(workplace):
    plan = planned("+sweep=row_B")
    finish(plan.rows["base"][0], 9.5, 21.0)
    data = shown(planned("+sweep=row_B"))["data"]
    assert json.loads(json.dumps(data, allow_nan=False))["rows"][1]["rel_ppl"] is None
    assert [row["label"] for row in data["rows"]] == ["base", "B_dk16 (not run)", "B_dk32 (not run)"]
    assert ["D", "ε_ls"] in data["varied"]


def test_translations_stand_side_by_side_equal_ones_once(workplace):
    plan = planned("+sweep=row_A", "seeds=2")
    for row, seed, text in [("base", 0, "eins"), ("A_h1", 0, "zwei"), ("A_h4", 1, "eins"), ("A_h16", 0, "")]:
        finish(plan.rows[row][seed], 9.0, 21.0)
        write_text(plan.rows[row][seed].run.hypotheses("dev"), f"{text}\n" * 200)
    samples = shown(planned("+sweep=row_A", "seeds=2"), 4)["samples"]
    assert [sample["number"] for sample in samples] == [26, 76, 126, 176]  # the middles of four stretches of 50
    src = plan.corpus.text("dev", "src")
    assert [sample["src"] for sample in samples] == [src[25], src[75], src[125], src[175]]
    assert [one["rows"] for one in samples[0]["translations"]] == [["base", "A_h4"], ["A_h1"], ["A_h16"]]
    assert [one["stretches"] for one in samples[0]["translations"]] == [[("eins", False)], [("zwei", False)], []]


def test_no_more_sentences_are_chosen_than_there_are(workplace):
    plan = planned("data.num_dev=3")
    finish(plan.runs[0], 9.0, 21.0)
    write_text(plan.runs[0].run.hypotheses("dev"), "ja\n" * 3)
    assert [sample["number"] for sample in shown(planned("data.num_dev=3"), 8)["samples"]] == [1, 2, 3]


def test_translations_of_another_corpus_are_refused(workplace):
    plan = planned("seeds=1")
    finish(plan.runs[0], 9.0, 21.0)
    write_text(plan.runs[0].run.hypotheses("dev"), "ja\n" * 3)
    with pytest.raises(view.ViewError, match=r"hypotheses\.dev\.txt: 3 translations of 200 sentences"):
        shown(planned("seeds=1"))


def test_words_that_the_reference_has_in_this_order_are_told_from_others():
    found = view.compared("der alte Mann sieht das Haus", "der Mann sieht ein Haus")
    assert found == [("der", True), ("alte", False), ("Mann sieht", True), ("das", False), ("Haus", True)]


@given(st.text(alphabet="ab ", max_size=30), st.text(alphabet="ab ", max_size=30))
def test_stretches_lose_no_word(text, reference):
    stretches = view.compared(text, reference)
    assert " ".join(words for words, _ in stretches) == " ".join(text.split())
    if text == reference:
        assert all(same for _, same in stretches)


def test_a_run_says_what_it_does_and_links_to_the_files_it_has(workplace):
    plan = planned("seeds=2")
    finish(plan.runs[0], 9.0, 21.25)
    done, fresh = shown(planned("seeds=2"))["runs"]
    assert (done["state"], done["step"], done["share"]) == ("done", "60/60", 1.0)
    assert done["numbers"] == ["3.250", "9.00", "21.2", "1,222", "0:36"]  # 44,000 tokens in 36 s
    names = ["record.json", "config.yaml", "hypotheses.dev.txt"]
    assert done["links"] == [(name, f"at/{name}") for name in names]
    assert (fresh["state"], fresh["step"], fresh["links"]) == ("new", "", [])


@pytest.mark.parametrize(
    ("address", "linked"), [("https://wandb.ai/t/ablate/runs/0-1", True), ("javascript:alert(1)", False)]
)
def test_a_run_that_was_sent_links_to_its_page_on_wandb(workplace, address, linked):
    plan = planned()
    assert shown(plan)["runs"][0]["links"] == []
    write_text(plan.runs[0].run.wandb_url, address)
    assert shown(plan)["runs"][0]["links"] == ([("W&B", address)] if linked else [])


def test_sixty_runs_of_2000_steps_are_few_numbers_and_the_thinning_is_said():
    steps = range(1, 2001)
    lines = pd.DataFrame(
        [
            {"row": f"row{row}", "block": "A", "seed": seed, "step": step, "loss": 1 / (step + seed), "dev_ppl": 9.1}
            for row in range(20)
            for seed in range(3)
            for step in steps
        ]
    )
    found = curves(lines, view.LOGGED, view.DRAWN)
    assert len(found) == 40
    assert len(json.dumps([[[view.short(float(x)) for x in point] for point in one.points] for one in found])) < 1e6
    assert "of the longest curve's 2,000 logged points 287" in view.thinning(found)  # every 7th is 286, and the last


def test_what_is_drawn_whole_is_said_to_be():
    lines = pd.DataFrame({"row": "base", "block": "base", "seed": 1, "step": [1, 2], "loss": [3.0, 2.0]})
    assert view.thinning(curves(lines, ["loss"], 2)) == "Every logged point is drawn."


def test_without_a_corpus_and_without_runs_everything_says_so(workplace, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(workplace / "nothing"))
    plan = plan_from(["preset=smoke", "+sweep=row_A"], prepare=False)
    content = shown(plan)
    assert content["samples"] == []
    assert content["states"] == {"new": 5}
    assert [term for term, _ in content["facts"]] == ["Ours", "The paper's"]


def test_without_the_corpus_finished_runs_are_shown_but_no_sentences(workplace, monkeypatch):
    finish(planned().runs[0], 9.0, 21.0)
    monkeypatch.setenv("ABLATE_DATA", str(workplace / "nothing"))
    content = shown(plan_from(["preset=smoke"], prepare=False))
    assert (content["states"], content["samples"]) == ({"done": 1}, [])
    page = render(content)
    assert "The corpus, which has the sentences, is not prepared here." in page
    assert "No run has finished." not in page
