#!/usr/bin/env python3
"""Stands in for programs that the snippets call and that cannot run in a test: clusters, registries
and the compiler. Each checks the arguments against the files of the clone, and runs the server where
the real program would. Called under the name of the program.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

TARGET = pathlib.Path(os.environ["DOCS_TARGET"])
TIDEGATE = TARGET / "debug" / "tidegate"


def fail(message):
    raise SystemExit(f"{pathlib.Path(sys.argv[0]).name} (stand-in): {message}")


def option(args, name):
    """Returns the value of an option, which is required."""
    for index, arg in enumerate(args):
        if arg == name and index + 1 < len(args):
            return args[index + 1]
        if arg.startswith(f"{name}="):
            return arg.split("=", 1)[1]
    fail(f"{name} is missing in {args}")


def package(name):
    """Returns the directory of a package of the workspace."""
    home = pathlib.Path("crates") / name
    if f'name = "{name}"' not in (home / "Cargo.toml").read_text():
        fail(f"no package {name}")
    return home


def cargo(args):
    """Replaces compiling by the programs that the tests have compiled."""
    subcommand = next(arg for arg in args if not arg.startswith("-"))
    if subcommand == "build":
        for profile in ("debug", "release"):
            place = TARGET / profile / "tidegate"
            place.parent.mkdir(exist_ok=True)
            if profile == "release":
                place.unlink(missing_ok=True)
                place.symlink_to(TIDEGATE)
        # The benchmarks build the server and read where it is.
        print(json.dumps({"reason": "compiler-artifact", "target": {"name": "tidegate"}, "executable": str(TIDEGATE)}))
    elif subcommand == "run":
        end = args.index("--")
        program = option(args[:end], "-p") if "-p" in args[:end] else "tidegate"
        os.execv(TARGET / "debug" / program, [program, *args[end + 1 :]])
    elif subcommand == "install":
        if "--path" not in args:
            time.sleep(600)  # A package of the registry takes minutes to compile.
        package(pathlib.Path(option(args, "--path")).name)
        home = pathlib.Path("~/.cargo/bin").expanduser()
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(TIDEGATE, home / "tidegate")
    elif subcommand == "test":
        cargo_test(args[1:])
    elif subcommand == "publish":
        # The step `deploy` makes the packages.
        package(option(args, "-p"))
    else:
        fail(f"unknown subcommand {subcommand}")


def cargo_test(args):
    """Checks that the package has tests with the name, which the other steps run."""
    home = package(option(args, "-p"))
    words = args[: args.index("--")] if "--" in args else args
    values = {option(words, name) for name in ("-p", "--features", "--test") if name in words}
    files = [*home.glob("src/**/*.rs"), *home.glob("tests/**/*.rs")]

    def is_named(part):
        return any(part in str(file) or f"fn {part}" in file.read_text() for file in files)

    for word in words:
        if word.startswith("-") or word in values:
            continue
        # A path such as `lease::random_histories` names a module and a function in it.
        if not all(is_named(part) for part in word.split("::")):
            fail(f"no test of {home} has {word} in its name")


def docker(args):
    """Checks the stage of the image, and runs the server with the environment of the image."""
    stages = pathlib.Path("deploy/docker/Dockerfile").read_text()
    if args[0] == "build":
        stages = pathlib.Path(option(args, "-f")).read_text()
        if "--target" in args and f" AS {option(args, '--target')}\n" not in stages:
            fail(f"the Dockerfile has no stage {option(args, '--target')}")
    elif args[0] == "run":
        image = stages[stages.rindex("\nFROM ") :]
        variables = dict(re.findall(r"(TIDEGATE_\w+)=(\S+)", re.search(r"^ENV (.*)$", image, re.M)[1]))
        for index, arg in enumerate(args):
            if arg == "-e" and "=" in args[index + 1]:
                name, value = args[index + 1].split("=", 1)
                variables[name] = value
        os.execve(TIDEGATE, ["tidegate", "serve"], {**os.environ, **variables})
    elif args[0] != "push":
        fail(f"unknown command {args[0]}")


def helm(args):
    """Checks that the image is the one in the manifest."""
    image = option(args, "--set").split("=", 1)[1]
    if image not in pathlib.Path("deploy/kubernetes/envoy-gateway/envoy-gateway-config.yaml").read_text():
        fail(f"the manifest has another image than {image}")


def validate(*manifests):
    """Checks manifests against the schemas of Kubernetes."""
    subprocess.run([TARGET / "deploy/venv/bin/kubernetes-validate", "--strict", "--quiet", *manifests], check=True)


def secret(values):
    """Checks a Secret with these values, and that the manifests use no other."""
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tidegate"}, "stringData": values}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(manifest, file)
        file.flush()
        validate(file.name)


def kubectl(args):
    match args:
        case ["create", "secret", "generic", "tidegate", *literals]:
            values = dict(literal.removeprefix("--from-literal=").split("=", 1) for literal in literals)
            example = pathlib.Path("deploy/kubernetes/example/secret.yaml").read_text()
            if set(values) != set(re.findall(r"^  ([a-z-]+): \S", example, re.M)) - {"name"}:
                fail(f"the manifests need other values than {sorted(values)}")
            secret(values)
        case ["patch", "secret", "tidegate", "-p", patch]:
            secret(json.loads(patch)["stringData"])
        case ["apply", "-f", directory]:
            validate(*sorted(pathlib.Path(directory).glob("*.yaml")))
        case ["rollout", "status", "deployment/envoy-ratelimit", *_] | ["logs", "deployment/envoy-ratelimit", *_]:
            pass
        case ["port-forward", "deployment/envoy-ratelimit", port, *_]:
            os.environ.update(DEBUG_PORT=port, DEBUG_HOST="127.0.0.1", RUNTIME_ROOT="examples", HOST="127.0.0.1",
                              GRPC_HOST="127.0.0.1", USE_STATSD="false")
            os.execv(TIDEGATE, ["tidegate", "serve", "--as-envoy-ratelimit"])
        case _:
            fail(f"unknown command {shlex.join(args)}")


def systemctl(args):
    """Checks the unit with systemd, and starts its command with its environment and credentials."""
    unit = pathlib.Path("/etc/systemd/system/tidegate.service")
    if args == ["daemon-reload"]:
        said = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True).stderr
        # The manual is installed elsewhere.
        said = [line for line in said.splitlines() if "man:" not in line and "man page" not in line]
        if said:
            fail("\n".join(said))
    elif args == ["enable", "--now", "tidegate"]:
        text = unit.read_text()
        credentials = pathlib.Path("/run/credentials/tidegate.service")
        credentials.mkdir(parents=True)
        for name, path in re.findall(r"^LoadCredential=([^:]+):(.*)$", text, re.M):
            shutil.copy(path, credentials / name)
        variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.M))
        variables = {name: value.replace("%d", str(credentials)) for name, value in variables.items()}
        command = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
        server = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
        # The first line is printed once all fronts listen.
        if not server.stdout.readline():
            fail("the command of the unit does not start")
    else:
        fail(f"unknown command {shlex.join(args)}")


globals()[pathlib.Path(sys.argv[0]).name](sys.argv[1:])
