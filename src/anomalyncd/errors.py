"""What can go wrong for a user, in words a user understands. The command line prints these without a traceback.

All are `AnomalyNCDError`. For code that expects Python's own, all but `StoreError` are also `ValueError`; where a file or
folder is not there at all, `FileNotFoundError` as well; where an argument is of a wrong type, `TypeError` as well.
"""

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


class BadFileError(AnomalyNCDError, ValueError):
    """One file cannot be read: it is skipped with a warning and listed in the summary."""


class DataError(AnomalyNCDError, ValueError):
    """The inputs do not fit together: a missing map, an ambiguous pair, nothing to work on."""


class SettingsError(AnomalyNCDError, ValueError):
    """A setting is out of range or unknown."""


class WeightsError(AnomalyNCDError, ValueError):
    """Backbone weights are missing, incomplete or not the expected ones."""


class RunError(AnomalyNCDError, ValueError):
    """A run folder is missing, incomplete or from another version."""


class StoreError(AnomalyNCDError):
    """A store of files is away, or refuses to be read. This is the fault of no file: nothing is skipped, the command ends.

    No ValueError and no OSError, so that nothing that goes on without a damaged file goes on without this one.
    """


class MissingDataError(DataError, FileNotFoundError):
    """There are no images, maps, masks or labels where they were said to be."""


class MissingSettingsError(SettingsError, FileNotFoundError):
    """There is no file of settings where it was said to be."""


class MissingWeightsError(WeightsError, FileNotFoundError):
    """There is no file of weights where it was said to be."""


class MissingRunError(RunError, FileNotFoundError):
    """There is no finished run where it was said to be."""


class WrongTypeError(DataError, TypeError):
    """An argument is neither a path, nor an array, nor whatever else it must be."""


def without_folders(words: str, run: Path | None = None) -> str:
    """A message for another machine, which need not know where things lie: the run by its name, other files by theirs.

    Examples
    --------
    >>> without_folders("/data/line 3/run/regions.csv: cannot be read (see /var/log/x.log).", Path("/data/line 3/run"))
    'run/regions.csv: cannot be read (see x.log).'
    >>> without_folders("[Errno 2] No such file or directory: '/my images/a.png'", Path("run"))
    "[Errno 2] No such file or directory: 'a.png'"
    """
    places = () if run is None else {str(run), str(run.absolute()), str(run.resolve())}
    for place in sorted(places, key=len, reverse=True):
        if run is not None and os.sep in place:
            words = words.replace(place, run.resolve().name)
    return _BARE.sub(r"\1", _QUOTED.sub(r"\1\2\1", words))
