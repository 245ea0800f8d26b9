"""Lists every fenced snippet of the documentation, and what runs it.

`docs-rust` runs Rust and `docs-commands` the commands of console blocks. This script checks configs
with `tidegate config check --strict`, and the syntax of JSON, Python and shell. Every other snippet
needs an entry in OTHERS: sessions.py runs it as the entry says, or a test that the entry names does.
A snippet without an entry fails, and so does an entry without a snippet, and an indented snippet.

    snippets.py TIDEGATE
"""

import ast
import json
import pathlib
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass

PAGES = ["README.md", "docs/*.md", "crates/*/README.md", "clients/*/README.md", "examples/**/README.md"]
TIMEOUT_SECONDS = 60

# Fields that only tidegate's config has at its top level, for snippets without policies.
SETTINGS = ("policies", "store", "headers", "trusted_proxies", "tls")
POLICIES = "policies: [{ name: example, key: all, limits: 1 per 1s }]\n"



@dataclass(frozen=True)
class Run:
    """Runs to its end in a shell, with exit status 0."""


@dataclass(frozen=True)
class Serve:
    """Runs until it is interrupted; the ports answer. Another such snippet of the page ends it."""

    ports: tuple = (8080, 9090)


@dataclass(frozen=True)
class Bounded:
    """Each line is a command that takes long or never ends: it runs for some seconds."""

    seconds: float = 1


@dataclass(frozen=True)
class Shown:
    """Output of the snippet before: its lines appear there in this order."""


@dataclass(frozen=True)
class Checked:
    """A function of checks.py runs it, or gives it to the program that reads it."""

    function: str


DOCTESTS = "the documentation tests of the crate that includes the page"
FIGURE = "a figure or a grammar, not a command"
OTHER_PRODUCT = "the page names it as the code of another product, which cannot be installed here"

# (page, language, start of the first line) -> what runs the snippet.
OTHERS = {
    ("README.md", "sh", "cargo run --release -- serve"): Serve(),
    ("README.md", "sh", "cargo run --release -- simulate"): Bounded(),
    ("README.md", "sh", "./scripts/test"): "this script is a part of it",
    ("clients/python/README.md", "python", ""): "clients/python/tests/test_readme.py",
    ("clients/typescript/README.md", "js", ""): "clients/typescript/tests/readme.test.ts",
    ("crates/tidegate-client/README.md", "rust no_run", ""): DOCTESTS,
    ("crates/tidegate-server/README.md", "sh", "cargo install"): Serve(),
    ("docs/accuracy.md", "sh", "tidegate simulate"): Run(),
    ("docs/benchmarks.md", "sh", "cargo run --release -p tidegate-bench"): Bounded(),
    ("docs/benchmarks.md", "sh", "cargo run --release -- replay big.csv"): Run(),
    ("docs/client-identity.md", "text", "X-Forwarded-For"): FIGURE,
    ("docs/clients.md", "rust", ""): DOCTESTS,
    ("docs/clients.md", "rust no_run", ""): DOCTESTS,
    ("docs/clients.md", "sh", "cargo build"): "the step `clients` runs them, in a virtual environment",
    ("docs/deploy.md", "ini", "[Service]"): Checked("unit_override"),
    ("docs/deploy.md", "sh", "docker build"): Serve(),
    ("docs/deploy.md", "sh", ""): Run(),
    ("docs/envoy.md", "python", "# pip install grpcio"): Checked("rls_client"),
    ("docs/envoy.md", "sh", "tidegate serve --envoy-config"): Serve((8081,)),
    ("docs/envoy.md", "sh", "tidegate config convert"): Run(),
    ("docs/envoy.md", "yaml", "http_filters:"): Checked("envoy_filters"),
    ("docs/envoy.md", "yaml", "typed_per_filter_config:"): Checked("envoy_route"),
    ("docs/envoy-gateway.md", "sh", "docker build"): Run(),
    ("docs/envoy-gateway.md", "sh", "helm"): Run(),
    ("docs/envoy-gateway.md", "sh", "kubectl"): Run(),
    ("docs/envoy-gateway.md", "yaml", "provider:"): Checked("gateway_config"),
    ("docs/envoy-gateway.md", "yaml", "container:"): Checked("pod_container"),
    ("docs/http-api.md", "sh", "curl"): "tests/it/http/documented_commands.rs",
    ("docs/http-api.md", "json", "{"): "tests/it/http/documented_commands.rs",
    ("docs/kubernetes.md", "sh", "kubectl"): Run(),
    ("docs/kubernetes.md", "yaml", "- name: TIDEGATE_STORE_FILE"): Checked("pod_variable"),
    ("docs/limits.md", "text", "N per DURATION"): FIGURE,
    ("docs/migration.md", "nginx", ""): Checked("nginx"),
    ("docs/migration.md", "js", ""): Checked("express"),
    ("docs/migration.md", "java", ""): OTHER_PRODUCT,
    ("docs/migration.md", "ts", "const ratelimit"): Checked("upstash"),
    ("docs/migration.md", "ts", "import { Client }"): Checked("typescript_client"),
    ("docs/migration.md", "yaml", "plugins:"): OTHER_PRODUCT,
    ("docs/operations.md", "sh", "curl -N"): Bounded(),
    ("docs/operations.md", "sh", ""): Run(),
    ("docs/operations.md", "text", ""): FIGURE,
    ("docs/proof.md", "sh", "cargo test"): Bounded(),
    ("docs/redis.md", "sh", "redis-server"): "tests/it/shared_store/documented_setup.rs",
    ("docs/redis.md", "text", "ACL SETUSER"): "tests/it/redis/connect.rs of the library compares it with its rules",
    ("docs/redis.md", "text", ""): FIGURE,
    ("docs/resp.md", "console", ""): "tests/it/resp/clients runs every redis-cli line",
    ("docs/resp.md", "js", ""): Checked("ioredis"),
    ("docs/resp.md", "python", ""): Checked("redis_py"),
    ("docs/resp.md", "sh", "redis-cli -u rediss"): Run(),
    ("docs/server.md", "sh", "tidegate serve"): Serve(),
    ("docs/server.md", "text", "tidegate 0.1.0"): Shown(),
    ("docs/server.md", "text", "error: the limit on open files"): "tests/it/serve/file_limits.rs",
    ("docs/tower.md", "rust", ""): DOCTESTS,
    ("docs/tower.md", "toml", "tidegate ="): Checked("dependency"),
    ("docs/tutorial.md", "json", ""): Shown(),
    ("docs/tutorial.md", "sh", "cp docs/tutorial/tidegate.yaml"): Serve(),
    ("docs/tutorial.md", "sh", "tidegate serve"): Serve((8080, 9090, 3000, 8000)),
    ("docs/tutorial.md", "sh", ""): Run(),
    ("docs/tutorial.md", "text", ""): Shown(),
    ("examples/gateways/README.md", "sh", "tidegate serve"): Serve((8080, 3000, 8000)),
    ("examples/gateways/README.md", "sh", "for i in"): Run(),
    ("examples/node-gateway/README.md", "sh", "npm ci"): Serve((8080, 8000)),
    ("examples/traces/README.md", "sh", "examples/traces/make-sample"): "docs-commands compares the sample",
}

# A `$ ` line that docs-commands runs.
RUN_COMMAND = re.compile(r"\$ (tidegate |cargo run --release -- |curl |.*\| tidegate )")


def pages():
    """Returns the pages of the documentation."""
    found = {page for pattern in PAGES for page in pathlib.Path().glob(pattern)}
    return sorted(page for page in found if "node_modules" not in page.parts)


def snippets(page):
    """Returns the fenced snippets of a page: line, fence, language and text."""
    found, fence, previous = [], None, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r" *(```|~~~)(.*)$", line)
        if fence is None and mark:
            fence = (mark[1], number, mark[2].strip(), [])
        elif fence and mark and mark[1] == fence[0]:
            # A snippet in a list is indented.
            found.append((fence[1], fence[0], fence[2], textwrap.dedent("\n".join(fence[3]) + "\n")))
            fence = None
        elif fence:
            fence[3].append(line)
        elif re.match(r"(?: {4}|\t)\S", line) and not previous.strip():
            raise SystemExit(f"{page}:{number}: use a fence and a language: no test finds an indented snippet")
        previous = line
    if fence:
        raise SystemExit(f"{page}:{fence[1]}: this fence is not closed")
    return found


def entry_of(page, language, text):
    """Returns the key in OTHERS for a snippet, if it has one."""
    first = text.lstrip().split("\n", 1)[0]
    for key in OTHERS:
        if key[:2] == (page, language) and first.startswith(key[2]):
            return key
    return None


def as_config(text):
    """Returns a snippet of a config as a whole config; None if it is something else."""
    fields = re.findall(r"^([a-z_]+):", text, re.MULTILINE)
    if text.startswith("- name:"):
        return "policies:\n" + text
    if not any(field in SETTINGS for field in fields):
        return None
    return text if "policies" in fields else text + POLICIES


def config_error(tidegate, text):
    """Returns the errors and warnings of a config. Its TLS files do not exist here, so it is checked without them."""
    text = re.sub(r"^tls:\n(  .*\n)*", "", text, flags=re.MULTILINE)
    command = [tidegate, "config", "check", "--strict", "/dev/stdin"]
    run = subprocess.run(command, input=text, text=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    return run.stderr if run.returncode else ""


def syntax_error(language, text):
    """Returns the syntax error of a JSON, Python or shell snippet; None for another language."""
    try:
        if language == "json":
            # One value, or one per line.
            for value in [text] if text.startswith("{\n") else text.splitlines():
                json.loads(value)
        elif language == "python":
            compile(text, "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif language == "sh":
            run = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, timeout=TIMEOUT_SECONDS)
            return run.stderr
        else:
            return None
    except (ValueError, SyntaxError) as error:
        return str(error)
    return ""


def problem(tidegate, page, fence, language, text):
    """Returns what is wrong with a snippet that has no entry in OTHERS."""
    kind = language.split(" ")[0].split(",")[0]
    # The steps that run Rust and commands look for this fence in these pages.
    is_run = fence == "```" and page.startswith(("README.md", "docs/", "crates/"))
    if kind == "rust" and is_run:
        return ""
    if kind in ("json", "python"):
        return syntax_error(kind, text)
    if language == "console" and is_run:
        commands = [line for line in text.splitlines() if line.startswith("$ ")]
        unknown = [line for line in commands if not RUN_COMMAND.match(line)]
        if not commands or unknown:
            return f"docs-commands does not run {unknown or 'it: it has no command'}"
        return ""
    if kind == "yaml" and (config := as_config(text)):
        return config_error(tidegate, config)
    return "nothing runs or checks it"


def main():
    tidegate = sys.argv[1]
    failed, count, used = False, 0, set()
    for page in pages():
        for line, fence, language, text in snippets(page):
            count += 1
            if key := entry_of(str(page), language, text):
                used.add(key)
                found = syntax_error(language, text)
            else:
                found = problem(tidegate, str(page), fence, language, text)
            if found:
                print(f"{page}:{line}: {language or 'a snippet without a language'}: {found}", file=sys.stderr)
                failed = True
    for key in OTHERS.keys() - used:
        print(f"scripts/lib/docs/snippets.py: no snippet has {key}", file=sys.stderr)
        failed = True
    if failed:
        print("add it to OTHERS in scripts/lib/docs/snippets.py, with how to run it", file=sys.stderr)
        raise SystemExit(1)
    print(f"{count} snippets in {len(pages())} pages: each is run or checked")


if __name__ == "__main__":
    main()
