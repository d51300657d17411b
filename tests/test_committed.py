"""The committed results in `analysis/results/quick`, and that README shows what they say."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from ablate import claims, table
from ablate.ask import plan_of, reader

ROOT = Path(__file__).parent.parent
QUICK = ROOT / "analysis" / "results" / "quick"
# A folder of somebody's machine; `/dev/null` and addresses are none.
PLACE = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|Users|mnt|work|scratch|data)/\w+")


@pytest.fixture(scope="module")
def records() -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(QUICK.glob("quick/*/*/seed*/record.json"))]


@pytest.fixture
def asked(monkeypatch, tmp_path) -> list[str]:
    """What asks a command for them, where no corpus is prepared."""
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path))
    return ["table3", "--runs", str(QUICK)]


def test_every_row_has_three_seeds_of_one_commit_without_changes(records):
    assert len(records) == 20 * 3
    assert len({(record["row"], record["seed"]) for record in records}) == 20 * 3
    attempts = [attempt for record in records for attempt in record["provenance"]]
    assert len({attempt["commit"] for attempt in attempts}) == 1
    assert not any(attempt["uncommitted_changes"] or attempt["code_changed"] for attempt in attempts)


def test_a_run_has_its_translations_and_its_log_beside_its_record():
    for record in QUICK.glob("quick/*/*/seed*/record.json"):
        assert {path.name for path in record.parent.iterdir()} >= {"hypotheses.dev.txt", "metrics.jsonl"}


def test_nothing_committed_names_a_place_on_somebodys_machine():
    listed = subprocess.run(["git", "ls-files", "-z", "analysis"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name]
    assert len(names) > 60 * 3
    found = {name: match.group() for name in names if (match := PLACE.search((ROOT / name).read_text()))}
    assert not found


def test_they_are_found_on_a_machine_with_gpus_too(asked, monkeypatch):
    monkeypatch.setattr("ablate.request.resolve_device", lambda device: "cuda")
    plan = plan_of(reader("table", "").parse_intermixed_args(asked))
    assert {planned.state.name for planned in plan.runs} == {"done"}


def test_readme_shows_the_table_of_these_runs(asked, capsys):
    assert table.main(asked) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 20
    assert "\n".join(lines) in (ROOT / "README.md").read_text()


def test_the_page_counts_the_verdicts_as_they_are(asked):
    judged = claims.evaluate(plan_of(reader("claims", "").parse_intermixed_args(asked)))
    page = (QUICK / "README.md").read_text()
    for verdict, number in Counter(judgement.verdict for judgement in judged).items():
        assert f"{number} {verdict}" in page
