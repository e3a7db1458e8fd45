"""The service's addresses: ``POST /predict``, ``GET /health``, ``GET /model``, a page to drop images on, and its description."""

from __future__ import annotations

import html
import threading
from importlib.resources import files
from typing import Annotated, Any

import torch
from fastapi import FastAPI, File, HTTPException, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from PIL import UnidentifiedImageError
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from fedqssl import __version__
from fedqssl.data.images import DataError
from fedqssl.data.pictures import from_encoded
from fedqssl.data.pixels import FORMATS, decoding_cost
from fedqssl.device import DeviceModel
from fedqssl.files import printable
from fedqssl.serve.limits import Gate, Limits

DECODING = 2
"""Requests whose pictures are decoded at the same time: a large one takes a second and a few hundred megabytes."""
_SHOWN_NAME = 200
MOST_CLASSES = 1000
DESCRIPTION = """<!doctype html><html lang=en><meta charset=utf-8><title>fedqssl: description</title>
<meta name=viewport content="width=device-width, initial-scale=1">
<style>:root{{color-scheme:light dark;--page:#fff;--ink:#1c2127;--link:#0b62a4}}
@media(prefers-color-scheme:dark){{:root{{--page:#14171b;--ink:#e9ebee;--link:#6bb6f5}}}}
body{{background:var(--page);color:var(--ink);font:16px/1.5 system-ui;max-width:44rem;margin:2rem auto;padding:0 1rem}}
a{{color:var(--link)}}pre{{white-space:pre-wrap;overflow-wrap:anywhere}}</style>
<main><h1>Addresses</h1>{rows}<h2>Example</h2><pre>curl -F images=@cat.jpg '{base}predict?top=3'</pre>
<p>Machine-readable: <a href=openapi.json>openapi.json</a></p></main></html>"""


class Guess(BaseModel):
    """A class and its probability."""

    name: str
    probability: float


class Answer(BaseModel):
    """The likeliest classes of one image; or, if it cannot be read while others can, why."""

    file: str
    top: list[Guess]
    error: str | None = None


class Answers(BaseModel):
    """One prediction per image, in the same order."""

    predictions: list[Answer]


class Worker:
    """Decodes pictures of a few requests at a time, and predicts for one: the model's buffers belong to one thread."""

    def __init__(self, model: DeviceModel, limits: Limits) -> None:
        self.model, self.limits, self.lock = model, limits, threading.Lock()
        model.keep_ready()
        self.answered = self.refused = 0
        self.decoding = threading.BoundedSemaphore(DECODING)

    def check(self, uploads: list[tuple[str, bytes]]) -> dict[int, HTTPException]:
        """What is wrong with uploads that are not images, by position; an HTTP error if all of them are too much to decode."""
        total, bad = 0, {}
        for number, (name, data) in enumerate(uploads):
            try:
                width, height, cost = decoding_cost(data)
            except UnidentifiedImageError:
                bad[number] = HTTPException(415, f"{name} is not an image; send {', '.join(FORMATS)}")
                continue
            except Exception:  # pillow's readers raise many types
                bad[number] = HTTPException(
                    422, f"{name} cannot be read as an image; save it again, as PNG for instance"
                )
                continue
            total += cost
            if total > self.limits.pixels:
                larger = f"{name} has {width}x{height} pixels, with the images before it"
                kinds = "WebP counts twice, JPEG 2000 24 times"
                raise HTTPException(
                    413, f"{larger} more than {self.limits.pixels:,} ({kinds}); shrink it, or send fewer at a time"
                )
        return bad

    def pictures(self, uploads: list[tuple[str, bytes]]) -> tuple[dict[int, torch.Tensor], dict[int, HTTPException]]:
        """The pixels of the uploads that can be read, and the errors of the others, by position."""
        bad, good = self.check(uploads), {}
        with self.decoding:
            for number, (name, data) in enumerate(uploads):
                if number not in bad:
                    try:
                        good[number] = from_encoded(data, name, self.model.manifest.size, self.model.manifest.channels)
                    except DataError as error:
                        bad[number] = HTTPException(422, str(error))
        return good, bad

    def answer(self, uploads: list[tuple[str, bytes]], top: int) -> Answers:
        """Classify uploads of (name, bytes); an HTTP error if none of them can be read."""
        good, bad = self.pictures(uploads)
        self.refused += len(bad)
        if not good:
            raise bad[min(bad)]
        with self.lock:
            found = self.model.answers(self.model.probabilities(torch.stack(list(good.values()))), top)
        self.answered += len(good)
        made = {number: answer.top for number, answer in zip(good, found, strict=True)}
        return Answers(
            predictions=[
                Answer(
                    file=name,
                    top=[Guess(name=n, probability=p) for n, p in made.get(number, ())],
                    error=str(bad[number].detail) if number in bad else None,
                )
                for number, (name, _) in enumerate(uploads)
            ]
        )


def _shown(name: str | None, number: int) -> str:
    """A file's name, made safe to repeat to the caller."""
    text = (name or f"image {number}").encode("utf-8", "replace").decode()
    return printable(text[:_SHOWN_NAME])


def _errors(app: FastAPI) -> None:
    """All errors as ``{"error": one line}``; internal details are not revealed."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        lost = error.status_code == 404 and request.scope.get("route") is None
        text = "there is nothing at this address; /docs lists those that there are" if lost else str(error.detail)
        return JSONResponse({"error": text}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()[0]
        name = str(found["loc"][-1]) if found["loc"][0] == "query" else "images"
        wrong = f"top must be a whole number from 1 to {MOST_CLASSES}, not {str(found['input'])[:50]!r}"
        text = wrong if name == "top" else "send one or more files as the form field images"
        return JSONResponse({"error": text.encode("utf-8", "replace").decode()}, 422)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "internal error; the service's log has the details"}, 500)


def _described(app: FastAPI, base: str) -> str:
    """A plain page with the API description, which loads nothing from other sites."""
    rows = []
    for path, methods in app.openapi()["paths"].items():
        for method, entry in methods.items():
            words = html.escape(entry.get("description") or entry.get("summary", ""))
            rows.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{words}</p>")
    return DESCRIPTION.format(rows="".join(rows), base=html.escape(base))


def make_app(model: DeviceModel, limits: Limits | None = None, hosts: tuple[str, ...] | None = None) -> FastAPI:
    """The ASGI application of one model; ``hosts`` are the names it answers to (None: any)."""
    limits = limits or Limits()
    app = FastAPI(title="fedqssl", version=__version__, docs_url=None, redoc_url=None)
    worker, manifest = Worker(model, limits), model.manifest
    _errors(app)

    @app.post("/predict")
    async def predict(
        images: Annotated[list[UploadFile], File(description="Image files of any size.")],
        top: Annotated[
            int, Query(ge=1, le=MOST_CLASSES, description="Number of classes to return for each image.")
        ] = 3,
    ) -> Answers:
        """Classify one or more images, sent as multipart form files named images."""
        if len(images) > limits.images:
            raise HTTPException(413, f"{len(images)} images are more than {limits.images}; send fewer at a time")
        uploads = [(_shown(file.filename, i), await file.read()) for i, file in enumerate(images)]
        return await run_in_threadpool(worker.answer, uploads, top)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service is up, and its version."""
        return {"status": "ok", "version": __version__}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """Images answered and refused since the start, in the text format of Prometheus."""
        counts = (("answered", worker.answered), ("refused", worker.refused))
        return "".join(
            f"# TYPE fedqssl_images_{name}_total counter\nfedqssl_images_{name}_total {n}\n" for name, n in counts
        )

    @app.get("/model")
    async def described() -> dict[str, Any]:
        """What the model is: classes, bits, input, accuracy, cost."""
        return manifest.model_dump(exclude={"extractor_bytes", "classifier_bytes", "scale"})

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("fedqssl.serve").joinpath("page.html").read_text(encoding="utf-8"))

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(_described(app, str(request.base_url)))

    app.add_middleware(Gate, limits=limits, hosts=hosts)
    return app


__all__ = ["Answers", "make_app"]
