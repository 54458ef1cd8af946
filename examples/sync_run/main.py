"""One synchronous run with local files: every part is given in Python, and the result is read round by round."""

from pathlib import Path

from promptiter import Engine, Evaluator, Gateway, RunRequest, build_metrics, load_eval_config, load_eval_set
from promptiter.agents import agent, ask, surface
from promptiter.evaluation import EvaluationOptions
from promptiter.offline import EvidenceAttributor, RuleOptimizer, SimulatedModel
from promptiter.policies import MinGain, Patience, TargetScore
from promptiter.stages import SupportAggregator

DATA = Path(__file__).parent / "data"


@agent(instruction="You are a sports commentator.")
async def commentator(game: str) -> str:
    return await ask(game, instruction=surface("instruction"), model="candidate")


gateway = Gateway(models={"candidate": SimulatedModel(compliance=1.0)})
metrics = build_metrics(load_eval_config(DATA / "metrics.json"), gateway=gateway)
evaluator = Evaluator(metrics, gateway=gateway, options=EvaluationOptions(concurrency=8))

# With a model: Engine(commentator, evaluator, LLMBackwarder("gpt-4o"), LLMAggregator("gpt-4o"), LLMOptimizer("gpt-4o"))
engine = Engine(commentator, evaluator, EvidenceAttributor(), SupportAggregator(), RuleOptimizer())
result = engine.run_sync(
    RunRequest(
        train=load_eval_set(DATA / "train.evalset.json"),
        validation=load_eval_set(DATA / "validation.evalset.json"),
        acceptance=MinGain(0.005),
        stop=Patience(5) | TargetScore(1.0),
        max_rounds=4,
        targets=["commentator#instruction"],
    )
)

print(f"Initial validation score: {result.baseline_score:.2f}")
for each in result.rounds:
    if each.train and each.validation and each.decision:  # a round may end without a candidate
        scores = f"train {each.train.mean_score:.2f}, validation {each.validation.mean_score:.2f}"
        outcome = "accepted" if each.decision.accepted else "rejected"
        print(f"Round {each.round}: {scores}, {outcome}: {each.decision.reason}")
print(f"Final validation score: {result.accepted_score:.2f} ({result.verdict})")
for change in result.changes:
    print(f"{change.surface_id}: {change.after}")
