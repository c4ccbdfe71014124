"""Learning curves and other plots, drawn by matplotlib: as SVG in the page with its colours, and as PDF for papers.

Decisions that matter here:
- a drawing is as wide as a column of a paper with relatively large letters, so it is also readable on a phone;
- the SVG has no style attributes, which our content security policy forbids; its colours are variables of the style
  sheet, so one drawing serves light and dark. Its texts are texts;
- no global state: pyplot is not used, and rcParams change only while an SVG is written.
"""

import io
import re
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nip_ray.evaluation.report.panels import PALETTE, Panel, Series

INK, GRID = "#33383f", "#dfe3e8"
_VARIABLES = {INK: "var(--ink)", GRID: "var(--line)"} | {colour: f"var(--a{i})" for i, colour in enumerate(PALETTE)}
_KEPT = re.compile(r"(fill|stroke|opacity|font-size|font-weight|text-anchor)")
_writing = threading.Lock()


@dataclass(frozen=True)
class Drawing:
    """svg: an HTML element, its texts escaped. pdf: the bytes of a file."""

    svg: str
    pdf: bytes


def drawn(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """The name, title, SVG and PDF of each panel."""
    made = [(panel, draw(panel)) for panel in panels]
    return [{"name": panel.name, "title": panel.title, "svg": Markup(one.svg), "pdf": one.pdf} for panel, one in made]


def draw(panel: Panel) -> Drawing:
    """The picture of a panel."""
    figure = Figure(figsize=(4.2, 3.2), layout="constrained", facecolor="none")
    axes = figure.add_subplot(facecolor="none")
    base = None
    for series in panel.series:
        base = _add(axes, series, base)
    for i, (label, height) in enumerate(panel.marks):
        axes.axhline(
            height, color=INK, linewidth=1.1, linestyle=("dotted", "dashed")[i % 2], label=plain(label), zorder=1
        )
    _scale(axes, panel)
    axes.set_ylabel(plain(panel.y_label, 60), color=INK, fontsize=9)
    axes.xaxis.label.set(color=INK, fontsize=9)
    axes.tick_params(colors=INK, which="both", labelsize=9, length=0)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GRID)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = 1 if max(map(len, labels)) > 26 else 2
        figure.legend(
            loc="outside lower left", ncols=columns, frameon=False, fontsize=9, labelcolor=INK, handlelength=1.6
        )
    svg, pdf = io.StringIO(), io.BytesIO()
    with (
        warnings.catch_warnings(),
        _writing,
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "nip_ray", "pdf.fonttype": 42}),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasSVG(figure).print_svg(svg, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        FigureCanvasPdf(figure).print_pdf(pdf, metadata=dict.fromkeys(("CreationDate", "Creator", "Producer")))
    about = f"{panel.title} over {'iterations' if panel.x_label == 'iteration' else panel.x_label}"
    return Drawing(inline(svg.getvalue(), about), pdf.getvalue())


def _add(axes: Axes, series: Series, base):  # type: ignore[no-untyped-def]
    """Draw one series; return the heights on which the next area is stacked."""
    colour = PALETTE[series.colour % len(PALETTE)]
    label, x_N, y_N = plain(series.label) or None, series.x_N, series.y_N
    marker = "o" if len(x_N) == 1 else None
    if series.spread is not None:
        axes.fill_between(x_N, *series.spread, color=colour, alpha=0.18, linewidth=0, zorder=2)
    if series.style == "area":
        top = y_N if base is None else base + y_N
        bottom = 0 if base is None else base
        if len(x_N) == 1:
            axes.bar(x_N, y_N, bottom=bottom, color=colour, label=label, width=0.4)
        else:
            axes.fill_between(x_N, bottom, top, color=colour, linewidth=0, alpha=0.85, label=label)
        return top
    if series.style == "faint":
        axes.plot(x_N, y_N, color=colour, linewidth=0.7, alpha=0.3, zorder=2)
    elif series.style == "grey":
        axes.plot(x_N, y_N, color=GRID, linewidth=0.8, zorder=1)
    elif series.style == "points":
        axes.plot(x_N, y_N, color=colour, linewidth=0, marker="o", markersize=5, label=label, zorder=4)
    elif series.style in ("dots", "hollow"):
        face = colour if series.style == "dots" else "none"
        axes.scatter(x_N, y_N, s=14, alpha=0.5, facecolors=face, edgecolors=colour, linewidths=0.8, zorder=3)
    elif series.style == "dashed":
        axes.plot(x_N, y_N, color=colour, linewidth=1.4, linestyle="dashed", label=label, marker=marker, zorder=3)
    elif series.style == "marked":
        size = 4 if len(x_N) <= 60 else 2
        axes.plot(x_N, y_N, color=colour, linewidth=1.2, marker="o", markersize=size, label=label, zorder=4)
    else:
        axes.plot(x_N, y_N, color=colour, linewidth=1.7, label=label, marker=marker, zorder=3)
    return base


def _scale(axes: Axes, panel: Panel) -> None:
    axes.set_xlabel(plain(panel.x_label, 60))
    if panel.x_names:
        names = [plain(name)[:24] for name in panel.x_names]
        axes.set_xticks(range(len(names)), names, rotation=20 if len(names) > 4 else 0)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif panel.log:
        axes.set_xscale("log")
    elif panel.x_label == "iteration":
        low, high = axes.dataLim.intervalx
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        if low == high:
            axes.set_xlim(low - 1, high + 1)
            axes.set_xticks([low])
        axes.margins(x=0.01)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    elif all(series.style == "area" for series in panel.series):
        axes.set_ylim(bottom=0)


def inline(svg: str, about: str) -> str:
    """matplotlib's SVG as an HTML element for one place of the page: identifiers are derived from the content."""
    size = re.search(r'viewBox="([^"]*)"', svg)
    body = svg[svg.index("<g ") : svg.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' style="([^"]*)"', _attributes, body)
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href", "href")
    body = re.sub(r' d="([^"]*)"', _path, body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(f'"{colour}"', f'"{variable}"')
    return (
        f'<svg class="curve" viewBox="{size[1] if size else ""}" role="img" aria-label="{escape(about)}">{body}</svg>'
    )


def _path(found: re.Match[str]) -> str:
    """A path's commands on one line, to a tenth of a point."""
    return ' d="' + re.sub(r"(\.[0-9])[0-9]+", r"\1", " ".join(found[1].split())) + '"'


def _attributes(found: re.Match[str]) -> str:
    """A style attribute as presentation attributes."""
    pairs = (part.partition(":") for part in found[1].split(";"))
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in pairs if _KEPT.match(name.strip()))


def plain(text: str, longest: int = 48) -> str:
    """A label that matplotlib takes literally: no mathematics, no leading underscore, one short line."""
    line = "".join(character if character.isprintable() else " " for character in text)[:longest].replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line
