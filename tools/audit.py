"""Ask pip-audit for known vulnerabilities of what is installed, and say plainly where it could not look.

pip-audit calls an environment clean when it could look nothing up: packages that its service does not answer for are
skipped. Here each package counts as looked up, vulnerable, or not audited. Exit status: 0 clean, 1 vulnerable, 2 nothing
could be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def main() -> int:
    options = ["--local", "--skip-editable", "--progress-spinner", "off", "--format", "json", *sys.argv[1:]]
    done = subprocess.run([sys.executable, "-m", "pip_audit", *options], capture_output=True, text=True)
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"NOT AUDITED: pip-audit could not run here ({words[:200]}).\nRun `make audit` where there is internet.")
        return 2
    status, text = judge(dependencies)
    print(text)
    return status


def judge(dependencies: list[dict[str, Any]]) -> tuple[int, str]:
    """Exit status and words for the dependencies that pip-audit reports."""
    found = [(package, hole) for package in dependencies for hole in package.get("vulns", [])]
    skipped = [package["name"] for package in dependencies if "skip_reason" in package]
    looked_up = len(dependencies) - len(skipped)
    if not looked_up:
        return 2, (
            f"NOT AUDITED: the vulnerability service answered for none of {len(dependencies)} packages. That is no clean "
            "result.\nRun `make audit` where there is internet."
        )
    lines = [f"not audited: {', '.join(skipped)}"] if skipped else []
    for package, hole in found:
        fixed = ", ".join(hole.get("fix_versions", [])) or "none yet"
        lines.append(f"{package['name']} {package['version']}: {hole['id']}, fixed in {fixed}")
    lines.append(f"{len(found)} known vulnerabilities in {looked_up} packages that were looked up.")
    return (1 if found else 0), "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
