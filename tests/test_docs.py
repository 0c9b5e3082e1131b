"""What the documentation says must be what the code does."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_of_settings_is_made_from_the_settings():
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "settings_table.py")], capture_output=True, check=True, encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8", "PATH": ""},
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == made


def test_the_readme_names_both_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text
