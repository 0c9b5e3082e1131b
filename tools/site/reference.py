"""Pages of the reference that are made from the program: commands from their help, the HTTP API from its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from typer.main import get_command

from anomalyncd.cli import app

METHODS = ("get", "post", "put", "patch", "delete")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name, as `weights fetch`, in the order of the help."""

    def below(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, f"{prefix}{name} ")
            else:
                yield prefix + name, command

    yield from below(get_command(app), "")


def commands_page() -> str:
    """Markdown: what `anomalyncd COMMAND --help` says, for every command."""
    about = "What `anomalyncd COMMAND --help` says, of every command. Errors are one line, and exit with code 2."
    lines = ["# Commands", "", about, ""]
    for name, command in commands():
        context = typer.Context(command)
        usage = " ".join(piece for parameter in command.params for piece in parameter.get_usage_pieces(context))
        records = [parameter.get_help_record(context) for parameter in command.params]
        lines += [f"## {name}", "", _text(command.help), "", f"    anomalyncd {name} {usage} [OPTIONS]", ""]
        if rows := [f"| `{_text(what)}` | {_cell(_text(about))} |" for what, about in filter(None, records)]:
            lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _text(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def http_page() -> str:
    """Markdown: routes of `serve`, `review` and `studio`, what they take and what they answer."""
    lines = [
        "# HTTP", "",
        "Three programs answer over HTTP: [`serve`](serve.md) classes images, [`review`](review.md) corrects classes, "
        "and the [`studio`](studio.md) starts runs. Each tells its own schema, in OpenAPI's form: `serve` at "
        "`/openapi.json`, the other two at `/api/openapi.json`. This page is made of them.", "",
    ]  # fmt: skip
    for name, schema in schemas().items():
        lines += [f"## {name}", ""]
        for path, methods in schema["paths"].items():
            for method in METHODS:
                if method in methods:
                    lines += _route(path, method, methods[method], name)
        lines += _types(schema, name)
    return "\n".join(lines)


def schemas() -> dict[str, dict[str, Any]]:
    """Name of a command → its OpenAPI schema, of a small run that is made for it."""
    from anomalyncd import AnomalyNCD
    from anomalyncd.demo import iter_line
    from anomalyncd.review.app import make_app
    from anomalyncd.serve.app import make_api
    from anomalyncd.studio.app import make_studio
    from anomalyncd.studio.roots import Roots

    items = list(iter_line(n_per_class=3, n_normal=1, n_combined=0, size=64, kinds=["hole", "print"]))
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        model = AnomalyNCD(3, backbone="tiny", features={"views": 1})
        model.fit([item.image for item in items], maps=[item.map for item in items], run=run)
        service, review = make_api(model.predictor()), make_app(run)
        studio = make_studio(Path(folder) / "workspace", Roots([]))
        found = {"serve": service.openapi(), "review": review.openapi(), "studio": studio.openapi()}
        service.state.batcher.close()
        review.state.close()
        studio.state.close()
    return found


def _route(path: str, method: str, route: Mapping[str, Any], part: str) -> list[str]:
    lines = [
        f"### {method.upper()} {path} {{#{part}-{method}-{_anchor(path)}}}",
        "",
        route.get("description") or route["summary"],
        "",
    ]
    if parameters := route.get("parameters"):
        lines += ["| parameter | in | type | what |", "|---|---|---|---|"]
        for parameter in parameters:
            what, name = parameter.get("description") or parameter["schema"].get("description", ""), parameter["name"]
            lines.append(
                f"| `{name}` | {parameter['in']} | {_type(parameter['schema'], part)} | {_cell(_text(what))} |"
            )
        lines.append("")
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        lines += [f"Takes `{kind}`: {_type(content.get('schema', {}), part)}", ""]
    answers = []
    for code, answer in route["responses"].items():
        types = [
            _type(content["schema"], part) for content in answer.get("content", {}).values() if content.get("schema")
        ]
        answers.append(f"{code}: {_text(answer['description'])}{' (' + ', '.join(types) + ')' if types else ''}")
    return [*lines, *(f"- {answer}" for answer in answers), ""]


def _types(schema: Mapping[str, Any], part: str) -> list[str]:
    lines = []
    for name, kind in schema.get("components", {}).get("schemas", {}).items():
        lines += [f"### {name} {{#{part}-{name.lower()}}}", "", _text(kind.get("description")), ""]
        if properties := kind.get("properties"):
            required = kind.get("required", [])
            lines += ["| field | type | what |", "|---|---|---|"]
            for field, value in properties.items():
                what = _text(value.get("description")) + ("" if field in required else " (may be left out)")
                lines.append(f"| `{field}` | {_type(value, part)} | {_cell(what.strip())} |")
            lines.append("")
    return lines


def _type(schema: Mapping[str, Any], part: str) -> str:
    """A type of OpenAPI in a few words, named ones as links."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{part}-{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(one, part) for one in schema[several]))
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), part)}"
    return str(schema.get("type", "anything")) + (f" ({schema['format']})" if "format" in schema else "")


def _anchor(path: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in path).strip("-") or "page"
