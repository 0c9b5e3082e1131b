#!/bin/sh
# Linux and macOS: find a Python that fits, and let install.py do the rest. No network is used.
#   sh install.sh [--to FOLDER]        PYTHON=/path/to/python3.11 sh install.sh
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if ! read -r wanted < "$here/python-version.txt"; then
  echo "error: $here/python-version.txt is missing or empty: the bundle was not copied whole. Copy it again." >&2
  exit 2
fi
seen=
for python in ${PYTHON:+"$PYTHON"} "python$wanted" python3 python; do
  found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  if [ "$found" = "$wanted" ]; then
    exec "$python" -I "$here/install.py" "$@"
  fi
  seen="$seen $python is $found;"
done
echo "error: this bundle needs Python $wanted, which was not found (${seen:- there is no Python at all;} on the PATH)." >&2
echo "Install Python $wanted, or name one: PYTHON=/path/to/python$wanted sh install.sh" >&2
echo "Or have a bundle made with the Python that is here: make bundle PYTHON=python3.N in a fresh clone." >&2
exit 2
