"""What MkDocs builds besides docs/: the front page and other pages of the project's root, and the reference.

Links are written for who reads the files themselves; here they are made to fit the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import reference

import anomalyncd

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
WORKER, FOREIGN = "assets/worker.js", '<script src="https://unpkg.com/iframe-worker/shim"></script>'
LINK = re.compile(r"(!?)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and the script that lets the search run from disk."""
    from mkdocs.structure.files import File

    for name, text in {**made(), WORKER: (ROOT / "tools/site/worker.js").read_text(encoding="utf-8")}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The theme would fetch such a script from elsewhere."""
    return output.replace(FOREIGN, f'<script src="{"../" * page.url.count("/")}{WORKER}"></script>')


def on_post_template(output_content: str, **_: Any) -> str:
    """The page of a dead link is always on a server, where the search needs no such script."""
    return output_content.replace(FOREIGN, "")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links of pages of docs/ that lead out of it."""
    return fitted(markdown, ROOT / "docs")


def made() -> dict[str, str]:
    """Name → Markdown of every page that is not a file of docs/."""
    pages = {page: fitted((ROOT / file).read_text(encoding="utf-8"), ROOT) for file, page in PAGES.items()}
    return pages | {
        "commands.md": reference.commands_page(),
        "http.md": reference.http_page(),
        "python.md": python_page(),
    }


def python_page() -> str:
    """Every public name, its text taken from the docstrings."""
    names = [f"anomalyncd.{name}" for name in anomalyncd.__all__]
    parts = [
        "anomalyncd.plot",
        "anomalyncd.runtime.Runtime",
        "anomalyncd.run.finished.FinishedRun",
        "anomalyncd.detect.base.Detector",
    ]
    text = "# Python\n\nWhat `import anomalyncd` offers. Labels: 0 normal, 1 … defects, −1 unknown.\n"
    return text + "".join(f"\n::: {name}\n" for name in [*names, *parts])


def fitted(markdown: str, here: Path) -> str:
    """Links of a page that lies in `here`, for the site: pages by their names there, other files as plain names."""

    def link(match: re.Match[str]) -> str:
        picture, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        file = (here / target).resolve()
        if not file.is_relative_to(ROOT):
            return match[0]
        name = file.relative_to(ROOT).as_posix()
        if name in PAGES:
            return f"{picture}[{text}]({PAGES[name]}{anchor})"
        if file.is_relative_to(ROOT / "docs") or name in ("docs/commands.md", "docs/http.md", "docs/python.md"):
            return f"{picture}[{text}]({file.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        return text if text.startswith("`") else f"{text} (`{name}`)"

    return LINK.sub(link, markdown)
