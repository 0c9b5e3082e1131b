"""What the documentation says must be what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_page_of_settings_is_made_from_the_settings():
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "settings_table.py")], capture_output=True, check=True, encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8", "PATH": ""},
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == made


def test_the_readme_names_both_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    code = re.findall(r"(?:src|tests|benchmarks|tools)/[\w/.-]+\.\w+", text)
    modules = re.findall(r"`((?:\w+/)+\w+\.(?:py|j2))", text)
    assert [name for name in linked if not (page.parent / name).exists()] == []
    assert [name for name in code if not (ROOT / name).exists()] == []
    assert [
        name for name in modules if not any((root / name).exists() for root in (ROOT, ROOT / "src/anomalyncd"))
    ] == []


def test_the_way_of_an_image_leads_through_functions_that_are_there():
    """Hops of docs/architecture.md: `file.py: function` or `file.py: Class.method`."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(hops) > 10
    for file, name in hops:
        source = (ROOT / "src/anomalyncd" / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"^ *(?:def|class) {part}\b", source, re.MULTILINE), f"{file}: {name}"


def test_the_page_of_the_bench_shows_the_smallest_rival_as_it_is():
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    rivals = ROOT / "src" / "anomalyncd" / "bench" / "rivals"
    assert f"```python\n{(rivals / 'frozen.py').read_text(encoding='utf-8')}```" in text
    assert "from .frozen import FrozenKMeans" in (rivals / "__init__.py").read_text(encoding="utf-8")
    table = (rivals.parent / "experiments" / "table-01.yaml").read_text(encoding="utf-8")
    assert re.search(r"```yaml\n(  - \{name: \"frozen trunk, k-means\".*\})\n```", text)[1] in table
