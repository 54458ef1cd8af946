"""From a run to production: save the adopted profile, then serve the agent with it over HTTP."""

import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from promptiter import Engine, Evaluator, RunRequest, build_eval_set, build_metrics
from promptiter.agents import agent, ask_sync, surface

ORDERS = ("A-1042", "B-2077", "C-3010", "D-4455", "E-5120", "F-6001", "G-7317", "H-8240")


@agent(instruction="Answer the customer politely.")
def support(question: str) -> str:
    return ask_sync(question, instruction=surface("instruction"), model="simulated")


def optimize(path: str) -> None:
    """Once, before a release. `promptiter run` writes the same file as profiles/best.json."""
    rows = [{"input": f"Where is my order? (order id: {each}; city: Lyon)", "expected": each} for each in ORDERS]
    request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
    result = Engine(support, Evaluator(build_metrics([{"metric_name": "contains"}]))).run_sync(request)
    print(f"{result.verdict}: {result.baseline_score:.2f} → {result.accepted_score:.2f}")
    result.accepted_profile.save(path)


def serve(answer: Callable[[str], str]) -> ThreadingHTTPServer:
    """Answer POST requests whose body is the question. Any web framework works in the same way."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer(question).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


optimize("best.json")
for name, served in (("baseline", support), ("best", support.with_profile("best.json"))):
    with serve(served) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(url, data=b"Where is my order? (order id: Z-9001; city: Lyon)") as response:
            print(f"{name}: {response.read().decode()}")
        server.shutdown()
