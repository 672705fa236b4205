"""The server as a process, its queue, its page in a browser, and its load (slow)."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pandas as pd
import psutil
import pytest
import uvicorn

import finetune
from finetune.serving import app
from finetune.serving.batching import Batcher, QueueFull
from tests.acceptance import data

TEXT = "the food of this place was lovely and fine and great, " * 3  # about 40 tokens
Serve = Callable[..., tuple[str, subprocess.Popen[str]]]


@pytest.fixture(scope="module")
def export(tiny_model: str, uneven_reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = dict(dataset=str(uneven_reviews), model=tiny_model, max_steps=2)
    options |= dict(output_dir=str(tmp_path_factory.mktemp("run") / "run"), baseline=False)
    return finetune.export(finetune.train("text", **options)).path


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts `serve` with some words and returns its address."""
    processes = []

    def start(*words: object, **variables: str) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-m", "finetune", "serve", *map(str, words)]
        with (tmp_path / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                command,
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        processes.append(process)
        assert process.stdout
        line = process.stdout.readline()
        assert line, (tmp_path / "stderr").read_text()
        return line.split()[1], process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def wait_while(line: str, address: str, answers: Sequence[Future[Any]]) -> None:
    """Wait while the metrics of a server have a line; until then no answer may be complete."""
    while line in urllib.request.urlopen(f"{address}/metrics").read().decode():
        assert not [answer.result() for answer in answers if answer.done()]


def predict(address: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the answer to a request."""
    content = json.dumps(body or {"text": TEXT}).encode()
    try:
        with urllib.request.urlopen(f"{address}/predict", content, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.processes
def test_a_signal_ends_it_once_all_requests_are_answered(
    export: Path, serve: Serve, tmp_path: Path
) -> None:
    address, process = serve(export, "--port", 0)
    libraries = Path(f"/proc/{process.pid}/maps").read_text()
    assert "onnxruntime" in libraries
    assert not re.search("libtorch|site-packages/torch/", libraries)
    body = {"texts": [TEXT * 280] * 20}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(predict, address, body) for _ in range(4)]
        wait_while("batch_rows_count 0.0", address, answers)
        process.send_signal(signal.SIGTERM)
        for answer in answers:
            status, result = answer.result()
            assert (status, len(result["predictions"])) == (200, 20)
    assert process.wait(10) == -signal.SIGTERM
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.processes
def test_a_second_ctrl_c_ends_it_quietly(export: Path, serve: Serve, tmp_path: Path) -> None:
    """It does not wait for the requests that are computed, and shows no traceback."""
    address, process = serve(export, "--port", 0)
    body = {"texts": [TEXT * 280] * 20}
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(predict, address, body) for _ in range(12)]
        wait_while("waiting_rows 0.0", address, answers)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(urllib.error.URLError, ConnectionError):  # once it is handled
            while urllib.request.urlopen(f"{address}/health"):
                pass
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert any(answer.exception() for answer in answers)
    assert (tmp_path / "stderr").read_text() == "interrupted\n"


@pytest.mark.processes
def test_a_port_in_use_and_an_open_host(export: Path, serve: Serve, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}: .* in use"):
            serve(export, "--port", port)
    with pytest.raises(AssertionError, match="FINETUNE_API_KEY: expected a key"):
        serve(export, FINETUNE_API_KEY="")
    address, process = serve(export, "--port", 0, "--host", "0.0.0.0", FINETUNE_API_KEY="key")
    assert predict(address)[0] == 401
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    warning = "--host 0.0.0.0: other machines can send requests, with the key"
    assert (tmp_path / "stderr").read_text().splitlines() == [warning, "interrupted"]


@pytest.mark.processes
def test_a_thousand_slow_connections(export: Path, serve: Serve, tmp_path: Path) -> None:
    """They send half a request, and are closed after 10 s; others are answered meanwhile."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    address, _ = serve(export, "--port", 0)
    host = ("127.0.0.1", int(address.rpartition(":")[2]))
    heads = [b"", b"POST /predict HTTP/1.1\r\nHost: a\r\n"]
    heads += [heads[1] + b"Content-Length: 100\r\n\r\n{"]
    connections = [socket.create_connection(host, timeout=15) for _ in range(1000)]
    started = time.monotonic()
    for number, connection in enumerate(connections):
        connection.sendall(heads[number % 3])
    assert predict(address)[0] == 200
    assert time.monotonic() - started < 5
    connections.pop(998).close()  # in the middle of a body
    answers = Counter(connection.recv(1000)[9:12] for connection in connections)
    assert set(answers) == {b"", b"408"}  # closed, or told to be too slow with the body
    assert 8 < time.monotonic() - started < 14
    assert predict(address)[0] == 200
    assert (tmp_path / "stderr").read_text() == ""


class TestBatcher:
    """Batches of at most 4 rows, at most 6 rows wait; `self.may_compute` holds the first batch."""

    def setup_method(self) -> None:
        self.may_compute = threading.Event()
        self.batches: list[list[str]] = []

    def compute(self, rows: list[str]) -> list[str]:
        self.batches.append(rows)
        self.may_compute.wait(10)
        if "bad" in rows:
            raise ValueError
        return [row.upper() for row in rows]

    def run(self, requests: list[list[str]], cancelled: int | None = None) -> list[Any]:
        """Return the answers to requests that arrive while a batch is computed."""

        async def main() -> list[Any]:
            batcher = Batcher(self.compute, 4, 6)
            first = asyncio.create_task(batcher.predict(["first"]))
            while not self.batches:
                await asyncio.sleep(0)
            tasks = [asyncio.create_task(batcher.predict(rows)) for rows in requests]
            await asyncio.sleep(0)
            if cancelled is not None:
                tasks[cancelled].cancel()
            self.may_compute.set()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert (await first, len(batcher)) == (["FIRST"], 0)
            return answers

        return asyncio.run(main())

    def test_rows_of_several_requests_are_computed_together(self) -> None:
        assert self.run([["a", "b"], ["c", "d", "e"]]) == [["A", "B"], ["C", "D", "E"]]
        assert self.batches == [["first"], ["a", "b", "c", "d"], ["e"]]

    def test_what_does_not_fit_into_the_queue_is_refused_at_once(self) -> None:
        full, fits, more = self.run([["a"] * 5, ["b"], ["c"]])
        assert (full, fits) == (["A"] * 5, ["B"])
        assert isinstance(more, QueueFull)

    def test_a_row_that_fails_does_not_spoil_others(self) -> None:
        answers = self.run([["a"], ["b", "bad"], ["c"]])
        assert isinstance(answers.pop(1), ValueError)
        assert answers == [["A"], ["C"]]

    def test_rows_of_a_request_that_was_cancelled_are_not_computed(self) -> None:
        answers = self.run([["a", "b"], ["c"]], cancelled=0)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert (answers[1], self.batches) == (["C"], [["first"], ["c"]])


class Held:
    """A predictor of one class that records its batches, and computes them when told to."""

    task, labels, columns, engine, digest = "single_label", ["a"], 1, "torch", "0" * 64

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_compute = threading.Event()

    def __call__(self, rows: list[str], **options: Any) -> pd.DataFrame:
        self.batches.append(rows)
        self.may_compute.wait(60)
        return pd.DataFrame(
            {"label": "a", "probability": 1.0, "probability of a": [1.0] * len(rows)}
        )


@pytest.fixture
def held() -> Iterator[tuple[Held, str]]:
    """A predictor, and the address of a server with it in this process."""
    predictor = Held()
    server = uvicorn.Server(uvicorn.Config(finetune.create_app(predictor), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        address = f"http://127.0.0.1:{opened.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        yield predictor, address
        predictor.may_compute.set()
        server.should_exit = True
        thread.join(60)


def waiting_rows(address: str) -> int:
    page = urllib.request.urlopen(f"{address}/metrics").read().decode()
    return int(float(re.findall(r"^finetune_waiting_rows (.*)$", page, re.M)[0]))


def send(address: str, **body: Any) -> socket.socket:
    """Send a request, and return its connection without waiting for the answer."""
    host, _, port = address.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(head.encode() + content)
    return connection


def test_rows_that_have_waited_too_long_are_not_computed(
    held: tuple[Held, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their client has the status 503 by then."""
    predictor, address = held
    monkeypatch.setattr(app, "_ANSWER_SECONDS", 0.3)
    with ThreadPoolExecutor(2) as pool:
        requests = [pool.submit(predict, address, {"text": "first"})]
        while not predictor.batches:
            assert not requests[0].done()
        requests.append(pool.submit(predict, address, {"texts": ["late", "too late"]}))
        assert [request.result()[0] for request in requests] == [503, 503]
    monkeypatch.setattr(app, "_ANSWER_SECONDS", 60)
    predictor.may_compute.set()
    assert predict(address, {"text": "last"})[0] == 200
    assert predictor.batches == [["first"], ["last"]]


def test_rows_of_a_client_that_left_are_not_computed(held: tuple[Held, str]) -> None:
    predictor, address = held
    with send(address, text="first"):
        while not predictor.batches:
            waiting_rows(address)
        left = send(address, texts=["left", "left, too"])
        while waiting_rows(address) < 2:
            pass
        left.close()
        for _ in range(50):  # requests, so that the server has noticed
            waiting_rows(address)
        predictor.may_compute.set()
        assert predict(address, {"text": "last"})[0] == 200
    assert [row for batch in predictor.batches for row in batch] == ["first", "last"]


needs_browser = pytest.mark.skipif(
    not shutil.which("chromedriver"), reason="chromedriver is not installed"
)


@contextlib.contextmanager
def open_browser(*, dark: bool) -> Iterator[Any]:
    """Start a browser of the size of a phone."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1200,900"):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        media = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        set_width(browser, 390)
        yield browser
    finally:
        browser.quit()


def set_width(browser: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": width < 800}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def assert_fits_and_is_quiet(browser: Any, *, dark: bool) -> None:
    """The page is not wider than the window, has the colors of the user, and logs no mistake."""
    script = "return document.documentElement.scrollWidth <= window.innerWidth"
    assert browser.execute_script(script)
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", color)[0]) < 128) == dark
    assert not [entry for entry in browser.get_log("browser") if "401" not in entry["message"]]


def save_screenshot(browser: Any, name: str) -> None:
    if os.environ.get("SCREENSHOTS"):
        browser.save_screenshot(f"{os.environ['SCREENSHOTS']}/{name}.png")


@pytest.mark.processes
@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_shows_classes_as_bars(export: Path, serve: Serve, dark: bool) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    address, process = serve(export, "--port", 0, FINETUNE_API_KEY="key")
    with open_browser(dark=dark) as browser:
        wait = WebDriverWait(browser, 10)
        browser.get(address)
        wait.until(lambda page: page.switch_to.active_element.tag_name == "textarea")
        # by keyboard only: the text, then the key that is asked for
        browser.switch_to.active_element.send_keys("<b>lovely</b>", Keys.CONTROL, Keys.ENTER)
        key = wait.until(lambda page: page.find_element(By.CSS_SELECTOR, "input:focus"))
        key.send_keys("key", Keys.ENTER)
        rows = wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#answer tr"))
        texts = [row.text.split() for row in rows]
        predicted = finetune.Predictor(export)(["<b>lovely</b>"])
        share = f"{100 * predicted['probability'][0]:.1f}%"
        assert texts[0][-2:] == [predicted["label"][0], share]
        assert {text[-2] for text in texts} == {"bad", "good"}
        bars = [row.find_element(By.TAG_NAME, "span").rect["width"] for row in rows]
        shares = [float(text[-1][:-1]) for text in texts]
        assert bars[0] / bars[1] == pytest.approx(shares[0] / shares[1], rel=0.05)
        assert_fits_and_is_quiet(browser, dark=dark)
        save_screenshot(browser, "dark" if dark else "light")
        process.kill()
        browser.find_element(By.TAG_NAME, "button").click()
        wait.until(lambda page: "does not answer" in page.find_element(By.ID, "answer").text)


#: Returns the text of an answer without the labels.
SHOWN = """
const text = document.querySelector("#answer .text").cloneNode(true);
text.querySelectorAll("small").forEach((label) => label.remove());
return text.textContent;
"""


@pytest.mark.processes
@needs_browser
def test_the_page_marks_entities(serve: Serve, tmp_path: Path) -> None:
    """Also after an emoji, whose place counts once; what is no entity stays as it was typed."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    data.write_conll(tmp_path / "rows.conll")
    data.write_bert(tmp_path / "bert")
    options: dict[str, Any] = dict(learning_rate=3e-3, num_train_epochs=6, global_batch_size=16)
    options |= dict(dataset=str(tmp_path / "rows.conll"), model=str(tmp_path / "bert"))
    run = finetune.train("tokens", **options, max_length=48, output_dir=str(tmp_path / "run"))
    text = "<b>\U0001f600</b> the service was cellar 7 ( lovely ) terrace 7 ( great menu ) rude 7"
    (entities,) = finetune.Predictor(run)([text])["entities"]
    assert len(entities) > 1
    address, _ = serve(run.path, "--port", 0)
    for dark in (False, True):
        with open_browser(dark=dark) as browser:
            wait = WebDriverWait(browser, 10)
            browser.get(address)
            wait.until(lambda page: page.switch_to.active_element.tag_name == "textarea")
            script = "document.getElementById('text1').value = arguments[0]"
            browser.execute_script(script, text)  # the driver cannot type an emoji
            browser.switch_to.active_element.send_keys(Keys.CONTROL, Keys.ENTER)
            marks = wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, "#answer mark"))
            for mark, entity in zip(marks, entities, strict=True):
                name = text[entity["start"] : entity["end"]]
                share = f"{100 * entity['probability']:.1f}%"
                assert mark.text == f"{name} {entity['label']} {share}"
            assert browser.execute_script(SHOWN) == text
            colors = {entity["label"]: mark.value_of_css_property("background-color")
                      for mark, entity in zip(marks, entities, strict=True)}  # fmt: skip
            assert len(set(colors.values())) == len(colors) == 2
            for width in (390, 1280):
                set_width(browser, width)
                assert_fits_and_is_quiet(browser, dark=dark)
                save_screenshot(browser, f"entities-{'dark' if dark else 'light'}-{width}")
            browser.execute_script(script, "the")
            browser.find_element(By.TAG_NAME, "button").click()
            wait.until(lambda page: "No entity." in page.find_element(By.ID, "answer").text)


class Load:
    """Requests of one text each; every answer is compared with the prediction of its text."""

    def __init__(self, address: str, export: Path) -> None:
        self.address = address
        self.texts = [f"{TEXT[: 20 + number % 150]} place {number}" for number in range(200)]
        predictions = finetune.Predictor(export)(self.texts)
        self.expected = predictions["probability"].tolist()

    async def request(self, session: aiohttp.ClientSession, number: int) -> float | None:
        """Return the seconds of a request, None if it is refused with 503."""
        started = time.perf_counter()
        body = {"text": self.texts[number % 200]}
        async with session.post(f"{self.address}/predict", json=body) as response:
            answer = await response.json()
            if response.status == 503:
                assert response.headers["Retry-After"] == "1"
                return None
            assert response.status == 200, answer
        found = answer["predictions"][0]["probability"]
        assert found == pytest.approx(self.expected[number % 200], abs=1e-4)
        return time.perf_counter() - started

    async def clients(self, count: int, seconds: float) -> list[float]:
        """Return the seconds of requests of clients that wait for each answer."""

        async def client(first: int) -> list[float]:
            times, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end:
                times.append(await self.request(session, first + len(times)))
            return [duration for duration in times if duration is not None]

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            lists = await asyncio.gather(*(client(7 * number) for number in range(count)))
        return [duration for times in lists for duration in times]

    async def rate(self, per_second: float, seconds: float) -> list[float | None]:
        """Return the seconds of requests that arrive at random times, whatever the answers."""
        random = np.random.default_rng(0)
        arrivals = np.cumsum(random.exponential(1 / per_second, int(per_second * seconds)))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            started, tasks = time.perf_counter(), []
            for number, arrival in enumerate(arrivals):
                await asyncio.sleep(started + arrival - time.perf_counter())
                tasks.append(asyncio.create_task(self.request(session, number)))
            return await asyncio.gather(*tasks)


def measure(address: str, export: Path, process_id: int, seconds: float) -> dict[str, float]:
    """Return what a server does at half and at twice the load that it can carry."""
    load, process = Load(address, export), psutil.Process(process_id)
    alone = asyncio.run(load.clients(1, 5))
    capacity = len(asyncio.run(load.clients(32, 10))) / 10
    half = asyncio.run(load.rate(capacity / 2, 20))
    answered = [duration for duration in half if duration is not None]
    before = asyncio.run(load.rate(2 * capacity, 10))
    memory = process.memory_info().rss
    twice = asyncio.run(load.rate(2 * capacity, seconds))
    grown = process.memory_info().rss - memory
    return {
        "ms_alone": 1e3 * float(np.median(alone)),
        "capacity": capacity,
        "half_ms_median": 1e3 * float(np.median(answered)),
        "half_ms_95": 1e3 * float(np.quantile(answered, 0.95)),
        "half_refused": len(half) - len(answered),
        "twice_rate": sum(duration is not None for duration in twice) / seconds,
        "twice_refused": sum(duration is None for duration in [*before, *twice]),
        "grown_mb": grown / 2**20,
    }


@pytest.mark.slow
def test_at_twice_the_load_it_answers_at_full_rate(export: Path, serve: Serve) -> None:
    address, process = serve(export, "--port", 0)
    result = measure(address, export, process.pid, 120)
    print(result)
    assert result["half_ms_95"] < 3 * result["half_ms_median"]
    assert result["half_refused"] == 0
    assert result["twice_refused"] > 0
    assert result["twice_rate"] > 0.9 * result["capacity"]
    assert result["grown_mb"] < 20
