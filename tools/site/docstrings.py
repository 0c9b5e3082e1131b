"""Docstrings say `name : what it is`; a reader of the reference gets its type from the signature."""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"(?m)^( *)(Parameters|Attributes)\n\1-+\n(?:(?!\1\w[^\n]*\n\1-+\n).*\n?)*")


class PlainItems(griffe.Extension):
    """Gives each item of a section a line of its own, as numpydoc wants it for a description without a type."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub(lambda match: plain(match[0], match[1]), obj.docstring.value)


def plain(section: str, indent: str) -> str:
    """`name : words` → `name` and the words below it.

    >>> plain("Parameters\\n----------\\na, b : two numbers\\nc : a word\\n    or more\\n", "")
    'Parameters\\n----------\\na, b\\n    two numbers\\nc\\n    a word\\n    or more\\n'
    """
    return re.sub(rf"(?m)^{indent}(\*{{0,2}}[\w, *]+?) : (?=\S)", rf"{indent}\1\n{indent}    ", section)
