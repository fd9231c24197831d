"""An S3 API on loopback, spoken to by the real client."""

import logging
import secrets
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Where it listens. It answers one request after the other: its own tests of `If-None-Match`
    are not atomic otherwise."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, app, threaded=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.shutdown()
    thread.join(10)


@pytest.fixture
def s3(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a place in a new bucket; address and credentials are in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "geheim",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    from fsspec.core import url_to_fs

    bucket = f"bucket-{secrets.token_hex(4)}"
    fs, _ = url_to_fs("s3://")
    fs.mkdir(bucket)
    return f"s3://{bucket}/runs/weights"
