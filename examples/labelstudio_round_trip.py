"""Corrections by a team in Label Studio: a run as a project there, and what was corrected back into the run.

    pip install label-studio-sdk
    anomalyncd export RUN --format labelstudio                  # prints how to start Label Studio beside the images
    python examples/labelstudio_round_trip.py push RUN          # makes a project, prints its number
    python examples/labelstudio_round_trip.py pull RUN NUMBER   # when the team is done
    anomalyncd review RUN                                       # look at what came back, and apply it

The address and the key (Account & Settings → Personal Access Token) are in LABEL_STUDIO_URL and LABEL_STUDIO_API_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from label_studio_sdk import LabelStudio

from anomalyncd.review.labelstudio import take_corrections


def push(client: LabelStudio, run: Path) -> int:
    """Make a project of the export of a run; returns its number."""
    folder = run / "export/labelstudio"
    interface = (folder / "interface.xml").read_text(encoding="utf-8")
    project = client.projects.create(title=run.name, label_config=interface)
    tasks = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    client.projects.import_tasks(id=project.id, request=tasks)
    return int(project.id)


def pull(client: LabelStudio, run: Path, project: int, *, apply: bool = False) -> None:
    """Take what was corrected in a project into the run's review."""
    file = run / "export/labelstudio-corrected.json"
    file.write_text(json.dumps(client.projects.exports.as_json(project)), encoding="utf-8")
    print(take_corrections(run, file, apply=apply))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["push", "pull"])
    parser.add_argument("run", type=Path)
    parser.add_argument("project", type=int, nargs="?")
    parser.add_argument("--apply", action="store_true")
    given = parser.parse_args(argv)
    if given.what == "pull" and given.project is None:
        parser.error("pull needs the number of the project")

    url = os.environ.get("LABEL_STUDIO_URL", "http://127.0.0.1:8080")
    client = LabelStudio(base_url=url, api_key=os.environ["LABEL_STUDIO_API_KEY"])
    if given.what == "push":
        print(f"{url}/projects/{push(client, given.run)}")
    else:
        pull(client, given.run, given.project, apply=given.apply)


if __name__ == "__main__":
    main()
