"""Few-shot examples for a model of 135 million parameters, on a server of your own."""

from __future__ import annotations

import os
import sys
from random import Random

from promptiter import Engine, EvalCase, EvalSet, Evaluator, Gateway, GraphAgent, ModelNode, RunRequest, build_metrics
from promptiter.errors import PromptiterError
from promptiter.evaluation import Turn
from promptiter.llm import LiteLLMModel
from promptiter.search import FewShotSearch

START = """\
Start a server with an OpenAI-compatible API, and name it and its model:

  llama-server -hf bartowski/SmolLM2-135M-Instruct-GGUF --port 8080
  export SMALL_MODEL_API_BASE=http://127.0.0.1:8080/v1
  export SMALL_MODEL=SmolLM2-135M-Instruct
"""

MESSAGES = {
    "billing": [
        "I was charged twice this month.",
        "Why is my invoice higher than last time?",
        "Please send the receipt again.",
        "The discount is missing on the bill.",
        "My card was declined, but I was charged.",
        "When do you take the money from my account?",
        "I would like to pay by bank transfer.",
        "The tax on the invoice is wrong.",
        "You charged me in dollars instead of euros.",
        "Can I get a refund for the unused days?",
    ],
    "delivery": [
        "My parcel has not arrived.",
        "The courier left the box in the rain.",
        "Where is my order now?",
        "Can you deliver on Saturday?",
        "The tracking page shows nothing.",
        "You sent it to my old street.",
        "The package came open and half empty.",
        "How long does shipping to Norway take?",
        "Nobody rang, but the driver says he did.",
        "I need the order before Friday.",
    ],
    "account": [
        "I cannot log in any more.",
        "How do I change my password?",
        "Please delete my profile.",
        "The code for signing in never comes.",
        "I want to use another email address.",
        "Someone else is using my login.",
        "My username is spelled wrong.",
        "How do I turn on two-factor login?",
        "The app signs me out every day.",
        "Can my daughter have a login of her own?",
    ],
}
INSTRUCTION = "Which team gets the message: billing, delivery or account? Answer with one word."


def build_sets() -> dict[str, EvalSet]:
    """Sixteen train cases, and fourteen validation cases."""
    pairs = [(text, team) for team, texts in MESSAGES.items() for text in texts]
    Random(0).shuffle(pairs)
    cases = [EvalCase(id=f"m{n}", turns=(Turn(user=text, expected=team),)) for n, (text, team) in enumerate(pairs)]
    return {"train": EvalSet(id="train", cases=tuple(cases[:16])), "new": EvalSet(id="new", cases=tuple(cases[16:]))}


def main() -> None:
    api_base, model = os.environ.get("SMALL_MODEL_API_BASE"), os.environ.get("SMALL_MODEL", "SmolLM2-135M-Instruct")
    if not api_base:
        print(f"{START}\nNo server is named in SMALL_MODEL_API_BASE, so nothing was run.")
        return
    name = f"openai/{model}"
    node = ModelNode(name="sorter", model=name, instruction=INSTRUCTION, options={"temperature": 0, "max_tokens": 4})
    served = LiteLLMModel(api_base=api_base, api_key=os.environ.get("SMALL_MODEL_API_KEY", "none"))
    metrics = build_metrics([{"metric_name": "contains"}])
    evaluator = Evaluator(metrics, gateway=Gateway(models={name: served}, concurrency=4))
    sets = build_sets()
    request = RunRequest(train=sets["train"], validation=sets["new"], targets=("sorter#examples",))
    engine = Engine(GraphAgent(name="sorter", nodes=(node,)), evaluator, search=FewShotSearch(k=6))
    try:
        result = engine.run_sync(request)
    except PromptiterError as error:
        sys.exit(f"{error}\n\n{START}")
    print(f"{model}: validation {result.baseline_score:.2f} -> {result.accepted_score:.2f} ({result.verdict})")
    for change in result.changes:
        print(change.as_text())


if __name__ == "__main__":
    main()
