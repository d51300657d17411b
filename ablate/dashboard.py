"""W&B's pages for a sweep, from code: a workspace for each block, and a report with the table and the claims.

`python -m ablate.dashboard [SWEEP …] [--preset smoke] [--publish] [--entity NAME] [--out dashboard] [SETTING=VALUE …]`

Both are built and checked without a network and written down as W&B's own JSON; with --publish they go to W&B.
"""

import sys
from pathlib import Path
from typing import Any

from ablate import claims, table
from ablate.account import default_entity
from ablate.ask import plan_of, reader
from ablate.config import TrackingConfig
from ablate.judge import Judgement
from ablate.plan import Plan
from ablate.refuse import brought_by, refuses
from ablate.rundir import write_text

with brought_by("dashboard"):
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import Panel

BLOCKS = {  # the table's blocks: what they vary
    "A": "number of heads at constant computation",
    "B": "attention key size",
    "C": "model size",
    "D": "dropout and label smoothing",
    "E": "learned positions",
    "big": "the big model",
}
ROW = wr.Config("row.name")
STEP = "trainer_step"


def bars(what: str, ours: str, paper: str) -> Panel:
    """Draw a score of each row, the mean over its seeds, beside what the paper prints."""
    return wr.BarPlot(
        title=f"{what}: ours (mean, from lowest to highest seed) and the paper's",
        metrics=[wr.SummaryMetric(ours), wr.SummaryMetric(paper)],
        groupby=ROW,
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        orientation="h",
        layout=wr.Layout(w=12, h=8),
    )


def curve(what: str, metric: str, log_y: bool = False) -> Panel:
    """Draw a number against updates, a line for each row: the mean over its seeds, and their spread."""
    return wr.LinePlot(
        title=f"{what} against updates: mean and standard deviation over seeds",
        x=STEP,
        y=[metric],
        groupby=ROW,
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        log_y=log_y,
        title_x="updates",
        smoothing_type="none",
        layout=wr.Layout(w=12, h=8),
    )


def panels() -> dict[str, list[Panel]]:
    """Make the panels of a block, by section."""
    return {
        "Scores": [
            bars("Perplexity", "ppl", "paper_ppl_dev"),
            bars("BLEU", "bleu", "paper_bleu_dev"),
        ],
        "Learning curves": [
            curve("Dev perplexity", "dev_ppl", log_y=True),
            curve("Training loss", "loss"),
            curve("Learning rate", "learning_rate"),
            curve("Gradient norm", "gradient_norm", log_y=True),
        ],
        "Throughput": [curve("Tokens per second (source + target)", "src_tgt_tokens_per_s")],
        "Translations": [
            wr.MediaBrowser(title="Dev set", media_keys=["dev_translations"], layout=wr.Layout(w=24, h=10))
        ],
    }


def verdicts(judgements: list[Judgement], rows: list[str]) -> Panel:
    """Show the claims that are about these rows alone, with their verdicts as they are now."""
    about = [one for one in judgements if {evidence.comparison.row for evidence in one.evidence} <= set(rows)]
    lines = [f"- {one.claim.name}: “{one.claim.says}” (§ {one.claim.section}): **{one.words}**" for one in about]
    text = "\n".join(lines) or "The paper makes no claim on these rows alone."
    return wr.MarkdownPanel(markdown=text, layout=wr.Layout(w=24, h=2 + 2 * len(about)))


def blocks(plan: Plan) -> dict[str, list[str]]:
    """List the rows of each block of a plan, base before each."""
    found: dict[str, list[str]] = {}
    for row, cfg in plan.configs.items():
        if row != "base":
            found.setdefault(cfg.row.block, ["base"]).append(row)
    return found or {"base": ["base"]}


def heading(block: str) -> str:
    """Name a block: the paper's with what it varies, a user's own by itself."""
    return f"({block}) {BLOCKS[block]}" if block in BLOCKS else block


def runs_of(plan: Plan, rows: list[str]) -> str:
    """Write which of the project's runs are of these rows, as W&B's filter: no others with their names are."""
    if not plan.digests:  # then no fingerprint is known
        return f"Config('preset') = '{plan.preset}' and Config('row.name') in {rows}"
    planned = dict.fromkeys(run.fingerprint for row in rows for run in plan.rows[row])
    return f"Config('fingerprint') in {list(planned)}"


def tracking(plan: Plan) -> TrackingConfig:
    """Tell where on W&B a plan's runs are: its first row, mostly base, says it for all."""
    return next(iter(plan.configs.values())).tracking


def workspaces(plan: Plan, entity: str) -> list[ws.Workspace]:
    """Build a workspace for each block: its runs grouped by row, the claims about them, and its panels."""
    judgements = claims.evaluate(plan)
    return [
        ws.Workspace(
            entity=entity,
            project=tracking(plan).project,
            name=f"Table 3 {heading(block)}, preset {plan.preset}",
            sections=[
                ws.Section(name=name, panels=found, is_open=name != "Translations")
                for name, found in {"Claims": [verdicts(judgements, rows)], **panels()}.items()
            ],
            settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=100),
            runset_settings=ws.RunsetSettings(
                filters=runs_of(plan, rows),
                groupby=[ws.Config("row.name")],
                pinned_columns=["summary:ppl", "summary:bleu", "summary:paper_ppl_dev", "summary:paper_bleu_dev"],
            ),
        )
        for block, rows in blocks(plan).items()
    ]


def report(plan: Plan, entity: str) -> wr.Report:
    """Build the report: our table beside the paper's, the claims with their verdicts, and each block's panels."""
    parts: list[Any] = [
        wr.TableOfContents(),
        wr.H1("Ours beside the paper's"),
        wr.MarkdownBlock(table.write(table.build(plan), "md")),
        wr.H1("What the paper says, judged on these runs"),
        wr.MarkdownBlock(claims.write(plan, claims.evaluate(plan), "md")),
    ]
    for block, rows in blocks(plan).items():
        # Without a project it is the report's; W&B would be asked for one that is named.
        runset = wr.Runset(name=heading(block), filters=runs_of(plan, rows), groupby=["config.row.name"])
        parts += [wr.H1(heading(block))]
        for name, found in panels().items():
            parts += [wr.H2(name), wr.PanelGrid(runsets=[runset], panels=found, hide_run_sets=name != "Scores")]
    return wr.Report(
        project=tracking(plan).project,
        entity=entity,
        title=f"Table 3 at preset {plan.preset}",
        description=plan.title,
        blocks=parts,
        width="fluid",
    )


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Build the pages, write them down, and publish them if asked; returns the exit code."""
    parser = reader("dashboard", "Build W&B's workspaces and report for a sweep.")
    parser.add_argument("--publish", action="store_true", help="send them to W&B; needs an account")
    parser.add_argument("--entity", help="W&B user or team (default: tracking.entity, or the account's own)")
    parser.add_argument(
        "--out", type=Path, default=Path("dashboard"), help="folder for W&B's JSON (default: dashboard)"
    )
    arguments = parser.parse_intermixed_args(argv)
    plan = plan_of(arguments)
    entity = arguments.entity or tracking(plan).entity or ""
    if arguments.publish and not entity:
        entity = default_entity()
    views, page = workspaces(plan, entity), report(plan, entity)
    for name, built in [*((view.name, view) for view in views), (page.title, page)]:
        path = arguments.out / f"{type(built).__name__.lower()} {name}.json".replace("/", "-")
        write_text(path, built._to_model().model_dump_json(by_alias=True, indent=1) + "\n")
        print(path)
    if arguments.publish:
        for built in (*views, page):
            built.save()
            print(built.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
