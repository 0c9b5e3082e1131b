"""A procedural inspection line: product images with defects, their truth and imperfect anomaly maps."""

from .defects import DEFECT_KINDS
from .line import iter_line, make_line
from .scene import DemoImage, make_image
from .textures import TEXTURES

__all__ = ["DEFECT_KINDS", "TEXTURES", "DemoImage", "iter_line", "make_image", "make_line"]
