#!/usr/bin/env bash
# Everything that a release consists of, made from the commit that is checked out (docs/adr/0029, docs/releases.md):
#
#   tools/release.sh OUT                 wheels, Debian packages, tarball, image, changes, SBOM, SHA256SUMS
#   tools/release.sh OUT --cuda BUILD    also dsv4-cuda and its image, and a second program in the wheel; these and the C
#                                        library are those of BUILD, a build of preset cuda
#   tools/release.sh OUT --twice         all of it twice, in two folders, and compares the bytes
#   tools/release.sh OUT --no-image      without images, which need root and Debian's archive
#
# The build is in build/release. Dates in files are that of the commit (SOURCE_DATE_EPOCH).

set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,10s/^# \{0,1\}//p' "$0"; }
out='' cuda='' twice=0 image=1
while [ $# -gt 0 ]; do
  case "$1" in
    --cuda) cuda=$(realpath "$2"); shift ;;
    --twice) twice=1 ;;
    --no-image) image=0 ;;
    --help) usage; exit 0 ;;
    -*) echo "release: no option $1; tools/release.sh --help" >&2; exit 2 ;;
    *) out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || { usage >&2; exit 2; }
say() { echo "release: $*" >&2; }
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  say "files differ from the commit; the packages will say commit+"
fi
[ -z "$cuda" ] || [ -x "$cuda/bin/dsv4" ] || { say "no program $cuda/bin/dsv4: build preset cuda first"; exit 1; }

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022
version=$(sed -n 's/^project(dsv4 VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
python=$PWD/build/venv-release/bin/python

make_venv() {
  cmp -s tools/release/requirements.txt build/venv-release/requirements.txt && return
  say "installing the tools for wheels from PyPI"
  python3 -m venv --clear build/venv-release
  "$python" -m pip install --quiet --disable-pip-version-check -r tools/release/requirements.txt ||
    { say "PyPI cannot be reached"; exit 77; }
  cp tools/release/requirements.txt build/venv-release/
}

# The paths of sources in messages are those inside the repository. Without ccache, whose setting base_dir would rewrite them
# before the compiler can map them.
compile() { # compile FOLDER
  cmake --preset cpu -B "$1" -DDSV4_TESTS=OFF -DDSV4_UNITY=ON -DDSV4_PACKAGES=ON \
    -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$PWD/$1/= -ffile-prefix-map=$PWD/=" \
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,-z,relro,-z,now" -DCMAKE_SHARED_LINKER_FLAGS="-Wl,-z,relro,-z,now"
  CCACHE_DISABLE=1 cmake --build "$1"
}

# The program and the C library, stripped, below a folder; with --cuda also its program, and its C library in place of ours.
stage() { # stage BUILD FOLDER
  rm -rf "$2"
  local component
  for component in program kernels; do
    cmake --install "$1" --component "$component" --prefix "$2" --strip
  done
  [ -z "$cuda" ] && return
  strip -o "$2/lib/libdsv4_kernels.so" "$cuda/lib/libdsv4_kernels.so"
  strip -o "$2/bin/dsv4-cuda" "$cuda/bin/dsv4"
}

debian_package() { # debian_package BUILD NAME OUT
  # Folders of CPack and dpkg-shlibdeps; a program of another build replaces ours there.
  DSV4_CUDA_BUILD=$cuda cpack --config "$1/CPack-$2.cmake" -B "$1/cpack-$2"
  cp "$1/cpack-$2/"*.deb "$3"
}

kernels_wheel() { # kernels_wheel BUILD OUT
  rm -rf "$1/kernels-wheel"
  CXXFLAGS="-ffile-prefix-map=$PWD/$1/= -ffile-prefix-map=$PWD/=" PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$python" -m pip wheel ./python --quiet --no-deps --no-build-isolation --wheel-dir "$1/kernels-wheel/raw" -C build-dir="$PWD/$1/kernels-wheel/build" \
    -C cmake.define.DSV4_KERNELS_LIBRARY="$PWD/$1/stage/lib/libdsv4_kernels.so"
  "$python" tools/release/wheels.py kernels "$1/kernels-wheel/raw" "$2"
}

release() { # release BUILD OUT
  local build=$1 out=$2 package
  mkdir -p "$out" "$build"
  if find "$out" -mindepth 1 -maxdepth 1 ! -name '*dsv4*' ! -name SHA256SUMS ! -name CHANGELOG.md | grep -q .; then
    say "$out holds files that no release has: name an empty folder"
    exit 1
  fi
  find "$out" -mindepth 1 -maxdepth 1 -type f -delete
  say "compiling, log in $build.log"
  compile "$build" >"$build.log" 2>&1 || { tail -n 30 "$build.log" >&2; exit 1; }
  say "Debian packages"
  for package in dsv4 libdsv4-dev ${cuda:+dsv4-cuda}; do
    debian_package "$build" "$package" "$out" >>"$build.log" 2>&1 || { tail -n 30 "$build.log" >&2; exit 1; }
  done
  say "wheels and tarball"
  stage "$build" "$build/stage" >>"$build.log"
  "$python" tools/release/wheels.py program "$build/stage" "$out"
  kernels_wheel "$build" "$out"
  [ $image -eq 0 ] || for package in dsv4 ${cuda:+dsv4-cuda}; do
    say "image of $package"
    tools/release/image_root.sh "$out/${package}_$version-1_amd64.deb" "$build/image-root.tar" 2>>"$build.log"
    "$python" tools/release/oci_image.py "$package" "$build/image-root.tar" "$out/$package-$version-oci.tar"
  done
  cp CHANGELOG.md "$out/"
  tools/release/source_tarball.sh HEAD "$out/dsv4-$version-source.tar.gz"
  rm -rf "$build/tarball" && mkdir "$build/tarball"
  tar -xzf "$out/dsv4-$version-linux-x86_64.tar.gz" -C "$build/tarball" --strip-components=1
  "$python" tools/release/sbom.py write "$out" "$(git rev-parse HEAD)" "$build/tarball"
  (cd "$out" && sha256sum -- * >.sums && mv .sums SHA256SUMS)
}

tools/setup.sh release
mkdir -p build "$out"
make_venv
release build/release "$out"
if [ $twice -eq 1 ]; then
  # Another folder, and nothing of the first build.
  say "once more"
  rm -rf build/release-again
  release build/release-again build/release-again.out
  if ! diff "$out/SHA256SUMS" build/release-again.out/SHA256SUMS; then
    say "two builds of one commit differ in the files above"
    exit 1
  fi
  say "both builds gave the same bytes"
fi
(cd "$out" && ls -lh | awk 'NR > 1 {print $5, $9}')
