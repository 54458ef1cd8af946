"""Overhead per case of an evaluation as users run it, and whether memory stays flat.

First, CPU time: an agent that asks a model once, which answers at once. The call goes through the gateway with its
cache and ledger, the run is recorded and scored by a metric, and its trace is stored in the file of a run folder. The
lower bound calls the same model under asyncio with the same concurrency: no profile, trace, score or row. Beside it, an
agent that asks no model: what the evaluator takes without the gateway. Both run in turn in this process, in small
batches, the best of which counts. Goal: at most 300 us per case over the lower bound.

Then 10,000 cases of an agent that answers at once, and its peak memory. Then an agent that computes, on one event loop
and in other processes, and what a case costs to send there.

    python -m benchmarks.bench_evaluate [--cases 10000] [--overhead]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Measurement, format_goal, measure_cpu_in_turn, measure_in_turn
from promptiter import EvalCase, EvalSet, Evaluator, Gateway, ModelNode, Profile
from promptiter.agents import Agent, agent, ask, chain, surface
from promptiter.agents.base import AgentRun
from promptiter.evaluation import EvaluationOptions, Executor, FunctionMetric, LocalExecutor, ProcessExecutor, Turn
from promptiter.evaluation.metrics.builtin import FinalResponseMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.text_match import TextCriterion
from promptiter.evaluation.trace_file import FILE_NAME
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm import Message, ModelReply, ModelRequest
from traces import Usage

CONCURRENCY = 16


async def answer(text: str) -> str:
    return text.upper()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--overhead", action="store_true", help="CPU time per case only")
    chosen = parser.parse_args()
    report_overhead(100)
    if chosen.overhead:
        return
    count = chosen.cases
    print(f"\n{count:,} cases, an agent that answers at once (best of 3 tries)\n")
    print(f"{'':34}{'seconds':>9}{'us/case':>9}{'peak MB':>9}")
    for cases in (count // 10, count):
        bare, rows = measure_in_turn([run_bare_loop, stream_rows], cases, tries=3)
        print_row(f"{cases:,} cases: bare asyncio", bare, cases)
        print_row(f"{cases:,} cases: stream of rows", rows, cases)
    report_paid_calls(200)
    report_processes(cases=40, workers=os.cpu_count() or 1)


INSTRUCTION = "Repeat what the user says, in capital letters."


async def answer_at_once(request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG001 - a model's parameters
    return ModelReply(text=request.messages[-1].content.upper(), usage=Usage(input_tokens=12, output_tokens=3))


@agent(instruction=INSTRUCTION)
async def asking(text: str) -> str:
    return await ask(text, instruction=str(surface("instruction")), model="instant")


@agent(instruction=INSTRUCTION)
async def answering(text: str) -> str:
    return text.upper()


def report_overhead(cases: int) -> None:
    """CPU time per case of an evaluation, over that of bare asyncio."""
    eval_set = build_eval_set(cases)
    with tempfile.TemporaryDirectory() as folder:
        bare, asked, answered = measure_cpu_in_turn(
            [
                lambda: ask_bare_model(cases),
                lambda: evaluate_in_folder(asking, eval_set, Path(folder)),
                lambda: evaluate_in_folder(answering, eval_set, Path(folder)),
            ],
            tries=20,
        )
    per_case = [seconds / cases * 1e6 for seconds in (bare, asked, answered)]
    print(f"us of CPU per case (best of 20 batches of {cases} cases)\n")
    for name, found in zip(("bare asyncio", "agent that asks a model", "agent that asks none"), per_case, strict=True):
        print(f"  {name:26}{found:7.0f}")
    print(f"\n  {format_goal('us of CPU per case over bare asyncio', per_case[1] - per_case[0], 300)}")


def ask_bare_model(cases: int) -> int:
    async def run() -> int:
        slots = asyncio.Semaphore(CONCURRENCY)

        async def one(number: int) -> str:
            messages = (Message("system", INSTRUCTION), Message("user", f"question {number}"))
            async with slots:
                return (await answer_at_once(ModelRequest(model="instant", messages=messages), repeat=0)).text

        return len(await asyncio.gather(*(one(number) for number in range(cases))))

    return asyncio.run(run())


def evaluate_in_folder(subject: Agent, eval_set: EvalSet, folder: Path) -> None:
    """An evaluation with a gateway and a trace file of its own, as in a run."""
    evaluator = Evaluator(
        [FinalResponseMetric(name="answer", criterion=FinalResponseCriterion(text=TextCriterion()))],
        gateway=Gateway(models={"instant": answer_at_once}),
        options=EvaluationOptions(concurrency=CONCURRENCY),
        trace_store=FileTraceStore(folder / secrets.token_hex(4) / FILE_NAME),
    )
    evaluation = asyncio.run(evaluator.evaluate(subject, eval_set))
    assert evaluation.pass_rate == 1.0
    assert all(row.trace_digests for row in evaluation.rows)


def build_eval_set(cases: int) -> EvalSet:
    return EvalSet(
        id="bench",
        cases=tuple(
            EvalCase(id=f"c{number}", turns=(Turn(user=f"question {number}", expected=f"QUESTION {number}"),))
            for number in range(cases)
        ),
    )


async def answer_by_request(request: ModelRequest, *, repeat: int) -> ModelReply:
    return ModelReply(text=f"{request.messages[0].content}({request.messages[-1].content}) {repeat}")


def report_paid_calls(cases: int) -> None:
    """Model calls of a candidate that changes one node of a chain of six, compared with an evaluation without cache."""
    nodes = tuple(ModelNode(name=f"n{number}", instruction=f"n{number}", model="m") for number in range(6))
    subject = chain("six", *nodes)
    questions = tuple(EvalCase(id=f"c{number}", turns=(Turn(user=str(number)),)) for number in range(cases))
    print(f"\na candidate that changes one of six nodes in a chain, {cases} cases: calls paid\n")
    for changed in range(6):
        gateway = Gateway(models={"m": answer_by_request})
        evaluator = Evaluator([FunctionMetric(name="any", function=lambda _, run: bool(run.output))], gateway=gateway)
        asyncio.run(evaluator.evaluate(subject, EvalSet(id="bench", cases=questions)))
        before = gateway.ledger.snapshot().total.calls
        candidate = Profile.of(subject.describe(), {f"n{changed}#instruction": "better"})
        asyncio.run(evaluator.evaluate(subject, EvalSet(id="bench", cases=questions), candidate))
        paid = gateway.ledger.snapshot().total.calls - before
        print(f"  n{changed}: {paid:5} of {6 * cases} calls")


def count_primes(text: str) -> str:
    """Computes for some tenths of a second, without releasing the interpreter."""
    return str(sum(all(number % factor for factor in range(2, int(number**0.5) + 1)) for number in range(int(text))))


thinker = chain("thinker", count_primes)


def has_output(case: EvalCase, run: AgentRun) -> float:  # noqa: ARG001 - a metric's parameters
    return float(bool(run.output))


def report_processes(cases: int, workers: int) -> None:
    """The time of an agent that computes in other processes, as a share of its time on one event loop."""
    print(f"\n{cases} cases of an agent that computes; processes are already started\n")
    with ProcessExecutor(workers=workers) as processes:
        time_cases(processes, cases=workers, size=1)
        here, there = (time_cases(executor, cases=cases, size=60_000) for executor in (LocalExecutor(), processes))
        print(f"  on one event loop {here:.2f} s, in {workers} processes {there:.2f} s: {there / here:.2f} of the time")
        sent = [time_cases(executor, cases=10 * cases, size=1) for executor in (LocalExecutor(), processes)]
        per_case = [seconds / (10 * cases) * 1e6 for seconds in sent]
        print(
            f"  a case that computes nothing: {per_case[0]:.0f} us on one event loop, {per_case[1]:.0f} us in processes"
        )


def time_cases(executor: Executor, *, cases: int, size: int) -> float:
    questions = tuple(EvalCase(id=f"c{number}", turns=(Turn(user=str(size)),)) for number in range(cases))
    evaluator = Evaluator([FunctionMetric(name="any", function=has_output)], executor=executor)
    started = time.perf_counter()
    asyncio.run(evaluator.evaluate(thinker, EvalSet(id="bench", cases=questions)))
    return time.perf_counter() - started


def print_row(name: str, found: Measurement, cases: int) -> None:
    print(f"{name:34}{found.seconds:9.2f}{found.seconds / cases * 1e6:9.1f}{found.grown_bytes / 1e6:9.1f}")


def run_bare_loop(cases: int) -> int:
    async def run() -> int:
        slots = asyncio.Semaphore(CONCURRENCY)

        async def one(number: int) -> str:
            async with slots:
                return await answer(f"question {number}")

        return len(await asyncio.gather(*(one(number) for number in range(cases))))

    return asyncio.run(run())


def stream_rows(cases: int) -> int:
    """Runs, records and scores every case, and keeps no row."""
    subject = agent(instruction="shout")(answer)
    eval_set = build_eval_set(cases)

    async def exact(case: EvalCase, run: AgentRun) -> float:
        return float(run.output == case.turns[0].expected)

    async def run() -> int:
        evaluator = Evaluator(
            [FunctionMetric(name="exact", function=exact)], options=EvaluationOptions(concurrency=CONCURRENCY)
        )
        passed = 0
        async for each in evaluator.stream_rows(subject, eval_set, Profile.baseline(subject.describe())):
            passed += each.scores[0].passed
        return passed

    return asyncio.run(run())


if __name__ == "__main__":
    main()
