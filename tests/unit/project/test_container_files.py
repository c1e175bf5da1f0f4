"""The files of the page about containers agree with each other and with the commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from documented_commands import Written, complaint

from tiered.config.config import Config

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "localstack" / "containers"
PAGE = ROOT / "docs" / "how-to" / "run-in-containers.md"


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return found


def test_commands_of_the_containers_parse_and_serve_at_the_published_ports(services: dict[str, Any]) -> None:
    ours = {name: each for name, each in services.items() if each.get("image") == "tiered"}
    assert set(ours) == {"node", "replica1", "replica2"}
    page = PAGE.read_text()
    for name, each in ours.items():
        words = tuple(each["command"].split())
        assert complaint(Written("compose.yaml", 1, words, is_prose=False)) is None
        port = re.search(r"(?:--kafka 0\.0\.0\.0:|--port )(\d+)", each["command"])
        assert port is not None
        assert each["ports"] == [f"127.0.0.1:{port[1]}:{port[1]}"]
        assert f"advertise localhost:{port[1]}" in each["command"]
        assert each["hostname"] == name, "the metrics accept requests to the machine's own name"
        assert f"`localhost:{port[1]}`" in page
        assert name in page


def test_every_named_file_exists_and_every_port_is_on_loopback(services: dict[str, Any]) -> None:
    for each in services.values():
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", []))
        files = [volume.split(":")[0] for volume in each.get("volumes", []) if volume.startswith(".")]
        assert [file for file in files if not (FOLDER / file).exists()] == []
        if "build" in each:
            context = (FOLDER / each["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / each["build"]["dockerfile"]).exists()
        else:
            assert re.search(r":v?\d+\.\d+", each["image"]), "images of others are pinned"


def test_prometheus_and_grafana_name_the_services(services: dict[str, Any]) -> None:
    (job,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    hosts = {target.partition(":")[0] for each in job["static_configs"] for target in each["targets"]}
    assert hosts == {"node", "replica1", "replica2"}
    (source,) = yaml.safe_load((FOLDER / "grafana" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services


def test_settings_of_the_node_name_the_bucket_of_the_replicas(services: dict[str, Any]) -> None:
    config = Config.load(str(FOLDER / "tiered.toml"))
    assert config.remote_url is not None
    assert f"--remote {config.remote_url} " in services["replica1"]["command"]
    bucket = config.remote_url.removeprefix("s3://").partition("/")[0]
    assert f"bucket={bucket}\n" in (ROOT / "localstack" / "create-buckets.sh").read_text()
