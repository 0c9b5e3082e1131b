"""How much one client, and all of them together, may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SettingsError


@dataclass(frozen=True)
class Limits:
    """Bounds of a service.

    n_bytes : of one request
    held_bytes : of all requests that are being read or worked on
    images : in one request
    pixels : of an image
    map_pixels : of a map or mask, where each region costs a look at all of them
    read_seconds : until the whole of a request must have come
    seconds : from then until its answer
    runs : of all masks in one answer, where they are asked for as run lengths
    queue : images that wait or are worked on, of all requests
    decoded_pixels : of images, maps and masks that wait or are worked on; above, no other image is decoded
    batch : images that the network sees at once
    wait_seconds : how long a batch that is not full waits for more, and only while more are on their way
    threads : that decode and prepare images
    """

    n_bytes: int = 32_000_000
    held_bytes: int = 256_000_000
    images: int = 32
    pixels: int = 64_000_000
    map_pixels: int = 16_000_000
    read_seconds: float = 20.0
    seconds: float = 60.0
    runs: int = 200_000
    queue: int = 128
    decoded_pixels: int = 256_000_000
    batch: int = 16
    wait_seconds: float = 0.005
    threads: int = 4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0 and name != "wait_seconds":
                raise SettingsError(f"{name} must be above 0, but got {value}.")
        if self.queue < self.images:
            raise SettingsError(
                f"the queue ({self.queue} images) must hold at least one request of {self.images} images."
            )
        if self.held_bytes < self.n_bytes:
            raise SettingsError(f"held_bytes ({self.held_bytes}) must be at least n_bytes ({self.n_bytes}).")
