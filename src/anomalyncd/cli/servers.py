"""Commands that start a server: `serve`, `review` and `studio`."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections import Counter
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from ..errors import SettingsError
from . import options as opt
from .finished import load_fitted
from .show import counted, inputs_of, quoted

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..discovery.classify import Predictor

NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]
MB = 1_000_000
SHORTEST_TOKEN = 8
NEEDED = {
    "review": ("fastapi", "uvicorn"),
    "studio": ("fastapi", "uvicorn"),
    "serve": ("fastapi", "uvicorn", "python_multipart", "prometheus_client"),
    "watch": ("fastapi", "uvicorn", "prometheus_client"),
}


def serve(
    run: opt.RunOrExport,
    port: opt.Port = 8766,
    host: opt.Host = "127.0.0.1",
    token: opt.Token = None,
    max_mb: Annotated[float, typer.Option(min=0.001, max=10_000, help="Largest request, in MB.")] = 32,
    max_images: Annotated[int, typer.Option(min=1, help="Most images in a request.")] = 32,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, max=10_000, help="Largest image, in millions of pixels.")
    ] = 64,
    read_timeout: Annotated[float, typer.Option(min=0.01, help="Seconds until a request must have come whole.")] = 20,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds from then until its answer.")] = 60,
    queue: Annotated[int, typer.Option(min=1, help="Images that may wait, of all requests.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Images that the network sees at once.")] = 16,
    batch_wait: Annotated[float, typer.Option(min=0, help="Milliseconds that a batch waits for more.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads that decode and prepare images.")] = 4,
    device: opt.Device = "auto",
    precision: opt.Precision = "auto",
) -> None:
    """Class images with RUN over HTTP."""
    made, token = token == "auto", checked_token("serve", token, host)
    from ..discovery.classify import needs_of
    from ..serve.app import make_api
    from ..serve.server import Server
    from ..serve.traffic import Limits

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
        address = address_of(listener, host)
        beside = "" if needs == "image" else f" -F {needs}=@{needs.upper()}"
        shown_token = token if made else "TOKEN"  # one of the user's own is not for the screen
        allowed = f" -H 'Authorization: Bearer {shown_token}'" if token else ""
        typer.echo(f"Serving {quoted(run)} at {address}   (Ctrl-C ends it after what was accepted is answered)")
        typer.echo(f"Next: curl {address}/v1/predict{allowed} -F image=@IMAGE{beside}")
        Server(web).run(sockets=[listener])
    typer.echo(f"\n{web.state.traffic.summary()}\nNext: anomalyncd update RUN NEW_IMAGES   (where much was unknown)")


def load(run: Path, device: str, precision: str = "auto") -> tuple[Predictor, dict[int, int] | None]:
    """A run, or its export, ready to work, and how many of its images each class has, where that is known."""
    from ..discovery.classify import warm_up
    from ..progress import Silent
    from ..runtime import Runtime

    fitted = load_fitted(run, device, precision, Silent())
    predictor = fitted.predictor()
    counts = None if isinstance(fitted, Runtime) else Counter(fitted.images["label"].tolist())
    warm_up(predictor)
    return predictor, counts


def review(
    run: opt.Run,
    port: opt.Port = 8765,
    host: opt.Host = "127.0.0.1",
    token: opt.Token = None,
    no_browser: NoBrowser = False,
) -> None:
    """Name, merge, split and correct the classes of RUN on a page in the browser."""
    made, token = token == "auto", checked_token("review", token, host)
    from ..review.app import make_app
    from ..run.finished import FinishedRun

    with listen(host, port) as listener:
        web = make_app(run, token)
        with closing(web.state):
            typer.echo(f"Review {quoted(run)} at {page_address(listener, host, token, made=made)}")
            typer.echo("Every action is stored at once. Ctrl-C ends it.")
            serve_page(
                web, listener, page_address(listener, host, token, made=made), no_browser or bool(token and not made)
            )
            waiting = len(web.state.session.classes.done)
    if waiting:
        typer.echo(f"\n{counted(waiting, 'correction')} kept, not applied yet.")
        typer.echo(f"Next: anomalyncd review {quoted(run)}, and press Apply")
    else:
        inputs = inputs_of(FinishedRun(run, device="cpu").model)
        typer.echo(f"\nNext: anomalyncd export {quoted(run)} --format csv")
        typer.echo(f"  or: anomalyncd predict {quoted(run)} NEW_IMAGES {inputs}--out new.csv")


def studio(
    workspace: Annotated[
        Path | None,
        typer.Argument(metavar="WORKSPACE", help="Folder of runs; `anomalyncd-studio` in your home by default."),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder that the page may choose images from. Repeatable; your home by default, and with --host none.",
        ),
    ] = None,
    port: opt.Port = 8765,
    host: opt.Host = "127.0.0.1",
    token: opt.Token = None,
    backbone: opt.Backbone = None,
    settings: opt.Set = None,
    no_browser: NoBrowser = False,
) -> None:
    """Runs, reports, reviews and predictions on one page in the browser: from a folder to named kinds of defects."""
    made, token = token == "auto", checked_token("studio", token, host)
    from ..config import make_config
    from ..serve.guard import is_loopback
    from ..studio.app import make_studio
    from ..studio.roots import Roots

    make_config(opt.layered(None, settings, backbone=backbone))  # mistakes are said now, not by the first job
    options = [*(["--backbone", backbone] if backbone else []), *(f"--set={text}" for text in settings or ())]
    place = workspace or Path.home() / "anomalyncd-studio"
    roots = Roots(images if images else [Path.home()] if is_loopback(host) else [])
    with listen(host, port) as listener:
        web = make_studio(place, roots, token, options=options)
        with closing(web.state):
            address = page_address(listener, host, token, made=made)
            typer.echo(f"Studio of {quoted(place)} at {address}\nCtrl-C ends it; a job under way goes on by itself.")
            serve_page(web, listener, address, no_browser or bool(token and not made))
            left = sum(web.state.jobs.state(job) in ("running", "waiting") for job in web.state.jobs.all())
    if left:
        typer.echo(f"\n{counted(left, 'job')} not finished yet.")
    typer.echo(f"Next: anomalyncd studio {quoted(place)}   (everything is kept)")


def page_address(listener: socket.socket, host: str, token: str | None, *, made: bool) -> str:
    """With the token only if it was made here: a user's own is neither for the screen nor for a browser's command line."""
    address = f"{address_of(listener, host)}/"
    if token:
        address += f"?token={quote(token, safe='')}" if made else "?token=TOKEN   (put yours in the place of TOKEN)"
    return address


def serve_page(web: FastAPI, listener: socket.socket, address: str, no_browser: bool) -> None:
    """Serve a page until Ctrl-C, and open it where there is a screen."""
    import uvicorn

    from ..serve.server import config_of

    if not no_browser and _has_screen():
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config_of(web)).run(sockets=[listener])


def checked_token(command: str, token: str | None, host: str) -> str | None:
    """The token, a new one for `auto`; says first what the command lacks, which may be a token or a library."""
    if missing := [name for name in NEEDED[command] if find_spec(name) is None]:
        raise SettingsError(f"`{command}` needs {missing[0]}: pip install 'anomalyncd[serve]'.")
    from ..serve.guard import is_loopback

    if token == "auto":
        token = secrets.token_urlsafe(24)
    if token is None and not is_loopback(host):
        raise SettingsError(
            f"--host {host} can be reached from other machines, so it needs a token: add --token auto, or --token with "
            f"at least {SHORTEST_TOKEN} characters of your own."
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingsError(f"--token must have at least {SHORTEST_TOKEN} plain characters.")
    return token


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens already: the browser may come before the server is up."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--host {host}: expected an address of this machine ({error}).") from error
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(place, family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {host}, port {port} ({os.strerror(error.errno or 0)}). Choose another with --port, as "
            f"--port {port + 1 if 0 < port < 65535 else 0}, or --port 0 for any that is free."
        ) from error


def address_of(listener: socket.socket, host: str) -> str:
    """For a browser: the wildcard means every address of this machine."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def _has_screen() -> bool:
    """Without one, a browser would take over the terminal."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
