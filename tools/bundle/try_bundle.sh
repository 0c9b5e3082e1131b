#!/bin/sh
# Install a bundle and use it in a new, empty home with the network cut off. Linux only; needs unshare (util-linux).
#   sh tools/bundle/try_bundle.sh [BUNDLE [EMPTY_FOLDER]]
set -eu
if [ "${1:-}" != --cut-off ]; then
  bundle=$(cd -- "${1:-bundle}" && pwd)
  place=${2:-$(mktemp -d)}
  mkdir -p "$place/home"
  exec unshare --map-root-user --net env -i PATH="$PATH" HOME="$place/home" LANG=C.UTF-8 \
    OMP_NUM_THREADS="${OMP_NUM_THREADS:-}" sh "$0" --cut-off "$bundle" "$place"
fi
bundle=$2
place=$3
cd "$place"
if python3 -c 'import socket; socket.create_connection(("192.0.2.1", 80), 3)' 2>/dev/null || [ "$(tail -n +3 /proc/net/dev | grep -vc ' lo:')" != 0 ]
then
  echo "error: this is not cut off from the network" >&2
  exit 1
fi
echo "== no network but $(tail -n +3 /proc/net/dev | tr -d ' ' | cut -d: -f1); home $HOME is empty"
echo "== install"
sh "$bundle/install.sh" --to "$place/anomalyncd"
program=$place/anomalyncd/bin/anomalyncd
echo "== demo with the embedded backbone"
"$program" demo --out demo --images-per-class 6 --quiet
echo "== predict with that run"
"$program" predict demo/run demo/line/images --maps demo/line/maps --out new.csv --quiet
echo "== what was not bundled is told in words"
"$program" weights fetch dinov2_vits14_reg4 && exit 1
echo "== all of it worked without a network, in $place"
