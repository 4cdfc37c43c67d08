#!/usr/bin/env bash
# The sources of a commit, by git alone: tools/release/source_tarball.sh COMMIT OUT.tar.gz

set -euo pipefail
name=$(basename "$2" .tar.gz)
git archive --format=tar --prefix="$name/" "$1" | gzip -9n >"$2"
