"""The explorer, served to tests."""

import threading

import pytest


@pytest.fixture(scope="module")
def server():
    """The address of the explorer, computing in a thread of this process."""
    pytest.importorskip("dash")
    from bulkedge.lab.explore.app import make_server

    made = make_server(0, apart=False)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.port}"
    made.shutdown()
    thread.join()
    made.server_close()
    made.app.config["JOBS"].stop()
