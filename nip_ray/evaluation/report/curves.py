"""Learning curves as PNG pictures, for light and for dark pages."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nip_ray.evaluation.report.panels import Panel, Series
from nip_ray.evaluation.report.pictures import DARK, LIGHT, Theme, data_uri, picture, plain


def both_themes(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Of each panel its name and title, the light PNG file, and both pictures as they stand in a page: "light" and "dark"."""
    made = []
    for panel in panels:
        png = draw(panel, LIGHT)
        made.append({"name": panel.name, "title": panel.title, "png": png, "light": data_uri(png), "dark": data_uri(draw(panel, DARK))})
    return made


def draw(panel: Panel, theme: Theme) -> bytes:
    """The picture of a panel, a PNG file of 880 x 430 pixels."""

    def fill(axes: Axes) -> None:
        base = None
        for series in panel.series:
            base = _add(axes, series, theme, base)
        for i, (label, height) in enumerate(panel.marks):
            axes.axhline(height, color=theme.ink, linewidth=1.1, linestyle=("dotted", "dashed")[i % 2], label=plain(label), zorder=1)
        _scale(axes, panel, theme)

    return picture(panel.title, panel.y_label, fill, theme, legend_size=9)


def _add(axes: Axes, series: Series, theme: Theme, base):  # type: ignore[no-untyped-def]
    """Draw one series; returns the heights that the next area stands on."""
    colour = theme.palette[series.colour % len(theme.palette)]
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
    elif series.style == "dashed":
        axes.plot(x_N, y_N, color=colour, linewidth=1.4, linestyle="dashed", label=label, marker=marker, zorder=3)
    elif series.style == "marked":
        size = 4 if len(x_N) <= 60 else 2
        axes.plot(x_N, y_N, color=colour, linewidth=1.2, marker="o", markersize=size, label=label, zorder=4)
    else:
        axes.plot(x_N, y_N, color=colour, linewidth=1.7, label=label, marker=marker, zorder=3)
    return base


def _scale(axes: Axes, panel: Panel, theme: Theme) -> None:
    axes.set_xlabel("iteration", color=theme.ink)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.margins(x=0.01)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    elif all(series.style == "area" for series in panel.series):
        axes.set_ylim(bottom=0)
