#!/usr/bin/env bash
# Installs the Debian 12 packages that dsv4 needs, only those that are missing.
#
#   tools/setup.sh          packages for building and running
#   tools/setup.sh check    also packages for ./check (tools/check_python.sh installs three Python packages itself)
#   tools/setup.sh clang    also packages for ./check --sanitize, --fuzz and --tidy
#   tools/setup.sh release  also what makes and checks packages, for tools/release.sh and ./check --release
#   tools/setup.sh serve    also Chromium and Caddy, for ./check --serve (350 MB)

set -euo pipefail

build=(g++ cmake ninja-build pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev libpcre2-dev libssl-dev libboost1.81-dev libxxhash-dev libedit-dev libcurl4-openssl-dev libzmq3-dev ccache \
  esbuild node-markdown-it node-dompurify node-highlight.js libjs-katex)  # the last line: the chat page (docs/adr/0026)
check=(curl help2man libgtest-dev libbenchmark-dev clang-format-14 python3 python3-dev python3-venv git haproxy nginx-light openmpi-bin)
clang=(clang-14 clang-tidy-14 libclang-rt-14-dev libomp-14-dev)

release=(dpkg-dev file lintian mmdebstrap gpg umoci bubblewrap)
serve=(chromium fonts-dejavu-core caddy)

case "${1:-build}" in
  build) want=("${build[@]}") ;;
  check) want=("${build[@]}" "${check[@]}") ;;
  clang) want=("${build[@]}" "${check[@]}" "${clang[@]}") ;;
  release) want=("${build[@]}" "${check[@]}" "${release[@]}") ;;
  serve) want=("${build[@]}" "${check[@]}" "${serve[@]}") ;;
  *) echo "usage: tools/setup.sh [build|check|clang|release|serve]" >&2; exit 2 ;;
esac

missing=()
for package in "${want[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null; then
  as_root=(sudo)
else
  echo "setup: missing packages, and neither root nor sudo to install them: ${missing[*]}" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
# nginx, Caddy and HAProxy are programs that a test starts, not services of this machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod +x "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for service in nginx caddy haproxy; do
  [[ " ${missing[*]} " == *" $service"* ]] && command -v systemctl >/dev/null &&
    "${as_root[@]}" systemctl disable "$service" >/dev/null 2>&1
done
exit 0
