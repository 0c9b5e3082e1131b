"""From region probabilities to classes."""

from .images import image_classes, merge_regions, novel_probabilities

__all__ = ["image_classes", "merge_regions", "novel_probabilities"]
