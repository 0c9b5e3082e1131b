"""`anomalyncd bench`: the paper's experiments, and ours, on data sets of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import SettingsError
from . import options as opt
from .show import show

bench = typer.Typer(help="Named experiments: the paper's tables beside our own figures.", no_args_is_help=True)


@bench.command("list")
def bench_list() -> None:
    """What there is."""
    from rich.table import Table

    from ..bench.experiment import experiment_names, load_experiment
    from ..bench.plan import load_plan, plan_names

    table = Table("name", "rows", "data", "title", box=None, pad_edge=False)
    for name in experiment_names():
        found = load_experiment(name)
        table.add_row(name, str(len(found.rows)), ", ".join(found.data) or "any", found.title)
    for name in plan_names():
        table.add_row(name, f"{len(load_plan(name).stages)} of the above", "any", load_plan(name).title)
    show(table)
    typer.echo("Run one: anomalyncd bench run NAME --data hazelnut=PATH --data steel=PATH")


@bench.command("run")
def bench_run(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Of `bench list`, or a .yaml file of your own.")],
    data: Annotated[
        list[str], typer.Option(metavar="NAME=PATH", help="A data set in MVTec AD's layout, or a base set. Repeatable.")
    ],
    maps: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA/SOURCE=PATH", help="Maps that are there already, as mtd/cpr=PATH. Repeatable."),
    ] = None,
    work: Annotated[Path, typer.Option(help="Keeps maps, runs and results; call again to resume.")] = Path("bench-run"),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for tables and figures, WORK/tables by default, tables-quick with --quick."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0,1,2", help="Instead of the experiment's.")] = None,
    only: Annotated[str, typer.Option(metavar="PATTERN", help="Rows to run, as '*default*'.")] = "*",
    stored: Annotated[bool, typer.Option("--stored", help="Run nothing: the table of what is there.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A plan's small form: one seed, few images, few rows.")
    ] = False,
    backbone: opt.Backbone = None,
    device: opt.Device = "auto",
    settings: opt.Set = None,
    quiet: opt.Quiet = False,
) -> None:
    """Run experiments and print their tables, with the paper's figures below ours."""
    from rich.markup import escape
    from rich.table import Table

    from ..bench.agreement import agreement
    from ..bench.campaign import Campaign
    from ..bench.datasets import parse_data
    from ..bench.figures import draw
    from ..bench.plan import stages_of
    from ..bench.table import notes, to_csv, to_markdown, to_rows
    from ..run.folder import RunFolder

    stages, limit = stages_of(names, quick=quick)
    given = {_data_and_source(name): path for name, path in parse_data(maps or []).items()}
    layer = opt.layered(None, settings, backbone=backbone, device=None if device == "auto" else device)
    campaign = Campaign(
        stages, work, parse_data(data), maps=given, settings=layer, progress=opt.make_progress(quiet), limit=limit,
        seeds=None if seeds is None else _numbers(seeds), only=only, stored=stored,
    )  # fmt: skip
    tables, command = RunFolder(out or work / f"tables{campaign.form}"), campaign.progress.call
    typer.echo("".join(f"{line}\n" for line in campaign.before()), nl=False)
    pages: list[str] = []
    for outcome in campaign.run():
        experiment = outcome.experiment
        page = to_markdown(outcome, command)
        tables.write_text(f"{experiment.name}.md", page)
        tables.write_text(f"{experiment.name}.csv", to_csv(outcome))
        header, rows = to_rows(outcome)
        table = Table(*map(escape, header), box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(escape(cell.replace("\\*", "*")) for cell in row))
        show(f"{experiment.name}: {escape(experiment.title)}\n", table, "")
        typer.echo("\n".join(note.replace("\\*", "*") for note in notes(outcome, command)))
        pictures = draw(outcome, tables.path)
        typer.echo("".join(f"Look at {picture}\n" for picture in pictures), nl=False)
        typer.echo(f"{tables.path / experiment.name}.md and .csv\n")
        pages.append(
            "\n".join([page, agreement(outcome)])
            + "".join(f"\n![{picture.stem}]({picture.name})\n" for picture in pictures)
        )
        if campaign.plan:
            tables.write_text(f"{campaign.plan}.md", "\n".join([campaign.heading(command), *pages]))
    typer.echo("".join(f"{line}\n" for line in campaign.after()), nl=False)
    if campaign.plan:
        typer.echo(f"All on one page: {tables.path / campaign.plan}.md")


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise SettingsError(
            f"--seeds must be whole numbers with commas between them, as 0,1,2, but got {text!r}."
        ) from None


def _data_and_source(name: str) -> tuple[str, str]:
    data, slash, source = name.partition("/")
    if not slash or not data or not source:
        raise SettingsError(f"--maps must be given as DATA/SOURCE=PATH, as mtd/cpr=maps, but got {name!r}.")
    return data, source
