#!/usr/bin/env bash
# The documentation as a site, in build/site: strict, so that a broken link, a missing anchor or a page outside of the
# navigation (mkdocs.yml) is an error. Exit status 77, with the reason on the last line: PyPI cannot be reached.

set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/venv-site packages="mkdocs==1.6.1 mkdocs-material==9.8.2"
if [ "$(cat "$venv/packages" 2>/dev/null)" != "$packages" ]; then
  mkdir -p build
  # Unquoted: a list.
  if ! { python3 -m venv --clear "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check $packages; } \
      >build/venv-site.log 2>&1; then
    echo "mkdocs is not to be had from PyPI, see build/venv-site.log"
    exit 77
  fi
  echo "$packages" >"$venv/packages"
fi
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --clean --strict --quiet
pages=$(find build/site -name '*.html' | wc -l)
# The search index has every page, and nothing is loaded from elsewhere.
indexed=$(python3 -c "import json; docs = json.load(open('build/site/search/search_index.json'))['docs']
print(len({one['location'].split('#')[0] for one in docs}))")
outside=$(grep -rlE '<(script|link|img)[^>]*(src|href)="https?://' build/site --include='*.html' | head -n 3 || true)
[ -z "$outside" ] || { echo "check_site: loaded from elsewhere: $outside"; exit 1; }
echo "check_site: $pages pages in build/site, $indexed in its search"
[ "$indexed" -ge $((pages - 1)) ]  # not 404.html
