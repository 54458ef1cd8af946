"""The commentary agent of this example: its engine, its eval sets and both metrics, read from data/.

Without a model it runs offline: the simulated model comments, `compare_with_reference` judges, and rules blame and
patch. With a model, such as gpt-4o-mini, that model does all of it.
"""

import argparse
import json
import re
from pathlib import Path

from promptiter import (
    AgentRun,
    Engine,
    EvalCase,
    Evaluator,
    Gateway,
    GraphAgent,
    ModelNode,
    RunRequest,
    RunResult,
    build_metrics,
    load_eval_config,
    load_eval_set,
)
from promptiter.evaluation import EvaluationOptions
from promptiter.offline import EvidenceAttributor, RuleOptimizer, SimulatedModel
from promptiter.policies import MinGain, Patience, TargetScore
from promptiter.registry import METRICS
from promptiter.stages import LLMAggregator, LLMBackwarder, LLMOptimizer, SupportAggregator

APP = "promptiter-nba-commentary-app"
DATA = Path(__file__).parent / "data" / APP
TARGET = "candidate#instruction"

SHORTEST, LONGEST = 40, 140
"""Characters of a call that fits between two plays."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", help="a model such as gpt-4o-mini, with OPENAI_API_KEY; by default all is offline")
    return parser


def build_engine(model: str | None = None) -> Engine:
    candidate = ModelNode(name="candidate", instruction="You are a helpful assistant.", model=model or "simulated")
    gateway = Gateway(models={"simulated": SimulatedModel(compliance=1.0)})
    metrics = build_metrics(
        load_eval_config(DATA / "sports-commentary.metrics.json"),
        gateway=gateway,
        judge=model or compare_with_reference,
    )
    evaluator = Evaluator(metrics, gateway=gateway, options=EvaluationOptions(concurrency=8))
    agent = GraphAgent(name="commentary", nodes=(candidate,))
    if model is None:
        return Engine(agent, evaluator, EvidenceAttributor(), SupportAggregator(), RuleOptimizer())
    return Engine(agent, evaluator, LLMBackwarder(model), LLMAggregator(model), LLMOptimizer(model))


def build_request() -> RunRequest:
    return RunRequest(
        train=load_eval_set(DATA / "nba-commentary-train.evalset.json"),
        validation=load_eval_set(DATA / "nba-commentary-validation.evalset.json"),
        acceptance=MinGain(0.005),
        stop=Patience(5) | TargetScore(1.0),
        max_rounds=4,
        targets=[TARGET],
    )


def score_length(_: EvalCase, run: AgentRun) -> tuple[float, str]:
    """A metric of one's own, under the name that sports-commentary.metrics.json gives it."""
    length = len(run.output.strip())
    if length < SHORTEST:
        return 0.0, f"the call has {length} characters, which is too short; give at least {SHORTEST}"
    return float(length <= LONGEST), f"the call has {length} characters; give at most {LONGEST}"


METRICS.register("final_response_length_compliance", score_length)


def compare_with_reference(prompt: str) -> str:
    """A judge without a model: a rubric passes if the response has what the reference has of the details it names."""
    quoted = dict(re.findall(r'<data name="(\w+)">\n(.*?)\n</data>', prompt, re.DOTALL))
    details = dict(re.findall(r"(\w+): ([^;)]+)", quoted["user"]))
    verdicts = []
    for rubric_id, rubric in re.findall(r'^- "(.+?)": (.+)$', prompt, re.MULTILINE):
        named = {name: value for name, value in details.items() if re.search(rf"\b{name}\b", rubric)}
        missing = [f"the {name} ({value})" for name, value in named.items() if value not in quoted["response"]]
        missing = [each for each in missing if details[each.split()[1]] in quoted["reference"]]
        reason = f"The response lacks {' and '.join(missing)}." if missing else "The response has what it should."
        verdicts.append({"id": rubric_id, "reason": reason, "passed": not missing})
    return json.dumps({"verdicts": verdicts})


def print_summary(result: RunResult) -> None:
    print(f"Initial validation score: {result.baseline_score:.2f}")
    print(f"Final accepted validation score: {result.accepted_score:.2f}")
    for each in result.rounds:
        if each.train is None or each.validation is None or each.decision is None:
            print(f"Round {each.round} -> no candidate")
            continue
        scores = f"train {each.train.mean_score:.2f}, validation {each.validation.mean_score:.2f}"
        accepted, delta = str(each.decision.accepted).lower(), each.decision.delta
        print(f"Round {each.round} -> {scores}, accepted {accepted}, delta {delta:.2f}")
    for change in result.changes:
        print(f"{change.surface_id}: {change.after}")
    print(f"Verdict: {result.verdict}")
