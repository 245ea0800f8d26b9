"""Checks that the files under deploy/ agree with each other and with the program.

Usage: consistent.py BINARY

Schemas check the structure; this checks that names match: ports, paths, keys, users, versions.
"""

import pathlib
import re
import subprocess
import sys
import tomllib

import yaml

DEPLOY = pathlib.Path("deploy")
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = DEPLOY / "docker/compose.yaml"
DOCKERFILE = DEPLOY / "docker/Dockerfile"
UNIT = DEPLOY / "systemd/tidegate.service"
ENVOY_GATEWAY = KUBERNETES / "envoy-gateway/envoy-gateway-config.yaml"

# Each front may drain this long (DRAIN_TIMEOUT and CLOSE_TIMEOUT of the server).
DRAIN_SECONDS = 2 * (20 + 1)

mistakes = []


def expect(holds, what):
    if not holds:
        mistakes.append(what)


def equal(what, one, other):
    expect(one == other, f"{what}: {one!r} and {other!r} differ")


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kinds():
    """Returns all manifests by kind and name."""
    paths = [*KUBERNETES.glob("*.yaml"), *KUBERNETES.glob("example/*.yaml")]
    found = [document for path in paths for document in documents(path)]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def check_pod(all_kinds):
    deployment = all_kinds["Deployment", "tidegate"]["spec"]
    template = deployment["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    [container] = pod["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    equal("Deployment: selector and labels", deployment["selector"]["matchLabels"], labels)

    # The profile `restricted` of the Pod Security Standards, and a read-only root file system.
    security, inner = pod["securityContext"], container["securityContext"]
    expect(security["runAsNonRoot"] is True and security["runAsUser"] > 0, "pod: runs as root")
    equal("pod: seccompProfile", security["seccompProfile"], {"type": "RuntimeDefault"})
    equal("pod: capabilities", inner["capabilities"], {"drop": ["ALL"]})
    expect(inner["allowPrivilegeEscalation"] is False, "pod: allowPrivilegeEscalation")
    expect(inner["readOnlyRootFilesystem"] is True, "pod: readOnlyRootFilesystem")
    expect(pod["automountServiceAccountToken"] is False, "pod: a service account's token is mounted")
    expect(not pod.get("hostNetwork"), "pod: hostNetwork")

    for probe, path in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]:
        equal(f"pod: {probe}", container[probe]["httpGet"], {"path": path, "port": "admin"})
    for front in ("http", "grpc", "resp", "admin"):
        name = f"TIDEGATE_{front.upper()}"
        equal(f"pod: {name} and its port", environment[name], f"0.0.0.0:{ports[front]}")
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod["terminationGracePeriodSeconds"]
    expect(grace >= pause + DRAIN_SECONDS, f"pod: {grace} s are too few to drain")
    expect({"cpu", "memory"} <= set(container["resources"]["requests"]), "pod: requests")
    expect("memory" in container["resources"]["limits"], "pod: limits")

    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    files = set()
    for mount in container["volumeMounts"]:
        expect("subPath" not in mount, "pod: with subPath a changed config never arrives")
        volume = volumes[mount["name"]]
        if "configMap" in volume:
            keys = all_kinds["ConfigMap", volume["configMap"]["name"]]["data"]
        else:
            keys = all_kinds["Secret", volume["secret"]["secretName"]]["stringData"]
        files |= {f"{mount['mountPath']}/{key}" for key in keys}
    named = {value for name, value in environment.items() if name == "TIDEGATE_CONFIG" or name.endswith("_FILE")}
    equal("pod: files that are named and files that are mounted", named, files)
    expect({"TIDEGATE_TOKENS_FILE", "TIDEGATE_ADMIN_TOKEN_FILE"} <= set(environment), "pod: secrets")
    return container, environment, ports, labels, security


def check_around_pod(all_kinds, ports, labels):
    for (kind, name), manifest in all_kinds.items():
        if kind == "Service":
            equal(f"Service {name}: selector", manifest["spec"]["selector"], labels)
            for port in manifest["spec"]["ports"]:
                equal(f"Service {name}: port", port["port"], ports.get(port["targetPort"]))
    budget = all_kinds["PodDisruptionBudget", "tidegate"]["spec"]
    equal("PodDisruptionBudget: selector", budget["selector"]["matchLabels"], labels)


def check_compose(ports):
    [compose] = documents(COMPOSE)
    here = COMPOSE.parent
    for name, service in compose["services"].items():
        equal(f"compose, {name}: cap_drop", service["cap_drop"], ["ALL"])
        expect(service["read_only"], f"compose, {name}: a root that can be written")
        for port in service["ports"]:
            expect(port.startswith("127.0.0.1:"), f"compose, {name}: {port} is open to others")
        for source in (volume.split(":")[0] for volume in service["volumes"]):
            there = (here / source).is_dir() if source.startswith(".") else source in compose["volumes"]
            expect(there, f"compose, {name}: {source} is not there")
    service = compose["services"]["tidegate"]
    build = service["build"]
    expect((here / build["context"] / build["dockerfile"]).samefile(DOCKERFILE), "compose: build")
    published = {int(port.split(":")[-1]) for port in service["ports"]}
    equal("compose: published ports and those of the image", published, set(ports.values()))
    environment = service["environment"]
    named = {value for name, value in environment.items() if name.endswith("_FILE")}
    equal("compose: secrets", named, {f"/run/secrets/{secret}" for secret in service["secrets"]})
    equal("compose: secrets have sources", set(service["secrets"]), set(compose["secrets"]))
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"])
    [(source, target)] = mounts.items()
    config = pathlib.Path(environment["TIDEGATE_CONFIG"])
    equal("compose: where the config is", str(config.parent), target)
    expect((here / source / config.name).is_file(), f"compose: {config.name} is not there")
    grace = int(service["stop_grace_period"].removesuffix("s"))
    expect(grace >= DRAIN_SECONDS, f"compose: {grace} s are too few to drain")
    return environment


def dockerfile_stages():
    """Returns the steps of each stage by its name, after those of the stage that it begins with."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M)
    stages = {}
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("FROM "):
            base, _, name = line.removeprefix("FROM ").partition(" AS ")
            stages[name] = [*stages.get(base, [["FROM", base]])]
        elif line.strip():
            stages[name].append(line.split(None, 1))
    return stages


def check_dockerfile(ports, security, rust):
    stages = dockerfile_stages()
    final = dict(stages[""])
    build = stages["build"][0][1]
    expect(build.startswith(f"rust:{rust}-"), f"Dockerfile: {build} is not Rust {rust}")
    debian = {"bookworm": "debian12", "trixie": "debian13"}[build.rsplit("-", 1)[1]]
    expect(debian in final["FROM"], f"Dockerfile: {build} and {final['FROM']} have different glibcs")
    expect("RUN" not in final, "Dockerfile: there is no shell to RUN with in the last stage")
    equal("Dockerfile: USER", final["USER"], f"{security['runAsUser']}:{security['runAsGroup']}")
    equal("Dockerfile: EXPOSE", set(map(int, final["EXPOSE"].split())), set(ports.values()))
    expect(final["ENTRYPOINT"].startswith("["), "Dockerfile: ENTRYPOINT needs a shell")
    sent = {line[1:] for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split() if line[0] == "!"}
    for step, rest in (step for steps in stages.values() for step in steps):
        if step == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                expect(pathlib.Path(source).exists(), f"Dockerfile: {source} is not there")
                expect(source in sent, f"Dockerfile: {source} is ignored")
    return dict(pair.split("=", 1) for pair in final["ENV"].split())


def check_envoy_gateway(version):
    """Checks the image that Envoy Gateway starts as /bin/ratelimit, and the manifest that names it."""
    stage = dict(dockerfile_stages()["ratelimit"])
    equal("Dockerfile, ratelimit: COPY", stage["COPY"], "--from=build /tidegate /bin/ratelimit")
    equal("Dockerfile, ratelimit: EXPOSE", stage["EXPOSE"], "8080 8081 6070 19001")
    expect("ENV" not in stage, "Dockerfile, ratelimit: variables of tidegate override those of the deployment")
    [manifest] = documents(ENVOY_GATEWAY)
    config = yaml.safe_load(manifest["data"]["envoy-gateway.yaml"])
    image = config["provider"]["kubernetes"]["rateLimitDeployment"]["container"]["image"]
    equal("Envoy Gateway: version", image.rsplit(":", 1)[1], version)


def check_variables(binary, places):
    """Checks that the server knows every variable."""
    help_text = subprocess.run([binary, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    for place, names in places.items():
        for name in names:
            expect(re.search(rf"\b{name}\b", help_text), f"{place}: the server knows no {name}")


def main():
    binary = sys.argv[1]
    package = tomllib.loads(pathlib.Path("Cargo.toml").read_text())["workspace"]["package"]
    all_kinds = kinds()
    container, environment, ports, labels, security = check_pod(all_kinds)
    check_around_pod(all_kinds, ports, labels)
    equal("Deployment: version", container["image"].rsplit(":", 1)[1], package["version"])
    compose = check_compose(ports)
    image = check_dockerfile(ports, security, package["rust-version"])
    equal("fronts of image and pod", image, {name: environment[name] for name in image})
    check_envoy_gateway(package["version"])
    unit = UNIT.read_text()
    stop = int(re.search(r"^TimeoutStopSec=(\d+)s$", unit, re.M).group(1))
    expect(stop >= DRAIN_SECONDS, f"unit: {stop} s are too few to drain")
    set_in_unit = re.findall(r"^(?:# +)?Environment=(.*)$", unit, re.M)
    in_unit = [pair.split("=")[0] for line in set_in_unit for pair in line.split()]
    check_variables(binary, {"image": image, "compose": compose, "pod": environment, "unit": in_unit})
    if mistakes:
        sys.exit("\n".join(mistakes))
    print(f"deploy: {len(all_kinds)} manifests, compose, image and unit agree")


main()
