"""Tables of text as Markdown, LaTeX and HTML. What cells say is decided elsewhere; here they are escaped and set."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

FORMATS = ("md", "tex", "csv", "html")  # of what a command prints; it writes csv, which holds more, by itself


@dataclass
class Column:
    """A column's heading."""

    header: str
    group: str = ""  # a heading over several neighbours, where the format has such
    alone: str = ""  # the header where it has not; empty: the same
    symbol: bool = False  # set as a formula: N, d_model
    text: bool = False  # words, set to the left; numbers stand to the right
    key: str = ""  # names what its cells are made of, for a page that sorts by it


@dataclass
class Grid:
    """A table whose cells are text as a reader sees it, unescaped: "10.50 ± 0.35", "—"."""

    title: str
    columns: list[Column]
    blocks: list[list[list[str]]]  # lines of cells, in blocks between which a rule is drawn
    notes: list[str] = field(default_factory=list)  # beneath the table

    @property
    def spans(self) -> list[tuple[str, int]]:
        """Give the groups of neighbouring columns with how many columns each has."""
        return [(name, len(list(found))) for name, found in groupby(self.columns, lambda column: column.group)]


def typeset(grids: list[Grid], form: str) -> str:
    """Write tables one after the other; a page of HTML has the title of the first."""
    if form == "html":
        return html_page(grids)
    return "\n\n".join({"md": markdown, "tex": latex}[form](grid) for grid in grids)


def markdown(grid: Grid) -> str:
    """Write a Markdown table, its columns aligned for readers of the plain text."""
    headers = [column.alone or column.header for column in grid.columns]
    lines = [[escape_markdown(cell) for cell in line] for block in grid.blocks for line in block]
    widths = [max(3, *map(len, cells)) for cells in zip(headers, *lines, strict=True)]

    def join(cells: list[str]) -> str:
        padded = (
            cell.ljust(width) if column.text else cell.rjust(width)
            for cell, width, column in zip(cells, widths, grid.columns, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = "|".join(
        ":" + "-" * (width + 1) if column.text else "-" * (width + 1) + ":"
        for width, column in zip(widths, grid.columns, strict=True)
    )
    parts = [grid.title, "\n".join([join(headers), f"|{rule}|", *map(join, lines)])]
    return "\n\n".join([*parts, *(["\n".join(f"- {note}" for note in grid.notes)] if grid.notes else [])])


def escape_markdown(text: str) -> str:
    """Keep a text from ending its cell or being taken for HTML."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", r"\<")


# What pdfLaTeX cannot take as it stands. Accented Latin letters it can.
TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # after \\ it would open an argument, and * would be one
    "*": "{*}",
    "−": "$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "∗": r"$^{*}$",
    "→": r"$\to$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "ε": r"$\varepsilon$",
    "τ": r"$\tau$",
    "—": r"\textemdash{}",
    "–": r"\textendash{}",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
    **{mark: f"\\{mark}" for mark in "&%$#_"},
}


def escape_tex(text: str) -> str:
    """Write a text so that pdfLaTeX sets it; a character that it has no letter for by its number."""
    letters = (
        TEX.get(mark) or (mark if mark.isprintable() and ord(mark) < 0x180 else rf"\texttt{{U+{ord(mark):04X}}}")
        for mark in " ".join(text.split())
    )
    return re.sub("-(?=-)", "-{}", "".join(letters))  # two hyphens would become a dash


def latex(grid: Grid) -> str:
    """Write a LaTeX table in the manner of booktabs, narrowed to the line if it is wider."""
    kinds = "".join("l" if column.text else "r" for column in grid.columns)
    heads = [tex_symbol(column.header) if column.symbol else escape_tex(column.header) for column in grid.columns]
    body = "\n\\midrule\n".join("\n".join(tex_line(map(escape_tex, line)) for line in block) for block in grid.blocks)
    notes = "\n".join(f"{escape_tex(note)}\\par" for note in grid.notes)
    return "\n".join(
        [
            r"% needs \usepackage{booktabs,graphicx}",
            r"\begin{table}[htbp]",
            r"\centering",
            rf"\caption{{{escape_tex(grid.title)}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            *tex_groups(grid.spans),
            tex_line(heads),
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\par\smallskip",
            r"\begin{minipage}{\linewidth}\footnotesize\raggedright",
            notes,
            r"\end{minipage}",
            r"\end{table}",
        ]
    )


def tex_line(cells: Iterable[str]) -> str:
    """Write a line of a tabular."""
    return " & ".join(cells) + r" \\"


def tex_groups(spans: list[tuple[str, int]]) -> list[str]:
    """Write the line of headings over several columns and the rules under them; nothing if there are none."""
    if not any(name for name, _ in spans):
        return []
    cells, rules, start = [], [], 1
    for name, count in spans:
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{escape_tex(name)}}}")
        if name:
            rules.append(rf"\cmidrule(lr){{{start}-{start + count - 1}}}")
        start += count
    return [tex_line(cells), "".join(rules)]


def tex_symbol(name: str) -> str:
    """Set a name as a formula: d_model has its index upright."""
    letter, _, index = name.partition("_")
    letter = {"ε": r"\varepsilon"}.get(letter, letter)
    return f"${letter}_{{\\mathrm{{{index}}}}}$" if index else f"${letter}$"


STYLE = """\
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #666; --rule: #bbb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --paper: #161616; --faint: #a0a0a0; --rule: #4a4a4a; } }
body { color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.5rem; }
th, td { padding: 0.15rem 0.45rem; text-align: right; white-space: nowrap; }
th { font-weight: 600; }
.text { text-align: left; }
.group { text-align: center; border-bottom: 1px solid var(--rule); }
tbody { border-top: 1px solid var(--rule); }
table { border-top: 2px solid var(--ink); border-bottom: 2px solid var(--ink); }
.notes { color: var(--faint); font-size: 0.85rem; max-width: 60rem; }
"""


def html_page(grids: list[Grid]) -> str:
    """Write a page that needs nothing else: no script, no other file; light or dark as its reader's screen is."""
    body = "\n".join(map(html_table, grids))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(grids[0].title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>\n{STYLE}</style>\n{body}\n</html>'
    )


def html_table(grid: Grid) -> str:
    """Write an HTML table and its notes, for a page with `STYLE`."""
    kinds = [' class="text"' if column.text else "" for column in grid.columns]
    heads = [html_symbol(column.header) if column.symbol else html.escape(column.header) for column in grid.columns]
    groups = "".join(
        f'<th colspan="{count}" class="group">{html.escape(name)}</th>' if name else f'<td colspan="{count}"></td>'
        for name, count in grid.spans
    )
    lines = [f"<tr>{groups}</tr>"] if any(name for name, _ in grid.spans) else []
    lines.append("<tr>" + "".join(f"<th{kind}>{head}</th>" for kind, head in zip(kinds, heads, strict=True)) + "</tr>")
    bodies = []
    for block in grid.blocks:
        rows = [
            "<tr>" + "".join(f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, line, strict=True))
            for line in block
        ]
        bodies.append("<tbody>\n" + "\n".join(f"{row}</tr>" for row in rows) + "\n</tbody>")
    notes = "\n".join(f"<li>{html.escape(note)}</li>" for note in grid.notes)
    return "\n".join(
        [
            f'<div class="wide">\n<table>\n<caption>{html.escape(grid.title)}</caption>\n<thead>',
            *lines,
            "</thead>",
            *bodies,
            "</table>\n</div>",
            *([f'<ul class="notes">\n{notes}\n</ul>'] if notes else []),
        ]
    )


def html_symbol(name: str) -> str:
    """Set a name as a formula."""
    letter, _, index = name.partition("_")
    return f"<i>{html.escape(letter)}</i>" + (f"<sub>{html.escape(index)}</sub>" if index else "")
