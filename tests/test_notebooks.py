"""The notebooks, executed as a reader does: from their folder, by this interpreter, on records of a smoke sweep."""

import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from records import finish

from ablate import claims
from ablate.history import plan_for
from ablate.plan import Plan, look_again, plan_from
from ablate.table import build, write

ANALYSIS = Path(__file__).resolve().parent.parent / "analysis"
NAMES = ["table3", "curves", "claims"]
ASKED = ["preset=smoke", "+sweep=table3", "seeds=2"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """Give the module's folder, for the runs and for Jupyter's own files."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def done(shared) -> Plan:
    """Do all of Table 3 but C_N2: PPL 9 … 28 and BLEU 25 … 6 down the rows, one apart by seed."""
    plan = plan_from([*ASKED, f"runs_dir={shared / 'runs'}"], prepare=True, say=lambda text: None)
    for i, (row, runs) in enumerate(plan.rows.items()):
        for seed, one in enumerate(runs):
            if row != "C_N2" and one.rows[0] == row:
                finish(one, 9.0 + i + seed, 25.0 - i - seed)
                one.run.metrics.write_text(log(900.0 + i))
    return plan


@pytest.fixture
def plan(shared, done, monkeypatch) -> Plan:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(shared))
    return look_again(done)


def log(speed: float) -> str:
    """Write 12 lines of training and 3 of dev perplexity."""
    lines: list[dict[str, float]] = []
    for step in range(5, 65, 5):
        numbers = {"loss": 6.0 - 0.03 * step, "learning_rate": 1e-5 * step, "steps_per_s": 2.0}
        lines.append({"attempt": 1, "step": step, "time": 1.0, **numbers, "src_tgt_tokens_per_s": speed})
        if step % 20 == 0:
            lines.append({"attempt": 1, "step": step, "time": 1.0, "dev_ppl": 90.0 - step})
    return "".join(json.dumps(line) + "\n" for line in lines)


def execute(name: str, runs: Path, **parameters: object) -> list[dict]:
    """Execute a notebook with other parameters than its own; gives the outputs of its cells, one after the other."""
    book = nbformat.read(ANALYSIS / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters["runs"] = os.path.relpath(runs, ANALYSIS)  # seen from the notebook's folder
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ANALYSIS)}}).execute()
    return [output for cell in book.cells for output in cell.get("outputs", [])]


def images(outputs: list[dict]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def markdown_of(outputs: list[dict]) -> str:
    """Give the one text that the cells show as Markdown."""
    (found,) = (output["data"]["text/markdown"] for output in outputs if "text/markdown" in output.get("data", {}))
    return found


def text_of(outputs: list[dict]) -> str:
    """Join what the cells show as text."""
    data = [output.get("data", {}) for output in outputs]
    return "\n".join(one.get("text/markdown") or one.get("text/html") or one.get("text/plain", "") for one in data)


def test_the_table_notebook_shows_the_table_and_its_figures(plan):
    outputs = execute("table3", plan.runs_dir, preset="smoke", seeds=2)
    shown = markdown_of(outputs)
    assert shown == write(build(plan), "md")
    assert [row for row in plan.rows if f"| {row} " not in shown] == []
    assert images(outputs) == 2
    assert text_of(outputs).count("<tr>") == 2 * len(plan.rows)  # a line per row and seed, C_N2's too


def test_the_curves_notebook_reads_every_line_and_draws_them(plan):
    outputs = execute("curves", plan.runs_dir, preset="smoke", seeds=2)
    assert f"{2 * (19 * 15 + 1)} rows ×" in text_of(outputs)  # 15 a run, and one that keeps C_N2's place
    assert images(outputs) == 2


def test_the_claims_notebook_has_a_verdict_on_every_claim(plan):
    outputs = execute("claims", plan.runs_dir, preset="smoke", seeds=2)
    judgements = claims.evaluate(plan)
    assert len(judgements) > 8
    assert markdown_of(outputs) == claims.write(plan, judgements, "md")


def committed(name: str) -> tuple[list[str], list[dict]]:
    """Give the sources of a notebook's cells and all their outputs, as they are committed, whole and in order."""
    book = nbformat.reads((ANALYSIS / f"{name}.ipynb").read_text("utf-8"), as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    return [cell.source for cell in cells], [output for cell in cells for output in cell.outputs]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_and_is_committed_as_executed_without_a_warning(name):
    sources, outputs = committed(name)
    assert sum(len(source.splitlines()) for source in sources) <= 40
    names = [line.split(" = ")[0] for line in sources[0].splitlines()]
    assert names == ["runs", "preset", "sweep", "seeds", "source", "settings"]
    assert {output["output_type"] for output in outputs} == {"execute_result"}


def test_what_is_committed_is_of_the_committed_records_and_takes_no_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path))
    monkeypatch.chdir(ANALYSIS)
    asked: dict[str, Any] = {}
    exec(committed("table3")[0][0], {}, asked)
    plan = plan_for(**asked)
    assert [row for row, runs in plan.rows.items() if runs[0].state.name != "done"] == []
    assert markdown_of(committed("table3")[1]) == write(build(plan), "md")
    assert markdown_of(committed("claims")[1]) == claims.write(plan, claims.evaluate(plan), "md")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_small_and_names_no_machine(name):
    assert (ANALYSIS / f"{name}.ipynb").stat().st_size < 1e6
    records = [json.loads(path.read_text("utf-8")) for path in (ANALYSIS / "results").rglob("record.json")]
    hosts = {entry["host"] for record in records for entry in record["provenance"]}
    data = [part for output in committed(name)[1] for part in output["data"].items()]
    named = "|".join(map(re.escape, ["host", "folder", *hosts]))
    text = "\n".join(text for kind, text in data if kind.startswith("text/"))
    assert re.findall(rf"/(?:home|root|tmp|Users)/|\b(?:{named})\b", text) == []


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in ANALYSIS.glob("*.ipynb")) == sorted(NAMES)
