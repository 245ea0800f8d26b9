"""Checks that no dependency of the libraries declares a newer Rust than the libraries do.

Usage: msrv.py RUST_VERSION CRATE...

Every feature and every platform counts; development dependencies do not, because users of the
crates do not build them.
"""

import json
import subprocess
import sys


def number(version):
    """A version as numbers that can be compared; patch releases do not matter."""
    return tuple(int(part) for part in version.split(".")[:2])


def dependencies(metadata, crates):
    """The packages that a build of `crates` needs."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    own = {packages[member]["name"]: member for member in metadata["workspace_members"]}
    waiting, found = [own[crate] for crate in crates], set()
    while waiting:
        package = waiting.pop()
        if package not in found:
            found.add(package)
            needed = (
                dependency["pkg"]
                for dependency in nodes[package]["deps"]
                if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
            )
            waiting.extend(needed)
    return [packages[package] for package in found]


msrv, *crates = sys.argv[1:]
command = ["cargo", "metadata", "--locked", "--all-features", "--format-version=1"]
metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
needed = dependencies(metadata, crates)
newer = [
    f"{package['name']} {package['version']} declares Rust {package['rust_version']}"
    for package in needed
    if package["rust_version"] and number(package["rust_version"]) > number(msrv)
]
if newer:
    print(f"rust-version is {msrv}, but:", *sorted(newer), sep="\n  ", file=sys.stderr)
    sys.exit(1)
print(f"{len(needed)} packages, none of which declares a newer Rust than {msrv}")
