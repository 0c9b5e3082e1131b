"""An exported run at work: NumPy and onnxruntime or OpenVINO, no torch."""

from __future__ import annotations

from .folder import is_exported
from .runtime import Runtime

__all__ = ["Runtime", "is_exported"]
