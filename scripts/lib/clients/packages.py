"""Checks what the client packages contain: licences, types, README, and nothing unexpected.

Usage: packages.py DIRECTORY

DIRECTORY holds one wheel, one sdist and one npm package.
"""

import email
import json
import pathlib
import sys
import tarfile
import tomllib
import zipfile

LICENCES = {"LICENSE-APACHE", "LICENSE-MIT"}
WORKSPACE = tomllib.loads(pathlib.Path("Cargo.toml").read_text())["workspace"]["package"]
mistakes = []


def expect(holds, mistake):
    if not holds:
        mistakes.append(mistake)


def only(pattern):
    """The one file of that name, and its contents by path below the first directory of a tarball."""
    [path] = pathlib.Path(sys.argv[1]).glob(pattern)
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return path.name, {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(path) as archive:
        # Links are left out: their targets are outside of the package.
        files = [(member, archive.extractfile(member)) for member in archive if not member.isdir()]
        return path.name, {m.name.split("/", 1)[1]: f.read() for m, f in files if m.isreg()}


def holds(package, contents, wanted):
    for name in wanted:
        expect(contents.get(name) is not None, f"{package}: {name} is missing")
    for name in LICENCES & contents.keys():
        expect(contents[name] == pathlib.Path(name).read_bytes(), f"{package}: {name} differs from ours")


def described(package, version, licence, address):
    expect(version == WORKSPACE["version"], f"{package}: version {version}, not {WORKSPACE['version']}")
    expect(licence == WORKSPACE["license"], f"{package}: licence {licence}, not {WORKSPACE['license']}")
    expect(address == WORKSPACE["repository"], f"{package}: address {address}, not {WORKSPACE['repository']}")


def check_python():
    wheel, contents = only("*.whl")
    sources = {path.name for path in pathlib.Path("clients/python/src/tidegate").iterdir() if path.is_file()}
    information = wheel.rsplit("-", 3)[0] + ".dist-info"
    licences = {f"{information}/licenses/{name}" for name in LICENCES}
    holds(wheel, contents, {f"tidegate/{name}" for name in sources} | licences)
    strangers = [name for name in contents if not name.startswith(("tidegate/", information))]
    expect(not strangers, f"{wheel}: does not belong there: {strangers}")
    metadata = email.message_from_bytes(contents[f"{information}/METADATA"])
    address = (metadata["Project-URL"] or "").removeprefix("Repository, ")
    described(wheel, metadata["Version"], metadata["License-Expression"], address)
    sdist, contents = only("*.tar.gz")
    holds(sdist, contents, LICENCES | {"README.md", "pyproject.toml"} | {f"src/tidegate/{name}" for name in sources})


def check_npm():
    package, contents = only("*.tgz")
    modules = {path.stem for path in pathlib.Path("clients/typescript/src").iterdir()}
    compiled = {f"dist/{module}{ending}" for module in modules for ending in (".js", ".d.ts")}
    wanted = compiled | LICENCES | {"README.md", "package.json"}
    holds(package, contents, wanted)
    expect(contents.keys() <= wanted, f"{package}: does not belong there: {sorted(contents.keys() - wanted)}")
    manifest = json.loads(contents["package.json"])
    for entry in (manifest["types"], *manifest["exports"]["."].values()):
        expect(entry.removeprefix("./") in contents, f"{package}: {entry} is missing")
    address = manifest["repository"]["url"].removeprefix("git+")
    described(package, manifest["version"], manifest["license"], address)


check_python()
check_npm()
if mistakes:
    sys.exit("\n".join(mistakes))
print("client packages: wheel, sdist and npm package are complete")
