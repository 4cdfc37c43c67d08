#!/usr/bin/env python3
"""An OCI image of one layer from a root file system: oci_image.py NAME ROOT.tar OUT.tar

NAME is dsv4, or dsv4-cuda for a program that uses NVIDIA's driver: containers have no driver of their own, so its image asks
the container toolkit of NVIDIA for all GPUs and for the library that CUDA programs load.
The image runs `dsv4 serve demo` as the user dsv4 of the root's /etc/passwd and has a health check, which is Docker's
extension of the configuration and the reason why umoci does not make this image (docs/adr/0029). OUT.tar is an image
layout (index.json, blobs by SHA-256) that `podman load`, `docker load` and `skopeo copy oci-archive:OUT.tar` read. All
dates are SOURCE_DATE_EPOCH."""

import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile

from project import SUMMARY, version

# Bash speaks TCP, so the image needs no curl.
HEALTH = ("exec 3<>/dev/tcp/127.0.0.1/8000 && printf 'GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3"
          " && head -n 1 <&3 | grep -q ' 200 '")
MEDIA = "application/vnd.oci.image"
SETTINGS = {"dsv4": [], "dsv4-cuda": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]}


def user_of(root, name):
    """"999:999", as numbers, which Kubernetes can compare with root's."""
    with tarfile.open(root) as tar:
        lines = tar.extractfile("./etc/passwd").read().decode().splitlines()
    fields = next(line.split(":") for line in lines if line.startswith(name + ":"))
    return f"{fields[2]}:{fields[3]}"


def configuration(name, root, diff_id, created):
    nanoseconds = 10**9
    return {
        "created": created, "architecture": "amd64", "os": "linux",
        "config": {
            "User": user_of(root, "dsv4"), "ExposedPorts": {"8000/tcp": {}}, "StopSignal": "SIGTERM",
            "Env": ["PATH=/usr/bin:/bin", "HOME=/var/cache/dsv4", "HF_HOME=/var/cache/dsv4/huggingface",
                    *SETTINGS[name]],
            "Volumes": {"/var/cache/dsv4": {}}, "WorkingDir": "/var/cache/dsv4",
            "Entrypoint": ["dsv4"], "Cmd": ["serve", "demo", "--host", "0.0.0.0"],
            "Labels": {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version(),
                       "org.opencontainers.image.description": SUMMARY, "org.opencontainers.image.licenses": "Apache-2.0"},
            "Healthcheck": {"Test": ["CMD", "bash", "-c", HEALTH], "Interval": 30 * nanoseconds, "Timeout": 5 * nanoseconds,
                            "StartPeriod": 60 * nanoseconds, "Retries": 3}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
        "history": [{"created": created, "created_by": "tools/release.sh"}]}


class Layout:
    """The files of the layout, by name."""

    def __init__(self):
        self.files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}

    def add(self, data, media):
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    def add_json(self, value, media):
        return self.add(json.dumps(value, sort_keys=True).encode(), media)

    def write(self, path, date):
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for name in sorted(self.files):
                entry = tarfile.TarInfo(name)
                entry.size, entry.mtime, entry.mode = len(self.files[name]), date, 0o644
                tar.addfile(entry, io.BytesIO(self.files[name]))


def main():
    name, root, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    date = int(os.environ["SOURCE_DATE_EPOCH"])
    created = datetime.datetime.fromtimestamp(date, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    data, layout = root.read_bytes(), Layout()
    layer = layout.add(gzip.compress(data, mtime=0), f"{MEDIA}.layer.v1.tar+gzip")
    config = layout.add_json(configuration(name, root, hashlib.sha256(data).hexdigest(), created), f"{MEDIA}.config.v1+json")
    manifest = layout.add_json({"schemaVersion": 2, "mediaType": f"{MEDIA}.manifest.v1+json", "config": config,
                                "layers": [layer]}, f"{MEDIA}.manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version(),
                               "io.containerd.image.name": f"docker.io/library/{name}:{version()}"}
    index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [manifest]}
    layout.files["index.json"] = json.dumps(index, sort_keys=True).encode()
    layout.write(out, date)


if __name__ == "__main__":
    main()
