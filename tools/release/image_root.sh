#!/usr/bin/env bash
# The root file system of an image: Debian 12's essential packages and the package dsv4 or dsv4-cuda with what it needs,
# without documents and translations: tools/release/image_root.sh DSV4.deb OUT.tar. From deb.debian.org, or from DSV4_MIRROR.

set -euo pipefail
package=$(realpath "$1") out=$2
export SOURCE_DATE_EPOCH
needs=$(dpkg-deb -f "$package" Depends Recommends | sed 's/^[A-Z][a-z]*: //; s/([^)]*)//g; s/|[^,]*//g; s/ //g' | paste -sd,)
mmdebstrap --quiet --variant=essential --include="$needs,ca-certificates" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' \
  --customize-hook="cp '$package' \"\$1/opt/dsv4.deb\"" --customize-hook='chroot "$1" dpkg --install /opt/dsv4.deb' \
  --customize-hook='rm "$1/opt/dsv4.deb" && install -d "$1/var/cache/dsv4"' \
  --customize-hook='chroot "$1" chown dsv4:dsv4 /var/cache/dsv4' \
  bookworm "$out" ${DSV4_MIRROR:+"$DSV4_MIRROR"}
