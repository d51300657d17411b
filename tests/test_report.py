"""The dashboard in a browser: it shows, sorts, filters, hovers, prints, follows a sweep, and does nothing else."""

import hashlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import browser  # noqa: F401 – a fixture
from commands import commands  # noqa: F401 – a fixture
from playwright.sync_api import Browser, Page, expect
from records import finish

from ablate import ledger, report, serve
from ablate.ask import plan_of, reader
from ablate.launch import freeze
from ablate.plan import Plan, PlannedRun, plan_from
from ablate.rundir import write_text
from ablate.view import content

ASKED = ["preset=smoke", "+sweep=[row_A,row_D]", "seeds=2"]
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'><b>"
SIZES = [(390, 844), (1440, 900)]
expect.set_options(timeout=60_000)  # a limit that only keeps a broken test from hanging


def log(run: PlannedRun, ppl: float, steps: int = 40) -> None:
    """Write a log of training that ends at a perplexity."""
    lines: list[dict[str, float]] = [{"step": i, "loss": 3 + 4 / i, "dev_ppl": ppl + 90 / i} for i in range(1, steps)]
    text = "".join(json.dumps({"attempt": 1, "time": 1.0, **line}) + "\n" for line in lines)
    write_text(run.run.metrics, text)


def planned(folder: Path) -> Plan:
    return plan_from([*ASKED, f"runs_dir={folder / 'runs'}"], prepare=True, say=lambda text: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[Path]:
    """Write a report of (A) and (D): PPL 10 … and BLEU 20 … down the rows; A_h32 not run, D_ls2 failed."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_DATA", str(folder / "data"))
        plan = planned(folder)
        for i, runs in enumerate(plan.rows.values()):
            for seed, run in enumerate(runs):
                if run.rows[0] not in ("A_h32", "D_ls2"):
                    finish(run, 10.0 + 0.5 * i + 0.01 * seed * i, 20.0 - i - 0.1 * seed)
                    log(run, 10.0 + i)
        failed = plan.rows["D_ls2"][0]
        freeze(failed)
        write_text(failed.run.error, f"{HOSTILE}\nTraceback …")
        write_text(plan.rows["A_h1"][0].run.hypotheses("dev"), f"{HOSTILE}\n" * 200)
        write_text(plan.rows["A_h4"][0].run.hypotheses("dev"), "\n" * 200)
        out = folder / "report.html"
        assert report.main(["row_A", "row_D", *ASKED[::2], f"runs_dir={folder / 'runs'}", "--out", str(out)]) == 0
        yield out


Open = Callable[..., Page]


@pytest.fixture
def heard() -> list[str]:
    """Collect what pages asked of a network, said on the console or threw."""
    return []


@pytest.fixture
def opened(browser: Browser, made: Path, heard: list[str]) -> Iterator[Open]:  # noqa: F811
    """Open a page; after the test, nothing may have been heard of it."""
    contexts = []

    def open_page(address: str = "", width: int = 1440, height: int = 900, scheme: str = "light") -> Page:
        address = address or made.as_uri()
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda err: heard.append(f"error: {err}"))
        page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: request.url.startswith((address, "data:")) or heard.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert heard == []


def names(page: Page) -> list[str]:
    """Give the names of the table's rows that show, from the top."""
    return page.locator("#table tbody tr:visible th").all_inner_texts()


IN_ORDER = ["base", "A_h1", "A_h4", "A_h16", "A_h32", "D_drop0", "D_drop2", "D_ls0", "D_ls2"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_everything_is_there_and_fits_the_screen(opened, width, height, scheme):
    page = opened(width=width, height=height, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert names(page) == IN_ORDER
    assert page.locator("#differences svg").count() == 2
    assert page.locator("#settings svg").count() == 2 * 3  # h, P_drop and ε_ls
    assert page.locator("#curves figure").count() == 2 * 2  # blocks A and D
    widths = page.evaluate("[...document.querySelectorAll('.plot svg')].map(svg => svg.getBoundingClientRect().right)")
    assert len(widths) == 12
    assert max(widths) <= width
    assert page.locator("#translations details").count() == 8
    assert page.locator("#runs tbody tr").count() == 18
    assert "3 comparisons" not in page.locator("#claims").inner_text()  # (A)'s and (D)'s claims have 1 or 2
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_no_rule_of_accessibility_is_broken(opened, width, height, scheme):
    page = opened(width=width, height=height, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def test_a_heading_sorts_up_down_and_back_with_what_has_no_number_last(opened):
    page = opened()
    head = page.locator("#table th", has_text="BLEU").nth(0)  # ours, which falls down the rows
    ran = [name for name in IN_ORDER if name not in ("A_h32", "D_ls2")]
    for order, expected in [
        ("ascending", [*reversed(ran), "A_h32", "D_ls2"]),
        ("descending", [*ran, "A_h32", "D_ls2"]),
        ("none", IN_ORDER),
    ]:
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == order
        assert names(page) == expected


def test_the_keyboard_reaches_a_heading_and_words_sort_by_the_alphabet(opened):
    page = opened(width=390, height=844)
    page.locator("#filter").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('th')?.innerText") == "row":
            break
    page.keyboard.press("Enter")
    assert names(page) == ["A_h1", "A_h4", "A_h16", "A_h32", "base", "D_drop0", "D_drop2", "D_ls0", "D_ls2"]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_filter_narrows_tables_figures_translations_and_runs(opened, width, height):
    page = opened(width=width, height=height)
    page.locator("#filter").fill("h1, DROP")
    found = ["A_h1", "A_h16", "D_drop0", "D_drop2"]
    assert names(page) == found
    expect(page.locator("#shown")).to_have_text("4 of 9 rows")
    assert page.locator("#runs tbody tr:visible").count() == 8
    labels = page.locator("#differences svg").first.locator("[aria-label^=y-axis] text").all_text_contents()
    assert [text for text in labels if text] == ["base", *found]
    assert page.locator("#settings svg").count() == 2 * 2
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator("#filter").fill("")
    assert names(page) == IN_ORDER


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pointing_at_a_mark_shows_its_numbers(opened, width, height):
    page = opened(width=width, height=height)
    forest = page.locator("#differences svg").first
    forest.scroll_into_view_if_needed()
    tip = forest.locator("[aria-label=tip]")
    assert tip.text_content() == ""
    forest.locator("circle").nth(2).hover(force=True)  # base, A_h1, A_h4
    said = " ".join(re.split("[\\s\u200b]+", tip.text_content()))  # its lines are broken where it is narrow
    # By hand: PPL of A_h4 11.00 and 11.02, base's 10; the paper's 5.00 to 4.92.
    for text in ("A_h4", "PPL 11.01 [10.88, 11.14], 2/2 seeds", "to base +10.1 %", "the paper's 5.00, to base +1.6 %"):
        assert text in said
    for i in (1, 6):  # A_h1 and D_ls0, at the sides
        forest.locator("circle").nth(i).hover(force=True)
        box = tip.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
    curve = page.locator("#curves svg[role=img]").first
    curve.scroll_into_view_if_needed()
    curve.hover()
    assert "2\u00a0seeds" in curve.locator("[aria-label=tip]").text_content()


def test_settings_show_differences_or_values(opened):
    page = opened()
    figure = page.locator("#settings svg").first
    assert "Δ PPL" in figure.text_content()
    page.get_by_label("value", exact=True).check()
    assert "Δ PPL" not in page.locator("#settings svg").first.text_content()


def test_the_button_goes_through_the_themes(opened):
    page = opened(scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    seen = []
    for _ in range(3):
        page.locator("#theme").click()
        seen.append((page.locator("#theme").inner_text(), page.evaluate(background) == light))
    assert seen == [("Theme: light", True), ("Theme: dark", False), ("Theme: auto", True)]


def test_print_is_light_opens_what_is_folded_and_closes_it_again(opened):
    page = opened(scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("header").is_visible()
    count = page.locator("details[open]").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == count


def test_hostile_text_is_only_text(opened):
    page = opened()
    page.locator("#translations details").first.evaluate("one => { one.open = true }")
    assert HOSTILE in page.locator("#translations [open]").inner_text()
    assert HOSTILE in page.locator("#runs").inner_text()
    assert page.locator("img, b").count() == 0


def test_a_hostile_name_of_a_row_is_only_text_in_tables_and_figures(opened, made, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(made.parent / "data"))
    plan = planned(made.parent)
    plan.rows = {HOSTILE if row == "A_h1" else row: runs for row, runs in plan.rows.items()}
    plan.configs = {HOSTILE if row == "A_h1" else row: cfg for row, cfg in plan.configs.items()}
    plan.title = HOSTILE
    plan.rows[HOSTILE][0].rows[0] = HOSTILE
    (tmp_path / "page.html").write_text(report.render(content(plan, lambda file: f"{HOSTILE}{file.name}", 2)))
    page = opened((tmp_path / "page.html").as_uri())
    assert HOSTILE in names(page)
    assert HOSTILE in page.locator("h1").inner_text()
    page.locator("#filter").fill("<img")
    assert names(page) == [HOSTILE]
    page.locator("#differences circle").nth(1).hover(force=True)
    tip = page.locator("#differences [aria-label=tip]").first.text_content()  # its lines are broken
    assert "<script>alert(2)</script>" in tip
    assert page.locator("img, b").count() == 0


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_long_names_and_errors_leave_room_for_the_numbers(opened, made, tmp_path, monkeypatch, width, height):
    monkeypatch.setenv("ABLATE_DATA", str(made.parent / "data"))
    plan, name = planned(made.parent), "a_row_whose_name_says_what_it_is_for_" * 3
    plan.rows = {name if row == "A_h1" else row: runs for row, runs in plan.rows.items()}
    plan.configs = {name if row == "A_h1" else row: cfg for row, cfg in plan.configs.items()}
    plan.rows[name][0].rows[0] = name
    plan.rows["A_h32"][0].state.name, plan.rows["A_h32"][0].state.reason = "failed", "RuntimeError:" + "x" * 300
    (tmp_path / "page.html").write_text(report.render(content(plan, str, 2)))
    page = opened((tmp_path / "page.html").as_uri(), width=width, height=height)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for place in ("#table", "#runs"):
        first = page.locator(f"{place} tbody th").first.bounding_box()
        assert first["width"] < width / 2
        assert page.evaluate(f"document.querySelector('{place} table').clientWidth") < 2000
    marks = page.locator("#differences svg").first.locator("circle")
    places = [marks.nth(i).bounding_box()["x"] for i in range(marks.count())]
    assert max(places) - min(places) > width / 10


def test_a_single_logged_point_is_drawn(opened, made, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(made.parent / "data"))
    plan = plan_from([*ASKED[:1], f"runs_dir={tmp_path / 'runs'}"], prepare=True, say=lambda text: None)
    log(plan.runs[0], 9.0, steps=2)
    (tmp_path / "page.html").write_text(report.render(content(plan, str, 2)))
    page = opened((tmp_path / "page.html").as_uri())
    assert page.locator("#curves svg[role=img] circle").count() == 2  # training loss and dev perplexity


def test_no_script_but_its_own_runs_and_nothing_can_be_sent(browser, made):  # noqa: F811
    page = browser.new_page()
    page.goto(made.as_uri())
    ran = """text => { const script = document.createElement("script"); script.textContent = text;
                       document.body.append(script); return window.ran ?? null }"""
    assert page.evaluate(ran, "window.ran = 1") is None
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', err => err.name)") == "TypeError"
    page.close()


def test_the_libraries_are_as_their_authors_publish_them():
    listed = re.findall(
        r"^\| `(\S+\.js)` .* `([0-9a-f]{64})` \|$", (report.PAGE / "README.md").read_text("utf-8"), re.M
    )
    assert [name for name, _ in listed] == list(report.SCRIPTS[:2])
    for name, digest in listed:
        assert hashlib.sha256((report.PAGE / name).read_bytes()).hexdigest() == digest


def test_links_lead_to_the_runs_files(made):
    text = made.read_text("utf-8")
    (link,) = re.findall(r'href="([^"]*D_ls2[^"]*error\.txt)"', text)
    assert HOSTILE in (made.parent / link).read_text("utf-8")


def test_the_served_page_follows_a_sweep_without_losing_the_place(opened, heard, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    plan = planned(tmp_path)
    finish(plan.rows["base"][0], 10.0, 20.0)
    asked = ["row_A", "row_D", *ASKED[::2], f"runs_dir={tmp_path / 'runs'}", "--serve"]
    served = subprocess.Popen([sys.executable, "-m", "ablate.report", *asked], stdout=subprocess.PIPE, text=True)
    try:
        address = served.stdout.readline().split()[0]
        page = opened(address, width=390, height=844)
        expect(page.locator(".lead")).to_contain_text("1 of 18 runs finished")
        expect(page.locator("#live")).to_have_text("Following.")
        page.locator("#filter").fill("h1")
        page.locator("#runs").scroll_into_view_if_needed()
        page.locator("#runs .scroll").focus()
        place = page.evaluate("scrollY")
        finish(plan.rows["A_h1"][0], 11.0, 18.0)
        expect(page.locator(".lead")).to_contain_text("2 of 18 runs finished")
        assert names(page) == ["A_h1", "A_h16"]
        assert page.evaluate("document.activeElement.matches('#runs .scroll')")
        assert abs(page.evaluate("scrollY") - place) < 200  # a row's links came to its line; the place is the same
        assert heard == []
        served.send_signal(signal.SIGINT)
        assert served.wait(60) == 0
        expect(page.locator("#live")).to_contain_text("Not following")
        assert {line.rpartition(" ")[2] for line in heard} == {"net::ERR_CONNECTION_REFUSED"}
        heard.clear()
    finally:
        served.kill()
        served.stdout.close()


def test_the_page_says_which_runs_wait_in_slurms_queue_and_follows_it(commands, workplace, monkeypatch):  # noqa: F811
    monkeypatch.setattr(ledger, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(serve, "SHORTEST_S", 0.0)
    monkeypatch.setattr(serve, "SHARE", 0)
    arguments = ["row_B", "preset=smoke"]
    plan = plan_from(["+sweep=row_B", *arguments[1:]], prepare=True, say=lambda text: None)
    for planned, job in zip(plan.runs[:2], ("12", "13"), strict=True):
        ledger.note(planned.run, "submitting", name=job, task=None)
        ledger.note(planned.run, "submitted", job=job, log=None)
    commands.add("sacct", "")
    commands.add("squeue", "echo '12|12|PENDING|Priority'; echo '13|13|PENDING|<b>'")
    assert report.main(arguments) == 0
    for page in (Path("report.html").read_text("utf-8"), served(arguments).current()[2]):
        assert '<span class="state queued">2</span> queued' in page
        assert "queued</span>: job 12 pending, Priority" in page
        assert "pending, &lt;b&gt;" in page
    site = served(arguments)
    site.current()
    commands.add("squeue", "echo '12|12|RUNNING|None'; echo '13|13|PENDING|Priority'")
    _, version, page = site.current()
    assert "running</span>: job 12 running" in page
    assert site.current()[1] == version


def served(arguments: list[str]) -> serve.Site:
    """Give the page that follows runs, without a server."""
    asked = reader("report", "").parse_args(arguments)
    asked.sentences = 8
    return report.site(asked, plan_of(asked))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["row_Z"], "row_Z"),
        (["row_A", "--serve", "--port", "70000"], "--port=70000"),
        (["row_A", "--port", "8000"], "--port='8000'"),
        (["row_A", "--serve", "--out", "page.html"], "--out='page.html'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(workplace, capsys, arguments, said):
    assert report.main([*arguments, "preset=smoke"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
    assert list(workplace.iterdir()) == []
