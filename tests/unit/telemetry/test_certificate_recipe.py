"""The commands and settings that docs/scheduler.md gives for HTTPS work as they stand there."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe.apps.scheduler import settings
from kgwe.telemetry import http
from kgwe.telemetry.http import Reply

SECTION = (
    (Path(__file__).parents[3] / "docs" / "scheduler.md").read_text(encoding="utf-8").split("### Use certificates")[1]
)


def block(language: str) -> str:
    return SECTION.split(f"```{language}\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bash = shutil.which("bash")
    if bash is None or shutil.which("openssl") is None:
        pytest.skip("needs bash and openssl")
    where = tmp_path_factory.mktemp("recipe")
    commands = block("bash").replace("HOST=10.0.0.5", "HOST=127.0.0.1")
    subprocess.run([bash, "-euo", "pipefail", "-c", commands], cwd=where, check=True, capture_output=True)
    return where


async def test_the_certificates_of_the_recipe_let_kube_scheduler_in_and_no_one_else(made: Path, tmp_path: Path):
    file = tmp_path / "settings.yaml"
    file.write_text(block("yaml").replace("/etc/kgwe", str(made)))
    files = settings.load(file).extender_tls
    assert files is not None
    context = ssl.create_default_context(cafile=made / "ca.crt")
    context.load_cert_chain(made / "client.crt", made / "client.key")
    stranger = ssl.create_default_context(cafile=made / "ca.crt")
    address = http.Address("127.0.0.1", 0)
    async with http.serving(lambda _: Reply(200, b"yes"), address, tls=http.ReloadingContext(files)) as port:
        url = f"https://127.0.0.1:{port}/filter"
        async with httpx2.AsyncClient(verify=context, timeout=PATIENCE_S) as client:
            assert (await client.post(url)).text == "yes"
        async with httpx2.AsyncClient(verify=stranger, timeout=PATIENCE_S) as client:
            with pytest.raises(httpx2.TransportError):
                await client.post(url)
