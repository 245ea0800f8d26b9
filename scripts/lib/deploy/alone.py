"""Runs the contents of the image as its user, without any other files.

Usage: alone.py ROOT

ROOT contains the binary, glibc and a config. Needs permission to chroot.
"""

import pathlib
import signal
import sys

from running import Running


def expect(what, seen, wanted):
    if seen != wanted:
        sys.exit(f"image: {what}: {seen}, not {wanted}")


def main():
    root = pathlib.Path(sys.argv[1])
    secrets = root / "run/secrets"
    secrets.mkdir(parents=True)
    for name in ("tokens", "admin-token"):
        (secrets / name).write_text(f"secret-of-{name}\n")
    environment = {
        # As in the Dockerfile, except for the ports, which may be in use.
        "TIDEGATE_HTTP": "0.0.0.0:0",
        "TIDEGATE_GRPC": "0.0.0.0:0",
        "TIDEGATE_RESP": "0.0.0.0:0",
        "TIDEGATE_ADMIN": "0.0.0.0:0",
        "TIDEGATE_CONFIG": "/etc/tidegate/tidegate.yaml",
        "TIDEGATE_TOKENS_FILE": "/run/secrets/tokens",
        "TIDEGATE_ADMIN_TOKEN_FILE": "/run/secrets/admin-token",
        "TIDEGATE_LOG_FORMAT": "json",
    }
    command = ["chroot", "--userspec=65532:65532", str(root), "/usr/bin/tidegate", "serve"]
    with Running(command, environment) as server:
        expect("/healthz", server.get("admin", "/healthz")[0], 200)
        expect("/readyz", server.get("admin", "/readyz")[0], 200)
        expect("a check without a secret", server.check(), 401)
        expect("a check", server.check("secret-of-tokens"), 200)
        expect("policies without a secret", server.get("admin", "/admin/v1/policies")[0], 401)
        policies = server.get("admin", "/admin/v1/policies", token="secret-of-admin-token")
        expect("policies", policies[0], 200)
        server.signal(signal.SIGTERM)
        expect("its end", server.ended(), 0)
    # The image in place of envoyproxy/ratelimit, as the user that Envoy Gateway sets.
    command = ["chroot", "--userspec=65534:65534", str(root), "/bin/ratelimit"]
    with Running(command, {"GRPC_PORT": "0", "RUNTIME_ROOT": "/data"}) as server:
        expect("/healthcheck", server.get("http", "/healthcheck"), (200, "OK"))
        expect("/rlconfig", server.get("admin", "/rlconfig")[0], 200)
        server.signal(signal.SIGTERM)
        expect("its end", server.ended(), 0)
    print("image: the binary and glibc alone serve, require secrets and end as expected")


main()
