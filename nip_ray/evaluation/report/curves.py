"""Learning curves: panels as drawings."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nip_ray.evaluation.report.panels import Panel, Series
from nip_ray.evaluation.report.pictures import GRID, INK, PALETTE, Drawing, picture, plain


def drawn(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Of each panel its name and title, the picture as it stands in a page, and the PDF file."""
    from markupsafe import Markup

    made = [(panel, draw(panel)) for panel in panels]
    return [{"name": panel.name, "title": panel.title, "svg": Markup(one.svg), "pdf": one.pdf} for panel, one in made]


def draw(panel: Panel) -> Drawing:
    """The picture of a panel."""

    def fill(axes: Axes) -> None:
        base = None
        for series in panel.series:
            base = _add(axes, series, base)
        for i, (label, height) in enumerate(panel.marks):
            axes.axhline(height, color=INK, linewidth=1.1, linestyle=("dotted", "dashed")[i % 2], label=plain(label), zorder=1)
        _scale(axes, panel)

    return picture(
        panel.y_label, fill, about=f"{panel.title} over {'iterations' if panel.x_label == 'iteration' else panel.x_label}", longest=60
    )


def _add(axes: Axes, series: Series, base):  # type: ignore[no-untyped-def]
    """Draw one series; returns the heights that the next area stands on."""
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
        if low == high:
            axes.set_xlim(low - 1, high + 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.margins(x=0.01)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    elif all(series.style == "area" for series in panel.series):
        axes.set_ylim(bottom=0)
