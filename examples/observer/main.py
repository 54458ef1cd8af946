"""An observer sees every event of a run as it happens. This one prints scores, blame, patches and decisions."""

from promptiter import Engine, Evaluator, Event, RunRequest, build_eval_set, build_metrics
from promptiter.agents import agent, ask, surface
from promptiter.observers import CandidateDecided, EvaluationFinished, GradientsMerged, PatchesWritten, RunCompleted


class Reporter:
    async def observe(self, event: Event) -> None:
        match event.payload:
            case EvaluationFinished(mean_score=score):
                print(f"{event.phase}: score {score:.2f}")
            case GradientsMerged(signals=signals):
                print("blamed:", *(signal.surface_id for signal in signals))
            case PatchesWritten(patches=patches):
                print("patched:", *(patch.value for patch in patches), sep="\n  ")
            case CandidateDecided(decision=decision):
                print(f"round {event.round}: {decision.reason}")
            case RunCompleted(verdict=verdict, baseline=before, best=after):
                print(f"{verdict}: {before:.2f} → {after:.2f}")


@agent(instruction="Answer the customer politely.")
async def support(question: str) -> str:
    return await ask(question, instruction=surface("instruction"), model="simulated")


ORDERS = ("A-1042", "B-2077", "C-3010", "D-4455", "E-5120", "F-6001", "G-7317", "H-8240")
rows = [{"input": f"Where is my order? (order id: {each}; city: Lyon)", "expected": each} for each in ORDERS]
request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
engine = Engine(support, Evaluator(build_metrics([{"metric_name": "contains"}])))
engine.run_sync(request, observers=[Reporter()])
