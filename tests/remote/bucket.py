"""A store like S3, of moto, in a thread of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SECRET = "wJa1rXUtnFEMI5ecre7Key"


@contextmanager
def bucket(patch: pytest.MonkeyPatch, name: str = "recordings") -> Iterator[Any]:
    """boto3's client of a store with one bucket; the environment leads to it."""
    boto3 = pytest.importorskip("boto3", reason="needs boto3 (moto)")
    server = pytest.importorskip("moto.server", reason="needs moto")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    served = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    served.start()
    host, port = served.get_host_and_port()
    for key, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        patch.setenv(key, value)
    try:
        client = boto3.client("s3")
        client.create_bucket(Bucket=name)
        yield client
    finally:
        served.stop()
