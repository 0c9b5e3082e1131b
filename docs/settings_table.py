"""Print docs/settings.md from the configuration itself: python docs/settings_table.py > docs/settings.md"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from anomalyncd.config import Config, make_config

HEAD = """# What can be set?

Every setting has one name: in the YAML file (`--config`), on the command line (`--set learn.epochs=10`) and in Python
(`AnomalyNCD(5, learn={"epochs": 10})`). `RUN/config.yaml` holds all of them as they were in that run. `--preset paper` starts from
the paper's values, in the last column where they differ. This page is made by `docs/settings_table.py`.

| setting | default | what it is | `paper` |
|---|---|---|---|"""


def main() -> None:
    print(HEAD)
    for row in rows(Config, make_config(), make_config(preset="paper")):
        print(row)


def rows(kind: type[BaseModel], default: Any, paper: Any, prefix: str = "") -> list[str]:
    found = []
    for name, field in kind.model_fields.items():
        ours, theirs = getattr(default, name), getattr(paper, name)
        if isinstance(ours, BaseModel):
            found += rows(type(ours), ours, theirs, f"{prefix}{name}.")
        else:
            other = "" if ours == theirs or name == "preset" else f"`{text(theirs)}`"
            found.append(f"| `{prefix}{name}` | `{text(ours)}` | {field.description or ''} | {other} |")
    return found


def text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


if __name__ == "__main__":
    main()
