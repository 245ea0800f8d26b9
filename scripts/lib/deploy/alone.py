"""Runs what the image would hold, as its user, with nothing else in sight.

Usage: alone.py ROOT

ROOT has the binary, glibc and a config. Needs the right to chroot.
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
        # As in the Dockerfile, but for the ports, which may be taken.
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
    print("image: the binary and glibc alone serve, ask for secrets and end as they should")


main()
