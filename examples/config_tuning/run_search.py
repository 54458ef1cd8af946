"""Answers questions with the settings of search.yaml, and writes answers and costs to work/answers.json."""

import json
from pathlib import Path

TOPICS = ["lamp", "kettle", "chair", "clock", "mirror", "towel", "radio", "ladder", "carpet", "pan"]
DOCUMENTS = {
    f"{topic}-{number}": {topic, f"part{number}", "shop", "returns"} for topic in TOPICS for number in range(4)
}
QUESTIONS = {f"{topic} part{number} returns": f"{topic}-{number}" for topic in TOPICS for number in range(0, 4, 2)}


def read_settings() -> dict[str, str]:
    lines = (line.partition("#")[0] for line in Path("search.yaml").read_text(encoding="utf-8").splitlines())
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines) if value.strip()}


settings = read_settings()
candidates, overlap = int(settings["candidates"]), int(settings["min_overlap"])
index: dict[str, list[str]] = {}
for name, found in DOCUMENTS.items():
    for word in found:
        index.setdefault(word, []).append(name)

steps, answers = 0, {}
for question in QUESTIONS:
    words = question.split()
    names = index[words[0]] if settings["use_index"] == "true" else list(DOCUMENTS)
    shared = [name for name in names if len(DOCUMENTS[name] & set(words)) >= overlap]
    compared = shared[:candidates]
    steps += len(names) + 3 * len(compared)
    answers[question] = max(compared, key=lambda name: len(DOCUMENTS[name] & set(words)), default="")
Path("work").mkdir(exist_ok=True)
Path("work/answers.json").write_text(
    json.dumps({"steps": steps, "right": [answers[each] == QUESTIONS[each] for each in QUESTIONS]}), encoding="utf-8"
)
