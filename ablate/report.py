"""The dashboard: one HTML file that needs nothing else; or, served to this machine, a page that follows a sweep.

`python -m ablate.report [SWEEP …] [--preset smoke] [--out report.html] [--serve] [SETTING=VALUE …]`
"""

import argparse
import base64
import hashlib
import os
import re
import signal
import sys
import time
from collections.abc import Hashable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ablate import ledger
from ablate.ask import plan_of, reader
from ablate.errors import ConfigError
from ablate.named import find
from ablate.plan import Plan
from ablate.refuse import refuses
from ablate.rundir import RunDir, write_text
from ablate.serve import Site, server
from ablate.state import held, read_state, with_fate
from ablate.typeset import html_symbol
from ablate.view import content, files

PAGE = Path(__file__).with_name("page")
SCRIPTS = ("d3.min.js", "plot.umd.min.js", "charts.js", "page.js")  # in the order in which they need each other
LINKED = [re.escape(file.name) for file in files(RunDir(Path()))]
SERVED = re.compile(rf"([\w.-]+/){{3}}seed\d+/({'|'.join(LINKED)})")  # under the folder of runs


def render(view: dict[str, Any], version: str = "") -> str:
    """Write the page.

    Every text of the view is escaped by the template, and the page's policy lets no script run but its own, by digest,
    and nothing be fetched, sent or framed: what a translation or a name holds is only ever text.

    Args:
        view: as `view.content` gives it.
        version: of a page that is served, which asks its server for newer ones; empty for a file.
    """
    code = "\n".join((PAGE / name).read_text("utf-8") for name in SCRIPTS)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["symbol"] = lambda name: Markup(html_symbol(name))
    return environment.from_string((PAGE / "page.html").read_text("utf-8")).render(
        view,
        version=version,
        made=time.strftime("%Y-%m-%d %H:%M:%S"),
        style=Markup((PAGE / "page.css").read_text("utf-8")),
        code=Markup(code),
        digest=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
    )


def signs(runs: list[RunDir]) -> Hashable:
    """Give what differs once a run was planned, said something, ended or died."""
    return tuple((run.path, held(run.lock), *map(stamp, watched(run))) for run in runs)


def watched(run: RunDir) -> tuple[Path, ...]:
    """List the files that tell what the page says of a run."""
    states = (run.record, run.error, run.heartbeat, run.metrics, run.cancelled, run.jobs)
    return (*states, run.needs_sync, run.wandb_url)


def stamp(file: Path) -> tuple[int, int] | None:
    """Give a file's time and size; None if there is none."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def site(arguments: argparse.Namespace, plan: Plan) -> Site:
    """Make the page that follows a plan's runs."""
    enquiry = ledger.Enquiry(ledger.PATIENCE_S)

    def look() -> Hashable:
        if enquiry.due:
            enquiry.ask(planned.run for planned in plan.runs)
        return signs(find(plan.runs_dir, plan.preset)), tuple(enquiry.fates.items())

    def build(version: str) -> str:
        nonlocal plan
        if not plan.digests:
            plan = plan_of(arguments)  # until it is prepared, no run can be told to be of these rows
        for planned in plan.runs:
            planned.state = with_fate(read_state(planned.run), enquiry.fates.get(planned.run))
        view = content(plan, lambda file: f"runs/{quote(str(file.relative_to(plan.runs_dir)))}", arguments.sentences)
        return render(view, version)

    return Site(build, look, plan.runs_dir, SERVED)


def serve(arguments: argparse.Namespace, plan: Plan) -> int:
    """Serve the page until Ctrl-C; returns the exit code.

    Raises:
        ConfigError: for a port that cannot be had.
    """
    try:
        httpd = server(site(arguments, plan), arguments.port or 0)
    except (OSError, OverflowError) as err:
        raise ConfigError("--port", arguments.port, f"cannot be opened: {err}") from err
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background commands start with it ignored
    with httpd:
        print(f"http://localhost:{httpd.server_port}/ follows {plan.runs_dir}; Ctrl-C ends it", flush=True)
        try:
            httpd.serve_forever()
        except KeyboardInterrupt:
            return 0
    raise AssertionError("the server ended by itself")


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Write the dashboard from the records and logs there are, or serve it; returns the exit code."""
    parser = reader("report", "Show a sweep as one HTML page: table, claims, figures, translations, runs.")
    parser.add_argument("--out", type=Path, help="the file to write (default: report.html)")
    parser.add_argument("--sentences", type=int, default=8, help="how many translated ones to show (default: 8)")
    parser.add_argument("--serve", action="store_true", help="write no file; serve the page here, and follow the runs")
    parser.add_argument("--port", type=int, help="to serve at (default: a free one)")
    arguments = parser.parse_intermixed_args(argv)
    for name, value, serves in (("--out", arguments.out, False), ("--port", arguments.port, True)):
        if value is not None and arguments.serve != serves:
            raise ConfigError(name, str(value), f"has no effect {'without' if serves else 'with'} --serve")
    plan = plan_of(arguments)
    if arguments.serve:
        return serve(arguments, plan)
    fates = ledger.fates([planned.run for planned in plan.runs], patience_s=ledger.PATIENCE_S)
    for planned in plan.runs:
        with_fate(planned.state, fates.get(planned.run))
    out = arguments.out or Path("report.html")
    folder = out.absolute().parent
    page = render(content(plan, lambda file: quote(os.path.relpath(file, folder)), arguments.sentences))
    write_text(out, page)
    print(f"{out}: {len(page.encode()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
