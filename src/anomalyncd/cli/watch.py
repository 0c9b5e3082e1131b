"""`watch`: a finished run at work on a folder that images arrive in."""

from __future__ import annotations

import secrets
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from filelock import FileLock, Timeout

from ..errors import DataError, RunError, SettingsError
from ..paths import is_inside, path_of
from . import options as opt
from .finished import load_fitted
from .servers import address_of, checked_token, listen
from .show import counted, quoted, show_counts

if TYPE_CHECKING:
    from ..discovery.classify import Predictor
    from ..watch.ledger import Ledger
    from ..watch.senders import Sender
    from ..watch.watcher import Watcher

GRACE_SECONDS = 15.0  # for a message that is under way at the end
CLIENT = "client"  # of MQTT: the same name after a restart


def watch(
    run: opt.RunOrExport,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where images arrive, in folders of it too.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="TABLE", help="Table that grows: .csv or .sqlite, or .parquet for a folder with a file a day."
        ),
    ],
    maps: Annotated[
        Path | None, typer.Option(help="Folder where their anomaly maps arrive, named as the images.")
    ] = None,
    masks: Annotated[Path | None, typer.Option(help="Folder of masks instead of maps.")] = None,
    move: Annotated[Path | None, typer.Option(help="Move each file into a folder of its class in this folder.")] = None,
    link: Annotated[Path | None, typer.Option(help="Link it there instead.")] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="POST each result there. Token: ANOMALYNCD_WEBHOOK_TOKEN.")
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Publish it: mqtt://[user@]host/topic. Password: ANOMALYNCD_MQTT_PASSWORD."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between looks at the folder.")] = 0.5,
    settle: Annotated[float, typer.Option(min=0, help="Seconds for which a file must not have changed.")] = 1.0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds until a file that cannot be read is no longer called half-written.")
    ] = 60.0,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Tell health and metrics there; 0 takes any that is free.")
    ] = None,
    host: opt.Host = "127.0.0.1",
    token: opt.Token = None,
    quote_formulas: opt.QuoteFormulas = False,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do.")] = False,
    device: opt.Device = "auto",
    precision: opt.Precision = "auto",
    quiet: opt.Quiet = False,
) -> None:
    """Class images as they arrive in FOLDER, each content once, and write them into a table that grows."""
    from ..watch.classing import CurrentModel, Reader
    from ..watch.places import Places
    from ..watch.table import open_table
    from ..watch.watcher import Pace, Watcher

    if port is not None:
        token = checked_token("watch", token, host)
    pace = Pace(every, settle, patience)
    beside = _check_folders(run, folder, out, maps, masks, move, link)
    progress = opt.make_progress(quiet)
    model = CurrentModel(run, lambda: _loaded(run, device, precision, None if beside is None else beside[0]))
    with ExitStack() as stack:
        ledger, table = open_table(out, quote=quote_formulas)
        stack.enter_context(closing(ledger))
        _keep_others_out(ledger, stack)
        kinds = move or link
        places = Places(kinds, link=move is None) if kinds is not None else None
        senders = _senders(ledger, webhook, mqtt)
        watcher = Watcher(
            folder, model, Reader(folder, *beside) if beside else Reader(folder), ledger, table, places=places,
            senders=senders, pace=pace, progress=progress,
        )  # fmt: skip
        if port is not None:
            listener = stack.enter_context(listen(host, port))
            _serve_health(watcher, senders, token, listener)
            typer.echo(f"Health at {address_of(listener, host)}/health and /metrics")
        typer.echo(f"Watching {quoted(folder)} with {quoted(run)}; rows go to {quoted(out)}   (Ctrl-C ends it)")
        before = {kind: signal.signal(kind, lambda *_: watcher.stop()) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            watcher.run(once=once)
            if once:
                for sender in senders:
                    sender.drain(ledger, GRACE_SECONDS)
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
            for sender in senders:
                sender.close(GRACE_SECONDS)
        show_counts(watcher.status.counts)
        for sender in senders:
            if left := ledger.waiting(sender.line.name):
                why = f" ({sender.problem})" if sender.problem else ""
                typer.echo(f"{counted(left, 'message')} for {sender.line.name} wait in {ledger.path}{why}")
    typer.echo(f"Next: anomalyncd day {quoted(out)}")


def _check_folders(
    run: Path, folder: Path, out: Path, maps: Path | None, masks: Path | None, move: Path | None, link: Path | None
) -> tuple[str, Path] | None:
    """("map" or "mask", its folder), or None; refuses folders that would be watched by mistake."""
    for given in (run, folder, out, maps, masks, move, link):
        path_of(given or ".", "a path")  # no text can hold what stands between names
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder that images arrive in.")
    if maps is not None and masks is not None:
        raise DataError("give either maps (--maps) or masks (--masks), and not both.")
    if move is not None and link is not None:
        raise SettingsError("give either --move or --link, and not both.")
    inside = {"the run": run, "--maps": maps, "--masks": masks, "--move": move, "--link": link}
    for what, path in inside.items():
        if path is not None and is_inside(path, folder):
            raise SettingsError(f"{path}: {what} lies inside {folder}, which is watched. Choose a folder outside.")
    if is_inside(out, run):
        raise SettingsError(f"{out}: the table would lie inside {run}, which is read. Choose another place for --out.")
    for what, path in (("map", maps), ("mask", masks)):
        if path is not None:
            if not path.is_dir():
                raise DataError(f"{path}: expected a folder that {what}s arrive in.")
            return what, path
    return None


def _loaded(run: Path, device: str, precision: str, given: str | None) -> Predictor:
    """The run as it is now, ready to work; given : what comes with each image"""
    from ..discovery.classify import needs_of, warm_up
    from ..progress import Silent

    predictor = load_fitted(run, device, precision, Silent()).predictor()
    needs = needs_of(predictor)
    if needs != (given or "image"):
        wanted = "no --maps and no --masks" if needs == "image" else f"--{needs}s with the {needs} of each image"
        raise DataError(f"{run}: expected {wanted}, as the run was made.")
    warm_up(predictor)
    return predictor


def _keep_others_out(ledger: Ledger, stack: ExitStack) -> None:
    lock = ledger.path.with_name(f"{ledger.path.name}.lock")
    try:
        stack.enter_context(FileLock(lock, timeout=0))
    except Timeout:
        raise RunError(f"{ledger.path}: another process is writing to this table. Choose another --out.") from None


def _senders(ledger: Ledger, webhook: str | None, mqtt: str | None) -> list[Sender]:
    from ..watch.senders import Sender, make_lines

    if ledger.note(CLIENT) is None:
        ledger.set_note(CLIENT, f"anomalyncd-{secrets.token_hex(6)}")
    lines = make_lines(webhook, mqtt, ledger.note(CLIENT) or "")
    return [Sender(line, ledger.path, tables=ledger.tables) for line in lines]


def _serve_health(watcher: Watcher, senders: list[Sender], token: str | None, listener: socket.socket) -> None:
    from ..serve.traffic import Metrics
    from ..watch.health import make_health, serve_health

    metrics = Metrics()

    def count(outcomes: list[str], seconds: float) -> None:
        metrics.batch_done(len(outcomes), seconds)
        for outcome in outcomes:
            metrics.image_done(outcome)

    watcher.on_batch = count
    waiting = {sender.line.name: sender.waiting for sender in senders}
    serve_health(make_health(watcher.status, metrics, waiting, token=token), listener)
