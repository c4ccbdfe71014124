"""PNG pictures in the style of our pages, light and dark. No global state: neither pyplot nor rcParams are touched."""

import base64
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Theme:
    """Colours of one kind of page. They differ in lightness too, for readers who tell few hues apart."""

    ground: str
    ink: str
    grid: str
    palette: tuple[str, ...]


LIGHT = Theme("#ffffff", "#33383f", "#e3e6ea", ("#1668c4", "#c2560a", "#0a7d5c", "#8d3aa0", "#857200", "#7b828c", "#b3304c", "#3d3d99"))
DARK = Theme("#181c22", "#c3c9d1", "#2c323b", ("#6cb1ff", "#ffa35c", "#4ed3a6", "#d799e6", "#e0cf5a", "#99a1ac", "#ff8fa3", "#a9a9ff"))


def picture(title: str, y_label: str, fill: Callable[["Axes"], None], theme: Theme, *, longest: int = 48, legend_size: int = 8) -> bytes:
    """A PNG file of 880 x 430 pixels. fill: draws on the axes. longest: characters of a title or label."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here: who imports this must not wait for matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.9), dpi=110, facecolor=theme.ground, layout="constrained")
    axes = figure.add_subplot(facecolor=theme.ground)
    fill(axes)
    axes.set_title(plain(title, longest), color=theme.ink, loc="left", fontsize=12, fontweight="bold")
    axes.set_ylabel(plain(y_label, longest), color=theme.ink)
    axes.tick_params(colors=theme.ink, which="both", labelsize=9)
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(theme.grid)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=legend_size, labelcolor=theme.ink)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})
    return file.getvalue()


def plain(text: str, longest: int = 48) -> str:
    """A label that matplotlib takes literally: no mathematics, no hiding by a leading underscore, one short line."""
    line = "".join(character if character.isprintable() else " " for character in text)[:longest].replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def data_uri(png: bytes) -> str:
    """A picture that stands in the page itself."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
