"""W&B's pages of a sweep, built without a network and without an account."""

import json
import socket

import pytest
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from records import finish
from tiny import TINY, tiny_run

from ablate import account, dashboard, mirror
from ablate.dashboard import blocks, main, report, runs_of, workspaces
from ablate.errors import ConfigError
from ablate.plan import Plan, look_again, plan_from
from ablate.rundir import read_json
from ablate.track import read_metrics
from ablate.worker import DONE, StopFlag, take


@pytest.fixture(autouse=True)
def no_network(workplace, monkeypatch):
    def connect(*arguments):
        raise AssertionError("nothing may be asked")

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Plan:
    """Do (B) and (D): PPL 10 and BLEU 20 for base, one more of each with each row."""
    asked = ["+sweep=[row_B,row_D]", *TINY, f"runs_dir={tmp_path_factory.mktemp('dashboard') / 'runs'}"]
    plan = plan_from(asked, prepare=True, say=lambda text: None)
    for i, planned in enumerate(plan.runs):
        finish(planned, ppl=10.0 + i, bleu=20.0 + i)
    return look_again(plan)


@pytest.fixture
def plan(done) -> Plan:
    return look_again(done)


def tree(page: ws.Workspace | wr.Report) -> object:
    return json.loads(page._to_model().model_dump_json(by_alias=True))


def every(node: object, key: str) -> list[object]:
    """Give what stands under a key, wherever it is."""
    if isinstance(node, list):
        return [found for part in node for found in every(part, key)]
    if isinstance(node, dict):
        return [value for name, value in node.items() if name == key] + every(list(node.values()), key)
    return []


def test_each_block_has_its_rows_beside_base(plan):
    assert blocks(plan) == {"B": ["base", "B_dk16", "B_dk32"], "D": ["base", "D_drop0", "D_drop2", "D_ls0", "D_ls2"]}
    single = plan_from(TINY, prepare=False)
    assert blocks(single) == {"base": ["base"]}


def test_a_block_shows_the_planned_runs_of_its_rows_and_no_others(plan):
    lists = [found for found in every(tree(workspaces(plan, "team")[0]), "filters") if isinstance(found, list)]
    (condition,) = [condition for conditions in lists for condition in conditions]
    assert condition["key"] == {"section": "config", "name": "fingerprint"}
    assert set(condition["value"]) == {run.fingerprint for row in blocks(plan)["B"] for run in plan.rows[row]}
    plan.digests = {}
    assert (
        runs_of(plan, ["base", "B_dk16"]) == "Config('preset') = 'smoke' and Config('row.name') in ['base', 'B_dk16']"
    )


def test_a_workspace_shows_the_claims_about_its_rows_alone(plan):
    claims = [page.sections[0].panels[0].markdown for page in workspaces(plan, "team")]
    assert ["key size" in text for text in claims] == [True, False]  # (B)'s, (D)'s
    assert ["dropout" in text for text in claims] == [False, True]
    assert all("undecided" in text or "supported" in text or "contradicted" in text for text in claims)
    single = workspaces(plan_from(TINY, prepare=False), "team")
    assert single[0].sections[0].panels[0].markdown == "The paper makes no claim on these rows alone."


def test_panels_show_nothing_but_what_runs_log():
    run = tiny_run()
    assert take(run, StopFlag()) == DONE, run.error.read_text()
    logged = {name for line in read_metrics(run.metrics) for name in line}
    summed = {f"summary_metrics.{name}" for name in mirror.summary(read_json(run.record))}
    pages = [[one._to_model().model_dump() for one in part] for part in dashboard.panels().values()]
    shown = {name for names in every(pages, "metrics") for name in names}
    assert shown <= logged | summed
    assert {
        "summary_metrics.ppl",
        "summary_metrics.paper_ppl_dev",
        "summary_metrics.bleu",
        "summary_metrics.paper_bleu_dev",
    } <= shown
    assert {"loss", "dev_ppl", "src_tgt_tokens_per_s"} <= shown


def test_curves_and_bars_are_the_mean_of_a_rows_seeds(plan):
    configs = [config for config in every(tree(workspaces(plan, "team")[0]), "config") if "metrics" in config]
    assert len(configs) == 7
    assert {config["groupBy"] for config in configs} == {"row.value.name"}
    assert {config["groupAgg"] for config in configs} == {"mean"}
    assert {config["groupArea"] for config in configs} == {"minmax", "stddev"}
    assert {config["xAxis"] for config in configs if "xAxis" in config} == {"trainer_step"}


def test_the_report_holds_the_table_the_claims_and_every_block(plan):
    page = report(plan, "team")
    texts = [block.text for block in page.blocks if isinstance(block, wr.MarkdownBlock)]
    assert "| B_dk16 " in texts[0]
    assert "paper PPL" in texts[0]
    assert "supported" in texts[1] or "undecided" in texts[1]
    titles = [block.text for block in page.blocks if isinstance(block, wr.H1)]
    assert titles[2:] == ["(B) attention key size", "(D) dropout and label smoothing"]
    assert len([block for block in page.blocks if isinstance(block, wr.PanelGrid)]) == 8
    assert wr.Report._from_model(page._to_model()).title == page.title


def test_the_command_writes_the_pages_and_publishes_only_if_asked(plan, workplace, monkeypatch, capsys):
    saved: list[str] = []
    for page in (ws.Workspace, wr.Report):
        monkeypatch.setattr(page, "save", lambda self: saved.append(getattr(self, "name", None) or self.title))
        monkeypatch.setattr(page, "url", property(lambda self: "https://wandb.example"))
    arguments = ["row_B", *TINY, f"runs_dir={plan.runs_dir}"]
    assert main(arguments) == 0
    assert saved == []
    assert sorted(path.name for path in (workplace / "dashboard").iterdir()) == [
        "report Table 3 at preset smoke.json",
        "workspace Table 3 (B) attention key size, preset smoke.json",
    ]
    assert main([*arguments, "--publish", "--entity", "team"]) == 0
    assert saved == ["Table 3 (B) attention key size, preset smoke", "Table 3 at preset smoke"]
    assert capsys.readouterr().out.count("https://wandb.example") == 2

    def no_key(mode):
        raise ConfigError("tracking.mode", mode, "needs a key")

    monkeypatch.setattr(account, "log_in", no_key)
    assert main([*arguments, "--publish"]) == 2
    assert "needs a key" in capsys.readouterr().err
    assert len(saved) == 2
