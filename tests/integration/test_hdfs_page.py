"""The page about HDFS runs as printed, on a real NameNode and DataNode."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_server import Commands
from documented_pages import HDFS
from page_runner import ROOT, Reader

pytestmark = pytest.mark.hdfs
PAGE = ROOT / "docs" / "how-to" / "use-hdfs.md"


class OnHdfs(Reader):
    """A reader whose ``namenode`` is the test server, in its own directory."""

    url = ""

    def here(self, text: str) -> str:
        return super().here(text.replace("hdfs://namenode:8020", self.url))


@pytest.mark.deep("Hadoop with the commands of a page")
def test_page_about_hdfs_runs_to_its_end(hdfs_server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from hdfs_native import Client

    for name in ("logs", "elsewhere"):
        Client(hdfs_server.url).mkdirs(f"/a-page/{name}", create_parent=True)
    with Commands(tmp_path) as commands:
        folder = tmp_path / "reader"
        folder.mkdir()
        reader = OnHdfs(folder, commands, None, 0)
        reader.url = f"{hdfs_server.url}/a-page"
        reader.follow(PAGE, HDFS)
    told = "".join(reader.said)
    assert "orders" in told
    assert "store is writable and supports create-if-absent" in told
