"""An image is written as an OCI layout, read back, and pushed to a registry."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from kgwe import errors
from kgwe.images import dockerfile, recipe
from kgwe.images.files import write_layer
from kgwe.images.layout import Label, Layout, Platform, write_layout
from kgwe.images.registry import Reference, Registry

LABEL = Label("1.2.3", "abc", "2026-01-01T00:00:00Z")


@pytest.fixture
def image(tmp_path):
    platforms = []
    for architecture in ("amd64", "arm64"):
        root = tmp_path / architecture
        root.mkdir()
        (root / "arch").write_text(architecture)
        (tmp_path / "common").mkdir(exist_ok=True)
        (tmp_path / "common/file").write_text("same")
        common = write_layer(tmp_path / "common", tmp_path / f"common-{architecture}.tar.gz", 0, "common")
        own = write_layer(root, tmp_path / f"{architecture}.tar.gz", 0, "own")
        platforms.append(Platform(architecture, (common, own)))
    path = tmp_path / "image.oci.tar"
    digest = write_layout(recipe.find_recipe("kgwe"), platforms, LABEL, "example.com/kgwe:1.2.3", path)
    return path, digest


class TestLayout:
    def test_it_has_a_manifest_per_platform_with_the_settings_of_the_recipe(self, image):
        path, digest = image
        with Layout(path) as found:
            entry = found.find_image()
            index = found.read_document(digest)
            manifests = [found.read_document(each["digest"]) for each in index["manifests"]]
            settings = found.read_document(manifests[0]["config"]["digest"])

        assert entry["digest"] == digest
        assert entry["annotations"]["io.containerd.image.name"] == "example.com/kgwe:1.2.3"
        assert [each["platform"]["architecture"] for each in index["manifests"]] == ["amd64", "arm64"]
        assert settings["config"]["User"] == "65532:65532"
        assert settings["config"]["Entrypoint"] == ["/opt/kgwe/bin/kgwe"]
        assert len(settings["rootfs"]["diff_ids"]) == len(manifests[0]["layers"]) == 2
        assert manifests[0]["layers"][0] == manifests[1]["layers"][0], "equal layers are shared"

    def test_a_damaged_blob_is_found(self, image, tmp_path):
        path, _ = image
        damaged = tmp_path / "damaged.tar"
        damaged.write_bytes(path.read_bytes().replace(b'"Cmd":["--help"]', b'"Cmd":["--hele"]'))
        with Layout(damaged) as found:
            index = found.read_document(found.find_image()["digest"])
            manifest = found.read_document(index["manifests"][0]["digest"])
            with pytest.raises(errors.Permanent, match="damaged"):
                found.read_document(manifest["config"]["digest"])

    @pytest.mark.parametrize("content", [b"", b"no archive", b"\0" * 10240])
    def test_another_file_is_refused_with_the_next_step(self, tmp_path, content):
        path = tmp_path / "other"
        path.write_bytes(content)
        with pytest.raises(errors.Permanent, match=r"cannot read the image|Run: kgwe image build"):
            Layout(path)


class _Handler(BaseHTTPRequestHandler):
    """A registry in memory that asks for a token."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_):
        pass

    def answer(self, status: int, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def is_allowed(self) -> bool:
        if self.headers.get("authorization") == "Bearer secret":
            return True
        realm = f"http://127.0.0.1:{self.server.server_port}/token"
        self.answer(401, headers=(("www-authenticate", f'Bearer realm="{realm}",service="here",scope="push"'),))
        return False

    def do_GET(self):
        is_known = self.headers.get("authorization") == "Basic dXNlcjpwYXNzd29yZA=="
        self.answer(200, b'{"token":"secret"}' if is_known else b"{}")

    def do_HEAD(self):
        if self.is_allowed():
            self.answer(200 if self.path.rpartition("/")[2] in self.server.blobs else 404)

    def do_POST(self):
        if self.is_allowed():
            self.answer(202, headers=(("location", "/v2/team/kgwe/blobs/uploads/1?state=x"),))

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not self.is_allowed():
            return
        url = urlsplit(self.path)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if "/manifests/" in url.path:
            self.server.manifests[url.path.rpartition("/")[2]] = body
        elif parse_qs(url.query)["digest"] == [digest]:
            self.server.blobs[digest] = body
        else:
            self.answer(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"other content"}]}')
            return
        self.answer(201)


class _Server(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}


@pytest.fixture
def registry():
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class TestPush:
    def name(self, registry) -> Reference:
        return Reference.parse(f"127.0.0.1:{registry.server_port}/team/kgwe:1.2.3")

    def test_all_blobs_and_the_tag_arrive_and_a_second_push_sends_none(self, image, registry):
        path, digest = image
        results = []
        for _ in range(2):
            with (
                Layout(path) as found,
                Registry(self.name(registry), user="user", password="password", plain_http=True) as target,
            ):
                results.append(target.push(found))

        assert f"sha256:{hashlib.sha256(registry.manifests['1.2.3']).hexdigest()}" == digest
        assert len(registry.manifests) == 3
        assert len(registry.blobs) == 5, "a shared layer, two own layers and two configurations"
        assert [(each.sent, each.skipped) for each in results] == [(5, 1), (0, 6)]

    def test_without_credentials_it_says_which_to_set(self, image, registry):
        with (
            Layout(image[0]) as found,
            Registry(self.name(registry), plain_http=True) as target,
            pytest.raises(errors.Permanent, match="KGWE_REGISTRY_USER"),
        ):
            target.push(found)
        assert not registry.manifests

    @pytest.mark.parametrize("text", ["", "kgwe", "kgwe:1", "team/kgwe:1", "registry.example.com/kgwe", "a.b/:1"])
    def test_a_name_without_registry_or_tag_is_refused(self, text):
        with pytest.raises(errors.Permanent, match="REGISTRY/REPOSITORY:TAG"):
            Reference.parse(text)


def test_the_dockerfile_has_a_stage_per_image():
    text = dockerfile.render()

    for each in recipe.RECIPES:
        assert f"AS {each.name}\n" in text
        assert f"USER {each.user_id}:{each.user_id}" in text
        assert each.requirements in text


def test_an_unknown_image_is_refused_with_the_names_that_exist():
    with pytest.raises(errors.Permanent, match="images: kgwe, kgwe-agent"):
        recipe.find_recipe("kwge")
