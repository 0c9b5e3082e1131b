"""Fewer classes or more, and rare kinds, as the report shows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import RunError
from .source import Look, ReportSource, Shot

MOST_STEPS = 3  # of fewer and of more classes
MOST_RARE = 12  # groups
EXAMPLES = 6  # of a part, or of a group


@dataclass(frozen=True)
class Tree:
    """What tree.json and groups.csv say.

    fewer : names of two groups of classes that would become one, and the share of the spread that is lost, in their order
    more : a class that would fall into two, the share that is gained, and of each part its size and pictures
    rare : pictures of each group of regions that are apart from all others
    """

    fewer: list[tuple[str, str, float]] = field(default_factory=list)
    more: list[tuple[Look, float, list[tuple[int, list[Shot]]]]] = field(default_factory=list)
    rare: list[list[Shot]] = field(default_factory=list)


def make_tree(source: ReportSource) -> Tree:
    """With its pictures; what is not there or damaged is left out."""
    tree = Tree()
    row_of = {key: row for row, key in enumerate(zip(source.regions["image"], source.regions["region"], strict=True))}

    def pictures(keys: list[tuple[str, int]]) -> list[Shot]:
        return [source.crop(row_of[key]) for key in keys[:EXAMPLES] if key in row_of]

    try:
        for merge in source.run.tree["merges"][:MOST_STEPS]:
            one, other = (" + ".join(source.look(int(label)).name for label in group) for group in merge["classes"])
            tree.fewer.append((one, other, float(merge["share"])))
        for split in source.run.tree["splits"][:MOST_STEPS]:
            sides = [
                (int(part["n_regions"]), pictures([(str(image), int(region)) for image, region in part["examples"]]))
                for part in split["parts"]
            ]
            tree.more.append((source.look(int(split["class"])), float(split["share"]), sides))
        for _, group in list(source.run.outliers.groupby("group"))[:MOST_RARE]:
            tree.rare.append(pictures(list(zip(group["image"], group["region"], strict=True))))
    except (RunError, KeyError, TypeError, ValueError, OverflowError):
        pass  # a run of a stranger, or a damaged one: the page shows the rest
    return tree
