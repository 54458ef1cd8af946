"""An agent that reads its prompt from a file: each candidate is written there while it runs, then restored."""

from pathlib import Path

from promptiter import Engine, Evaluator, InPlaceAgent, RunRequest, build_eval_set, build_metrics
from promptiter.agents import FileSource

PROMPT = Path(__file__).parent / "prompt.txt"


def bot(question: str) -> str:
    """In place of a program that you cannot change. It repeats the fields of the question that its prompt names."""
    fields = question.partition("(")[2].rstrip(")").split("; ")
    named = [field for field in fields if field.partition(":")[0] in PROMPT.read_text()]
    return f"Thank you! {', '.join(named)}"


ORDERS = ("A-1042", "B-2077", "C-3010", "D-4455", "E-5120", "F-6001", "G-7317", "H-8240")
rows = [{"input": f"Where is my order? (order id: {each}; city: Lyon)", "expected": each} for each in ORDERS]
request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
agent = InPlaceAgent(bot, {"bot#instruction": FileSource(PROMPT)}, state_folder=PROMPT.parent / ".promptiter")
result = Engine(agent, Evaluator(build_metrics([{"metric_name": "contains"}]))).run_sync(request)

print(result)
print("the file after the run:", PROMPT.read_text().strip())
print("the best prompt:", result.accepted_profile.value("bot#instruction", result.structure))
# To adopt it: PROMPT.write_text(...)
