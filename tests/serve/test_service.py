"""The HTTP service: answers, limits, clear refusals, never a 5xx."""

import asyncio
import io

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from fedqssl.cli.main import main
from fedqssl.listen import bind, is_loopback
from fedqssl.serve.app import make_app
from fedqssl.serve.limits import LOOPBACK, Bucket, Limits
from uploads import png


def client_of(model, **limits) -> TestClient:
    app = make_app(model, Limits(**{"rate": 1e6, "burst": 10**6, **limits}), LOOPBACK)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(model):
    return client_of(model)


def send(client, *data: bytes, **words):
    return client.post("/predict", files=[("images", (f"{i}.png", d)) for i, d in enumerate(data)], **words)


def test_answers(client, model):
    found = send(client, png(), png(300, 20), params={"top": 2})
    assert found.status_code == 200
    first, second = found.json()["predictions"]
    assert first["file"] == "0.png" and len(second["top"]) == 2
    ours = model.predict(png(), top=2)[0]
    assert first["top"][0]["name"] == ours.name
    assert first["top"][0]["probability"] == pytest.approx(ours.probability, abs=1e-5)
    assert client.get("/health").json()["status"] == "ok"
    described = client.get("/model").json()
    assert described["bits"] == 4 and described["class_names"][0] == "cat"
    assert "/predict" in client.get("/openapi.json").json()["paths"]
    for page in ("/", "/docs"):
        found = client.get(page)
        assert found.status_code == 200 and "http://" not in found.text.replace("http://localhost/predict", "")
        assert "frame-ancestors" in found.headers["content-security-policy"]


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "I;16", "P", "1", "animated"])
def test_kinds_of_images(client, mode):
    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    if mode == "animated":
        frames = [Image.fromarray(noise), Image.fromarray(noise.T)]
        frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    elif mode == "I;16":
        Image.fromarray(noise.astype(np.uint16) * 257).save(out, "PNG")
    else:
        picture = Image.fromarray(noise).convert("RGB").convert(mode)
        picture.save(out, "TIFF" if mode == "CMYK" else "PNG")
    assert send(client, out.getvalue()).status_code == 200


def refused(found, status, words):
    assert found.status_code == status, found.text
    assert words in found.json()["error"] and "\n" not in found.json()["error"] and "Traceback" not in found.text


def test_refusals(client, model):
    refused(send(client, b"no image"), 415, "0.png is not an image")
    refused(send(client, b""), 415, "not an image")
    refused(send(client, png()[:200]), 422, "corrupt image")
    refused(client.post("/predict"), 422, "send one or more files as the form field images")
    refused(client.post("/predict", data={"images": "text"}), 422, "images")
    refused(client.post("/predict", content=b"x", headers={"content-type": "multipart/form-data"}), 400, "")
    refused(send(client, png(), params={"top": 0}), 422, "top must be a whole number from 1 to 1000, not '0'")
    refused(send(client, *[png(4, 4)] * 33), 413, "33 images are more than 32")
    refused(client.get("/nothing"), 404, "/docs lists")
    refused(client.get("/predict"), 405, "Method Not Allowed")
    refused(client.get("/health", headers={"host": "evil.example"}), 400, "answers to localhost")
    bomb = io.BytesIO()
    Image.new("1", (9000, 9000)).save(bomb, "PNG")
    refused(send(client, bomb.getvalue()), 413, "9000x9000 pixels")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"
    refused(send(client, eps), 415, "not an image")


def test_limits_of_size_and_rate(model):
    small = client_of(model, request_bytes=2000)
    refused(send(small, png()), 413, "larger than 1.95 KiB")

    def chunks():
        for _ in range(100):
            yield b"x" * 100

    found = small.post("/predict", content=chunks(), headers={"content-type": "multipart/form-data; boundary=a"})
    assert 400 <= found.status_code < 500
    slow = client_of(model, rate=0.01, burst=3)
    codes = [slow.get("/health").status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429] and int(slow.get("/health").headers["retry-after"]) >= 1
    bucket = Bucket(Limits(rate=2, burst=1), 0.0)
    assert [bucket.take(t) for t in (0.0, 0.0, 0.5)] == [0.0, 0.5, 0.0]


def test_fifty_at_once(address):
    async def all_of_them():
        async with httpx.AsyncClient(timeout=600) as client:
            posts = [
                client.post(f"{address}/predict", files={"images": (f"{i}.png", png(20 + i, 20))}) for i in range(50)
            ]
            return await asyncio.gather(*posts)

    found = asyncio.run(all_of_them())
    assert [r.status_code for r in found] == [200] * 50
    assert [r.json()["predictions"][0]["file"] for r in found] == [f"{i}.png" for i in range(50)]


GOOD = png(8, 8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(
        st.binary(max_size=300),
        st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=8)).map(
            lambda t: GOOD[: t[0]] + t[1] + GOOD[t[0] :]
        ),
        st.integers(0, len(GOOD)).map(lambda n: GOOD[:n]),
    ),
    filename=st.text(max_size=30),
    kind=st.sampled_from(["file", "raw", "json", "broken"]),
    header=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
    top=st.one_of(st.integers(-5, 2000).map(str), st.text(max_size=5)),
)
def test_no_upload_breaks_it(client, content, filename, kind, header, top):
    if kind == "file":
        try:
            found = client.post("/predict", files={"images": (filename or "x", content)}, params={"top": top})
        except (UnicodeEncodeError, ValueError):
            return  # the test's own client refuses to send it
    else:
        types = {"raw": header, "json": "application/json", "broken": f"multipart/form-data; boundary={header}"}
        body = content if kind != "broken" else f"--{header}\r\nContent-Disposition: {header}".encode() + content
        try:
            found = client.post("/predict", content=body, headers={"content-type": types[kind]})
        except (UnicodeEncodeError, ValueError):
            return
    assert found.status_code < 500, found.text


def test_an_error_inside_shows_nothing(model, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("secret path /home/someone")

    monkeypatch.setattr("fedqssl.serve.app.Worker.answer", fail)
    refused(send(client_of(model), png()), 500, "internal error")


def test_command_line(model_bytes, tmp_path, capsys, monkeypatch):
    path = tmp_path / "phone.fqssl"
    path.write_bytes(model_bytes)
    taken = bind("127.0.0.1", 0)
    taken.listen()
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(path), "--port", str(taken.getsockname()[1])])
    assert ended.value.code == 2 and "choose another --port" in capsys.readouterr().err
    monkeypatch.setattr("fedqssl.serve.running.serve", lambda model, sock, host, limits: sock.close())
    with pytest.raises(SystemExit):
        main(["serve", str(path), "--port", "0", "--host", "0.0.0.0"])
    out = capsys.readouterr()
    assert "serving" in out.out and "no password" in out.err
    monkeypatch.setitem(__import__("sys").modules, "fastapi", None)
    with pytest.raises(SystemExit):
        main(["serve", str(path)])
    assert "pip install 'fedqssl[serve]'" in capsys.readouterr().err
    assert is_loopback("::1") and not is_loopback("10.0.0.1") and not is_loopback("example.org")
    taken.close()


def test_good_images_are_answered_when_one_is_bad(client, model):
    before = client.get("/metrics").text
    found = send(client, png(), b"no image", png(60, 60))
    assert found.status_code == 200
    first, second, third = found.json()["predictions"]
    assert first["error"] is third["error"] is None and first["top"] and third["top"]
    assert second["top"] == [] and "1.png is not an image; send PNG" in second["error"]
    assert third["top"][0]["name"] == model.predict(png(60, 60))[0].name
    assert send(client, b"no image", b"nor this").status_code == 415
    after = client.get("/metrics").text
    assert count(after, "answered") == count(before, "answered") + 2
    assert count(after, "refused") == count(before, "refused") + 3


def count(text: str, what: str) -> int:
    return int(next(line for line in text.splitlines() if line.startswith(f"fedqssl_images_{what}_total ")).split()[1])


def test_the_description_shows_the_address_that_was_asked(model):
    app = make_app(model, Limits(), LOOPBACK)
    with TestClient(app, base_url="http://127.0.0.1:8123") as asking:
        assert "http://127.0.0.1:8123/predict?top=3" in asking.get("/docs").text
