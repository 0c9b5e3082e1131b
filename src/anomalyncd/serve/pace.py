"""How fast images are answered at present, so that a request that would be late is refused at the door."""

from __future__ import annotations

# The machine may become slower while a request waits: what is accepted should take half of its time.
SHARE_OF_TIME = 0.5


class Pace:
    """Seconds that an image takes while there is work, over the last few batches; callers hold a lock.

    Examples
    --------
    >>> pace = Pace()
    >>> pace.begin(now=100.0)
    >>> pace.end(4, now=102.0)
    >>> pace.wait(10)
    5.0
    """

    def __init__(self) -> None:
        self._seconds = 0.0  # for an image; nothing is known before the first batch, so all are let in
        self._since = 0.0

    def begin(self, now: float) -> None:
        """The first image comes while none is under way."""
        self._since = now

    def end(self, n_images: int, now: float) -> None:
        """So many have their outcome since the last call, or since `begin`."""
        seconds = (now - self._since) / n_images
        self._seconds = (self._seconds + seconds) / 2 if self._seconds else seconds
        self._since = now

    def wait(self, n_images: int) -> float:
        """Seconds that so many images will take."""
        return n_images * self._seconds
