import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.typeset import Column, Grid, escape_tex, html_page, html_symbol, latex, markdown, tex_symbol

NASTY = r"""a_b & 50% #1 $x {y} ~ ^ \ <b> | "q" [z] * -- −1 ± ∗ → Δ ε τ — … “ü” ’ß’ é 中 `` \end{table}"""
COLUMNS = [Column("row", text=True), Column("d_model", symbol=True), Column("PPL", "ours"), Column("Δ PPL", "ours")]
COLUMNS += [Column("PPL", "paper", alone="paper PPL"), Column("", text=True)]
BLOCKS = [[["base", "512", "4.92", "", "4.92", ""]], [["A_h1", "", "—", "+0.37", "5.29", NASTY]]]


@pytest.fixture
def grid() -> Grid:
    return Grid(f"title {NASTY}", COLUMNS, BLOCKS, ["a note", NASTY])


def test_markdown_lines_up_and_keeps_texts_in_their_cells(grid):
    lines = markdown(grid).split("\n\n", 1)[1].splitlines()
    assert [cell.strip() for cell in lines[0].split("|")] == ["", "row", "d_model", "PPL", "Δ PPL", "paper PPL", "", ""]
    assert [len(line) for line in lines[:4]] == [len(lines[0])] * 4
    assert lines[1].startswith("|:-----|--------:|-----:|------:|----------:|:---")
    assert lines[2].startswith("| base |     512 | 4.92 |       |      4.92 | ")
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]] == [7] * 4
    assert r"\<b>" in lines[3]
    assert lines[5:] == ["- a note", f"- {NASTY}"]


def structure(text: str) -> None:
    """Check what TeX would: braces and environments close, every line of the tabular has as many cells."""
    lines = [line.removesuffix("{%") + "{" * line.endswith("{%") for line in text.splitlines()[1:]]  # without comments
    bare = re.sub(r"\\\\|\\[{}&%$#_]", "", "\n".join(lines))
    depth = 0
    for mark in bare:
        depth += {"{": 1, "}": -1}.get(mark, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[%#]", bare)
    assert bare.isascii() or all(ord(mark) < 0x180 for mark in bare)
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    body = re.search(r"\\begin\{tabular\}\{(\w+)\}(.*)\\end\{tabular\}", text, re.DOTALL)
    assert body is not None
    for line in body[2].splitlines():
        if line.endswith(r"\\"):
            spanned = sum(int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spanned == len(body[1])


def test_latex_is_well_formed_whatever_the_cells_hold(grid):  # W6
    text = latex(grid)
    structure(text)
    assert r"\cmidrule(lr){3-4}\cmidrule(lr){5-5}" in text
    assert r"row & $d_{\mathrm{model}}$ & PPL & $\Delta$ PPL & PPL &  \\" in text
    assert text.count(r"\midrule") == 2  # under the head and between the blocks
    assert "A\\_h1" in text


def test_latex_compiles(grid, tmp_path):  # W6
    program = shutil.which("pdflatex") or shutil.which("tectonic")
    if program is None:
        pytest.skip("no TeX here; its structure is tested above")
    document = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
    (tmp_path / "table.tex").write_text(f"{document}{latex(grid)}\n\\end{{document}}\n")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if Path(program).name == "pdflatex" else []
    done = subprocess.run([program, *options, "table.tex"], cwd=tmp_path, capture_output=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 0


@given(st.text(max_size=40))
@settings(deadline=None)
def test_latex_is_well_formed_for_any_text(text):
    structure(latex(Grid(text, [Column("a"), Column(text)], [[[text, "1"]], [["2", text]]], [text])))


def test_a_letter_that_tex_has_not_is_written_by_its_number():
    assert escape_tex("中\u2028\x07é") == r"\texttt{U+4E2D} \texttt{U+0007}é"
    assert escape_tex("--a") == "-{}-a"


class Parsed(html.parser.HTMLParser):
    """What a page holds: its tags, those left open, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}  # nothing from elsewhere
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_whole_escaped_and_for_light_and_dark(grid):
    page = html_page([grid, grid])
    parsed = Parsed()
    parsed.feed(page)
    assert parsed.open == []
    assert "b" not in parsed.tags and "script" not in parsed.tags
    assert parsed.tags.count("table") == 2
    assert parsed.tags.count("tr") == 2 * 4
    assert parsed.text.count(NASTY) == 1 + 2 * 3  # the title; caption, cell, note
    assert "<title>title a_b &amp; 50% #1 " in page
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page
    assert '<th colspan="2" class="group">ours</th>' in page


@given(st.text(max_size=40))
def test_html_says_any_text_as_it_is(text):
    parsed = Parsed()
    parsed.feed(html_page([Grid("t", [Column("a")], [[[text.replace("\r", "")]]])]))
    assert text.replace("\r", "").replace("\x00", "") in parsed.text.replace("\x00", "")


@pytest.mark.parametrize(
    ("name", "tex", "page"),
    [
        ("d_model", r"$d_{\mathrm{model}}$", "<i>d</i><sub>model</sub>"),
        ("N", "$N$", "<i>N</i>"),
        ("ε_ls", r"$\varepsilon_{\mathrm{ls}}$", "<i>ε</i><sub>ls</sub>"),
    ],
)
def test_settings_are_set_as_formulas(name, tex, page):
    assert (tex_symbol(name), html_symbol(name)) == (tex, page)


def test_a_table_without_groups_or_notes_has_no_line_for_them():
    plain = Grid("t", [Column("a"), Column("b")], [[["1", "2"]]])
    assert "multicolumn" not in latex(plain)
    assert "colspan" not in html_page([plain])
    assert markdown(plain) == "t\n\n|   a |   b |\n|----:|----:|\n|   1 |   2 |"
