"""The service over HTTPS, which Kubernetes requires."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from vramcast.cli.main import main  # after the line above


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate: needs openssl")
def test_serves_https(tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--port", str(port), "--data", str(tmp_path / "data"), "--workers", "1", "--admission"]
    words += ["--tls-cert", str(certificate), "--tls-key", str(key)]
    server = subprocess.Popen([sys.executable, "-m", "vramcast", *words], stderr=subprocess.PIPE)
    try:
        context = ssl.create_default_context(cafile=str(certificate))
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({}))
        latest = time.monotonic() + 60
        while True:
            try:
                with opener.open(f"https://127.0.0.1:{port}/healthz", timeout=5) as answer:
                    assert answer.read() == b'{"status":"ok"}'
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < latest
                time.sleep(0.1)
    finally:
        server.terminate()
        server.communicate(timeout=30)


@pytest.mark.parametrize(
    "words", [["--tls-cert", "x"], ["--tls-key", "x"], ["--tls-cert", "/dev/null", "--tls-key", "/dev/null"]]
)
def test_rejects_unusable_certificate(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--data", str(tmp_path), *words]) == 2
    assert "--tls-" in capsys.readouterr().err
