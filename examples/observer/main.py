"""An observer sees every event of a run as it happens. This one prints scores, blame, patches and decisions."""

from promptiter import Engine, Evaluator, Event, RunRequest, build_eval_set, build_metrics
from promptiter.agents import agent, ask, surface


class Reporter:
    async def observe(self, event: Event) -> None:
        data = event.data  # plain JSON
        match event.type:
            case "evaluation_finished":
                print(f"{event.phase}: score {data['mean_score']:.2f}")
            case "aggregation":
                print("blamed:", *(signal["surface_id"] for signal in data["signals"]))
            case "patches":
                print("patched:", *(patch["value"] for patch in data["patches"]["patches"]), sep="\n  ")
            case "decision":
                print(f"round {event.round}: {data['decision']['reason']}")
            case "run_completed":
                print(f"{data['verdict']}: {data['baseline']:.2f} → {data['best']:.2f}")


@agent(instruction="Answer the customer politely.")
async def support(question: str) -> str:
    return await ask(question, instruction=surface("instruction"), model="simulated")


ORDERS = ("A-1042", "B-2077", "C-3010", "D-4455", "E-5120", "F-6001", "G-7317", "H-8240")
rows = [{"input": f"Where is my order? (order id: {each}; city: Lyon)", "expected": each} for each in ORDERS]
request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
engine = Engine(support, Evaluator(build_metrics([{"metric_name": "contains"}])))
engine.run_sync(request, observers=[Reporter()])
