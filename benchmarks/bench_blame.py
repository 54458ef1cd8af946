"""Who is blamed for planted faults, and what that costs: by a walk over a failed trace, and by one call for all of it.

The faults and the traces are those of the loop's scenarios; the model is their scripted expert, which knows the faults.
So that not everything is right, it also errs at a fifth of the steps that it is shown, at the same ones either way; in
a walk, whoever blames an innocent surface looks no further. This says what the two ways make of the same eyes, not how
good a real model's eyes are in a long prompt.

Precision and recall are over pairs of a failed case and a surface, and over the surfaces that have enough support for a
patch. A walk asks every predecessor, or goes straight to the fault. Each way stands alone, and with a gradient check of
a dozen of its gradients: by the reference alone, or by a teacher too where the reference cannot tell, who says what a
step would have given under the right instruction and errs as often as the expert. A pair counts as blamed unless a
replay says that it is not supported. Replays are runs from a corrected step on; `paid` are their model calls.

Goals: with an expert that does not err both ways blame the same; one call for each trace takes less than half of the
tokens of the straightest walk; a check raises the precision of what is patched where the expert errs, without loss of
recall.

    python -m benchmarks.bench_blame [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from promptiter.backprop.blame_check import weight_gradients
from promptiter.backprop.corrections import Corrector
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.corrector import LLMCorrector
from promptiter.backprop.llm.truncation import approximate_tokens, count_prompt_tokens
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.backprop.support_aggregator import SupportAggregator, rank
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.offline.attribution.corrector import ReferenceCorrector
from promptiter.profile import Profile
from promptiter.search.blame import MIN_CASE_SHARE
from promptiter.search.gradient_check import GradientCheck, ReplayContext
from promptiter.stages.contracts import AggregateRequest, AttributeRequest, Attributor, SurfaceGradient
from tests.worlds.expert import Expert, Teacher
from tests.worlds.scenarios import NAMES, Scenario, scenario
from traces import Usage

ERROR_RATES = (0.0, 0.1, 0.2, 0.4)
MIN_SUPPORT = 0.25
MOST_SHARE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed instead of four")
    asyncio.run(report(range(1) if parser.parse_args().quick else range(4)))


async def report(seeds: Sequence[int]) -> None:
    failures = [await failures_of(scenario(name, seed)) for name in NAMES for seed in seeds]
    traces = sum(len(each.requests) for each in failures)
    print(f"{len(NAMES)} scenarios, {len(seeds)} seeds each, {traces} failed traces of about ten steps\n")
    found: dict[tuple[str, str, float], Tally] = {}
    for rate in ERROR_RATES:
        print(f"an expert that errs at {rate:.0%} of the steps it is shown")
        print(
            f"{'':16}{'check':12}{'calls':>7}{'tokens':>11}{'replays':>9}{'paid':>6}{'teacher':>9}"
            f"{'precision':>11}{'recall':>8}{'patched: precision':>20}{'recall':>8}"
        )
        for way in WAYS:
            for check in CHECKS if way in CHECKED else CHECKS[:1]:
                tally = found[way, check, rate] = Tally()
                for each in failures:
                    await blame(each, way, tally, error_rate=rate, check=check)
                print(
                    f"{way:16}{check:12}{tally.calls:7,}{tally.tokens:11,}{tally.replays:9,}{tally.paid:6,}"
                    f"{tally.taught:9,}{tally.traces}   {'':9}{tally.patches}"
                )
        print()
    same = len({found[way, "none", 0.0].blamed for way in WAYS}) == 1
    print(f"goal: an expert that does not err blames the same in all ways: {_reached(same)}")
    share = found["whole trace", "none", 0.0].tokens / found["walk, straight", "none", 0.0].tokens
    is_cheap = _reached(share <= MOST_SHARE)
    print(f"{share:.2f} of the tokens of the straightest walk; goal: at most {MOST_SHARE:g}: {is_cheap}")
    for check in CHECKS[1:]:
        pairs = [(found[way, check, rate], found[way, "none", rate]) for way in CHECKED for rate in ERROR_RATES]
        keeps = all(checked.patches.recall >= plain.patches.recall for checked, plain in pairs)
        raises = all(
            checked.patches.precision > plain.patches.precision
            for checked, plain in pairs
            if plain.patches.precision < 1.0
        )
        print(f"goal: a check by {check} raises the precision of what is patched: {_reached(raises)}")
        print(f"goal: and keeps its recall: {_reached(keeps)}")


def _reached(is_so: bool) -> str:
    return "reached" if is_so else "MISSED"


WAYS = ("walk", "walk, straight", "whole trace", "cheapest")
CHECKED = ("walk", "whole trace")
CHECKS = ("none", "reference", "teacher")


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed train cases of a scenario under its baseline, and where they can be run again."""

    made: Scenario
    requests: tuple[AttributeRequest, ...]
    runs: ReplayContext


async def failures_of(made: Scenario) -> Failures:
    evaluator, snapshot = made.evaluator(), made.agent.describe()
    evaluation = await evaluator.evaluate(made.agent, made.train)
    losses = extract_losses(evaluation, made.train, evaluator.trace_store.get)
    request = AttributeRequest(
        case_loss=losses[0],
        trace=evaluator.trace_store.get(losses[0].trace_digest),
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(surface.id for surface in snapshot.surfaces if surface.type == "instruction"),
    )
    traces = [evaluator.trace_store.get(loss.trace_digest) for loss in losses]
    runs = ReplayContext(
        agent=made.agent, evaluator=evaluator, eval_set=made.train, evaluation=evaluation, profile=request.profile
    )
    return Failures(
        made, tuple(replace(request, case_loss=loss, trace=one) for loss, one in zip(losses, traces, strict=True)), runs
    )


@dataclass(slots=True)
class Hits:
    """How many were blamed, how many of them rightly, and how many should have been."""

    blamed: int = 0
    right: int = 0
    wanted: int = 0

    def add(self, blamed: Iterable[object], wanted: Iterable[object]) -> None:
        blamed, wanted = set(blamed), set(wanted)
        self.blamed += len(blamed)
        self.right += len(blamed & wanted)
        self.wanted += len(wanted)

    @property
    def precision(self) -> float:
        return self.right / self.blamed if self.blamed else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.wanted

    def __str__(self) -> str:
        return f"{self.precision:11.2f}{self.recall:8.2f}"


@dataclass(slots=True)
class Tally:
    """What one way of blaming found over all scenarios, and what it cost."""

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


class Counted:
    """A model whose answers say how many tokens they took, by the estimate that prompts are cut by."""

    def __init__(self, expert: Expert) -> None:
        self.expert = expert

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        reply = await self.expert.model(request, repeat=repeat)
        asked = count_prompt_tokens(message.content for message in request.messages)
        return replace(reply, usage=Usage(input_tokens=asked, output_tokens=approximate_tokens(reply.text)))


async def blame(failures: Failures, way: str, tally: Tally, *, error_rate: float, check: str = "none") -> None:
    made = failures.made
    expert = Expert(made, error_rate=error_rate, seed=made.seed, goes_straight=way == "walk, straight")
    gateway = Gateway(models={"expert": Counted(expert)})
    attributor = attributor_of(way, gateway)
    answers = await asyncio.gather(*map(attributor.attribute, failures.requests))
    gradients = [gradient for results in answers for result in results for gradient in result.gradients]
    spent = gateway.ledger.snapshot().total
    tally.calls += spent.calls
    tally.tokens += spent.tokens
    if check != "none":
        gradients = await checked(gradients, failures, tally, error_rate=error_rate, check=check)
    said = [each for each in gradients if each.check != "unsupported"]
    tally.pairs |= {(made.agent.name, each.case_id, each.step_id, each.surface_id) for each in said}
    planted = {
        (request.case_loss.case_id, surface_id)
        for request in failures.requests
        for step in request.trace.steps
        for surface_id in made.faulty & set(step.surface_reads or ())
    }
    tally.traces.add(((each.case_id, each.surface_id) for each in said), planted)
    tally.patches.add(await with_support(gradients, failures), {surface_id for _, surface_id in planted})


async def checked(
    gradients: Sequence[SurfaceGradient], failures: Failures, tally: Tally, *, error_rate: float, check: str
) -> list[SurfaceGradient]:
    """The gradients as a check leaves them. Each check has a cache of its own, in which the failed runs are known."""
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


def attributor_of(way: str, gateway: Gateway) -> Attributor:
    backwarder, whole = LLMBackwarder("expert", gateway=gateway), LLMAttributor("expert", gateway=gateway)
    if way == "cheapest":
        return CheapestAttributor(whole, backwarder)
    return whole if way == "whole trace" else StepwiseAttributor(backwarder)


async def with_support(gradients: Sequence[SurfaceGradient], failures: Failures) -> set[str]:
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
