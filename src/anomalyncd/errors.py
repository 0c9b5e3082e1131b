"""What can go wrong for a user, in words a user understands. The command line prints these without a traceback."""

import os
import re
from pathlib import Path

LONGEST = 1000  # characters of a message
# A path from the root, of POSIX or Windows, in quotes with blanks in it; what is kept is its last part.
_QUOTED = re.compile(r"""(['"])(?:[A-Za-z]:)?[\\/](?:[^'"]*[\\/])?([^'"\\/]+)\1""")
_BARE = re.compile(r"""(?<![\w.\\/])(?:[A-Za-z]:)?[\\/](?:[^\s\\/'"]+[\\/]+)*([^\s\\/'"]+)""")


class AnomalyNCDError(Exception):
    """Base of every error that a user can cause and mend. Its text is one line of at most `LONGEST` characters.

    Libraries, and names of files, bring line breaks, escape codes of terminals and halves of characters into messages.

    Examples
    --------
    >>> print(AnomalyNCDError("a\\x1b[2J\\n\\tb.png: \\udc80"))
    a [2J b.png: \\udc80
    >>> len(str(AnomalyNCDError("x" * 5000)))
    1000
    """

    def __str__(self) -> str:
        text = super().__str__().encode("utf-8", "backslashreplace").decode()
        line = "".join(letter if letter.isprintable() else "\n" for letter in text)
        line = " ".join(part.strip() for part in line.split("\n") if part.strip())
        return line if len(line) <= LONGEST else f"{line[: LONGEST // 2 - 3]} … {line[-LONGEST // 2 :]}"


class BadFileError(AnomalyNCDError):
    """One file cannot be read: it is skipped with a warning and listed in the summary."""


class DataError(AnomalyNCDError):
    """The inputs do not fit together: a missing map, an ambiguous pair, nothing to work on."""


class SettingsError(AnomalyNCDError):
    """A setting is out of range or unknown."""


class WeightsError(AnomalyNCDError):
    """Backbone weights are missing, incomplete or not the expected ones."""


class RunError(AnomalyNCDError):
    """A run folder is missing, incomplete or from another version."""


def without_folders(words: str, run: Path) -> str:
    """A message for another machine, which need not know where things lie: the run by its name, other files by theirs.

    Examples
    --------
    >>> without_folders("/data/line 3/run/regions.csv: cannot be read (see /var/log/x.log).", Path("/data/line 3/run"))
    'run/regions.csv: cannot be read (see x.log).'
    >>> without_folders("[Errno 2] No such file or directory: '/my images/a.png'", Path("run"))
    "[Errno 2] No such file or directory: 'a.png'"
    """
    name = run.resolve().name
    for place in sorted({str(run), str(run.absolute()), str(run.resolve())}, key=len, reverse=True):
        if os.sep in place:
            words = words.replace(place, name)
    return _BARE.sub(r"\1", _QUOTED.sub(r"\1\2\1", words))
