"""promptiter.optimize: what users of AgentOptimizer call, and what it writes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import promptiter
from promptiter.errors import ApplyError, ArgumentTypeError, InvalidArgumentError, SetupError
from promptiter.runlog.events import Event
from promptiter.runs.optimize_result import OptimizeResult, RoundRecord
from tests.worlds.prompt_bot import GEPA, METRIC, PromptBot

pytestmark = pytest.mark.slow

BETTER = "Answer in one line. Always include the order id from the input in your output.\n"


@pytest.fixture
def bot(tmp_path: Path) -> PromptBot:
    return PromptBot(tmp_path)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


# The arguments


def test_the_parameters_are_those_of_the_document() -> None:
    parameters = inspect.signature(promptiter.optimize).parameters
    assert list(parameters) == [
        *("config_path", "call_agent", "target_prompt", "train_dataset_path", "validation_dataset_path", "output_dir"),
        *("callbacks", "update_source", "verbose", "extra_stop_callbacks", "extra_gepa_callbacks"),
    ]
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    assert defaults == {
        "callbacks": None,
        "update_source": False,
        "verbose": 1,
        "extra_stop_callbacks": None,
        "extra_gepa_callbacks": None,
    }


def answer_at_once(query: str) -> str:
    return query


@functools.wraps(answer_at_once)
def wrapped_sync(query: str) -> str:
    return query


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"output_dir": ""}, ValueError, "output_dir is empty"),
        ({"target_prompt": promptiter.TargetPrompt()}, ValueError, "target_prompt has no prompts"),
        ({"target_prompt": {"a": "b"}}, TypeError, "give a TargetPrompt"),
        ({"call_agent": answer_at_once}, TypeError, "not async; define it as `async def call_agent"),
        ({"call_agent": functools.partial(answer_at_once)}, TypeError, "not async"),
        ({"call_agent": wrapped_sync}, TypeError, "not async"),
        ({"call_agent": "my_agent:call_agent"}, TypeError, "not async"),
        ({"validation_dataset_path": "{folder}/prompts/../train.evalset.json"}, ValueError, "are the same file"),
        ({"config_path": "{folder}/missing.json"}, ValueError, "cannot be read"),
        ({"train_dataset_path": "{folder}/missing.json"}, ValueError, "missing.json"),
        ({"verbose": 3}, ValueError, "verbose is 3; give 0, 1 or 2"),
        ({"callbacks": object()}, TypeError, "callbacks is an object of class"),
        ({"extra_stop_callbacks": ["stop"]}, ValueError, "a stopper is 'stop'"),
        ({"extra_gepa_callbacks": [object()]}, ValueError, "'backprop' has no events of gepa"),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_run(
    bot: PromptBot, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = bot.write()
    given = {key: each.format(folder=bot.folder) if isinstance(each, str) else each for key, each in changes.items()}
    with pytest.raises(error, match=message) as caught:
        await promptiter.optimize(**{**arguments, **given})
    assert isinstance(caught.value, SetupError)
    assert isinstance(caught.value, ArgumentTypeError if error is TypeError else InvalidArgumentError)
    assert bot.queries == []
    assert not (bot.folder / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metrics": [METRIC, {"metric_name": "tool_trajectory_avg_score"}]},
            "tool_trajectory_avg_score looks at tool",
        ),
        (
            {"metrics": [{"metric_name": "recall", "evaluator_name": "llm_rubric_knowledge_recall"}]},
            "llm_rubric_knowledge_recall looks at tool calls",
        ),
        ({"name": "annealing"}, "unknown algorithm: 'annealing'; known are backprop, cheaper, coordinate_descent, "),
        ({"max_metric_calls": None}, "has no stop condition; give at least one of"),
        (
            {"stop": {"required_metrics": ["final_response", "rouge"]}},
            "unknown required metric: 'final_response' .*, 'rouge'; known are final_response_avg_score",
        ),
    ],
)
async def test_wrong_settings_of_the_file_are_refused(bot: PromptBot, settings: dict[str, Any], message: str) -> None:
    arguments = bot.write()
    bot.configure(**settings)
    with pytest.raises(ValueError, match=message):
        await promptiter.optimize(**arguments)
    assert bot.queries == []


async def test_an_async_function_may_be_wrapped(bot: PromptBot) -> None:
    async def answer(bot: PromptBot, query: str) -> str:
        return await bot.call_agent(query)

    arguments = bot.write(call_agent=functools.partial(answer, bot))
    assert (await promptiter.optimize(**arguments)).status == "SUCCEEDED"


# The result


async def test_a_run_finds_better_prompts_and_leaves_the_files_as_they_were(bot: PromptBot) -> None:
    result = await promptiter.optimize(**bot.write())
    assert (result.status, result.finish_reason, result.stop_reason, result.error_message) == (
        *("SUCCEEDED", "perfect_pass_rate", "required_metrics_passing"),
        "",
    )
    assert (result.baseline_pass_rate, result.best_pass_rate, result.pass_rate_improvement) == (0.0, 1.0, 1.0)
    assert result.baseline_prompts == {"skill": "Answer in one line.\n", "system_prompt": "Be polite.\n"}
    assert result.best_prompts == {"skill": BETTER, "system_prompt": "Be polite.\n"}
    assert (result.total_rounds, result.rounds_accepted, result.merge_rounds_total, result.proposals_total) == (
        1,
        1,
        0,
        1,
    )
    assert (result.algorithm, result.verdict) == ("backprop", "improved_on_validation")
    assert result.metric_thresholds == {"final_response_avg_score": 1.0}
    [record] = result.rounds
    assert (record.round, record.kind, record.accepted, record.optimized_field_names) == (
        1,
        "reflective",
        True,
        ["skill"],
    )
    assert record.per_field_diagnosis == {"skill": "4 of 4 failing outputs lack the order id of their input"}
    assert (record.budget_used, record.budget_total, result.total_metric_calls) == (16, 60, 16 + 8)
    assert bot.skill.read_text() == "Answer in one line.\n"


async def test_artifacts_are_in_the_layout_of_the_document(bot: PromptBot) -> None:
    result = await promptiter.optimize(**bot.write())
    out = bot.folder / "out"
    assert sorted(each.name for each in out.iterdir()) == [
        *("baseline_prompts", "best_prompts", "config.snapshot.json", "result.json", "rounds", "run", "run.log"),
        "summary.txt",
    ]
    assert (out / "baseline_prompts" / "skill.md").read_text() == "Answer in one line.\n"
    assert (out / "best_prompts" / "skill.md").read_text() == BETTER
    assert read(out / "config.snapshot.json") == read(bot.folder / "optimizer.json")
    assert OptimizeResult.from_file(out / "result.json") == result
    assert read(out / "result.json")["bestPassRate"] == 1.0
    assert RoundRecord.model_validate(read(out / "rounds" / "round_001.json")) == result.rounds[0]
    summary = (out / "summary.txt").read_text()
    assert summary.startswith("Optimization complete | status=SUCCEEDED | algorithm=backprop\n")
    assert "pass_rate     : 0.0000 -> 1.0000 (+1.0000, improved)\n" in summary
    assert "update_source : false\n" in summary
    for texts in (result.baseline_prompts, result.best_prompts, result.rounds[0].candidate_prompts):
        assert list(texts) == ["system_prompt", "skill"], "prompts are in the order in which they were registered"
    assert summary.index("  system_prompt:") < summary.index("  skill:")
    [line] = (out / "run.log").read_text().splitlines()
    assert " status=SUCCEEDED algorithm=backprop baseline=0 best=1 delta=+1 rounds=1 " in line


async def test_secrets_of_the_file_are_not_copied(bot: PromptBot, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = bot.write()
    monkeypatch.setenv("MY_KEY", "sk-from-the-environment")
    document = read(bot.folder / "optimizer.json")
    judge = {"model_name": "simulated", "api_key": "sk-very-secret-key"}
    rubrics = [{"id": "a", "content": {"text": "polite"}}]
    metric = {
        "metric_name": "llm_rubric_response",
        "criterion": {"llm_judge": {"judge_model": judge, "rubrics": rubrics}},
    }
    document["evaluate"]["metrics"].append(metric)
    document["optimize"]["stop"]["required_metrics"] = ["final_response_avg_score"]
    (bot.folder / "optimizer.json").write_text(json.dumps(document))
    await promptiter.optimize(**arguments)
    for file in (bot.folder / "out").rglob("*"):
        assert file.is_dir() or b"very-secret" not in file.read_bytes(), file


async def test_update_source_writes_an_improvement_and_nothing_else(bot: PromptBot) -> None:
    result = await promptiter.optimize(**bot.write(update_source=True))
    assert bot.skill.read_text() == result.best_prompts["skill"] == BETTER
    assert bot.system.read_text() == "Be polite.\n"
    assert "update_source : true\n" in (bot.folder / "out" / "summary.txt").read_text()


async def test_without_an_improvement_the_best_prompts_are_those_of_the_baseline(bot: PromptBot) -> None:
    arguments = bot.write(update_source=True)

    async def never(query: str) -> str:
        return f"I do not know. {len(query)}"

    result = await promptiter.optimize(**{**arguments, "call_agent": never})
    assert (result.status, result.finish_reason) == ("SUCCEEDED", "no_improvement")
    assert result.best_prompts == result.baseline_prompts
    assert result.pass_rate_improvement == 0
    assert bot.skill.read_text() == "Answer in one line.\n"


async def test_a_run_that_fails_is_returned_with_its_error(bot: PromptBot, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = bot.write(update_source=True, verbose=1)

    async def broken(query: str) -> str:
        raise ConnectionRefusedError(f"no server for {query}")

    result = await promptiter.optimize(**{**arguments, "call_agent": broken})
    assert (result.status, result.finish_reason, result.stop_reason) == ("FAILED", "error", None)
    assert "ConnectionRefusedError" in result.error_message
    assert capsys.readouterr().err.endswith(f"FAILED: {result.error_message}\n")
    assert result.best_prompts == result.baseline_prompts
    out = bot.folder / "out"
    assert read(out / "result.json")["status"] == "FAILED"
    assert not (out / "summary.txt").exists()
    assert not (out / "best_prompts").exists()


async def test_callbacks_store_prompts_in_the_loop_of_the_caller(bot: PromptBot) -> None:
    store, loops = {"skill": "Answer in one line.\n"}, set()

    async def load() -> str:
        loops.add(asyncio.get_running_loop())
        return store["skill"]

    async def save(value: str) -> None:
        loops.add(asyncio.get_running_loop())
        store["skill"] = value

    async def call_agent(query: str) -> str:
        bot.skill.write_text(store["skill"])
        return await bot.call_agent(query)

    target = promptiter.TargetPrompt().add_callback("skill", read=load, write=save)
    arguments = bot.write(call_agent=call_agent, target_prompt=target)
    result = await promptiter.optimize(**arguments)
    assert (result.best_pass_rate, store["skill"]) == (1.0, "Answer in one line.\n")
    assert loops == {asyncio.get_running_loop()}
    result = await promptiter.optimize(**{**arguments, "output_dir": bot.folder / "again", "update_source": True})
    assert store["skill"] == result.best_prompts["skill"] == BETTER


# Why a search ends


class Breach:
    """A stopper that stops when it is asked for the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, gepa_state: Any = None) -> bool:  # noqa: ARG002
        self.asked += 1
        return self.asked > 1


class LabeledBreach(Breach):
    label = "slo_breach"


NEVER: dict[str, Any] = {"stop": {"required_metrics": []}}


@pytest.mark.parametrize(
    ("settings", "reason", "stoppers"),
    [
        ({**NEVER, "score_threshold": 1.0}, "score_threshold", []),
        ({**NEVER, "max_metric_calls": 17}, "budget_exhausted", []),
        ({**NEVER, "timeout_seconds": 1e-6}, "timeout", []),
        ({"score_threshold": 1.0}, "required_metrics_passing", []),
        (NEVER, "completed", [Breach()]),
        (NEVER, "slo_breach", [LabeledBreach()]),
    ],
)
async def test_the_stop_reason_says_which_condition_ended_the_search(
    bot: PromptBot, settings: dict[str, Any], reason: str, stoppers: list[Any]
) -> None:
    arguments = bot.write(extra_stop_callbacks=stoppers)
    bot.configure(**settings)
    result = await promptiter.optimize(**arguments)
    assert (result.status, result.stop_reason) == ("SUCCEEDED", reason)
    assert result.total_metric_calls <= settings.get("max_metric_calls", 60)


class FinalTestPhase:
    """Evaluation callbacks that note whether the final test has begun."""

    has_begun = False

    def before_inference_set(self, context: Any, args: Any) -> None:  # noqa: ARG002
        self.has_begun = context["phase"] == "final_test"


@pytest.mark.parametrize("cap", [13, 16, 17, 20, 24, 32])
async def test_the_agent_is_never_called_for_more_cases_than_max_metric_calls(bot: PromptBot, cap: int) -> None:
    phase, in_search, in_final_test = FinalTestPhase(), 0, set()

    def count(query: str) -> None:
        nonlocal in_search
        if phase.has_begun:
            in_final_test.add((query, bot.skill.read_text()))  # repeats of a case count once
        else:
            in_search += 1

    bot.before_answer = count
    arguments = bot.write(callbacks=phase)
    bot.configure(**NEVER, max_metric_calls=cap)
    result = await promptiter.optimize(**arguments)
    assert in_search + len(in_final_test) == result.total_metric_calls <= cap
    assert len(in_final_test) == (8 if result.rounds_accepted else 0)
    assert result.stop_reason in ("budget_exhausted", "completed")


async def test_a_cap_without_room_for_the_final_test_is_refused(bot: PromptBot) -> None:
    arguments = bot.write()
    bot.configure(max_metric_calls=12)
    with pytest.raises(ValueError, match=r"the baseline takes 4 and the final test 8, .* give more than 12"):
        await promptiter.optimize(**arguments)
    assert bot.queries == []


async def test_rounds_without_an_accepted_candidate_end_the_search(bot: PromptBot) -> None:
    async def never(query: str) -> str:
        return f"I do not know. {len(query)}"

    arguments = bot.write(call_agent=never)
    bot.configure(**NEVER, max_iterations_without_improvement=1)
    result = await promptiter.optimize(**arguments)
    assert (result.stop_reason, result.total_rounds) == ("no_improvement", 1)


async def test_required_metrics_are_checked_on_the_baseline(bot: PromptBot) -> None:
    arguments = bot.write()
    bot.skill.write_text(BETTER)
    result = await promptiter.optimize(**arguments)
    assert (result.stop_reason, result.finish_reason) == ("required_metrics_passing", "perfect_pass_rate")
    assert result.total_rounds == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"score_threshold": 1.0, "max_iterations_without_improvement": 1}, "required_metrics_passing"),
        ({**NEVER, "score_threshold": 1.0, "timeout_seconds": 1e-6}, "score_threshold"),
    ],
)
async def test_the_stop_conditions_are_checked_on_the_baseline_in_their_order(
    bot: PromptBot, settings: dict[str, Any], reason: str
) -> None:
    arguments = bot.write()
    bot.skill.write_text(BETTER)
    bot.configure(**settings)
    result = await promptiter.optimize(**arguments)
    assert (result.status, result.stop_reason, result.total_rounds) == ("SUCCEEDED", reason, 0)
    assert (result.finish_reason, result.best_prompts) == ("perfect_pass_rate", result.baseline_prompts)


async def test_the_stop_file_ends_the_search_and_what_was_found_is_tested(bot: PromptBot) -> None:
    out = bot.folder / "out"
    arguments = bot.write()
    bot.configure(**NEVER)

    def stop_in_round_1(_: str) -> None:
        if (out / "baseline_prompts").exists():
            (out / "optimize.stop").touch()

    bot.before_answer = stop_in_round_1
    result = await promptiter.optimize(**arguments)
    assert (result.status, result.stop_reason) == ("SUCCEEDED", "user_requested_stop")


# While it runs


async def test_a_run_that_fails_after_a_candidate_was_accepted_returns_the_baseline_and_writes_nothing(
    bot: PromptBot,
) -> None:
    phase = FinalTestPhase()

    def lose_the_server(_: str) -> None:
        if phase.has_begun:
            raise ConnectionRefusedError("the server is gone")

    bot.before_answer = lose_the_server
    result = await promptiter.optimize(**bot.write(callbacks=phase, update_source=True))
    assert (result.status, result.finish_reason, result.stop_reason) == ("FAILED", "error", None)
    assert (result.rounds_accepted, result.best_prompts) == (1, result.baseline_prompts)
    assert result.best_pass_rate == result.baseline_pass_rate
    assert bot.skill.read_text() == "Answer in one line.\n"
    bot.before_answer = lambda _: None
    assert (await promptiter.optimize(**bot.write(update_source=True))).status == "SUCCEEDED"
    assert bot.skill.read_text() == BETTER, "the second call resumed the run"


async def test_a_cancelled_run_is_written_restored_and_resumed(bot: PromptBot) -> None:
    arguments = bot.write()
    task: asyncio.Task[OptimizeResult] | None = None

    def cancel_with_a_candidate(_: str) -> None:
        if bot.skill.read_text() != "Answer in one line.\n" and task is not None:
            task.cancel()

    bot.before_answer = cancel_with_a_candidate
    task = asyncio.create_task(promptiter.optimize(**arguments))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bot.skill.read_text() == "Answer in one line.\n"
    out = bot.folder / "out"
    assert read(out / "result.json")["status"] == "CANCELED"
    queries = len(bot.queries)
    task = None
    result = await promptiter.optimize(**arguments)
    assert (result.status, result.best_pass_rate) == ("SUCCEEDED", 1.0)
    assert len(list((out / "run").glob("*/run.json"))) == 1
    assert len(bot.queries) - queries < 32, "what was recorded is not run again"


async def test_a_finished_run_is_followed_by_a_new_one(bot: PromptBot) -> None:
    arguments = bot.write()
    await promptiter.optimize(**arguments)
    await promptiter.optimize(**arguments)
    assert len(list((bot.folder / "out" / "run").glob("*/run.json"))) == 2


class Points:
    """Evaluation callbacks that note when they were called."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def before_inference_set(self, context: Any, args: Any) -> None:
        self.seen.append((args.request.eval_set_id, context["round"]))

    async def after_evaluate_case(self, context: Any, args: Any) -> None:  # noqa: ARG002
        self.seen.append((args.result.eval_id, args.result.row.passed))


class Watcher:
    def __init__(self) -> None:
        self.events: list[Event] = []

    async def observe(self, event: Event) -> None:
        self.events.append(event)


async def test_callbacks_see_evaluations_and_observers_see_events(bot: PromptBot) -> None:
    points, watcher = Points(), Watcher()
    await promptiter.optimize(**bot.write(callbacks=[points, watcher]))
    assert points.seen[0] == ("val", 0)
    assert ("val-E-5120", False) in points.seen
    assert ("val-E-5120", True) in points.seen
    assert watcher.events[0].type == "run_started"


@pytest.mark.long
async def test_verbose_is_silent_shows_progress_or_also_the_log_of_gepa(
    bot: PromptBot, capsys: pytest.CaptureFixture[str]
) -> None:
    say: Callable[[str], None] = logging.getLogger("promptiter.search.gepa_library").debug
    shown = []
    for verbose in (0, 1, 2):
        bot.before_answer = lambda query: say(f"asked {query}")
        await promptiter.optimize(**bot.write(verbose=verbose, output_dir=bot.folder / str(verbose)))
        shown.append(capsys.readouterr())
    assert (shown[0].out, shown[0].err) == ("", "")
    assert "round 1" in shown[1].err
    assert "gepa: asked" not in shown[1].err
    assert "gepa: asked Where is my order?" in shown[2].err
    assert shown[1].err.endswith((bot.folder / "1" / "summary.txt").read_text()), "the summary comes last"


# gepa


class Proposals:
    """Callbacks of gepa that count its events."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_proposal_end(self, event: Any) -> None:  # noqa: ARG002
        self.seen.append("proposal")

    def on_valset_evaluated(self, event: Any) -> None:  # noqa: ARG002
        self.seen.append("valset")


async def test_the_log_of_gepa_has_the_prompt_of_each_reflection(
    bot: PromptBot, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = bot.write(verbose=2)
    bot.configure(**GEPA)
    result = await promptiter.optimize(**arguments)
    shown = capsys.readouterr().err
    assert (result.best_pass_rate, result.total_reflection_lm_calls) == (1.0, 1)
    assert shown.count("gepa: reflection prompt for system_prompt#instruction:") == 1
    assert "Be polite." in shown
    assert "Where is my order? (order id: " in shown
    assert "gepa: Iteration 1" in shown


@pytest.mark.parametrize("limit", ["max_candidate_proposals", "max_tracked_candidates"])
async def test_limits_of_gepa_are_stop_reasons_and_its_callbacks_get_events(bot: PromptBot, limit: str) -> None:
    proposals = Proposals()
    arguments = bot.write(extra_gepa_callbacks=[proposals])
    bot.configure(**NEVER, **GEPA, **{limit: 1 if limit == "max_candidate_proposals" else 2})
    result = await promptiter.optimize(**arguments)
    assert (result.stop_reason, result.total_rounds, result.best_pass_rate) == (limit, 1, 1.0)
    assert "proposal" in proposals.seen
    assert result.rounds[0].optimized_field_names == ["system_prompt"], "the first that was registered comes first"


async def test_a_merge_of_one_prompt_is_a_warning(bot: PromptBot) -> None:
    target = promptiter.TargetPrompt().add_path("system_prompt", str(bot.system))
    arguments = bot.write(target_prompt=target)
    bot.configure(**GEPA, use_merge=True)
    with pytest.warns(UserWarning, match="use_merge has no effect with one prompt"):
        result = await promptiter.optimize(**arguments)
    assert (result.best_pass_rate, result.merge_rounds_total) == (1.0, 0)


async def test_an_improvement_is_written_to_all_sources_or_to_none(bot: PromptBot) -> None:
    store = {"skill": "Answer in one line.\n"}

    async def load() -> str:
        return store["skill"]

    async def save(value: str) -> None:
        if (bot.folder / "out" / "result.json").exists() and value != "Answer in one line.\n":
            raise PermissionError("read-only")
        store["skill"] = value

    async def call_agent(query: str) -> str:
        both = "order id" in bot.system.read_text() and "order id" in store["skill"]
        return query if both else "I do not know."

    target = promptiter.TargetPrompt().add_path("system_prompt", str(bot.system))
    target.add_callback("skill", read=load, write=save)
    arguments = bot.write(call_agent=call_agent, target_prompt=target, update_source=True)
    bot.configure(**GEPA, module_selector="all")
    with pytest.raises(ApplyError, match="PermissionError: read-only; the files are as they were"):
        await promptiter.optimize(**arguments)
    assert (bot.system.read_text(), store["skill"]) == ("Be polite.\n", "Answer in one line.\n")
    assert read(bot.folder / "out" / "result.json")["status"] == "SUCCEEDED"
