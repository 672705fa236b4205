"""The server: row H2. ``tests/test_serving.py`` has its process, its queue and its page."""

import codecs
import gzip
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fastapi.testclient import TestClient

import finetune
from tests.acceptance.conftest import TRAINING, Finished
from tests.acceptance.test_export import write_parts
from tests.conftest import HANGS

pytestmark = pytest.mark.contract("H2")
TEXTS = ["good fine great", "bad 😀", "русский \u0000 " * 200, "good"]


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/predict", json=body)


def assert_answers(source: finetune.Run | Path, rows: list[Any], **body: Any) -> None:
    """Compare the answers of a server with those of the predictor that it serves."""
    predictor = finetune.Predictor(source)
    classifies = predictor.task != "regression"
    with TestClient(finetune.create_app(predictor)) as client:
        answer = post(client, **body).json()
        health = client.get("/health").json()
        description = client.get("/openapi.json").json()["info"]["description"]
    assert answer["model"] == health["model"] == predictor.digest
    assert (health["task"], health["labels"]) == (predictor.task, predictor.labels)
    assert all(label in description for label in predictor.labels)
    expected = predictor(rows, all_probabilities=True) if classifies else predictor(rows)
    for prediction, row in zip(answer["predictions"], expected.to_dict("records"), strict=True):
        flat = dict[str, Any]()
        for name, value in prediction.items():
            column = {"probabilities": "probability"}.get(name, name)
            nested = value if isinstance(value, dict) else {}
            flat |= {f"{column} of {label}": number for label, number in nested.items()}
            flat |= {} if nested else {name: value}
        assert [*flat] == [*row]
        for name, value in row.items():
            assert flat[name] == (
                pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
            )


@pytest.mark.parametrize(
    "run",
    ["single_label_run", "ordinal_run", "multi_label_run", "regression_run"],
    indirect=True,
)
def test_a_server_answers_as_the_predictor(run: finetune.Run) -> None:
    assert_answers(run, TEXTS, texts=TEXTS)
    assert_answers(run, TEXTS[:1], text=TEXTS[0])


@pytest.mark.trains
def test_rows_of_several_texts(bert: Path, tmp_path: Path) -> None:
    values = {**TRAINING, "max_length": 24, "num_train_epochs": 1, "baseline": False}
    values |= {"dataset": str(write_parts(tmp_path / "table.csv")), "model": str(bert)}
    run = finetune.train(
        "text", text_columns="text,second", output_dir=str(tmp_path / "run"), **values
    )
    pairs = [["good", "bad"], ["bad " * 20, "good"]]
    assert_answers(run, [*map(tuple, pairs)], pairs=pairs)
    with TestClient(finetune.create_app(finetune.Predictor(run))) as client:
        for body, message in [
            ({"text": "good"}, "row 1: expected pairs, rows of 2 texts, found 1 texts"),
            (
                {"pairs": [["good", "bad"], ["good", ""]]},
                "row 2: expected a text, found an empty one",
            ),
        ]:
            response = post(client, **body)
            assert (response.status_code, response.json()["detail"]) == (422, message)


@pytest.fixture(scope="module", params=["single_label_run", "entity_run"])
def client(request: pytest.FixtureRequest) -> Any:
    app = finetune.create_app(finetune.Predictor(request.getfixturevalue(request.param)))
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"text": ""}', 422, "row 1: expected a text, found an empty one"),
        (b'{"texts": ["good", " \\n"]}', 422, "row 2: expected a text, found an empty one"),
        (b'{"texts": []}', 422, "expected 1 to 128 rows, found 0"),
        (json.dumps({"texts": ["good"] * 129}).encode(), 422, "expected 1 to 128 rows, found 129"),
        (b'{"pairs": [["good", "bad"]]}', 422, "row 1: expected text or texts, found 2 texts"),
        (b'{"pairs": [[]]}', 422, "row 1: expected text or texts, found 0 texts"),
        (b'{"text": "good", "texts": ["bad"]}', 422, "expected one of text, texts and pairs"),
        (b"{}", 422, "expected one of text, texts and pairs"),
        (b'{"text": null}', 422, "expected one of text, texts and pairs"),
        (b'{"text": 1}', 422, "valid string"),
        (b'{"texts": "good"}', 422, "valid array"),
        (b'{"texts": ["good", null]}', 422, "valid string"),
        (b'{"text": "good", "language": "en"}', 422, "Extra inputs"),
        (b'{"text": "\xff"}', 422, "Invalid JSON"),
        (b'{"text": "\\ud83d"}', 422, "Invalid JSON"),
        (b"text=good", 422, "Invalid JSON"),
        (b"", 422, "Invalid JSON"),
        (b"[" * 100_000, 422, "Invalid JSON"),
        (b'{"texts": [' + b"1," * 500_000 + b"1]}", 422, "valid string"),
        (b'{"pairs": [[' + b"1," * 500_000 + b"1]]}", 422, "valid string"),
        (json.dumps({str(n): 1 for n in range(75_000)}).encode(), 422, "one of text"),
        (b'{"text": "' + b"a" * 100_001 + b'"}', 413, "at most 100,000 characters, found 100,001"),
        (b'{"text": "' + b"a" * 10_000_000 + b'"}', 413, "at most 1,048,576 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input(client: TestClient, body: bytes, status: int, message: str) -> None:
    response = client.post("/predict", content=body)
    assert response.status_code == status
    assert message in response.text
    assert len(response.text) < 500  # the text is not sent back
    assert post(client, text="good").status_code == 200


BODY = b'{"text": "good \xe2\x82\xac"}'


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", "/predict", {}, codecs.BOM_UTF8 + BODY, 200),
        ("POST", "/predict", {}, b" \r\n\t" + BODY + b"\n", 200),
        ("POST", "/predict", {}, BODY.decode().encode("utf-16"), 422),
        ("POST", "/predict", {}, BODY.decode().encode("cp1252"), 422),
        ("POST", "/predict", {}, codecs.BOM_UTF8, 422),
        ("POST", "/predict", {"Content-Type": "APPLICATION/JSON; charset=UTF-8"}, BODY, 200),
        ("POST", "/predict", {"Content-Type": "application/x-www-form-urlencoded"}, BODY, 200),
        ("POST", "/predict", {"Content-Encoding": "Identity"}, BODY, 200),
        ("POST", "/predict", {"Content-Encoding": "gzip"}, gzip.compress(BODY, mtime=0), 415),
        ("POST", "/predict", {"Accept": "text/html"}, BODY, 200),
        ("POST", "/%70redict", {}, BODY, 200),
        ("POST", "/predict/", {}, BODY, 200),
        ("POST", "/Predict", {}, BODY, 404),
        ("GET", "/predict", {}, b"", 405),
        ("OPTIONS", "/predict", {}, b"", 405),
        *(("HEAD", path, {}, b"", 200) for path in ("/", "/health", "/metrics", "/openapi.json")),
    ],
    ids=str,
)
def test_requests_as_http_and_json_allow_them(
    client: TestClient, method: str, path: str, headers: Any, body: bytes, status: int
) -> None:
    response = client.request(method, path, headers=headers, content=body)
    assert response.status_code == status, response.text
    if status == 200 and method == "POST":
        assert response.json() == post(client, text="good \u20ac").json()
    if status == 405:
        assert response.headers["Allow"] == "POST"


def test_metrics_count_requests(client: TestClient) -> None:
    def counted(status: int) -> float:
        lines = client.get("/metrics").text.splitlines()
        name = f'finetune_requests_total{{status="{status}"}} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = counted(200), counted(422)
    for text in ("good", "bad", ""):
        post(client, text=text)
    assert (counted(200), counted(422)) == (before[0] + 2, before[1] + 1)
    assert "finetune_request_seconds_bucket" in client.get("/metrics").text


class Held:
    """A predictor that computes its first batch when told to."""

    def __init__(self, predictor: finetune.Predictor) -> None:
        self._predictor = predictor
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._predictor, name)

    def __call__(self, batch: Any, **options: Any) -> pd.DataFrame:
        self.has_begun.set()
        self.may_go_on.wait(HANGS)
        return self._predictor(batch, **options)


def test_rows_that_have_no_room_in_the_queue_are_refused(single_label_run: finetune.Run) -> None:
    """One row is computed, 255 wait: two more are refused at once, one has room and is answered."""
    held = Held(finetune.Predictor(single_label_run))
    expected = finetune.Predictor(single_label_run)(["good"])["label"][0]
    with TestClient(finetune.create_app(held)) as client, ThreadPoolExecutor(4) as pool:

        def waiting() -> int:
            (line,) = re.findall(r"^finetune_waiting_rows (.*)$", client.get("/metrics").text, re.M)
            return int(float(line))

        try:
            requests = [pool.submit(post, client, text="good")]
            assert held.has_begun.wait(HANGS)
            requests += [pool.submit(post, client, texts=["good"] * n) for n in (128, 127)]
            while waiting() < 255:
                assert not any(request.done() for request in requests)
            more = pool.submit(post, client, texts=["good"] * 2)
            while not more.done():
                assert waiting() == 255
            requests.append(pool.submit(post, client, text="good"))
            while waiting() < 256:
                assert not any(request.done() for request in requests)
        finally:
            held.may_go_on.set()
        response = more.result()
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert response.json() == {"detail": "too many requests wait"}
        answers = [request.result().json()["predictions"] for request in requests]
        assert [len(predictions) for predictions in answers] == [1, 128, 127, 1]
        assert {row["label"] for predictions in answers for row in predictions} == {expected}
        assert post(client, text="good").status_code == 200


def test_a_key_is_needed_if_there_is_one(single_label_run: finetune.Run) -> None:
    app = finetune.create_app(finetune.Predictor(single_label_run), api_key="secret")
    with TestClient(app) as client:
        for header, status in [
            *((header, 401) for header in ("", "secret", "Bearer", "Bearer s", "Bearer secre")),
            *((header, 401) for header in ("Basic secret", "Bearer Secret", "Bearersecret")),
            *((f"{scheme} secret", 200) for scheme in ("Bearer", "bearer", "BEARER", "Bearer ")),
            ("Bearer secr\u00e9t", 401),
        ]:
            headers = {"Authorization": header.encode("latin-1")}
            response = client.post("/predict", json={"text": "good"}, headers=headers)
            assert response.status_code == status, header
            assert ("WWW-Authenticate" in response.headers) == (status == 401)
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200
        assert client.head("/health").status_code == 200
    for key in ("", " ", "two words", "säcret"):
        with pytest.raises(finetune.UserError, match="expected a key of printable ASCII"):
            finetune.create_app(finetune.Predictor(single_label_run), api_key=key)


def test_a_model_that_fails_does_not_print_texts(
    single_label_run: finetune.Run, caplog: pytest.LogCaptureFixture
) -> None:
    """One row of several requests cannot be computed: the others are answered."""
    predictor = finetune.Predictor(single_label_run)

    class Fails:
        def __getattr__(self, name: str) -> Any:
            return getattr(predictor, name)

        def __call__(self, batch: Any, **options: Any) -> pd.DataFrame:
            if "secret text" in batch:
                raise ValueError(f"cannot read {batch}")
            return predictor(batch, **options)

    with TestClient(finetune.create_app(Fails())) as client:
        response = post(client, texts=["good", "secret text"])
        assert (response.status_code, response.json()) == (500, {"detail": "the prediction failed"})
        assert post(client, text="good").status_code == 200
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_wrong_sources_and_addresses(
    single_label_run: finetune.Run, cli: Callable[..., Finished], tmp_path: Path
) -> None:
    for words, message in [
        ((tmp_path / "none",), "neither a run nor a whole export: no such directory"),
        ((single_label_run.path, "--engine", "openvino"), "has no export; to make one"),
        ((single_label_run.path, "--port", "99999"), "cannot listen on 127.0.0.1:99999"),
        ((single_label_run.path, "--host", "198.51.100.1"), "cannot listen on 198.51.100.1:8000"),
        ((single_label_run.path, "--workers", "2"), "unrecognized arguments: --workers"),
    ]:
        result = cli("serve", *words)
        assert (result.status, message in result.stderr) == (2, True), result.stderr
