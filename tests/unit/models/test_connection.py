"""One connection: whatever the network makes of an answer, the same bytes come out, and nothing else passes for one."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.kernel.model import ModelError, Usage
from atlas.models.connection import HEAD_LIMIT, UNREAD_LIMIT, Connection, NotHttp, Silent, new_buffer
from atlas.models.http import Http, Patience, Target

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nTrail: er\r\n\r\n"
)
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nX: 1\r\nx: 2\r\n\r\nhello world"
ANNOUNCED = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
UNTIL_CLOSED = b"HTTP/1.0 200 OK\r\n\r\nhello world"
BUFFER = new_buffer()


class Wire(asyncio.Transport):
    """A transport that goes nowhere and remembers what was done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.is_aborted = False
        self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def opened() -> tuple[Connection, Wire]:
    connection, wire = Connection(BUFFER), Wire()
    connection.connection_made(wire)
    connection.send(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n", b"{}")
    return connection, wire


async def heard(connection: Connection) -> bytes:
    await connection.answered()
    pieces = []
    while piece := await connection.read():
        pieces.append(piece)
    return b"".join(pieces)


def in_loop(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await work()

    asyncio.run(limited())


def test_connections_that_share_a_buffer_keep_their_answers_apart() -> None:
    async def work() -> None:
        both = [opened()[0], opened()[0]]
        answers = [COUNTED, COUNTED.replace(b"hello world", b"other words")]
        for pieces in zip(
            *([answer[at : at + 7] for at in range(0, len(answer), 7)] for answer in answers), strict=True
        ):
            for connection, piece in zip(both, pieces, strict=True):
                connection.get_buffer(-1)[: len(piece)] = piece
                connection.buffer_updated(len(piece))
        assert [await heard(connection) for connection in both] == [b"hello world", b"other words"]

    in_loop(work)


@pytest.mark.parametrize("answer", [CHUNKED, COUNTED, ANNOUNCED, UNTIL_CLOSED])
@given(cuts=st.lists(st.integers(0, 160), max_size=8))
def test_an_answer_is_the_same_however_it_was_cut(answer: bytes, cuts: list[int]) -> None:
    async def work() -> None:
        connection, wire = opened()
        ends = sorted({min(cut, len(answer)) for cut in cuts} | {len(answer)})
        start = 0
        for end in ends:
            if end > start:
                connection.data_received(answer[start:end])
            start = end
        if answer is UNTIL_CLOSED:
            assert not connection.is_done
            connection.connection_lost(None)
        assert (await heard(connection), connection.status) == (b"hello world", 200)
        assert connection.is_done
        assert connection.is_free == (answer is not UNTIL_CLOSED)
        assert not wire.is_aborted

    in_loop(work)


def test_an_answer_that_comes_byte_by_byte_is_whole() -> None:
    async def work() -> None:
        connection, _ = opened()
        for number in range(len(CHUNKED)):
            connection.data_received(CHUNKED[number : number + 1])
        assert await heard(connection) == b"hello world"

    in_loop(work)


def test_the_case_of_a_header_does_not_matter_and_repeated_ones_are_joined() -> None:
    async def work() -> None:
        connection, _ = opened()
        connection.data_received(COUNTED)
        assert (connection.headers["content-LENGTH"], connection.headers.get("X")) == ("11", "1, 2")
        assert "Y" not in connection.headers

    in_loop(work)


@pytest.mark.parametrize(
    "said",
    [
        b"HELLO WORLD\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 10_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (HEAD_LIMIT // 6 + 10),
    ],
)
def test_what_is_not_http_is_refused_and_the_connection_closed(said: bytes) -> None:
    async def work() -> None:
        connection, wire = opened()
        connection.data_received(said)
        with pytest.raises(NotHttp):
            await heard(connection)
        assert wire.is_aborted
        assert not connection.is_free

    in_loop(work)


@pytest.mark.parametrize("cut", [0, 10, 60, len(CHUNKED) - 1])
def test_a_connection_that_closes_early_is_an_error_behind_what_came(cut: int) -> None:
    async def work() -> None:
        connection, _ = opened()
        if cut:
            connection.data_received(CHUNKED[:cut])
        connection.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await heard(connection)

    in_loop(work)


@pytest.mark.parametrize(
    "head, is_free",
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", False),
    ],
)
def test_only_a_connection_with_nothing_on_it_is_used_again(head: bytes, is_free: bool) -> None:
    async def work() -> None:
        connection, _ = opened()
        connection.data_received(head)
        assert await heard(connection) == b""
        assert connection.is_free == is_free

    in_loop(work)


def test_a_connection_that_is_not_read_from_is_not_used_again() -> None:
    async def play() -> None:
        connection, wire = opened()
        size = UNREAD_LIMIT + 1
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        assert (connection.is_done, wire.is_paused, connection.is_free) == (True, True, False)
        await heard(connection)
        assert (wire.is_paused, connection.is_free) == (False, True)

    asyncio.run(play())


def test_a_reader_that_does_not_read_stops_the_sender() -> None:
    async def work() -> None:
        connection, wire = opened()
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (UNREAD_LIMIT * 3))
        connection.data_received(b"x" * (UNREAD_LIMIT + 1))
        assert wire.is_paused
        assert len(await connection.read()) == UNREAD_LIMIT + 1
        assert not wire.is_paused

    in_loop(work)


# Heard where it arrives

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAMED = STREAM + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"


class Ear:
    """Hears an answer, until it has heard `enough`."""

    def __init__(self, enough: bytes = b"nothing") -> None:
        self.data = b""
        self._enough = enough

    def __call__(self, data: bytes) -> bool:
        self.data += data
        return self._enough in self.data


def listening(ear: Ear, first_byte_s: float = 5.0, silence_s: float = 5.0) -> tuple[Connection, Wire]:
    connection, wire = Connection(BUFFER), Wire()
    connection.connection_made(wire)
    connection.send(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n", b"{}", ear, first_byte_s, silence_s)
    return connection, wire


@given(cuts=st.lists(st.integers(0, len(STREAMED)), max_size=8))
def test_a_stream_is_heard_the_same_however_it_was_cut(cuts: list[int]) -> None:
    async def work() -> None:
        ear = Ear()
        connection, wire = listening(ear)
        ends = sorted({*cuts, len(STREAMED)})
        for start, end in zip([0, *ends], ends, strict=False):
            if end > start:
                connection.data_received(STREAMED[start:end])
        await connection.answered()
        await connection.heard()
        assert (ear.data, await connection.read()) == (b"hello world", b"")
        assert connection.is_free
        assert not wire.is_aborted

    in_loop(work)


def test_who_waits_for_a_stream_is_woken_once_at_its_end() -> None:
    async def work() -> None:
        ear, steps = Ear(), list[bytes]()
        connection, _ = listening(ear)

        async def wait() -> None:
            await connection.answered()
            steps.append(ear.data)
            await connection.heard()
            steps.append(ear.data)

        async with asyncio.TaskGroup() as group:
            group.create_task(wait())
            for number in range(len(STREAMED)):
                await asyncio.sleep(0)
                connection.data_received(STREAMED[number : number + 1])
        assert steps == [b"hello world"] * 2

    in_loop(work)


def test_what_the_transport_puts_into_the_buffer_is_the_answer() -> None:
    async def work() -> None:
        ear = Ear()
        connection, _ = listening(ear)
        for start in range(0, len(STREAMED), 7):
            piece = STREAMED[start : start + 7]
            connection.get_buffer(-1)[: len(piece)] = piece
            connection.buffer_updated(len(piece))
        await connection.heard()
        assert ear.data == b"hello world"

    in_loop(work)


def test_an_answer_of_which_enough_was_heard_is_whole_whatever_follows() -> None:
    async def work() -> None:
        ear = Ear(b"hello")
        connection, wire = listening(ear)
        connection.data_received(STREAM + b"5\r\nhello\r\noops\r\n")
        await connection.answered()
        await connection.heard()
        assert (ear.data, wire.is_aborted, connection.is_free) == (b"hello", True, False)

    in_loop(work)


@pytest.mark.parametrize("end", [b"oops\r\n", b""], ids=["not HTTP", "closed"])
def test_a_stream_that_breaks_off_is_an_error_behind_what_was_heard(end: bytes) -> None:
    async def work() -> None:
        ear = Ear()
        connection, _ = listening(ear)
        connection.data_received(STREAM + b"5\r\nhello\r\n" + end)
        if not end:
            connection.connection_lost(None)
        await connection.answered()
        with pytest.raises(NotHttp if end else ConnectionResetError):
            await connection.heard()
        assert ear.data == b"hello"

    in_loop(work)


@pytest.mark.parametrize(
    "head",
    [
        STREAM.replace(b"200 OK", b"400 No"),
        STREAM.replace(b"Text/Event-Stream", b"application/json"),
        STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
    ],
)
def test_any_other_answer_is_read(head: bytes) -> None:
    async def work() -> None:
        ear = Ear()
        connection, _ = listening(ear)
        connection.data_received(STREAMED.replace(STREAM, head))
        assert (await heard(connection), ear.data) == (b"hello world", b"")

    in_loop(work)


def test_an_exchange_that_is_over_is_heard_no_more() -> None:
    async def work() -> None:
        ear = Ear()
        connection, _ = listening(ear)
        connection.data_received(STREAM + b"5\r\nhello\r\n")
        connection.end()
        connection.data_received(b"6\r\n world\r\n0\r\n\r\n")
        assert ear.data == b"hello"

    in_loop(work)


def test_the_first_byte_may_take_longer_than_a_silence_also_behind_the_head() -> None:
    async def work() -> None:
        ear = Ear()
        connection, wire = listening(ear, first_byte_s=5.0, silence_s=0.05)
        connection.data_received(STREAM)
        await asyncio.sleep(0.15)
        assert not wire.is_aborted
        connection.data_received(STREAMED.removeprefix(STREAM))
        await connection.heard()
        assert ear.data == b"hello world"

    in_loop(work)


@pytest.mark.parametrize(
    "begun",
    [
        STREAM + b"5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nhello",
        COUNTED.removesuffix(b" world"),
        UNTIL_CLOSED,
    ],
)
def test_an_answer_that_falls_silent_breaks_off_and_is_not_whole(begun: bytes) -> None:
    async def work() -> None:
        connection, wire = listening(Ear(), first_byte_s=5.0, silence_s=0.05)
        connection.data_received(begun)
        while not wire.is_aborted:
            await asyncio.sleep(0.01)
        connection.connection_lost(None)  # as an abort has it
        with pytest.raises(Silent):
            await (connection.heard() if b"event-stream" in begun.lower() else heard(connection))
        assert not connection.is_free

    in_loop(work)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    today = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(today - datetime.timedelta(days=1))
    built = built.not_valid_after(today + datetime.timedelta(days=1))
    built = built.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    chain, secret = folder / "cert.pem", folder / "key.pem"
    chain.write_bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return chain, secret


async def posted(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    http = Http(Patience(connect_s=5, first_byte_s=5, silence_s=5))
    try:
        async with http.post(Target("lab", url, headers or {}), b"{}", Usage) as exchange:
            return exchange.status, await exchange.rest(1000)
    finally:
        await http.close()


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_key_goes_only_to_a_server_whose_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    chain, secret = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"{}"))
        writer.write(COUNTED)
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x"
            if is_trusted:
                assert await posted(url, {"Authorization": "Bearer k"}) == (200, b"hello world")
                return
            with pytest.raises(ModelError, match="no connection to lab") as caught:
                await posted(url)
            assert caught.value.kind == "connection"
            assert "SSL_CERT_FILE" in caught.value.hint

    in_loop(work)
    assert [b"Authorization: Bearer k\r\n" in one for one in seen] == ([True] if is_trusted else [])


@pytest.mark.parametrize(
    "said, connections",
    [
        ("", 1),
        ("Keep-Alive: timeout=30, max=100\r\n", 1),
        ("keep-alive: max=9, Timeout=1\r\n", 2),
        ("Keep-Alive: x\r\n", 1),
    ],
)
def test_a_connection_is_used_again_only_as_long_as_the_server_keeps_it(said: str, connections: int) -> None:
    opened: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"{}"):
                writer.write(f"HTTP/1.1 200 OK\r\n{said}Content-Length: 2\r\n\r\nok".encode())
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        http = Http()
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            for _ in range(2):
                async with http.post(Target("lab", url, {}), b"{}", Usage) as exchange:
                    assert await exchange.rest(10) == b"ok"
            await http.close()
        assert len(opened) == connections

    in_loop(work)


@pytest.mark.parametrize("packing", ["gzip", "br"])
def test_an_answer_that_was_packed_unasked_is_unpacked_or_refused(packing: str) -> None:
    import gzip

    body = gzip.compress(b"hello world" * 50)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Encoding: {packing}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            if packing == "gzip":
                assert await posted(url) == (200, b"hello world" * 50)
                return
            with pytest.raises(ModelError, match="packed its answer with br"):
                await posted(url)

    in_loop(work)


@pytest.mark.parametrize(
    "url, headers",
    [
        ("ftp://127.0.0.1/", {}),
        ("http:///v1", {}),
        ("http://127.0.0.1:port/", {}),
        ("http://[127.0.0.1/", {}),
        ("http://a..b/", {}),
        ("http://127.0.0.1:1/", {"Authorization": "Bearer a\r\nX: y"}),
    ],
)
def test_an_address_or_a_header_that_is_none_is_refused_before_anything_is_sent(
    url: str, headers: dict[str, str]
) -> None:
    async def work() -> None:
        with pytest.raises(ModelError) as caught:
            await posted(url, headers)
        assert caught.value.kind == "auth"
        assert "Bearer" not in caught.value.message

    in_loop(work)
