#!/usr/bin/env python3
"""The list of what a release is made of, as SPDX 2.3 in JSON.

  sbom.py write OUT COMMIT TREE      OUT/dsv4-VERSION.spdx.json: every other file of OUT with its SHA-256; the Debian
                                     packages whose shared libraries lie in TREE/lib/dsv4 (the wheel and the tarball
                                     bring them); the Debian packages that are compiled in
  sbom.py check FILE                 the rules of SPDX that this document can break; prints what is wrong

Versions are those of the machine that builds. The image has also what dpkg lists in it."""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

from project import maintainer, version

# Debian's packages of tools/setup.sh that become part of the program: libraries of headers, a static library, and the
# chat page's scripts (docs/adr/0026).
COMPILED_IN = {"libboost1.81-dev": "BSL-1.0", "libcli11-dev": "BSD-3-Clause", "libfmt-dev": "MIT", "libhwy-dev": "Apache-2.0",
               "libxxhash-dev": "BSD-2-Clause", "nlohmann-json3-dev": "MIT", "libgcc-12-dev": "GPL-3.0-or-later WITH GCC-exception-3.1",
               "libjs-katex": "MIT", "fonts-katex": "MIT", "node-markdown-it": "MIT",
               "node-dompurify": "MPL-2.0 OR Apache-2.0", "node-highlight.js": "BSD-3-Clause"}
ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")


def debian_version(package):
    return subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True,
                          check=True).stdout


def package_of_library(path):
    """libssl-1a2b3c4d.so.3, as auditwheel names it, or libssl.so.3: the Debian package that has this library."""
    name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", path.name)
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    # auditwheel takes the full version of a link's target: libssl.so.3 may have become libssl.so.3.0.1.
    names = [line.split()[-1] for line in listed.splitlines() if "x86-64" in line]
    found = [one for one in names if pathlib.Path(one).name == name or pathlib.Path(one).resolve().name == name]
    if not found:
        raise SystemExit(f"sbom: no library {name} on this machine, from which {path} was made")
    real = pathlib.Path(found[0]).resolve()
    for place in (real, str(real).replace("/usr/lib/", "/lib/", 1)):
        owner = subprocess.run(["dpkg", "-S", place], capture_output=True, text=True)
        if owner.returncode == 0:
            return owner.stdout.split(":")[0]
    raise SystemExit(f"sbom: {real} belongs to no Debian package")


def debian_entry(package, declared, relation):
    number = debian_version(package)
    ident = "SPDXRef-debian-" + re.sub(r"[^A-Za-z0-9.-]", "-", package)
    entry = {"SPDXID": ident, "name": package, "versionInfo": number, "downloadLocation": "NOASSERTION",
             "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": declared,
             "copyrightText": "NOASSERTION", "supplier": "Organization: Debian",
             "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                               "referenceLocator": f"pkg:deb/debian/{package}@{number}?arch=amd64"}]}
    return entry, {"spdxElementId": "SPDXRef-dsv4", "relationshipType": relation, "relatedSpdxElement": ident}


def file_entry(path):
    data = path.read_bytes()
    ident = "SPDXRef-file-" + re.sub(r"[^A-Za-z0-9.-]", "-", path.name)
    entry = {"SPDXID": ident, "fileName": f"./{path.name}", "licenseConcluded": "NOASSERTION",
             "copyrightText": "NOASSERTION",
             "checksums": [{"algorithm": name, "checksumValue": hashlib.new(name, data).hexdigest()}
                           for name in ("SHA1", "SHA256")]}
    return entry, {"spdxElementId": ident, "relationshipType": "GENERATED_FROM", "relatedSpdxElement": "SPDXRef-dsv4"}


def document(out, commit, tree):
    created = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    engine = {"SPDXID": "SPDXRef-dsv4", "name": "dsv4", "versionInfo": version(), "downloadLocation": "NOASSERTION",
              "filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
              "copyrightText": "NOASSERTION", "sourceInfo": f"git commit {commit}"}
    bundled = sorted({package_of_library(path) for path in (tree / "lib/dsv4").glob("*.so*")})
    parts = [debian_entry(package, "NOASSERTION", "DYNAMIC_LINK") for package in bundled]
    parts += [debian_entry(package, declared, "CONTAINS") for package, declared in COMPILED_IN.items()]
    files = [file_entry(path) for path in sorted(out.iterdir()) if path.is_file() and not path.name.endswith(".spdx.json")]
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"dsv4-{version()}",
            "documentNamespace": f"https://spdx.org/spdxdocs/dsv4-{version()}-{commit}",
            "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
                             "creators": [f"Organization: {maintainer().split(' <')[0]}", "Tool: tools/release/sbom.py"]},
            "packages": [engine] + [entry for entry, _ in parts], "files": [entry for entry, _ in files],
            "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                               "relatedSpdxElement": "SPDXRef-dsv4"}] + [relation for _, relation in parts + files]}


def faults(sbom):
    """What is wrong with a document, one line each."""
    found = [f"{key} is {sbom.get(key)!r}, want {want!r}" for key, want in
             {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT"}.items()
             if sbom.get(key) != want]
    created = sbom.get("creationInfo", {}).get("created", "")
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created):
        found.append(f"creationInfo.created is {created!r}, want a time as 2026-01-31T00:00:00Z")
    elements = sbom.get("packages", []) + sbom.get("files", [])
    idents = [one.get("SPDXID", "") for one in elements] + ["SPDXRef-DOCUMENT"]
    found += [f"{ident!r} is no identifier of SPDX" for ident in idents if not ID.fullmatch(ident)]
    found += [f"{ident} occurs twice" for ident in sorted(set(idents)) if idents.count(ident) > 1]
    for relation in sbom.get("relationships", []):
        found += [f"a relationship names {relation[end]}, which is not there"
                  for end in ("spdxElementId", "relatedSpdxElement") if relation[end] not in idents]
    related = {relation["relatedSpdxElement"] for relation in sbom.get("relationships", [])}
    related |= {relation["spdxElementId"] for relation in sbom.get("relationships", [])}
    found += [f"{ident} has no relationship" for ident in idents if ident not in related]
    for one in sbom.get("packages", []):
        found += [f"package {one.get('name')} has no {key}" for key in ("name", "versionInfo", "downloadLocation")
                  if not one.get(key)]
    for one in sbom.get("files", []):
        sums = {each["algorithm"]: each["checksumValue"] for each in one.get("checksums", [])}
        if not re.fullmatch(r"[0-9a-f]{40}", sums.get("SHA1", "")) or not re.fullmatch(r"[0-9a-f]{64}", sums.get("SHA256", "")):
            found.append(f"file {one.get('fileName')} has not both SHA1 and SHA256")
    return found


def main():
    if sys.argv[1] == "check":
        found = faults(json.loads(pathlib.Path(sys.argv[2]).read_text()))
        print("\n".join(found) or "ok")
        return 1 if found else 0
    out, commit, tree = pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
    path = out / f"dsv4-{version()}.spdx.json"
    path.write_text(json.dumps(document(out, commit, tree), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
