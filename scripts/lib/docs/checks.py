"""Checks of single snippets that are not shell commands, and what a page expects of its reader's
machine: files, servers, variables. Used by sessions.py, within the namespaces of a page.
"""

import gzip
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import yaml

TIMEOUT = 60


def run(*args, expect="", **options):
    """Runs a program to its end, and looks for a text in its output."""
    run = subprocess.run([str(arg) for arg in args], timeout=TIMEOUT, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if run.returncode or expect not in run.stdout:
        raise subprocess.SubprocessError(f"exit status {run.returncode}, expected {expect!r} in:\n{run.stdout}")


def directory():
    return pathlib.Path(tempfile.mkdtemp())


# What pages expect.


def recorded_files(session):
    """Small files under the names of the recorded ones, which are not in the repository."""
    for name, source in (("nasa-1995-08-01.log", "docs/tutorial/access.log"), ("zeek-dns.csv", "examples/traces/sample.csv")):
        with gzip.open(f"{name}.gz", "wt") as file:
            file.write(pathlib.Path(source).read_text())
    shutil.copy("examples/traces/sample.csv", "big.csv")


def operated_server(session):
    """The server of docs/operations.md, and the variables of its operator."""
    os.environ.update(TIDEGATE_ADMIN_TOKEN="", VALUE="sk_live_4eC39HqLyjWD", TIDEGATE_MASK_SECRET="0123456789abcdef" * 2)
    session.serve("unset TIDEGATE_ADMIN_TOKEN; tidegate serve --config examples/tidegate.yaml", (8080, 9090))


def resp_server(session):
    """The server of docs/resp.md with TLS under the name limiter.internal, and one without."""
    home = directory()
    names = "subjectAltName=DNS:limiter.internal"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=limiter.internal", "-addext", names, "-keyout", home / "server.key", "-out", home / "server.pem")
    with open("/etc/hosts", "a") as hosts:
        hosts.write("127.0.0.2 limiter.internal\n")
    config = yaml.safe_load(next(text for text in page_configs("docs/resp.md")))
    (home / "plain.yaml").write_text(yaml.safe_dump(config))
    tls = {"cert": str(home / "server.pem"), "key": str(home / "server.key")}
    (home / "tls.yaml").write_text(yaml.safe_dump({**config, "tls": {"resp": tls}}))
    token = "0123456789abcdef" * 4
    os.environ.update(TOKEN=token, SSL_CERT_FILE=str(home / "server.pem"))
    secure = f"TIDEGATE_TOKENS={token} tidegate serve --config {home}/tls.yaml --resp 127.0.0.2:6380 --http off --grpc off --admin off"
    plain = f"tidegate serve --config {home}/plain.yaml"
    session.serve(f"{secure} & {plain}", (6380, 8080))


def envoy_configs(session):
    """A config directory of envoyproxy/ratelimit."""
    home = pathlib.Path("/etc/ratelimit/config")
    home.mkdir(parents=True)
    limit = {"key": "remote_address", "rate_limit": {"unit": "second", "requests_per_unit": 10}}
    (home / "shop.yaml").write_text(yaml.safe_dump({"domain": "shop", "descriptors": [limit]}))


def without_network(session):
    """npm installs what it has stored, because the page has no network."""
    os.environ["npm_config_offline"] = "true"


PREPARE = {
    "docs/accuracy.md": recorded_files,
    "docs/benchmarks.md": recorded_files,
    "docs/envoy.md": envoy_configs,
    "docs/operations.md": operated_server,
    "docs/resp.md": resp_server,
    "examples/node-gateway/README.md": without_network,
}


def page_configs(page):
    from snippets import snippets

    return (text for _, _, language, text in snippets(pathlib.Path(page)) if language == "yaml")


# Snippets of other languages.


def redis_py(session, text):
    run(session.target / "resp/venv/bin/python", "-c", f"users = ['ann', 'ben']\n{text}\nprint(len(replies), limit)", expect="2 ")


def ioredis(session, text):
    script = f'const Redis = require("ioredis");\n(async () => {{\n{text}\nconsole.log("allowed", allowed);\nlimiter.disconnect();\n}})();'
    run("node", "-e", script, expect="allowed 1", env={**os.environ, "NODE_PATH": str(session.target / "resp/npm/node_modules")})


def rls_client(session, text):
    run(session.target / "envoy-client/bin/python", "-c", text, expect="overall_code: OK")


def nginx(session, text):
    """Lines of the contexts `http` and `location` in a whole config."""
    location = text.index("location")
    home = directory()
    (home / "nginx.conf").write_text(
        f"pid {home}/pid;\nevents {{}}\nhttp {{\n{text[:location]}\nserver {{\nlisten 127.0.0.1:8000;\n{text[location:]}\n}}\n}}\n"
    )
    run("nginx", "-t", "-e", "stderr", "-p", home, "-c", home / "nginx.conf", expect="test is successful")


def node(session, script, expect):
    """Runs a module with the packages of the other limiters, and with the client."""
    modules = session.target / "docs-node/node_modules"
    client = modules / "@tidegate/client"
    client.parent.mkdir(exist_ok=True)
    client.unlink(missing_ok=True)
    client.symlink_to(pathlib.Path("clients/typescript").resolve())
    file = session.target / "docs-node/snippet.mjs"
    file.write_text(script)
    run("node", file, expect=expect)


def express(session, text):
    node(session, f'''
import express from "express";
import {{ rateLimit }} from "express-rate-limit";
const app = express();
{text}
app.use((request, response) => response.send("ok"));
const server = app.listen(0, "127.0.0.1", async () => {{
  const statuses = [];
  for (let i = 0; i < 6; i++) statuses.push((await fetch(`http://127.0.0.1:${{server.address().port}}/login`)).status);
  console.log(statuses.join(" "));
  server.close();
}});
''', "200 200 200 200 200 429")


def upstash(session, text):
    """A server in place of the REST interface of Upstash answers every script with 9 remaining."""
    node(session, f'''
import {{ createServer }} from "node:http";
import {{ Ratelimit }} from "@upstash/ratelimit";
import {{ Redis }} from "@upstash/redis";
const server = createServer((request, response) => response.end('[{{"result":[9,10]}}]'));
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
process.env.UPSTASH_REDIS_REST_URL = `http://127.0.0.1:${{server.address().port}}`;
process.env.UPSTASH_REDIS_REST_TOKEN = "token";
const userId = "alice";
{text}
console.log(success, remaining);
process.exit();
''', "true 9")


def typescript_client(session, text):
    """The policy of the snippet before, with a server."""
    if not pathlib.Path("clients/typescript/dist").exists():
        run("npm", "run", "build", "--prefix", "clients/typescript")
    config = [text for text in page_configs(session.page) if "x-user" in text][0]
    file = directory() / "tidegate.yaml"
    file.write_text(config.replace("redis://cache.internal:6379", "memory"))
    session.serve(f"tidegate serve --config {file}", (8080,))
    node(session, f'''
const userId = "alice";
{text}
console.log("allowed", allowed, remaining, resetAfterMs > 0);
''', "allowed true 9 true")


def envoy(config):
    file = directory() / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))
    run("envoy", "--mode", "validate", "-c", file, expect="OK")


def connection_manager(config):
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def envoy_filters(session, text):
    """The filters in place of those of a complete config."""
    config = yaml.safe_load(pathlib.Path("examples/gateways/envoy/ratelimit-open.yaml").read_text())
    manager = connection_manager(config)
    manager["http_filters"] = [*yaml.safe_load(text)["http_filters"], manager["http_filters"][-1]]
    envoy(config)


def envoy_route(session, text):
    """The settings of a route in a complete config."""
    config = yaml.safe_load(pathlib.Path("examples/gateways/envoy/ratelimit-usage.yaml").read_text())
    route = connection_manager(config)["route_config"]["virtual_hosts"][0]["routes"][0]
    route.update(yaml.safe_load(text))
    envoy(config)


def kubernetes_validate(session, manifest):
    file = directory() / "manifest.json"
    file.write_text(json.dumps(manifest))
    run(session.target / "deploy/venv/bin/kubernetes-validate", "--strict", "--quiet", file)


def pod_variable(session, text):
    """A variable of the deployment."""
    deployment = yaml.safe_load(pathlib.Path("deploy/kubernetes/deployment.yaml").read_text())
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] += yaml.safe_load(text)
    kubernetes_validate(session, deployment)


def gateway_config(session, text):
    """A part of the shipped configuration of Envoy Gateway."""
    shipped = yaml.safe_load(pathlib.Path("deploy/kubernetes/envoy-gateway/envoy-gateway-config.yaml").read_text())
    shipped = yaml.safe_load(shipped["data"]["envoy-gateway.yaml"])
    if not contains(shipped, yaml.safe_load(text)):
        raise subprocess.SubprocessError(f"the shipped configuration differs: {shipped}")


def contains(whole, part):
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contains(whole.get(name), value) for name, value in part.items())
    return whole == part


def pod_container(session, text):
    """A container with variables that tidegate knows in the place of envoyproxy/ratelimit."""
    container = yaml.safe_load(text)["container"]
    pod = {"containers": [{"name": "envoy-ratelimit", **container}]}
    kubernetes_validate(session, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})
    known = pathlib.Path("docs/envoy.md").read_text()
    for variable in container["env"]:
        if f"| `{variable['name']}` |" not in known:
            raise subprocess.SubprocessError(f"docs/envoy.md does not list {variable['name']}")


def dependency(session, text):
    """A dependency on the clone, resolved by Cargo."""
    home = directory()
    (home / "src").mkdir()
    (home / "src/lib.rs").touch()
    shutil.copy("Cargo.lock", home)
    package = '[package]\nname = "user"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n[dependencies]\n'
    (home / "Cargo.toml").write_text(package + text.replace("CLONE", os.getcwd()))
    cargo = shutil.which("cargo", path=":".join(os.environ["PATH"].split(":")[1:]))
    run(cargo, "tree", "--offline", "--edges", "features", "--manifest-path", home / "Cargo.toml", expect='tidegate feature "axum"')


def unit_override(session, text):
    """Lines of a unit, which systemd reads."""
    unit = directory() / "tidegate.service"
    shipped = pathlib.Path("deploy/systemd/tidegate.service").read_text()
    unit.write_text(shipped.replace("[Install]", f"{text}\n[Install]"))
    run("systemd-analyze", "security", "--offline=true", "--no-pager", unit, expect="Overall exposure level")
