import math

import pytest
from records import finish
from test_rows import TABLE3

from ablate.compose import session
from ablate.footnote import agreement, legend, listed, provenance
from ablate.plan import plan_from
from ablate.table import build, grid
from ablate.typeset import markdown


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def test_by_what_records_were_made_is_listed_once_each():
    with session():
        asked = plan_from(["preset=smoke", "seeds=3"], prepare=True, say=lambda text: None)
    first = finish(asked.runs[0], 9.0, 9.0)
    entry = first["provenance"][0] | {"commit": "0123456789abcdef", "uncommitted_changes": False}
    changed = entry | {
        "uncommitted_changes": True,
        "versions": entry["versions"] | {"torch": "9.9"},
        "code_changed": True,
    }
    records = [first | {"provenance": [one]} for one in (entry, entry, changed)]
    signature, versions, warning = provenance(records)
    assert signature == "BLEU: sacreBLEU nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0; checkpoint: last."
    assert f"torch {entry['versions']['torch']}, 9.9," in versions
    assert versions.endswith("commit 0123456789ab, 0123456789ab with changes.")
    assert "other code than they were planned with" in warning
    assert provenance([]) == []
    none = first | {"provenance": [entry | {"commit": None}]}
    assert provenance([none])[1].endswith("commit none (no checkout).")


def table(change):
    """Give the paper's own numbers as ours, changed."""
    return [
        {"row": row, "ppl": change(float(line["ppl_dev"])), "paper_ppl": float(line["ppl_dev"])}
        for row, line in TABLE3.items()
    ]


def test_agreement_is_told_with_its_interval_and_how_many_rows():
    assert agreement("PPL", table(lambda ppl: 10 * ppl), "ppl") == "PPL +1.00 over 20 rows, [+1.00, +1.00]"
    assert agreement("PPL", table(lambda ppl: -ppl), "ppl") == "PPL −1.00 over 20 rows, [−1.00, −1.00]"


def test_too_few_rows_have_no_interval_or_no_agreement():
    assert agreement("PPL", table(lambda ppl: ppl)[:2], "ppl") == "PPL +1.00 over 2 rows; an interval takes 8"
    assert agreement("PPL", table(lambda ppl: math.nan), "ppl") == "PPL none, with 0 of its rows"
    assert agreement("PPL", table(lambda ppl: 7.0), "ppl") == "PPL none, all rows are equal"


def test_marks_are_explained_where_there_can_be_any():
    assert legend([{"n": 1}, {"n": 0}]).startswith("No interval and no test")
    assert "∗ below 0.05, ∗∗ below 0.01, ∗∗∗ below 0.001" in legend([{"n": 1}, {"n": 2}])


def test_values_are_listed_once_and_in_order():
    assert listed(["b", "a", "b", 3]) == "3, a, b"


def test_the_paper_s_way_of_taking_bleu_has_its_own_signature_and_column():
    with session():
        asked = plan_from(["preset=smoke", "+sweep=row_B"], prepare=True, say=lambda text: None)
    signature = "nrefs:1|case:mixed|eff:no|tok:moses-de-0.2.0|compounds:split|smooth:none|version:2.6.0"
    dev = finish(asked.runs[0], 9.0, 25.0)["dev"]
    finish(asked.runs[0], 9.0, 25.0, dev={**dev, "bleu_tok": 25.83, "bleu_tok_signature": signature})
    finish(asked.runs[1], 9.0, 24.0)  # a record of before it was taken
    with session():
        found = build(plan_from(["preset=smoke", "+sweep=row_B"], prepare=True, say=lambda text: None))
    assert found.frame["bleu_tok"][0] == 25.83
    assert math.isnan(found.frame["bleu_tok"][1])
    assert any(note.startswith("BLEU tok: ") and signature in note for note in found.notes)
    text = markdown(grid(found))
    assert "| BLEU tok |" in text
    assert "|     25.8 | 1/1 |" in text
