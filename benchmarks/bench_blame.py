"""Precision, recall and cost of blame on planted faults: a walk over a failed trace, or one call for the whole trace.

Faults and traces are those of the loop's scenarios. The model is their scripted expert, which knows the faults but errs
at a share of the steps it is shown, at the same steps with every method; in a walk, a step that blames a surface
without a fault sends no packets upstream. The benchmark compares methods with the same model; it does not show how well
a real model reads a long prompt.

Precision and recall are over pairs of a failed case and a surface, and over the surfaces with enough support for a
patch. A walk asks every predecessor, or goes straight to the fault. Each method is measured alone, and with a gradient
check of a dozen of its gradients: by the reference alone, or also by a teacher where the reference is not enough. The
teacher knows what a step would output under the correct instruction, and errs as often as the expert. A pair counts as
blamed unless a replay does not support it. Replays run from a corrected step on; `paid` are their model calls.

A whole trace is asked about in one prompt with others, as in a run. At the end: the calls and tokens (characters / 4)
of each stage in a whole run on two planted worlds, whose expert sees only what its prompts show.

Goals: with an expert that does not err, all methods blame the same; one call per trace takes at most half of the tokens
of the straightest walk; where the expert errs, a check raises the precision of what is patched without loss of recall.

    python -m benchmarks.bench_blame [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from benchmarks.measure import format_reached
from promptiter.backprop.backward_pass import MIN_CASE_SHARE
from promptiter.backprop.blame_check import weight_gradients
from promptiter.backprop.corrections import Corrector
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.corrector import LLMCorrector
from promptiter.backprop.llm.truncation import approximate_tokens, count_prompt_tokens
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.stage_calls import call_attributor, call_batch_attributor
from promptiter.backprop.support_aggregator import SupportAggregator, rank
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.offline.attribution.corrector import ReferenceCorrector
from promptiter.profile import Profile
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.replays import ReplayContext
from promptiter.stages.contracts import AggregateRequest, AttributeRequest, Attributor, BatchAttributor, SurfaceGradient
from tests.worlds.expert import Expert, Teacher
from tests.worlds.planted_world import optimize_world
from tests.worlds.planted_worlds import make_world
from tests.worlds.scenarios import NAMES, Scenario, make_scenario
from traces import Usage

ERROR_RATES = (0.0, 0.1, 0.2, 0.4)
MIN_SUPPORT = 0.25
MAX_SHARE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed instead of four")
    asyncio.run(report(range(1) if parser.parse_args().quick else range(4)))


async def report(seeds: Sequence[int]) -> None:
    failures = [await collect_failures(make_scenario(name, seed)) for name in NAMES for seed in seeds]
    traces = sum(len(each.requests) for each in failures)
    print(f"{len(NAMES)} scenarios, {len(seeds)} seeds each, {traces} failed traces of about ten steps\n")
    found: dict[tuple[str, str, float], Tally] = {}
    for rate in ERROR_RATES:
        print(f"an expert that errs at {rate:.0%} of the steps it is shown")
        print(
            f"{'':16}{'check':12}{'calls':>7}{'tokens':>11}{'replays':>9}{'paid':>6}{'teacher':>9}"
            f"{'precision':>11}{'recall':>8}{'patched: precision':>20}{'recall':>8}"
        )
        for method in METHODS:
            for check in CHECKS if method in CHECKED else CHECKS[:1]:
                tally = found[method, check, rate] = Tally()
                for each in failures:
                    await blame(each, method, tally, error_rate=rate, check=check)
                print(
                    f"{method:16}{check:12}{tally.calls:7,}{tally.tokens:11,}{tally.replays:9,}{tally.paid:6,}"
                    f"{tally.taught:9,}{tally.traces}   {'':9}{tally.patches}"
                )
        print()
    same = len({found[method, "none", 0.0].blamed for method in METHODS}) == 1
    print(f"goal: an expert that does not err blames the same with all methods: {format_reached(same)}")
    share = found["whole trace", "none", 0.0].tokens / found["walk, straight", "none", 0.0].tokens
    is_cheap = format_reached(share <= MAX_SHARE)
    print(f"{share:.2f} of the tokens of the straightest walk; goal: at most {MAX_SHARE:g}: {is_cheap}")
    for check in CHECKS[1:]:
        pairs = [
            (found[method, check, rate], found[method, "none", rate]) for method in CHECKED for rate in ERROR_RATES
        ]
        keeps = all(checked.patches.recall >= plain.patches.recall for checked, plain in pairs)
        raises = all(
            checked.patches.precision > plain.patches.precision
            for checked, plain in pairs
            if plain.patches.precision < 1.0
        )
        print(f"goal: a check by {check} raises the precision of what is patched: {format_reached(raises)}")
        print(f"goal: and keeps its recall: {format_reached(keeps)}")
    await report_stage_tokens()


async def report_stage_tokens() -> None:
    print(f"\n{'tokens per stage':20}{'blame':14}{'calls':>7}" + "".join(f"{stage:>11}" for stage in (*STAGES, "all")))
    for name, most in MAX_TOKENS.items():
        for method, limit in most.items():
            attributor: Attributor = LLMAttributor("expert")
            if method == "walk":
                attributor = StepwiseAttributor(LLMBackwarder("expert"))
            expert = (await optimize_world(make_world(name, 0), blame=attributor)).expert
            tokens = [expert.tokens[stage] for stage in STAGES]
            row = "".join(f"{count:11,}" for count in (*tokens, sum(tokens)))
            reached = format_reached(sum(tokens) <= limit)
            print(f"{name:20}{method:14}{expert.calls.total():7,}{row}   goal: at most {limit:,}: {reached}")


STAGES = ("blame", "aggregate", "optimize", "correct")
MAX_TOKENS = {"one": {"whole trace": 20_000}, "triage": {"whole trace": 27_000, "walk": 36_000}}
"""The most tokens that the stages of a run may take, by world and method."""

METHODS = ("walk", "walk, straight", "whole trace", "cheapest")
CHECKED = ("walk", "whole trace")
CHECKS = ("none", "reference", "teacher")


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed train cases of a scenario under its baseline, and what is needed to replay them."""

    made: Scenario
    requests: tuple[AttributeRequest, ...]
    runs: ReplayContext


async def collect_failures(made: Scenario) -> Failures:
    evaluator, snapshot = made.evaluator(), made.agent.describe()
    evaluation = await evaluator.evaluate(made.agent, made.train)
    losses = await extract_losses(evaluation, made.train, evaluator.trace_store.get)
    request = AttributeRequest(
        case_loss=losses[0],
        trace=await evaluator.trace_store.get(losses[0].trace_digest),
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(surface.id for surface in snapshot.surfaces if surface.type == "instruction"),
    )
    traces = [await evaluator.trace_store.get(loss.trace_digest) for loss in losses]
    runs = ReplayContext(
        agent=made.agent, evaluator=evaluator, eval_set=made.train, evaluation=evaluation, profile=request.profile
    )
    return Failures(
        made, tuple(replace(request, case_loss=loss, trace=one) for loss, one in zip(losses, traces, strict=True)), runs
    )


@dataclass(slots=True)
class Hits:
    """How many were blamed, how many of them correctly, and how many should have been."""

    blamed: int = 0
    correct: int = 0
    expected: int = 0

    def add(self, blamed: Iterable[object], expected: Iterable[object]) -> None:
        blamed, expected = set(blamed), set(expected)
        self.blamed += len(blamed)
        self.correct += len(blamed & expected)
        self.expected += len(expected)

    @property
    def precision(self) -> float:
        return self.correct / self.blamed if self.blamed else 1.0

    @property
    def recall(self) -> float:
        return self.correct / self.expected

    def __str__(self) -> str:
        return f"{self.precision:11.2f}{self.recall:8.2f}"


@dataclass(slots=True)
class Tally:
    """What one method found over all scenarios, and what it cost."""

    calls: int = 0
    tokens: int = 0
    replays: int = 0
    paid: int = 0
    taught: int = 0
    traces: Hits = field(default_factory=Hits)
    patches: Hits = field(default_factory=Hits)
    pairs: set[tuple[str, str, str, str]] = field(default_factory=set)

    @property
    def blamed(self) -> frozenset[tuple[str, str, str, str]]:
        return frozenset(self.pairs)


class TokenCounter:
    """A model that reports the tokens of its calls, by the estimate that truncates prompts."""

    def __init__(self, expert: Expert) -> None:
        self.expert = expert

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        reply = await self.expert.model(request, repeat=repeat)
        asked = count_prompt_tokens(message.content for message in request.messages)
        return replace(reply, usage=Usage(input_tokens=asked, output_tokens=approximate_tokens(reply.text)))


async def blame(failures: Failures, method: str, tally: Tally, *, error_rate: float, check: str = "none") -> None:
    made = failures.made
    expert = Expert(made, error_rate=error_rate, seed=made.seed, goes_straight=method == "walk, straight")
    gateway = Gateway(models={"expert": TokenCounter(expert)})
    attributor = make_attributor(method, gateway)
    if isinstance(attributor, BatchAttributor):
        answers = await call_batch_attributor(attributor, failures.requests)
    else:
        answers = await asyncio.gather(*(call_attributor(attributor, request) for request in failures.requests))
    gradients = [gradient for results in answers for result in results for gradient in result.gradients]
    spent = gateway.ledger.snapshot().total
    tally.calls += spent.calls
    tally.tokens += spent.tokens
    if check != "none":
        gradients = await check_gradients(gradients, failures, tally, error_rate=error_rate, check=check)
    supported = [each for each in gradients if each.check != "unsupported"]
    tally.pairs |= {(made.agent.name, each.case_id, each.step_id, each.surface_id) for each in supported}
    planted = {
        (request.case_loss.case_id, surface_id)
        for request in failures.requests
        for step in request.trace.steps
        for surface_id in made.faulty & set(step.surface_reads or ())
    }
    tally.traces.add(((each.case_id, each.surface_id) for each in supported), planted)
    tally.patches.add(await find_supported_surfaces(gradients, failures), {surface_id for _, surface_id in planted})


async def check_gradients(
    gradients: Sequence[SurfaceGradient], failures: Failures, tally: Tally, *, error_rate: float, check: str
) -> list[SurfaceGradient]:
    """The gradients after a check. Each check has a cache of its own that holds the failed runs."""
    made = failures.made
    teacher = Teacher(made, error_rate=error_rate, seed=made.seed)
    evaluator = made.evaluator()
    await evaluator.evaluate(made.agent, made.train)
    before = evaluator.gateway.ledger.snapshot().total.calls
    correctors: list[Corrector] = [ReferenceCorrector()]
    if check == "teacher":
        correctors.append(LLMCorrector("teacher", gateway=Gateway(models={"teacher": teacher})))
    runs = replace(failures.runs, evaluator=evaluator)
    found = await GradientCheck(*correctors).check(gradients, runs, rng=Random(made.seed))
    tally.replays += found.replays
    tally.paid += evaluator.gateway.ledger.snapshot().total.calls - before
    tally.taught += teacher.calls
    by_surface = {
        surface_id: tuple(each for each in gradients if each.surface_id == surface_id)
        for surface_id in sorted({each.surface_id for each in gradients})
    }
    return [gradient for each in weight_gradients(by_surface, found.checks).values() for gradient in each]


def make_attributor(method: str, gateway: Gateway) -> Attributor:
    backwarder, whole = LLMBackwarder("expert", gateway=gateway), LLMAttributor("expert", gateway=gateway)
    if method == "cheapest":
        return CheapestAttributor(whole, backwarder)
    return whole if method == "whole trace" else StepwiseAttributor(backwarder)


async def find_supported_surfaces(gradients: Sequence[SurfaceGradient], failures: Failures) -> set[str]:
    """The surfaces that a round would patch."""
    surfaces = failures.made.agent.describe()
    signals = [
        await SupportAggregator().aggregate(
            AggregateRequest(
                surface=surfaces.surface(surface_id),
                gradients=tuple(each for each in gradients if each.surface_id == surface_id),
            )
        )
        for surface_id in sorted({each.surface_id for each in gradients})
    ]
    least = MIN_CASE_SHARE * len(failures.made.train.cases)
    kept, _ = rank(signals, min_share=MIN_SUPPORT, least=least)
    return {signal.surface_id for signal in kept}


if __name__ == "__main__":
    main()
