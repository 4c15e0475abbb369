"""One look for all figures: distinguishable without colour, no global state, same bytes again.

Figures are plain `matplotlib.figure.Figure` objects: no pyplot, so no window system and nothing
to close.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from experiments._shared.stats import Interval

__all__ = [
    "PALETTE",
    "SERIES",
    "axis_labels",
    "draw_intervals",
    "draw_published",
    "legend",
    "new_figure",
    "power_of_two_axis",
    "save",
    "series_style",
    "spread_note",
]

# Okabe and Ito, "Color Universal Design", 2008: distinct under the common colour deficiencies.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
}
_LOOKS = tuple(
    (PALETTE[colour], marker, line)
    for colour, marker, line in (
        ("blue", "o", "-"),
        ("vermilion", "s", "--"),
        ("green", "^", "-."),
        ("orange", "D", ":"),
        ("purple", "v", "-"),
        ("sky", "P", "--"),
        ("black", "x", ":"),
    )
)
# Colour, marker and line style of the series that several figures show.
SERIES = {
    "ideal": {"color": PALETTE["black"], "marker": "", "linestyle": ":"},
    "kf": {"color": PALETTE["blue"], "marker": "o", "linestyle": "-"},
    "kf_ring": {"color": PALETTE["green"], "marker": "^", "linestyle": (0, (5, 1))},
    "horovod_untuned": {"color": PALETTE["vermilion"], "marker": "s", "linestyle": "--"},
    "horovod_tuned": {"color": PALETTE["orange"], "marker": "D", "linestyle": "-."},
    "published": {"color": PALETTE["black"], "marker": "*", "linestyle": ""},
}
RC = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,
    "svg.hashsalt": "kungfu-lab",
}
DPI = 160


def new_figure(
    rows: int = 1, columns: int = 1, *, width_in: float = 6.4, height_in: float = 4.0
) -> tuple[Figure, list[Axes]]:
    """Make a figure in the common style.

    Args:
        rows: of panels, >= 1.
        columns: of panels, >= 1.
        width_in: whole figure, inches.
        height_in: whole figure, inches.

    Returns:
        The figure and its panels, row by row.
    """
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
    return figure, list(panels.flat)


def series_style(name: str) -> dict[str, Any]:
    """Look of a named series; a name without one of its own gets a look by its spelling."""
    if name in SERIES:
        return dict(SERIES[name])
    colour, marker, line = _LOOKS[sum(name.encode()) % len(_LOOKS)]
    return {"color": colour, "marker": marker, "linestyle": line}


def axis_labels(axes: Axes, x: str, y: str, *, better: str | None = None) -> None:
    """Name both axes with units, and say which way is better.

    Args:
        axes: the panel.
        x: name and unit, such as ``workers`` or ``time (s)``.
        y: name and unit.
        better: ``higher`` or ``lower``, or None where neither is.

    Raises:
        ValueError: better is another word.
    """
    if better not in (None, "higher", "lower"):
        raise ValueError(f"better must be 'higher', 'lower' or None, got {better!r}")
    axes.set_xlabel(x)
    axes.set_ylabel(y if better is None else f"{y}, {better} is better")


def draw_intervals(
    axes: Axes, name: str, points: Mapping[float, Interval], *, label: str | None = None
) -> None:
    """Draw a series of medians as a line, with its intervals as a band.

    Args:
        axes: the panel.
        name: of the series; decides its look.
        points: an interval at each x.
        label: in the legend; the name when None.
    """
    look = series_style(name)
    xs = sorted(points)
    axes.plot(xs, [points[x].median for x in xs], label=label or name, **look)
    axes.fill_between(
        xs,
        [points[x].low for x in xs],
        [points[x].high for x in xs],
        color=look["color"],
        alpha=0.2,
        linewidth=0,
    )


def draw_published(
    axes: Axes,
    series: str,
    x: float,
    y: float,
    spread: float | None = None,
    *,
    label: str | None = None,
) -> None:
    """Draw a number that others published: a star in the colour of its series.

    Args:
        axes: the panel.
        series: whose colour it takes.
        x: position.
        y: value, in the axis' unit.
        spread: half height of its error bar, same unit; None draws none.
        label: in the legend; say there what the point is for: compared, fitted, other set-up.
    """
    axes.errorbar(
        x,
        y,
        yerr=spread,
        capsize=2,
        markersize=10,
        markeredgecolor="black",
        label=label,
        zorder=5,
        **{**SERIES["published"], "color": series_style(series)["color"]},
    )


def spread_note(repeats: int) -> str:
    """The words that say what bands and bars are: repeats and their interval."""
    if repeats == 1:
        return "1 run, no spread"
    return f"median of {repeats} repeats, band: its bootstrap 95 % interval"


def legend(axes: Axes, location: str = "best", **options: Any) -> None:
    """Name the series of a panel, without a frame."""
    axes.legend(loc=location, frameon=False, fontsize=8, **options)


def power_of_two_axis(axes: Axes, which: str = "x") -> None:
    """Make the ``x`` or ``y`` axis logarithmic to base 2, with plain numbers."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if which == "x":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(plain)
    else:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(plain)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF, without dates, so equal figures are equal files.

    Args:
        figure: what to write.
        stem: path without suffix; its folder exists.

    Returns:
        The paths written.
    """
    paths = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
    with mpl.rc_context(RC):
        figure.savefig(
            paths[0], dpi=DPI, metadata={"Software": None}, pil_kwargs={"optimize": True}
        )
        figure.savefig(paths[1], metadata={"CreationDate": None})
    with Image.open(paths[0]) as image:  # few colours: a third of the size
        image.convert("RGB").quantize(128).save(paths[0], optimize=True)
    return paths
