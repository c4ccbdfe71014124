"""Learning curves and the like, drawn by matplotlib: as SVG that stands in a page and takes its colours, and as a PDF file for papers.

Decisions that matter here:
- a drawing is as wide as a column of a paper and its letters are large for that, so that it can be read on a phone as well;
- the SVG has no style attributes, which the content security policy of our pages forbids, and its colours are variables of the style
  sheet: one drawing serves light and dark. Its texts are texts;
- no global state: pyplot is not touched, and rcParams only while an SVG is written.
"""

import io
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#1668c4", "#b34a00", "#08714f", "#8d3aa0", "#746300", "#b3304c", "#3d3d99", "#5d646d")
"""Colours by number: `--a0` to `--a7` of the style sheet. They differ in lightness too, for readers who tell few hues apart."""
INK, GRID = "#33383f", "#dfe3e8"
_VARIABLES = {INK: "var(--ink)", GRID: "var(--line)"} | {colour: f"var(--a{i})" for i, colour in enumerate(PALETTE)}
_KEPT = re.compile(r"(fill|stroke|opacity|font-size|font-weight|text-anchor)")
_OF_AGENTS = {
    **dict.fromkeys(("verifier", "host", "player0"), 0),
    **dict.fromkeys(("prover", "prover0", "agent", "player1"), 1),
    "prover1": 2,
    "prover2": 3,
    "adversarial_verifier": 4,
    "simulator": 5,
}
_writing = threading.Lock()


@dataclass(frozen=True)
class Drawing:
    """svg: an element to stand in an HTML page, its texts escaped. pdf: a file."""

    svg: str
    pdf: bytes


def agent_colours(names: Iterable[str]) -> dict[str, int]:
    """Agent -> number of its colour, the same on every page: the agents that ship have their own, others follow in alphabetical order."""
    ordered = sorted(set(names))
    colours = {name: _OF_AGENTS[name] for name in ordered if name in _OF_AGENTS}
    free = [i for i in range(len(PALETTE)) if i not in colours.values()]
    others = [name for name in ordered if name not in colours]
    return colours | {name: free[i % len(free)] for i, name in enumerate(others)}


def picture(y_label: str, fill: Callable[["Axes"], None], *, about: str, longest: int = 48) -> Drawing:
    """fill: draws on the axes. about: what the picture shows, for who cannot see it. longest: characters of a label."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # here: who imports this must not wait for matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, 3.2), layout="constrained", facecolor="none")
    axes = figure.add_subplot(facecolor="none")
    fill(axes)
    axes.set_ylabel(plain(y_label, longest), color=INK, fontsize=9)
    axes.xaxis.label.set(color=INK, fontsize=9)
    axes.tick_params(colors=INK, which="both", labelsize=9, length=0)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GRID)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = 1 if max(map(len, labels)) > 26 else 2
        figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=9, labelcolor=INK, handlelength=1.6)
    svg, pdf = io.StringIO(), io.BytesIO()
    with warnings.catch_warnings(), _writing, rc_context({"svg.fonttype": "none", "svg.hashsalt": "nip_ray", "pdf.fonttype": 42}):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasSVG(figure).print_svg(svg, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        FigureCanvasPdf(figure).print_pdf(pdf, metadata=dict.fromkeys(("CreationDate", "Creator", "Producer")))
    return Drawing(inline(svg.getvalue(), about), pdf.getvalue())


def inline(svg: str, about: str) -> str:
    """matplotlib's SVG as an element of a page. It stands at one place of the page alone: identifiers come from what is drawn."""
    size = re.search(r'viewBox="([^"]*)"', svg)
    body = svg[svg.index("<g ") : svg.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' style="([^"]*)"', _attributes, body)
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href", "href")
    body = re.sub(r' d="([^"]*)"', _path, body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(f'"{colour}"', f'"{variable}"')
    return f'<svg class="curve" viewBox="{size[1] if size else ""}" role="img" aria-label="{escape(about)}">{body}</svg>'


def _path(found: re.Match[str]) -> str:
    """A path's commands on one line, to a tenth of a point."""
    return ' d="' + re.sub(r"(\.[0-9])[0-9]+", r"\1", " ".join(found[1].split())) + '"'


def _attributes(found: re.Match[str]) -> str:
    """A style attribute as presentation attributes."""
    pairs = (part.partition(":") for part in found[1].split(";"))
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in pairs if _KEPT.match(name.strip()))


def plain(text: str, longest: int = 48) -> str:
    """A label that matplotlib takes literally: no mathematics, no hiding by a leading underscore, one short line."""
    line = "".join(character if character.isprintable() else " " for character in text)[:longest].replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line
