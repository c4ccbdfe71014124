"""Learning curves as PNG pictures, for light and for dark pages. No global state: neither pyplot nor rcParams are touched."""

import io
import warnings
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nip_ray.evaluation.report.panels import Panel, Series


@dataclass(frozen=True)
class Theme:
    """Colours of one kind of page. They differ in lightness too, for readers who tell few hues apart."""

    ground: str
    ink: str
    grid: str
    palette: tuple[str, ...]


LIGHT = Theme("#ffffff", "#33383f", "#e3e6ea", ("#1668c4", "#c2560a", "#0a7d5c", "#8d3aa0", "#857200", "#7b828c", "#b3304c", "#3d3d99"))
DARK = Theme("#181c22", "#c3c9d1", "#2c323b", ("#6cb1ff", "#ffa35c", "#4ed3a6", "#d799e6", "#e0cf5a", "#99a1ac", "#ff8fa3", "#a9a9ff"))


def draw(panel: Panel, theme: Theme) -> bytes:
    """The picture of a panel, a PNG file of 880 x 430 pixels."""
    figure = Figure(figsize=(8.0, 3.9), dpi=110, facecolor=theme.ground, layout="constrained")
    axes = figure.add_subplot(facecolor=theme.ground)
    base = None
    for series in panel.series:
        base = _add(axes, series, theme, base)
    for i, (label, height) in enumerate(panel.marks):
        axes.axhline(height, color=theme.ink, linewidth=1.1, linestyle=("dotted", "dashed")[i % 2], label=_plain(label), zorder=1)
    _dress(axes, panel, theme)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
    return file.getvalue()


def _add(axes: Axes, series: Series, theme: Theme, base):  # type: ignore[no-untyped-def]
    """Draw one series; returns the heights that the next area stands on."""
    colour = theme.palette[series.colour % len(theme.palette)]
    label, x_N, y_N = _plain(series.label) or None, series.x_N, series.y_N
    marker = "o" if len(x_N) == 1 else None
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


def _dress(axes: Axes, panel: Panel, theme: Theme) -> None:
    axes.set_title(_plain(panel.title), color=theme.ink, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel("iteration", color=theme.ink)
    axes.set_ylabel(_plain(panel.y_label), color=theme.ink)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.tick_params(colors=theme.ink, labelsize=9)
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(theme.grid)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    elif all(series.style == "area" for series in panel.series):
        axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9, labelcolor=theme.ink)


def _plain(text: str) -> str:
    """A label that matplotlib takes literally: no mathematics, no hiding by a leading underscore, one short line."""
    line = "".join(character if character.isprintable() else " " for character in text)[:48].replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line
