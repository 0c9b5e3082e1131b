"""What all figures of the bench share: colours, and how a figure becomes a file."""

from __future__ import annotations

from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart, without their pale yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b4c9a", "#1f2933")
MARKERS = "os^DvPX*"
DASHED = (0, (5, 3))
DPI = 150


def to_png(figure: Figure) -> bytes:
    """The content of a PNG file; pyplot, which keeps every figure, is not needed.

    Examples
    --------
    >>> to_png(Figure(figsize=(1, 1)))[1:4]
    b'PNG'
    """
    data = BytesIO()
    FigureCanvasAgg(figure).print_png(data)
    return data.getvalue()
