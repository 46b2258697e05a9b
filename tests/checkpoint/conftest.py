"""An S3 endpoint on loopback, and storages of every kind."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pliant.checkpoint.store.base import Storage, StorageOptions
from pliant.checkpoint.store.open import open_storage

BUCKET = "checkpoints"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Start moto's server: real HTTP, real S3 semantics, on a free port.

    Moto looks at the condition of a write and then writes, several of them at a time; S3 lets one
    of them win.
    """
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    one_at_a_time, put_object = threading.Lock(), S3Response.put_object

    def put_atomically(response: S3Response) -> Any:
        with one_at_a_time:
            return put_object(response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(S3Response, "put_object", put_atomically)
            yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[Callable[..., Storage]]:
    """Return what opens a storage in a bucket, perhaps through a proxy or with other options."""
    client = s3_client(s3_endpoint)
    client.create_bucket(Bucket=BUCKET)
    prefix = uuid.uuid4().hex

    def opened(
        path: str = "",
        *,
        endpoint: str = s3_endpoint,
        s3_additional_kwargs: dict[str, str] | None = None,
        **options: Any,
    ) -> Storage:
        given = s3_options(endpoint) | {"s3_additional_kwargs": s3_additional_kwargs or {}}
        return open_storage(
            f"s3://{BUCKET}/{prefix}{path}", StorageOptions(fsspec=given, **options)
        )

    yield opened
    client.close()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def s3_options(endpoint: str) -> dict[str, Any]:
    return {
        "key": "test",
        "secret": "test",
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }


def s3_client(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )


@pytest.fixture(params=["directory", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Return an empty storage of each kind."""
    match request.param:
        case "directory":
            yield open_storage(str(tmp_path / "root"))
        case "memory":
            place = f"memory://{uuid.uuid4().hex}"
            yield open_storage(place)
            open_storage(place).remove("")
        case _:
            yield request.getfixturevalue("s3")()
