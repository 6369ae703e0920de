"""Public sources by name and commit: files of repositories on GitHub, which are not copied here."""

import os
import subprocess
import tempfile
from pathlib import Path

SITE = "https://github.com"


def repository(name, mirrors):
    """The git directory of ``owner/name``: in ``mirrors``, a folder of bare repositories that are called
    ``owner+name``, else fetched to there from GitHub."""
    folder = Path(mirrors) / name.replace("/", "+")
    found = next((f for f in (folder / "repo", folder) if (f / "HEAD").exists()), None)
    if found is None:
        subprocess.run(["git", "clone", "--quiet", "--bare", f"{SITE}/{name}", str(folder)], check=True)
    return found or folder


def checkout(name, commit, paths, into, mirrors):
    """Write the files of ``paths``, files and folders, as they are at a commit to ``into``; returns that. What
    is there already is kept."""
    into = Path(into)
    done = into / f".{commit}"
    if done.exists():
        return into
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        more = dict(GIT_DIR=str(repository(name, mirrors)), GIT_INDEX_FILE=f"{folder}/index",
                    GIT_WORK_TREE=str(into))  # fmt: skip

        def git(*words, **options):
            return subprocess.run(["git", *words], env=os.environ | more, check=True, cwd=into, **options)

        git("read-tree", commit)
        listed = git("ls-files", "--", *paths, capture_output=True).stdout
        if not listed:
            raise FileNotFoundError(f"{name} has no {', '.join(paths)} at {commit}")
        git("checkout-index", "-f", "--stdin", input=listed)
    done.touch()
    return into
