"""Shared fixtures of the tests over HTTP: every object of every bucket is decoded before its server ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bucket_truth import sound_roots

from tiered.demo.s3_endpoint import S3Endpoint

_here: list[str] = []


@pytest.fixture(autouse=True)
def a_test_of_this_folder_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Mark that a test of this directory runs, because the session-wide patch must ignore endpoints of other tests."""
    _here.append(request.node.nodeid)
    yield
    _here.pop()


@pytest.fixture(scope="session", autouse=True)
def buckets_stay_sound_over_http() -> Iterator[None]:
    made: dict[S3Endpoint, list[str]] = {}
    create, stop = S3Endpoint.create_bucket, S3Endpoint.stop

    def create_bucket(self: S3Endpoint, name: str) -> None:
        create(self, name)
        if _here:
            made.setdefault(self, []).append(name)

    def stop_after_a_look(self: S3Endpoint) -> None:
        try:
            for name in made.pop(self, []):
                sound_roots(f"s3://{name}", self.options())
        finally:
            stop(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Endpoint, "create_bucket", create_bucket)
        patch.setattr(S3Endpoint, "stop", stop_after_a_look)
        yield
