#!/usr/bin/env bash
# Installs and runs what tools/release.sh has made: tools/check_release.sh OUT. Needs root, Debian's archive and PyPI.
#
#   sums, SBOM, lintian, auditwheel; a C program built against libdsv4-dev and the tarball, by CMake and pkg-config; the tests of the Python package on the installed wheel; and on clean roots of Debian 12 and Ubuntu 24.04 each of
#   Debian package, tarball, wheel, once the image (tools/release/check_packages.py)
#
# The roots are made once, in build/roots. Exit status 77, with the reason on the last line: Debian's archive or PyPI
# cannot be reached, or this is not root. The last line otherwise: "N passed, N failed".

set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -ne 1 ] || [ ! -d "$1" ]; then
  echo "usage: tools/check_release.sh OUT, a folder that tools/release.sh has made" >&2
  exit 2
fi
out=$(realpath "$1")
[ "$(id -u)" -eq 0 ] || { echo "clean roots need root"; exit 77; }
tools/setup.sh release
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
check() { # check NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$scratch/log" 2>&1; then
    passed=$((passed + 1))
    echo "ok     $name"
  else
    failed=$((failed + 1))
    echo "FAILED $name"
    tail -n 20 "$scratch/log"
  fi
}

# What Ubuntu signs its archive with, as its keyring names it; Debian 12 has no package of it.
ubuntu_key=F6ECB3762474EDA9D21B7022871920D1991BC93C
ubuntu_keyring=http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb

# The clean root of a release as a tar file, with apt's lists: make_root SUITE SOURCE...
make_root() {
  local suite=$1
  [ -s "build/roots/$suite.tar" ] && return
  shift
  mkdir -p build/roots
  echo "check_release: making the root of $suite" >&2
  mmdebstrap --quiet --variant=minbase --format=tar --skip=cleanup/apt/lists "$suite" "build/roots/$suite.part" "$@" >&2 &&
    mv "build/roots/$suite.part" "build/roots/$suite.tar"
}

make_ubuntu() {
  local keys=$PWD/build/roots/ubuntu.gpg ring=$scratch/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [ ! -s "$keys" ]; then
    mkdir -p "$scratch/keys" build/roots
    curl --fail --silent --max-time 60 "$ubuntu_keyring" >"$scratch/keys.deb" || return
    dpkg-deb -x "$scratch/keys.deb" "$scratch/keys"
    # The key of this release only, so that a changed keyring cannot bring another.
    GNUPGHOME=$scratch gpg --quiet --no-default-keyring --keyring "$ring" --export "$ubuntu_key" >"$scratch/one.gpg"
    [ -s "$scratch/one.gpg" ] || return
    mv "$scratch/one.gpg" "$keys"
  fi
  # Ubuntu's apt is not among the packages that its minbase takes.
  make_root noble --include=apt "deb [signed-by=$keys] http://archive.ubuntu.com/ubuntu noble main universe"
}

cat >"$scratch/main.c" <<'C'
#include <dsv4_kernels.h>
#include <stdio.h>
int main(void) { return puts(dsv4_version()) < 0; }
C
cat >"$scratch/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(dsv4 REQUIRED)
add_executable(consumer main.c)
target_link_libraries(consumer PRIVATE dsv4::kernels)
C

check_consumer() { # check_consumer PREFIX: both ways to link print the version of the release
  local prefix=$1 version by_cmake by_pkg_config
  version=$(sed -n 's/^project(dsv4 VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
  cmake -S "$scratch" -B "$scratch/consumer" --fresh -DCMAKE_PREFIX_PATH="$prefix" || return
  cmake --build "$scratch/consumer" || return
  by_cmake=$(LD_LIBRARY_PATH=$prefix/lib "$scratch/consumer/consumer")
  local flags
  read -ra flags <<<"$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs dsv4-kernels)"
  gcc "$scratch/main.c" "${flags[@]}" -o "$scratch/linked" || return
  by_pkg_config=$(LD_LIBRARY_PATH=$prefix/lib "$scratch/linked")
  echo "$by_cmake $by_pkg_config, want $version"
  [ "$by_cmake $by_pkg_config" = "$version $version" ]
}

# The tag in a wheel's name is one that auditwheel grants.
check_tag() {
  local tag
  tag=$(basename "$1" .whl | sed 's/.*-//')
  build/venv-release/bin/auditwheel show "$1" | tr -d '\n' | grep -F "\"$tag\""
}

check_python_wheel() {
  rm -rf build/venv-kernels
  python3 -m venv build/venv-kernels || return
  local tests=$PWD/python/tests python=$PWD/build/venv-kernels/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check -r python/tests/requirements.txt "$1" || return
  # From elsewhere, so that the sources of the package are not found.
  (cd "$scratch" && PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "$python" -m pytest -q -p no:cacheprovider "$tests")
}

cmp -s tools/release/requirements.txt build/venv-release/requirements.txt ||
  { echo "no build/venv-release: tools/release.sh makes it from PyPI"; exit 77; }
check "SHA256SUMS" sh -c "cd '$out' && sha256sum --check --strict --quiet SHA256SUMS"
check "every file has a sum" diff <(sed 's/^[0-9a-f]*  //' "$out/SHA256SUMS") <(cd "$out" && LC_ALL=C ls -I SHA256SUMS)
check "SBOM, our rules" python3 tools/release/sbom.py check "$out"/*.spdx.json
check "SBOM, spdx-tools" build/venv-release/bin/pyspdxtools -i "$out"/*.spdx.json
for package in "$out"/*.deb; do
  check "lintian $(basename "$package")" lintian --allow-root --fail-on error "$package"
done
for wheel in "$out"/*.whl; do
  check "tag of $(basename "$wheel")" check_tag "$wheel"
done
mkdir "$scratch/dev" "$scratch/tarball"
dpkg-deb -x "$out"/libdsv4-dev_*.deb "$scratch/dev"
tar -xzf "$out"/dsv4-*-linux-x86_64.tar.gz -C "$scratch/tarball" --strip-components=1
check "C program with libdsv4-dev" check_consumer "$scratch/dev/usr"
check "C program with the tarball" check_consumer "$scratch/tarball"
check "tests of the Python package on its wheel" check_python_wheel "$out"/dsv4_kernels-*.whl

roots=()
make_root bookworm || { echo "Debian's archive cannot be reached"; exit 77; }
roots+=("bookworm=build/roots/bookworm.tar")
if make_ubuntu; then
  roots+=("noble=build/roots/noble.tar")
else
  echo "skipped: Ubuntu 24.04 (its archive or its key cannot be had)"
fi
python3 tools/release/check_packages.py "$out" "${roots[@]}" | tee "$scratch/packages" || true
passed=$((passed + $(grep -c '^ok ' "$scratch/packages" || true)))
failed=$((failed + $(grep -c '^FAILED ' "$scratch/packages" || true)))
tail -n 1 "$scratch/packages" | grep -q 'passed' || failed=$((failed + 1))  # it broke off
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
