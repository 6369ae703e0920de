"""What the wheel says of itself where the repository's name on its host is known: GITHUB_REPOSITORY, as in a
workflow there. A package index shows the README alone, so that its links to files have to lead to the host."""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

HOST = "https://github.com"
LINK = re.compile(r"(!?\[[^\[\]]*\]\()(?!\w+:|#)([^)\s]+\))")  # [text](target), ![text](target)


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata):
        """Fill in ``readme`` and ``urls``."""
        root, name = Path(self.root), os.environ.get("GITHUB_REPOSITORY")
        commit = os.environ.get("GITHUB_SHA", "HEAD")
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if name:
            home = f"{HOST}/{name}"
            metadata["urls"] = {
                "Source": home,
                "Issues": f"{home}/issues",
                "Changelog": f"{home}/blob/{commit}/CHANGELOG.md",
                "Documentation": "https://{}.github.io/{}/".format(*name.split("/")),
            }
            text = absolute(text, home, commit)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text, home, commit):
    """The Markdown ``text``, whose relative links lead to files of ``home`` at ``commit``: those of pictures to
    the file itself, others to the page that shows it."""

    def led(match):
        kind = "raw" if match[1][0] == "!" else "blob"
        return f"{match[1]}{home}/{kind}/{commit}/{match[2]}"

    return LINK.sub(led, text)
