"""Clients that show the right certificate are answered, others are not, and new files count without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import socket
import ssl
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.support.patience import PATIENCE_S

from kgwe import errors
from kgwe.local.cluster import certificates
from kgwe.telemetry import connection, http, tls
from kgwe.telemetry.http import Reply, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kgwe.local.cluster.certificates import Certificates, Identity

ADDRESS = http.Address("127.0.0.1", 0)
SCHEDULER = certificates.SCHEDULER
NAMES = frozenset({SCHEDULER.user})


def app(request: Request) -> Reply:
    return Reply(413, b"too large") if request.too_large else Reply(200, f"{request.method} ".encode() + request.body)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.ensure(tmp_path_factory.mktemp("pki"), dt.datetime.now(dt.UTC))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority."""
    return certificates.ensure(tmp_path_factory.mktemp("other-pki"), dt.datetime.now(dt.UTC))


def files(made: Certificates) -> tls.Files:
    pair = made.pair(certificates.SERVER)
    return tls.Files(pair.certificate, pair.key, made.authority, NAMES)


def client_context(trusts: Certificates, shows: Certificates | None, identity: Identity = SCHEDULER) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusts.authority)
    if shows is not None:
        pair = shows.pair(identity)
        context.load_cert_chain(pair.certificate, pair.key)
    return context


@contextlib.asynccontextmanager
async def client(port: int, context: ssl.SSLContext) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=PATIENCE_S) as made:
        yield made


async def test_the_named_client_is_answered_over_one_connection(made: Certificates):
    limits = http.Limits(body=100_000)
    async with (
        http.serving(app, ADDRESS, tls=http.ReloadingContext(files(made)), limits=limits) as port,
        client(port, client_context(made, made)) as named,
    ):
        assert (await named.post("/filter", content=b"abc")).text == "POST abc"
        assert len((await named.post("/filter", content=b"x" * 100_000)).content) == 100_005
        assert (await named.post("/filter", content=b"x" * 200_000)).status_code == 413


async def test_a_client_without_a_certificate_or_with_one_of_another_authority_is_not_answered(
    made: Certificates, others: Certificates
):
    async with http.serving(app, ADDRESS, tls=http.ReloadingContext(files(made))) as port:
        for context in (client_context(made, None), client_context(made, others)):
            with pytest.raises(httpx2.TransportError):
                async with client(port, context) as stranger:
                    await stranger.get("/")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")  # no TLS at all
        with contextlib.suppress(ConnectionError):
            assert b"200" not in await reader.read()
        writer.close()
        async with client(port, client_context(made, made)) as named:
            assert (await named.get("/")).status_code == 200


async def test_the_hello_may_be_there_before_the_connection_is_accepted(made: Certificates):
    """As it is when the loop was busy: the client and the server share it here."""
    loop, context = asyncio.get_running_loop(), client_context(made, made)

    def ask(port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            return secure.recv(12)

    async with http.serving(app, ADDRESS, tls=http.ReloadingContext(files(made))) as port:
        asked = [loop.run_in_executor(None, ask, port) for _ in range(3)]
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is busy
        assert await asyncio.gather(*asked) == [b"HTTP/1.1 200"] * 3


async def test_a_client_of_another_name_is_forbidden(made: Certificates):
    async with (
        http.serving(app, ADDRESS, tls=http.ReloadingContext(files(made))) as port,
        client(port, client_context(made, made, certificates.CONTROLLER_MANAGER)) as stranger,
    ):
        assert (await stranger.post("/filter", content=b"abc")).status_code == 403
        assert (await stranger.post("/filter", content=b"x" * 500_000)).status_code == 403


async def test_handshakes_that_do_not_come_to_an_end_lock_nobody_out(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "_HEAD_S", 2.0)
    async with http.serving(app, ADDRESS, tls=http.ReloadingContext(files(made))) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _, writer in held[::2]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a hello
        async with client(port, client_context(made, made)) as named:
            assert (await named.get("/")).status_code == 200
            with contextlib.suppress(ConnectionError):
                assert await held[-1][0].read() == b""  # cut off when its time is over
            assert (await named.get("/")).status_code == 200
        for _, writer in held:
            writer.transport.abort()


async def test_an_unfinished_handshake_does_not_keep_the_server_from_ending(made: Certificates):
    async with http.serving(app, ADDRESS, tls=http.ReloadingContext(files(made))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()


# --- new files ------------------------------------------------------------------------------------------


def replaced(source: Certificates, directory: Path) -> tls.Files:
    """The files of `source` in `directory`, as a renewal writes them."""
    found = files(source)
    for path in (found.certificate, found.key, source.authority):
        shutil.copy(path, directory / "new")
        (directory / "new").replace(directory / path.name)
    paths = [directory / path.name for path in (found.certificate, found.key, source.authority)]
    return replace(found, certificate=paths[0], key=paths[1], authority=paths[2])


@pytest.fixture
def clock() -> Callable[[], float]:
    """A second later each time."""
    seconds = iter(range(1_000_000))
    return lambda: float(next(seconds))


async def test_new_files_count_for_the_next_connection(
    made: Certificates, others: Certificates, tmp_path: Path, clock: Callable[[], float]
):
    renewing = tls.ReloadingContext(replaced(made, tmp_path), clock)
    async with http.serving(app, ADDRESS, tls=renewing) as port:
        async with client(port, client_context(made, made)) as old:
            assert (await old.get("/")).status_code == 200
            replaced(others, tmp_path)
            async with client(port, client_context(others, others)) as new:
                assert (await new.get("/")).status_code == 200
            assert (await old.get("/")).status_code == 200  # its connection stays
        with pytest.raises(httpx2.TransportError):
            async with client(port, client_context(others, made)) as old:
                await old.get("/")


async def test_files_that_do_not_belong_together_yet_leave_the_last_good_ones_in_use(
    made: Certificates, others: Certificates, tmp_path: Path, clock: Callable[[], float]
):
    found = replaced(made, tmp_path)
    async with http.serving(app, ADDRESS, tls=tls.ReloadingContext(found, clock)) as port:
        shutil.copy(files(others).key, found.key)
        async with client(port, client_context(made, made)) as named:
            assert (await named.get("/")).status_code == 200
        found.certificate.unlink()
        async with client(port, client_context(made, made)) as named:
            assert (await named.get("/")).status_code == 200


def test_files_that_cannot_be_used_are_said_at_once(tmp_path: Path):
    with pytest.raises(errors.Permanent, match=r"cannot use certificate .*tls\.crt"):
        tls.ReloadingContext(tls.Files(tmp_path / "tls.crt", tmp_path / "tls.key"))


# --- names ----------------------------------------------------------------------------------------------


def test_names_are_common_names_and_alternative_names():
    certificate = {
        "subject": ((("organizationName", "o"),), (("commonName", "cn"),)),
        "subjectAltName": (("DNS", "a.b"), ("URI", "spiffe://x/y")),
    }
    assert tls.names_of(certificate) == {"cn", "a.b", "spiffe://x/y"}
    assert tls.names_of(None) == tls.names_of({}) == frozenset()
