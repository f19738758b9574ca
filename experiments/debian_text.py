# /// script
# requires-python = ">=3.12"
# dependencies = ["inscriptis>=2.6", "zstandard>=0.23"]
# ///
"""English text from Debian's documentation packages, for a machine that can reach only a Debian mirror.

Command:  uv run experiments/debian_text.py --out=corpora/debian-docs [--megabytes=25]
Hardware: a CPU with apt, minutes, some 300 MB of packages.
Expected: docs.jsonl.zst, one document per line in the field "text", and sources.json: packages with versions and checksums.
          Documents are drawn at random from all packages until the compressed file has the given size.
"""

import argparse
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lxml.html
import zstandard
from inscriptis import Inscriptis

PACKAGES = (
    "apache2-doc debian-handbook developers-reference gimp-help-en git-doc linux-doc-6.1 lilypond-doc-html nodejs-doc octave-doc "
    "openjdk-17-doc perl-doc postgresql-doc-15 python-django-doc python-numpy-doc python-scipy-doc python3.11-doc "
    "qtbase5-doc-html rust-doc sagemath-doc"
).split()
SHORTEST = 1000
"""Characters below which a page is an index or a redirection."""
WASTE = (
    "//body//*[self::script or self::style or self::nav or self::header or self::footer or contains(@class, 'sidebar')]"
)
FOREIGN = re.compile(
    r"[./](ar|ca|cs|da|de|el|es|fr|he|hu|it|ja|ko|nb|nl|pl|pt|pt-br|ru|sv|tr|uk|vi|zh-cn|zh-tw)([./]|$)", re.I
)


def pages(package: str, folder: Path) -> Iterator[str]:
    """The texts of a package's HTML pages, each once; pages in other languages are left out."""
    subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=", package], cwd=folder, check=True)
    (deb,) = folder.glob(f"{package}_*.deb")
    subprocess.run(["dpkg-deb", "-x", deb, folder / package], check=True)
    for path in sorted((folder / package).rglob("*")):
        name = str(path.relative_to(folder / package)).removesuffix(".gz")
        if path.is_symlink() or not path.is_file() or not re.search(r"\.x?html?(\.en)?$", name) or FOREIGN.search(name):
            continue
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        try:
            tree = lxml.html.fromstring(content)
        except (lxml.etree.ParserError, ValueError):  # an empty page
            continue
        for node in tree.xpath(WASTE):
            node.drop_tree()
        text = re.sub(r"\n\s*\n+", "\n\n", Inscriptis(tree).get_text()).strip()
        if len(text) >= SHORTEST:
            yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--megabytes", type=float, default=25.0, help="of the compressed text (25)")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="names with commas")
    given = parser.parse_args()
    if given.out.exists():
        sys.exit(f"error: {given.out} exists; remove it, or give another --out")
    texts: dict[str, str] = {}
    sources = []
    for package in given.packages.split(","):
        with tempfile.TemporaryDirectory() as folder:
            before = len(texts)
            for text in pages(package, Path(folder)):
                texts.setdefault(hashlib.sha256(text.encode()).hexdigest(), text)
            (deb,) = Path(folder).glob("*.deb")
            digest = hashlib.sha256(deb.read_bytes()).hexdigest()
            sources.append({"package": deb.stem, "sha256": digest, "documents": len(texts) - before})
            print(f"{deb.stem}: {len(texts) - before} documents", flush=True)
    given.out.mkdir(parents=True)
    path, characters, count = given.out / "docs.jsonl.zst", 0, 0
    with path.open("wb") as file, zstandard.ZstdCompressor(level=19).stream_writer(file) as writer:
        for key in sorted(texts):  # keys are hashes: a random order, but the same for everyone
            writer.write((json.dumps({"text": texts[key]}, ensure_ascii=False) + "\n").encode())
            characters, count = characters + len(texts[key]), count + 1
            if count % 100 == 0:
                writer.flush(zstandard.FLUSH_BLOCK)
                if file.tell() > 1e6 * given.megabytes:
                    break
    found = {"documents": count, "characters": characters, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (given.out / "sources.json").write_text(
        json.dumps({**found, "of": len(texts), "packages": sources}, indent=2) + "\n"
    )
    print(f"{path}: {count} of {len(texts)} documents, {characters / 1e6:.0f} million characters")


if __name__ == "__main__":
    main()
