#!/usr/bin/env python3
"""The documents that Debian's policy wants of a package, in FOLDER/PACKAGE: copyright, changelog.gz and
changelog.Debian.gz, made from LICENSE's name, CHANGELOG.md and the date SOURCE_DATE_EPOCH.

Usage: debian_documents.py PACKAGE FOLDER. Prints nothing."""

import email.utils
import gzip
import os
import pathlib
import sys

from project import ROOT, maintainer, version

COPYRIGHT = f"""Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: dsv4

Files: *
Copyright: 2026 {maintainer()}
License: Apache-2.0
 On Debian systems, the license is in /usr/share/common-licenses/Apache-2.0.
"""
CHANGELOG = """{package} ({version}-1) stable; urgency=medium

  * Release {version}; its changes are in changelog.gz.

 -- {maintainer}  {date}
"""


def write_compressed(path, text):
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main():
    package, folder = sys.argv[1], pathlib.Path(sys.argv[2]) / sys.argv[1]
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "copyright").write_text(COPYRIGHT)
    date = email.utils.formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    write_compressed(folder / "changelog.Debian.gz",
                     CHANGELOG.format(package=package, version=version(), maintainer=maintainer(), date=date))
    write_compressed(folder / "changelog.gz", (ROOT / "CHANGELOG.md").read_text())


if __name__ == "__main__":
    main()
