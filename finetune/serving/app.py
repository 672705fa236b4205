"""The HTTP interface: ``POST /predict``, ``GET /health``, ``GET /metrics`` and a page at ``/``."""

import asyncio
import codecs
import hmac
import logging
import re
import time
from importlib.resources import files
from typing import Annotated, Any

import pandas as pd
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from finetune.data.prediction_columns import ENTITIES, LABEL, PREDICTION, PROBABILITY
from finetune.errors import UserError
from finetune.exporting.predictor import Predictor
from finetune.serving.batching import Batcher, QueueFull

_LOGGER = logging.getLogger("finetune")
#: Upper ends of the classes of the histogram of seconds.
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


_BATCH_ROWS = 32  # rows that are computed together
_WAITING_ROWS = 256  # rows of all requests that may wait; more are answered with 503
_REQUEST_ROWS = 128
_TEXT_CHARACTERS = 100_000
_BODY_BYTES = 2**20
_BODY_SECONDS = 10  # for the body of a request to arrive
_ANSWER_SECONDS = 30  # for the answer, from the arrival of the body


_FIRST_MISTAKE = Field(fail_fast=True)  # or each item of 1 MiB is a mistake
_Texts = Annotated[list[str], _FIRST_MISTAKE]


class Rows(BaseModel):
    """The body of a request: one of ``text``, ``texts`` and ``pairs``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = Field(None, description="one text", examples=["The soup was cold."])
    texts: _Texts | None = Field(None, description="several texts")
    pairs: Annotated[list[_Texts], _FIRST_MISTAKE] | None = Field(
        None, description="the texts of each row, for a model that reads several columns"
    )


class Entity(BaseModel):
    """A span of the text."""

    start: int = Field(description="the first character")
    end: int = Field(description="the character after the last one")
    label: str
    probability: float = Field(description="the mean over the words")


class Prediction(BaseModel):
    """The prediction of a row."""

    label: str | list[str] | None = Field(None, description="the class, or the labels of the row")
    probability: float | None = Field(None, description="the probability of `label`")
    probabilities: dict[str, float] | None = Field(None, description="of every class")
    prediction: float | dict[str, float] | None = Field(None, description="of a regression")
    entities: list[Entity] | None = Field(None, description="of a model that labels words")


class Answer(BaseModel):
    """The predictions of the rows of a request, in their order."""

    model: str = Field(description="sha256 of the model")
    predictions: list[Prediction]


def create_app(model: Predictor, api_key: str | None = None) -> FastAPI:
    """Return the application for an ASGI server: ``app = finetune.create_app(predictor)``.

    Args:
        model: Predicts batches in a thread.
        api_key: If not None, ``POST /predict`` needs the header ``Authorization: Bearer KEY``.

    Raises:
        UserError: If the key is empty, or has other characters than those of a header.
    """
    if api_key is not None and not re.fullmatch("[!-~]+", api_key):
        # e.g. a secret that does not exist: not a server without a key
        raise UserError("FINETUNE_API_KEY: expected a key of printable ASCII, without blanks")

    registry = CollectorRegistry()
    names: dict[str, Any] = dict(registry=registry, namespace="finetune")
    requests = Counter("requests", "Requests by status", ["status"], **names)
    seconds = Histogram("request_seconds", "Seconds", buckets=_SECONDS, **names)
    batches = Histogram("batch_rows", "Rows of a batch", buckets=(1, 2, 4, 8, 16, 32), **names)

    def predict(rows: list[Any]) -> list[dict[str, Any]]:
        batches.observe(len(rows))
        return _answers(model, model(rows, all_probabilities=model.task != "tokens"))

    batcher = Batcher(predict, _BATCH_ROWS, _WAITING_ROWS)
    Gauge("waiting_rows", "Rows that wait", **names).set_function(lambda: len(batcher))
    app = FastAPI(
        title="finetune",
        description=f"Task: {model.task}. Labels: {', '.join(model.labels[:100]) or 'numbers'}.",
        docs_url=None,  # both pages load scripts from the network
        redoc_url=None,
    )
    page = files("finetune.serving").joinpath("page.html").read_text(encoding="utf-8")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def show() -> HTMLResponse:
        return HTMLResponse(page)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return what is served."""
        return {
            "model": model.digest,
            "task": model.task,
            "labels": model.labels,
            "columns": model.columns,
            "engine": model.engine,
        }

    @app.api_route("/metrics", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    body = {"content": {"application/json": {"schema": Rows.model_json_schema()}}, "required": True}

    @app.post("/predict", response_model=Answer, openapi_extra={"requestBody": body})
    async def answer(request: Request) -> Response:
        """Predict one text, several texts, or rows of several texts."""
        started = time.perf_counter()
        status = 500
        try:
            if api_key is not None and not _has_key(request, api_key):
                message = "expected the header Authorization: Bearer KEY"
                raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
            encoding = request.headers.get("content-encoding", "identity")
            if encoding.lower() != "identity":
                message = f"expected a body without Content-Encoding, found {encoding:.60}"
                raise HTTPException(415, message, {"Accept-Encoding": "identity"})
            rows = _read_rows(await _read_body(request), model.columns)
            async with asyncio.timeout(_ANSWER_SECONDS):
                predictions = await _predict_unless_left(request, batcher, rows)
            response = JSONResponse({"model": model.digest, "predictions": predictions})
            status = 200
            return response
        except (QueueFull, TimeoutError):
            status = 503
            raise HTTPException(503, "too many requests wait", {"Retry-After": "1"}) from None
        except ClientDisconnect:
            status = 499  # for the metrics: nobody reads it
            return Response(status_code=status)
        except HTTPException as error:
            status = error.status_code
            raise
        except Exception as error:  # its message may have the text, which is private
            _LOGGER.error("a prediction failed: %s", type(error).__name__)
            raise HTTPException(500, "the prediction failed") from None
        finally:
            requests.labels(str(status)).inc()
            seconds.observe(time.perf_counter() - started)

    return app


async def _predict_unless_left(request: Request, batcher: Batcher, rows: list[Any]) -> list[Any]:
    """Return the answers to rows, whose request has been read.

    Raises:
        ClientDisconnect: If the client leaves first; rows that still wait are not computed.
    """
    answers = asyncio.ensure_future(batcher.predict(rows))
    left = asyncio.ensure_future(request.receive())  # the next message says that it has left
    try:
        await asyncio.wait((answers, left), return_when=asyncio.FIRST_COMPLETED)
        if not answers.done():
            raise ClientDisconnect
        return answers.result()
    finally:
        answers.cancel()
        left.cancel()


def _has_key(request: Request, api_key: str) -> bool:
    """Whether a request has the key; the name of the scheme is in any case (RFC 9110, 11.1)."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    is_equal = hmac.compare_digest(key.strip(" ").encode("latin-1"), api_key.encode())
    return is_equal and scheme.lower() == "bearer"


async def _read_body(request: Request) -> bytes:
    """Return the body of a request, unless it is too large or too slow."""
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= _BODY_BYTES:  # read on: many clients see no answer while they send
                    body += chunk
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {_BODY_SECONDS} s") from None
    if size > _BODY_BYTES:
        raise HTTPException(413, f"expected at most {_BODY_BYTES:,} bytes")
    return bytes(body)


def _read_rows(body: bytes, columns: int) -> list[str] | list[tuple[str, ...]]:
    """Return the texts of each row; a mistake is an answer with status 422 or 413."""
    try:
        # many Windows programs begin UTF-8 with a byte order mark (RFC 8259, 8.1)
        body_rows = Rows.model_validate_json(body.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        if error.error_count() > 3:  # unknown names, as many as fit into a body
            raise HTTPException(422, "expected one of text, texts and pairs") from None
        details = error.errors(include_input=False, include_url=False, include_context=False)
        raise HTTPException(422, details) from None
    if sum(value is not None for _, value in body_rows) != 1:
        raise HTTPException(422, "expected one of text, texts and pairs")
    rows = body_rows.pairs or []
    if body_rows.text is not None:
        rows = [[body_rows.text]]
    elif body_rows.texts is not None:
        rows = [[text] for text in body_rows.texts]
    if not 1 <= len(rows) <= _REQUEST_ROWS:
        raise HTTPException(422, f"expected 1 to {_REQUEST_ROWS} rows, found {len(rows)}")
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            form = "text or texts" if columns == 1 else f"pairs, rows of {columns} texts"
            raise HTTPException(422, f"row {number}: expected {form}, found {len(row)} texts")
        if not all(text.strip() for text in row):
            raise HTTPException(422, f"row {number}: expected a text, found an empty one")
        if (size := max(map(len, row))) > _TEXT_CHARACTERS:
            raise HTTPException(
                413,
                f"row {number}: expected at most {_TEXT_CHARACTERS:,} characters, found {size:,}",
            )
    if columns == 1:
        return [row[0] for row in rows]
    return list(map(tuple, rows))


def _answers(model: Predictor, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the predictions in a frame as JSON values."""
    if ENTITIES in frame:
        return [{ENTITIES: entities} for entities in frame[ENTITIES]]
    names = [name for name in (LABEL, PROBABILITY, PREDICTION) if name in frame]
    group = "probabilities" if LABEL in frame else PREDICTION
    answers = []
    for row in frame.to_dict("records"):
        answer = {name: row.pop(name) for name in names}
        if model.labels:
            answer[group] = dict(zip(model.labels, row.values(), strict=True))
        answers.append(answer)
    return answers
