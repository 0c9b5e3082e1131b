"""The search for faults that no test notices, `benchmarks/mutants.py`, on a package of two functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from mutation.faults import draw, places

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

SOURCE = '''"""Words: 1 < 2."""
LIMIT: int = 3


def larger(a: int, b: int) -> int:
    """Words: 1 < 2."""
    if a > b:
        return a
    if b > 100:
        raise ValueError(f"{b + 1} is more than {100 * 1}")
    return b


def untested(a: int) -> int:
    return a + 1
'''
TESTS = """from tiny.numbers import larger


def test_larger():
    assert larger(1, 2) == 2
    assert larger(2, 1) == 2
"""
MORE_TESTS = """

def test_untested():
    from tiny.numbers import untested

    assert untested(1) == 2
"""
EQUIVALENT = """Why some faults change nothing.

src/tiny/numbers.py
  - if a > b:
  + if a >= b:
# the larger of two equal numbers is either of them
"""


def faults(text: str) -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for place in places("file.py", text) for mutant in place}


def test_faults_are_in_code_and_not_in_words() -> None:
    found = faults(SOURCE)
    assert found == {
        ("LIMIT: int = 3", "LIMIT: int = 4"),
        ("LIMIT: int = 3", "LIMIT: int = 2"),
        ("if a > b:", "if a >= b:"),
        ("if a > b:", "if a <= b:"),
        ("return a", "return None"),
        ("if b > 100:", "if b >= 100:"),
        ("if b > 100:", "if b <= 100:"),
        ("if b > 100:", "if b > 101:"),
        ("if b > 100:", "if b > 99:"),
        ('raise ValueError(f"{b + 1} is more than {100 * 1}")', "pass"),
        ("return b", "return None"),
        ("return a + 1", "return None"),
        ("return a + 1", "return a - 1"),
        ("return a + 1", "return a + 2"),
        ("return a + 1", "return a + 0"),
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = a and b", "x = a or b"),
        ("x = not a", "x =  a"),
        ("x = a is not None", "x = a is None"),
        ("x = a not in b", "x = a in b"),
        ("x = -a", "x = a"),
        ("x = max(a, b)", "x = min(a, b)"),
        ("x = f(a, b)", "x = f(b, a)"),
        ("x = a[b:]", "x = a[(b) + 1:]"),
        ("x = [a for a in b if a]", "x = [a for a in b if True]"),
        ("x = f(flag=True)", "x = f(flag=False)"),
        ("x = 0.5", "x = 1.0"),
        ("x += 1", "pass"),
        ("f(x)", "pass"),
    ],
)
def test_kinds_of_faults(old: str, new: str) -> None:
    assert (old, new) in faults(old)


def test_the_draw_stays_where_other_lines_change() -> None:
    def drawn(text: str, seed: int) -> list[str]:
        return [mutant.key for mutant in draw(places("file.py", text), 5, seed)]

    longer = SOURCE.replace("LIMIT: int = 3", "LIMIT: int = 3\n# A comment.")
    assert drawn(SOURCE, 0) == drawn(longer, 0)
    assert drawn(SOURCE, 0) != drawn(SOURCE, 1)
    assert len(set(drawn(SOURCE, 0))) == 5


def test_faults_are_found_dead_and_alive(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    root = tmp_path / "root"
    for name, text in {"src/tiny/numbers.py": SOURCE, "tests/test_numbers.py": TESTS, "same.txt": EQUIVALENT}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    only = [f"numbers.py:{SOURCE.splitlines().index(line) + 1}" for line in ("    if a > b:", "    return a + 1")]
    command = [
        sys.executable, BENCHMARKS / "mutants.py", "--root", root, "--rooms", "src/tiny", "--tests", "tests",
        "--libraries", "--equivalent", root / "same.txt", "--work", tmp_path / "work", "--only", *only,
    ]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 1, first.stderr
    assert "| all | 6 | 1 | 1 | 4 |" in first.stdout and "score: 1 of 5 (20.0%)" in first.stdout
    assert "  - return a + 1\n  + return a - 1" in first.stdout
    assert (root / "src/tiny/numbers.py").read_text() == SOURCE

    (root / "tests/test_numbers.py").write_text(TESTS + MORE_TESTS)
    second = subprocess.run([*command, "--again"], capture_output=True, text=True, check=False)
    assert second.returncode == 0 and "| all | 6 | 5 | 1 | 0 |" in second.stdout, second.stdout
