"""A procedural inspection line: product images with defects, their truth and imperfect anomaly maps."""

from anomalyncd.demo.defects import DEFECT_KINDS
from anomalyncd.demo.line import iter_line, make_line
from anomalyncd.demo.scene import DemoImage, make_image
from anomalyncd.demo.textures import TEXTURES

__all__ = ["DEFECT_KINDS", "TEXTURES", "DemoImage", "iter_line", "make_image", "make_line"]
