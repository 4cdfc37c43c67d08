#!/usr/bin/env python3
"""The example for Kubernetes: check_deploy.py BINARY, with PyYAML. Its files refer to each other and to the server by names
that exist, and a demo server starts with the options that they give it."""

import pathlib
import sys

import yaml
from server import Server

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy/kubernetes"
TWO_GPUS = FOLDER.with_name("kubernetes-2gpu") / "kustomization.yaml"


def objects():
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    wanted = set(kustomization["resources"]) | {"kustomization.yaml"}
    for generator in kustomization["configMapGenerator"]:
        wanted |= set(generator["files"])
    assert wanted == {path.name for path in FOLDER.iterdir()}, "a file that is named nowhere, or that is missing"
    return kustomization, [document for name in kustomization["resources"]
                           for document in yaml.safe_load_all((FOLDER / name).read_text())]


def check_references(kustomization, everything):
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in everything}
    assert len(by_name) == len(everything), "two objects of one name"
    server = by_name["Deployment", "dsv4"]
    labels = server["spec"]["template"]["metadata"]["labels"]
    container = server["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    pool, route = by_name["InferencePool", "dsv4"], by_name["HTTPRoute", "dsv4"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": ports["http"]}]
    picker = by_name["Service", pool["spec"]["endpointPickerRef"]["name"]]
    assert picker["spec"]["ports"][0]["port"] == pool["spec"]["endpointPickerRef"]["port"]["number"]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == pool["metadata"]["name"]
    assert ("Gateway", route["spec"]["parentRefs"][0]["name"]) in by_name
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    deployment = by_name["Deployment", "dsv4-picker"]["spec"]["template"]["spec"]
    assert ("ServiceAccount", deployment["serviceAccountName"]) in by_name
    maps = {generator["name"] for generator in kustomization["configMapGenerator"]}
    assert deployment["volumes"][0]["configMap"]["name"] in maps
    config = yaml.safe_load((FOLDER / "picker-config.yaml").read_text())
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    assert {entry["pluginRef"] for entry in config["schedulingProfiles"][0]["plugins"]} <= plugins.keys()
    events = plugins["precise-prefix-cache-producer"]
    assert events["tokenProcessorConfig"]["blockSize"] == 128
    assert events["kvEventsConfig"]["podDiscoveryConfig"]["socketPort"] == ports["kv-events"]
    render = plugins["token-producer"]["vllm"]["url"].removeprefix("http://").split(":")
    assert by_name["Service", render[0]]["spec"]["ports"][0]["port"] == int(render[1])
    replicas = by_name["Service", "dsv4-replicas"]["spec"]
    assert replicas["clusterIP"] == "None" and replicas["selector"].items() <= labels.items()
    assert replicas["ports"][0]["targetPort"] in ports
    # Time to end: the gateway hears of it, running answers end, the process ends.
    options = dict(word.split("=", 1) for word in container["args"] if word.startswith("--") and "=" in word)
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > waits + int(options["--drain-s"])
    return container["args"]


def with_two_gpus(everything):
    """The arguments of the server after the patches of the overlay, as kustomize applies them."""
    overlay = yaml.safe_load(TWO_GPUS.read_text())
    assert [TWO_GPUS.parent.joinpath(name).resolve() for name in overlay["resources"]] == [FOLDER]
    [patch] = overlay["patches"]
    [server] = [one for one in everything if one["kind"] == patch["target"]["kind"] and
                one["metadata"]["name"] == patch["target"]["name"]]
    for change in yaml.safe_load(patch["patch"]):
        *path, last = [part.replace("~1", "/") for part in change["path"].split("/")[1:]]
        at = server
        for part in path:
            at = at[int(part) if isinstance(at, list) else part]
        last = int(last) if isinstance(at, list) else last
        if change["op"] == "test":
            assert at[last] == change["value"], change
        else:
            assert change["op"] == "replace" and at[last] != change["value"], change
            at[last] = change["value"]
    container = server["spec"]["template"]["spec"]["containers"][0]
    assert f"--gpus={container['resources']['limits']['nvidia.com/gpu']}" in container["args"]
    assert not any(word.startswith("--device") for word in container["args"])
    return container["args"]


def check_options(binary, words):
    """As they are, but for the model, the addresses and the folder of this machine."""
    here = {"--device": "cpu", "--gpus": "cpu,cpu", "--host": "127.0.0.1", "--admin-port": "0", "--kv-events": "tcp://127.0.0.1:*",
            "--kv-events-replay": "tcp://127.0.0.1:*"}
    options = []
    for word in words[2:]:
        name, sign, value = word.partition("=")
        if name not in ("--disk-cache", "--port"):
            options.append(f"{name}={here.get(name, value)}" if sign else name)
    server = Server(binary, *options)
    assert server.stop() == 0


def main():
    kustomization, everything = objects()
    check_options(sys.argv[1], check_references(kustomization, everything))
    check_options(sys.argv[1], with_two_gpus(everything))
    print("ok: the examples for Kubernetes")


if __name__ == "__main__":
    main()
