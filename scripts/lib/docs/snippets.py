"""Checks that something runs or checks every fenced snippet of the documentation.

`docs-rust` runs Rust and `docs-commands` the commands of console blocks. This script checks configs
with `tidegate config check --strict`, and the syntax of JSON, Python and shell. Every other snippet
needs an entry in OTHERS, which names the test that runs it or the reason why none does. A snippet
without an entry fails, and so does an entry without a snippet.

    snippets.py TIDEGATE
"""

import ast
import json
import pathlib
import re
import subprocess
import sys

PAGES = ["README.md", "docs/*.md", "crates/*/README.md", "clients/*/README.md", "examples/**/README.md"]
TIMEOUT_SECONDS = 60

# Fields that only tidegate's config has at its top level, for snippets without policies.
SETTINGS = ("policies", "store", "headers", "trusted_proxies", "tls")
POLICIES = "policies: [{ name: example, key: all, limits: 1 per 1s }]\n"

DOCTESTS = "the documentation tests of the crate that includes the page"
BENCHMARKS = "not run: they take minutes; crates/tidegate-bench/tests/cli.rs runs inprocess, pauses and http"
CLUSTER = "not run: needs a cluster; scripts/lib/deploy.sh checks the manifests"
FOREIGN = "not run: the code or config of another limiter"
OUTPUT = "not run: output or a grammar, shown for reading"
ENVOY = "not run as written: an excerpt; tests/it/gateways/envoy_ratelimit.rs runs the complete files"
TUTORIAL = "not run as written: fixed ports, two terminals; tests/it/serve/reload.rs, tests/it/gateways/nginx.rs"

# (page, language, start of the first line) -> what runs the snippet, or why nothing does.
OTHERS = {
    ("README.md", "sh", "cargo run --release -- serve"): "docs-commands starts it, on free ports",
    ("README.md", "sh", "./scripts/test"): "this script",
    ("clients/python/README.md", "python", ""): "clients/python/tests/test_readme.py",
    ("clients/typescript/README.md", "js", ""): "clients/typescript/tests/readme.test.ts",
    ("crates/tidegate-client/README.md", "rust no_run", ""): DOCTESTS,
    ("crates/tidegate-server/README.md", "sh", "cargo install"): "not run: the crates are not published yet",
    ("docs/accuracy.md", "text", "tidegate simulate"): "not run: the recorded files are not in the repository",
    ("docs/benchmarks.md", "sh", "cargo run --release -p tidegate-bench"): BENCHMARKS,
    ("docs/benchmarks.md", "sh", "cargo run --release -- replay big.csv"): BENCHMARKS,
    ("docs/client-identity.md", "text", "X-Forwarded-For"): OUTPUT,
    ("docs/clients.md", "rust", ""): DOCTESTS,
    ("docs/clients.md", "rust no_run", ""): DOCTESTS,
    ("docs/clients.md", "sh", "cargo build"): "the step `clients` runs them, in a virtual environment",
    ("docs/envoy.md", "sh", "tidegate serve --envoy-config"): "tests/it/envoy_config.rs serves and converts such files",
    ("docs/envoy.md", "sh", "grpcurl"): "not run: needs grpcurl; tests/it/grpc sends the same calls",
    ("docs/envoy.md", "yaml", "http_filters:"): ENVOY,
    ("docs/envoy.md", "yaml", "typed_per_filter_config:"): ENVOY,
    ("docs/envoy-gateway.md", "sh", "docker build"): "not run: needs Docker; scripts/lib/deploy.sh checks the Dockerfile",
    ("docs/envoy-gateway.md", "sh", "helm"): CLUSTER,
    ("docs/envoy-gateway.md", "sh", "kubectl"): CLUSTER,
    ("docs/envoy-gateway.md", "yaml", "provider:"): CLUSTER,
    ("docs/envoy-gateway.md", "yaml", "container:"): "not run: needs a cluster; tests/it/xds/envoy_gateway.rs sets such variables",
    ("docs/http-api.md", "sh", "curl"): "tests/it/http/documented_commands.rs",
    ("docs/http-api.md", "json", "{"): "tests/it/http/documented_commands.rs",
    ("docs/kubernetes.md", "sh", "kubectl"): CLUSTER,
    ("docs/kubernetes.md", "yaml", "- name: TIDEGATE_STORE_FILE"): CLUSTER,
    ("docs/limits.md", "text", "N per DURATION"): OUTPUT,
    ("docs/migration.md", "nginx", ""): FOREIGN,
    ("docs/migration.md", "js", ""): FOREIGN,
    ("docs/migration.md", "java", ""): FOREIGN,
    ("docs/migration.md", "ts", "const ratelimit"): FOREIGN,
    ("docs/migration.md", "ts", "const answer"): "not run as written: an excerpt; clients/typescript/tests/readme.test.ts",
    ("docs/migration.md", "yaml", "plugins:"): FOREIGN,
    ("docs/proof.md", "sh", "cargo test"): "the steps `tests`, `faults` and `loom` run these tests, with other options",
    ("docs/redis.md", "sh", "redis-server"): "tests/it/shared_store/documented_setup.rs",
    ("docs/redis.md", "text", ""): OUTPUT,
    ("docs/resp.md", "console", ""): "tests/it/resp/clients runs every redis-cli line",
    ("docs/resp.md", "js", ""): "not run as written: an excerpt; tests/it/resp/clients/ioredis.cjs",
    ("docs/resp.md", "sh", "redis-cli -u rediss"): "not run: needs a certificate; tests/it/resp connects with TLS",
    ("docs/server.md", "sh", "tidegate serve"): "docs-commands starts it, on free ports",
    ("docs/server.md", "text", "tidegate 0.1.0"): "tests/it/serve/startup.rs asserts a text of this form",
    ("docs/server.md", "text", "error: the limit on open files"): "tests/it/serve/file_limits.rs",
    ("docs/tower.md", "rust", ""): DOCTESTS,
    ("docs/tower.md", "toml", "tidegate ="): "not run: the dependency of examples/rust, which the tests build",
    ("docs/tutorial.md", "sh", ""): TUTORIAL,
    ("docs/tutorial.md", "text", ""): TUTORIAL,
    ("examples/node-gateway/README.md", "sh", "npm ci"): "not run as written: the step `clients` installs and tests it",
    ("examples/traces/README.md", "sh", "examples/traces/make-sample"): "docs-commands compares the sample",
}

# A `$ ` line that docs-commands runs.
RUN_COMMAND = re.compile(r"\$ (tidegate |cargo run --release -- |curl |.*\| tidegate )")


def snippets(page):
    """Returns the fenced snippets of a page: line, fence, language and text."""
    found, fence = [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r" *(```|~~~)(.*)$", line)
        if fence is None and mark:
            fence = (mark[1], number, mark[2].strip(), [])
        elif fence and mark and mark[1] == fence[0]:
            found.append((fence[1], fence[0], fence[2], "\n".join(fence[3]) + "\n"))
            fence = None
        elif fence:
            fence[3].append(line)
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
    if text.startswith("  - name:"):
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
    pages = sorted({page for pattern in PAGES for page in pathlib.Path().glob(pattern)})
    for page in pages:
        if "node_modules" in page.parts:
            continue
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
        print("run it in a test, or add it to OTHERS in scripts/lib/docs/snippets.py with what does", file=sys.stderr)
        raise SystemExit(1)
    print(f"{count} snippets in {len(pages)} pages: each is run or checked, or says why not")


main()
