"""Checks that the gateway examples do not change other sites of the same nginx or Caddy.

    gateways.py PROGRAMS

PROGRAMS is a directory with nginx and caddy. nginx reads the content of the `http` block as it would
be in /etc/nginx/conf.d, beside another site.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

EXAMPLES = pathlib.Path("examples/gateways")
LEFT_OUT = "Leave these lines out in production"
MAIN = """pid {home}/pid;
error_log stderr;
events {{}}
http {{
    include {home}/conf.d/*.conf;
    server {{ listen 127.0.0.1:9555; }}
}}
"""
TIMEOUT_SECONDS = 60


def run(*command):
    done = subprocess.run(command, text=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def production_part(config):
    """Returns the content of the `http` block without the paragraph that is marked to be left out."""
    content = re.search(r"^http \{\n(.*)^\}", config, re.MULTILINE | re.DOTALL)[1]
    kept = [paragraph for paragraph in content.split("\n\n") if LEFT_OUT not in paragraph]
    assert len(kept) == len(content.split("\n\n")) - 1, "one paragraph is left out"
    return "\n\n".join(kept)


def shared_directives(content):
    """Returns the directives that apply to all sites: those outside of blocks with their own name or address."""
    depth, found = 0, []
    for line in content.splitlines():
        line = re.sub(r"#.*|'[^']*'", "", line).strip()
        if depth == 0 and line and line != "}" and not line.startswith(("upstream ", "server ")):
            found.append(line)
        depth += line.count("{") - line.count("}")
    return found


def check_nginx(nginx, example):
    content = production_part(example.read_text())
    if found := shared_directives(content):
        raise SystemExit(f"{example}: would apply to every site of nginx: {found}")
    with tempfile.TemporaryDirectory() as home:
        (pathlib.Path(home) / "conf.d").mkdir()
        (pathlib.Path(home) / "conf.d/tidegate.conf").write_text(content)
        (pathlib.Path(home) / "nginx.conf").write_text(MAIN.format(home=home))
        run(nginx, "-t", "-q", "-e", "stderr", "-p", home, "-c", f"{home}/nginx.conf")


def check_caddy(caddy, example):
    with tempfile.NamedTemporaryFile("w", suffix=".Caddyfile") as file:
        file.write(example.read_text() + '\nhttp://:9555 {\n\trespond "another site"\n}\n')
        file.flush()
        adapted = json.loads(run(caddy, "adapt", "--config", file.name, "--adapter", "caddyfile"))
    servers = {server["listen"][0]: server for server in adapted["apps"]["http"]["servers"].values()}
    if "max_header_bytes" not in servers["127.0.0.1:8000"]:
        raise SystemExit(f"{example}: the size of headers is not limited")
    if "max_header_bytes" in servers[":9555"]:
        raise SystemExit(f"{example}: limits the headers of every site of Caddy")


def main():
    programs = pathlib.Path(sys.argv[1])
    for fails in ("closed", "open"):
        check_nginx(programs / "nginx", EXAMPLES / f"nginx/{fails}.conf")
        check_caddy(programs / "caddy", EXAMPLES / f"caddy/{fails}.Caddyfile")
    print("the gateway examples do not change other sites")


if __name__ == "__main__":
    main()
