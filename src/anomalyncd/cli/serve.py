"""`anomalyncd serve`: classes of images over HTTP."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as opt
from .commands import app
from .listening import check_installed, checked_token, listen, shown
from .show import quoted

if TYPE_CHECKING:
    from ..discovery.classify import Predictor

MB = 1_000_000


@app.command()
def serve(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Run folder of `discover`, or a folder of `export --format onnx|openvino`."),
    ],
    port: opt.Port = 8766,
    host: opt.Host = "127.0.0.1",
    token: opt.Token = None,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Largest request, in MB.")] = 32,
    max_images: Annotated[int, typer.Option(min=1, help="Most images in a request.")] = 32,
    max_megapixels: Annotated[float, typer.Option(min=0.001, help="Largest image, in millions of pixels.")] = 64,
    read_timeout: Annotated[float, typer.Option(min=0.01, help="Seconds until a request must have come whole.")] = 20,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds from then until its answer.")] = 60,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait, of all requests.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Images that the network sees at once.")] = 16,
    batch_wait: Annotated[float, typer.Option(min=0, help="Milliseconds that a batch waits for more.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads that decode and prepare images.")] = 4,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    precision: Annotated[
        str, typer.Option(help="float32 or bfloat16; auto is bfloat16 on a GPU that has it, else float32.")
    ] = "auto",
) -> None:
    """Class images with RUN over HTTP."""
    check_installed("serve")
    from ..serve.app import make_api, needs_of
    from ..serve.limits import Limits
    from ..serve.server import Server

    made, token = token == "auto", checked_token(token, host)
    n_bytes, pixels = int(max_mb * MB), int(max_megapixels * MB)
    limits = Limits(
        n_bytes=n_bytes, held_bytes=max(8 * n_bytes, 256 * MB), images=max_images, pixels=pixels,
        map_pixels=min(pixels, Limits.map_pixels), read_seconds=read_timeout, seconds=timeout, queue=queue, batch=batch,
        wait_seconds=batch_wait / 1000, threads=threads,
    )  # fmt: skip
    with listen(host, port) as listener:
        predictor, counts = load(run, device, precision)
        needs = needs_of(predictor)
        web = make_api(predictor, counts=counts, token=token, limits=limits)
        address = f"http://{shown(host)}:{listener.getsockname()[1]}"
        beside = "" if needs == "image" else f" -F {needs}=@{needs.upper()}"
        shown_token = token if made else "TOKEN"  # one of the user's own is not for the screen
        allowed = f" -H 'Authorization: Bearer {shown_token}'" if token else ""
        typer.echo(f"Serving {quoted(run)} at {address}   (Ctrl-C ends it after what was accepted is answered)")
        typer.echo(f"Next: curl {address}/v1/predict{allowed} -F image=@IMAGE{beside}")
        server = Server(web)
        server.run_on(listener)
    done = "Not all took their answers in time." if server.force_exit else "Everything accepted was answered."
    typer.echo(f"\n{done}\nNext: anomalyncd update RUN NEW_IMAGES   (where much was unknown)")


def load(run: Path, device: str, precision: str = "auto") -> tuple[Predictor, dict[int, int] | None]:
    """A run, or its export, ready to work, and how many of its images each class has, where that is known."""
    from ..progress import Silent
    from ..runtime import Runtime
    from ..serve.warm_up import warm_up
    from .fitted import load_fitted

    fitted = load_fitted(run, device, precision, Silent())
    predictor = fitted.predictor()
    counts = None if isinstance(fitted, Runtime) else Counter(fitted.images["label"].tolist())
    warm_up(predictor)
    return predictor, counts
