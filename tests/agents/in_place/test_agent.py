from __future__ import annotations

import asyncio
import codecs
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.function import chain, node
from promptiter.agents.in_place import exit_hooks
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.in_place.saved_baseline import restore
from promptiter.agents.surface_scope import surface
from promptiter.errors import EditedSourceError, SetupError, StructureMismatchError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.profile import Profile
from promptiter.sources import CallbackSource, FileSource, Source
from promptiter.sources.field import FieldSource
from promptiter.sources.yaml_field import YamlField
from traces import Failure

BASELINE = codecs.BOM_UTF8 + b"Be brief.\r\nBe kind.\r\n"
TEXT = "Be brief.\nBe kind.\n"


class Prompt:
    """The file that a bot reads its instruction from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def raw(self) -> bytes:
        return self.path.read_bytes()

    @raw.setter
    def raw(self, raw: bytes) -> None:
        self.path.write_bytes(raw)

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8-sig")

    @property
    def mode(self) -> int:
        return self.path.stat().st_mode & 0o777

    @mode.setter
    def mode(self, mode: int) -> None:
        self.path.chmod(mode)

    def sibling(self, name: str, text: str) -> Prompt:
        other = self.path.with_name(name)
        other.write_text(text)
        return Prompt(other)

    @property
    def beside(self) -> list[str]:
        """The other files in its folder, hidden ones too."""
        return sorted(each.name for each in self.path.parent.iterdir() if each != self.path)

    @property
    def saved_beside(self) -> bytes:
        return self.path.with_name(f"{self.path.name}.promptiter-baseline").read_bytes()


class State:
    """A state folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record = Prompt(path / "in_place.json")

    @property
    def names(self) -> list[str]:
        return sorted(each.name for each in self.path.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Prompt:
    (tmp_path / "prompts").mkdir()
    prompt = Prompt(tmp_path / "prompts" / "bot.md")
    prompt.raw = BASELINE
    return prompt


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """A test that does not close its agents must not leave them to the end of the test run."""
    yield
    for subject, _ in list(exit_hooks._open.values()):
        subject.close()


def bot(file: Prompt, state: State, function: Callable[[str], Any] | None = None) -> InPlaceAgent:
    """A bot that reads its instruction from a file, and answers with it."""
    return InPlaceAgent(
        function or (lambda _: file.text),
        {"bot#instruction": FileSource(file.path)},
        state_folder=state.path,
    )


def profile(agent: Agent, **values: Any) -> Profile:
    return Profile.of(agent.describe(), {f"bot#{name}": value for name, value in values.items()})


async def run(agent: InPlaceAgent, instruction: str = TEXT, **context: Any) -> AgentRun:
    return await agent.run(CaseInput(text="hi"), profile(agent, instruction=instruction), RunContext(**context))


def test_it_describes_what_the_file_holds(file: Prompt, state: State) -> None:
    snapshot = bot(file, state).describe()
    assert [each.id for each in snapshot.nodes] == ["bot"]
    assert {each.id: each.value for each in snapshot.surfaces} == {"bot#instruction": TEXT}


async def test_a_run_sees_its_profile_in_the_file_and_closing_restores_the_baseline(file: Prompt, state: State) -> None:
    async with bot(file, state) as agent:
        assert (await run(agent)).output == TEXT
        assert (await run(agent, "Be exact.\n")).output == "Be exact.\n"
        assert file.raw == codecs.BOM_UTF8 + b"Be exact.\r\n"
        assert state.names == ["in_place.json", "in_place.lock"]
    assert file.raw == BASELINE
    assert file.beside == []
    assert state.names == ["in_place.lock"]


async def test_it_can_be_used_again_after_it_was_closed(file: Prompt, state: State) -> None:
    agent = bot(file, state)
    for text in ("A", "B"):
        assert (await run(agent, text)).output == text
        assert [each.outcome for each in agent.close()] == ["restored"]
        assert file.raw == BASELINE
    assert agent.close() == []


async def test_the_file_keeps_its_mode_bits_through_candidates_and_back(file: Prompt, state: State) -> None:
    file.mode = 0o640
    async with bot(file, state) as agent:
        await run(agent, "A")
        assert file.mode == 0o640
    assert file.mode == 0o640


async def test_a_function_is_one_step_whose_reads_are_unknown(file: Prompt, state: State) -> None:
    async def answer(question: str) -> dict[str, str]:
        return {"asked": question}

    async with bot(file, state, answer) as agent:
        done = await run(agent, "A", case_id="c")
    assert done.data == {"asked": "hi"}
    assert done.trace is not None
    (step,) = done.trace.steps
    assert (step.id, step.node_id, step.kind, step.surface_reads) == ("bot", "bot", "agent", None)
    assert step.input.text == "hi"


async def test_an_error_of_the_function_is_the_error_of_the_run(file: Prompt, state: State) -> None:
    def answer(question: str) -> str:
        if question == "hi":
            raise ValueError("no words")
        raise SystemExit(3)

    async with bot(file, state, answer) as agent:
        done = await run(agent, "A")
        left = await agent.run(CaseInput(text="exit"), profile(agent))
    assert done.error == Failure("ValueError", "no words")
    assert str(left.error) == "AgentError: the function called sys.exit(3)"


async def test_a_wrapped_agent_keeps_its_trace_and_is_given_the_same_values(file: Prompt, state: State) -> None:
    @node(instruction="not yet known")
    def planner(question: str) -> str:
        return f"{surface('instruction')}|{file.text}"

    @node(instruction="Write.")
    def writer(plan: str) -> str:
        return f"{plan}|{surface('instruction')}"

    sources = {"planner#instruction": FileSource(file.path)}
    async with InPlaceAgent(chain("desk", planner, writer), sources, state_folder=state.path) as agent:
        snapshot = agent.describe()
        assert {each.id: each.value for each in snapshot.surfaces} == {
            "planner#instruction": TEXT,
            "writer#instruction": "Write.",
        }
        baseline = await agent.run(CaseInput(text="hi"), Profile.baseline(snapshot))
        other = Profile.of(snapshot, {"planner#instruction": "Plan.", "writer#instruction": "Sing."})
        done = await agent.run(CaseInput(text="hi"), other)
    assert baseline.output == f"{TEXT}|{TEXT}|Write."
    assert done.output == "Plan.|Plan.|Sing."
    assert done.trace is not None
    reads = {step.id: step.surface_reads for step in done.trace.steps}
    assert reads["planner"] is None
    assert list(reads["writer"] or ()) == ["writer#instruction"]


async def test_a_source_gives_a_node_a_surface_that_its_agent_does_not_have(file: Prompt, state: State) -> None:
    def planner(question: str) -> str:
        return file.text

    sources = {"planner#instruction": FileSource(file.path)}
    async with InPlaceAgent(chain("desk", planner), sources, state_folder=state.path) as agent:
        other = Profile.of(agent.describe(), {"planner#instruction": "Plan."})
        assert (await agent.run(CaseInput(text="hi"), other)).output == "Plan."
    with pytest.raises(SetupError, match="'painter', which is not a node"):
        InPlaceAgent(
            chain("desk", planner), {"painter#instruction": FileSource(file.path)}, state_folder=state.path
        ).describe()


async def test_parameters_are_stored_as_json_and_models_without_white_space(tmp_path: Path, state: State) -> None:
    held = {"parameter.top_k": "3\n", "model": "small\n", "examples": "[]"}
    for name, text in held.items():
        (tmp_path / name).write_text(text)
    sources: dict[str, Source] = {f"bot#{name}": FileSource(tmp_path / name) for name in held}

    def answer(question: str) -> list[str]:
        return [(tmp_path / name).read_text() for name in held]

    async with InPlaceAgent(answer, sources, state_folder=state.path) as agent:
        snapshot = agent.describe()
        assert {each.id: each.value for each in snapshot.surfaces} == {
            "bot#examples": [],
            "bot#model": "small",
            "bot#parameter.top_k": 3,
        }
        other = Profile.of(snapshot, {"bot#parameter.top_k": 5, "bot#model": "large"})
        assert (await agent.run(CaseInput(text=""), other)).data == ["5", "large", "[]"]
    assert {name: (tmp_path / name).read_text() for name in held} == held


def test_invalid_sources_are_refused(file: Prompt, state: State) -> None:
    other = file.sibling("other.md", "no JSON")

    def answer(question: str) -> str:
        return question

    def refused(match: str, **sources: Prompt) -> None:
        places = {name.replace("_", "#", 1): FileSource(each.path) for name, each in sources.items()}
        with pytest.raises(SetupError, match=match):
            InPlaceAgent(answer, places, state_folder=state.path).describe()

    refused("needs sources")
    refused("'bot' is not a surface id", bot=file)
    refused("'bot#colour' is not a surface id", bot_colour=file)
    refused(
        "a function is one node, but the sources are for surfaces of bot, cat", bot_instruction=file, cat_skill=other
    )
    refused("each surface needs its own file", bot_instruction=file, bot_skill=file)
    refused("'bot#parameter' must hold JSON, holds 'no JSON'", bot_parameter=other)
    refused("cannot be read: No such file", bot_instruction=Prompt(file.path.with_name("gone")))


async def test_a_profile_of_another_structure_is_refused(file: Prompt, state: State) -> None:
    with pytest.raises(StructureMismatchError):
        await bot(file, state).run(CaseInput(text="hi"), Profile(structure_id="other"))
    assert file.raw == BASELINE


async def test_a_text_that_cannot_be_encoded_fails_its_run_and_changes_nothing(file: Prompt, state: State) -> None:
    file.raw = b"plain"
    sources = {"bot#instruction": FileSource(file.path, encoding="ascii")}
    async with InPlaceAgent(lambda question: question, sources, state_folder=state.path) as agent:
        done = await run(agent, "5 €")
        assert str(done.error).startswith("AgentError: ")
        assert "is encoded as ascii, which cannot represent '€'" in str(done.error)
        assert file.raw == b"plain"


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [True, False])
async def test_eight_runs_of_two_profiles_never_see_a_wrong_one(file: Prompt, state: State, is_async: bool) -> None:
    running: set[str] = set()
    most = 0

    def enter(question: str) -> str:
        nonlocal most
        running.add(question)
        most = max(most, len(running))
        return file.text

    async def slowly(question: str) -> str:
        seen = [enter(question)]
        for _ in range(3):
            await asyncio.sleep(0.002)
            seen.append(file.text)
        running.discard(question)
        return "".join(sorted(set(seen)))

    def in_thread(question: str) -> str:
        seen = [enter(question)]
        for _ in range(3):
            time.sleep(0.002)
            seen.append(file.text)
        running.discard(question)
        return "".join(sorted(set(seen)))

    async with bot(file, state, slowly if is_async else in_thread) as agent:
        limit = asyncio.Semaphore(8)

        async def one(number: int, text: str) -> str:
            async with limit:
                chosen = profile(agent, instruction=text)
                return (await agent.run(CaseInput(text=str(number)), chosen)).output

        # In pairs, so that there are both concurrent runs and switches.
        wanted = ["AB"[number // 2 % 2] for number in range(60)]
        assert await asyncio.gather(*map(one, range(60), wanted)) == wanted
    assert most == 2
    assert file.raw == BASELINE


async def test_runs_under_one_profile_are_concurrent(file: Prompt, state: State) -> None:
    barrier = asyncio.Barrier(8)

    async def answer(question: str) -> str:
        await barrier.wait()
        return file.text

    async with bot(file, state, answer) as agent, asyncio.timeout(10):
        done = await asyncio.gather(*(run(agent, "A") for _ in range(8)))
    assert [each.output for each in done] == ["A"] * 8


async def test_a_switch_comes_before_runs_that_arrive_after_it(file: Prompt, state: State) -> None:
    order: list[str] = []
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(question: str) -> str:
        order.append(file.text)
        asked.set()
        await go.wait()
        return ""

    async with bot(file, state, answer) as agent, asyncio.TaskGroup() as group:
        for text in ("A", "B", "A"):
            group.create_task(run(agent, text))
            await asked.wait()
        assert order == ["A"]
        go.set()
    assert order == ["A", "B", "A"]


async def test_a_function_that_timed_out_keeps_its_profile_until_it_returns(file: Prompt, state: State) -> None:
    seen: list[str] = []
    started, go = threading.Event(), threading.Event()

    def answer(question: str) -> str:
        started.set()
        go.wait(10)
        seen.append(file.text)
        return seen[-1]

    async with bot(file, state, answer) as agent:
        late = await run(agent, "A", deadline_s=0.05)
        assert late.error is not None
        assert late.error.type == "TimeoutError"
        assert started.is_set()
        next_one = asyncio.create_task(run(agent, "B"))
        await asyncio.sleep(0.1)
        assert file.text == "A"
        go.set()
        assert (await next_one).output == "B"
    assert seen == ["A", "B"]


async def test_runs_that_are_cancelled_while_they_wait_leave_the_turn_to_others(file: Prompt, state: State) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(question: str) -> str:
        asked.set()
        await go.wait()
        return file.text

    async with bot(file, state, answer) as agent:
        first = asyncio.create_task(run(agent, "A"))
        await asked.wait()
        waiting = asyncio.create_task(run(agent, "B"))
        behind = asyncio.create_task(run(agent, "A"))
        await asyncio.sleep(0.02)
        waiting.cancel()
        go.set()
        assert [(await each).output for each in (first, behind)] == ["A", "A"]
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_cancelled_switch_finishes_before_the_next(state: State) -> None:
    store = {"key": "base"}
    writing, go = threading.Event(), threading.Event()

    def write(value: str) -> None:
        writing.set()
        go.wait(10)
        store["key"] = value

    sources = {"bot#instruction": CallbackSource(lambda: store["key"], write)}
    async with InPlaceAgent(lambda _: store["key"], sources, state_folder=state.path) as agent:
        cancelled = asyncio.create_task(run(agent, "A"))
        assert await asyncio.to_thread(writing.wait, 10)
        cancelled.cancel()
        following = asyncio.create_task(run(agent, "B"))
        await asyncio.sleep(0.05)
        assert not cancelled.done()
        go.set()
        assert (await following).output == "B"
        assert cancelled.cancelled()
    assert store == {"key": "base"}


async def test_closing_while_cancelled_restores_at_once(file: Prompt, state: State) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(question: str) -> str:
        asked.set()
        await go.wait()
        return ""

    agent = bot(file, state, answer)
    running = asyncio.create_task(run(agent, "A"))
    await asked.wait()
    closing = asyncio.create_task(agent.aclose())
    await asyncio.sleep(0.02)
    assert file.text == "A"
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert file.raw == BASELINE
    go.set()
    await running


def test_event_loops_take_turns_like_processes(file: Prompt, state: State) -> None:
    agent = bot(file, state)
    wrong: list[str] = []

    def work(text: str) -> None:
        async def loop() -> None:
            for _ in range(15):
                done = await run(agent, text)
                if done.output != text:
                    wrong.append(f"{done.output} for {text}: {done.error}")

        asyncio.run(loop())

    threads = [threading.Thread(target=work, args=(text,)) for text in ("A", "B")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    agent.close()
    assert file.raw == BASELINE


async def test_a_switch_does_not_overwrite_an_edit(file: Prompt, state: State) -> None:
    agent = bot(file, state)
    await run(agent, "A")
    file.raw = b"Mine!"
    with pytest.raises(EditedSourceError, match="it was edited while a candidate was in place"):
        await run(agent, "B")
    assert file.raw == b"Mine!"
    assert [each.outcome for each in agent.close()] == ["edited"]
    assert file.raw == b"Mine!"
    assert file.saved_beside == BASELINE


async def test_restore_keeps_an_edit_and_the_baseline_unless_forced(file: Prompt, state: State) -> None:
    agent = bot(file, state)
    await run(agent, "A")
    file.raw = b"Mine!"
    for _ in range(2):
        (done,) = restore(state.path)
        assert done.outcome == "edited"
        assert "promptiter restore --force" in done.note
        assert file.raw == b"Mine!"
        assert file.saved_beside == BASELINE
    with pytest.raises(EditedSourceError, match="to keep the edit, delete"):
        bot(file, state).describe()
    assert [each.outcome for each in restore(state.path, force=True)] == ["restored"]
    assert file.raw == BASELINE
    assert file.beside == []
    assert restore(state.path) == []


async def test_an_edit_is_the_new_baseline_once_the_saved_one_is_deleted(file: Prompt, state: State) -> None:
    agent = bot(file, state)
    await run(agent, "A")
    file.raw = b"Mine!"
    restore(state.path)
    state.record.path.unlink()
    async with bot(file, state) as other:
        assert (await run(other, "B")).output == "B"
    assert file.raw == b"Mine!"


async def test_a_deleted_file_is_restored_with_its_mode(file: Prompt, state: State) -> None:
    file.mode = 0o640
    agent = bot(file, state)
    await run(agent, "A")
    file.path.unlink()
    assert [each.outcome for each in restore(state.path)] == ["restored"]
    assert file.raw == BASELINE
    assert file.mode == 0o640


async def test_a_file_that_changes_between_description_and_first_run_is_reported(file: Prompt, state: State) -> None:
    agent = bot(file, state)
    agent.describe()
    file.raw = b"newer"
    with pytest.raises(SetupError, match=r"bot.md changed after the agent was described; restart"):
        await run(agent, "A")
    assert file.raw == b"newer"
    assert restore(state.path) == []


@pytest.mark.slow
async def test_an_agent_reads_the_saved_baseline_while_another_one_is_running(file: Prompt, state: State) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(question: str) -> str:
        asked.set()
        await go.wait()
        return ""

    async with bot(file, state, answer) as agent:
        running = asyncio.create_task(run(agent, "A"))
        await asked.wait()
        assert file.text == "A"
        assert bot(file, state).describe().surface("bot#instruction").value == TEXT
        with pytest.raises(SetupError, match=r"process \d+ is running with a candidate"):
            await asyncio.to_thread(restore, state.path)
        go.set()
        await running


async def test_a_start_after_a_kill_restores_before_it_describes(file: Prompt, state: State) -> None:
    await run(bot(file, state), "A")
    assert file.text == "A"
    assert bot(file, state).describe().surface("bot#instruction").value == TEXT
    assert file.raw == BASELINE


async def test_another_state_folder_does_not_mistake_a_candidate_for_the_baseline(file: Prompt, state: State) -> None:
    other = State(state.path.with_name("other"))
    first = bot(file, state)
    second = bot(file, other)
    second.describe()
    await run(first, "A")
    for attempt in (bot(file, other).describe, lambda: asyncio.run(run(second, "B"))):
        with pytest.raises(SetupError, match=f"candidate of another agent, whose state folder is '{state.path}'"):
            await asyncio.to_thread(attempt)
    first.close()
    async with second:
        assert (await run(second, "B")).output == "B"
    assert file.raw == BASELINE
    assert file.beside == []


async def test_a_leftover_lock_is_taken_over(file: Prompt, state: State) -> None:
    file.sibling(".bot.md.promptiter-lock", "/gone/for/good")
    async with bot(file, state) as agent:
        assert (await run(agent, "A")).output == "A"
    assert file.beside == []


async def test_a_state_folder_in_use_for_other_sources_is_refused(file: Prompt, state: State) -> None:
    other = file.sibling("other.md", "other")
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(question: str) -> str:
        asked.set()
        await go.wait()
        return ""

    async with bot(file, state, answer) as agent:
        running = asyncio.create_task(run(agent, "A"))
        await asked.wait()
        with pytest.raises(SetupError, match="give each agent its own state_folder"):
            bot(other, state).describe()
        go.set()
        await running


async def test_a_damaged_saved_baseline_is_reported_and_changes_nothing(file: Prompt, state: State) -> None:
    await run(bot(file, state), "A")
    whole = state.record.raw
    for damaged in (whole[:40], whole.replace(b'"mode"', b'"made"'), whole.replace(b"bot#i", b"cat#i")):
        state.record.raw = damaged
        with pytest.raises(SetupError, match="is damaged"):
            restore(state.path)
        assert file.text == "A"
    state.record.raw = whole
    assert [each.outcome for each in restore(state.path)] == ["restored"]


async def test_a_callback_is_restored_by_a_program_that_has_it(file: Prompt, state: State) -> None:
    store = {"key": "base\r\n"}
    sources: dict[str, Source] = {
        "bot#skill": CallbackSource(lambda: store["key"], lambda value: store.__setitem__("key", value)),
        "bot#instruction": FileSource(file.path),
    }
    agent = InPlaceAgent(lambda _: store["key"], sources, state_folder=state.path)
    assert (await agent.run(CaseInput(text=""), profile(agent, skill="A", instruction="B"))).output == "A"
    done = {each.surface_id: each.outcome for each in restore(state.path)}
    assert done == {"bot#instruction": "restored", "bot#skill": "unreachable"}
    assert file.raw == BASELINE
    assert [each.outcome for each in restore(state.path, sources=sources)] == ["restored"]
    assert store == {"key": "base\r\n"}


async def test_a_callback_that_fails_does_not_keep_others_from_being_restored(file: Prompt, state: State) -> None:
    store = {"key": "base"}
    is_down = False

    def write(value: str) -> None:
        if is_down:
            raise ConnectionError("gone")
        store["key"] = value

    sources: dict[str, Source] = {
        "bot#file": CallbackSource(lambda: store["key"], write),
        "bot#instruction": FileSource(file.path),
    }
    agent = InPlaceAgent(lambda question: question, sources, state_folder=state.path)
    await agent.run(CaseInput(text=""), profile(agent, file="A", instruction="B"))
    is_down = True
    first = agent.close()
    assert [(each.outcome, each.note) for each in first] == [("failed", "ConnectionError: gone"), ("restored", "")]
    assert file.raw == BASELINE
    is_down = False
    assert [each.outcome for each in agent.close()] == ["restored"]
    assert store == {"key": "base"}


async def test_a_store_that_changes_values_is_refused_and_restored(state: State) -> None:
    store = {"key": "base"}
    source = CallbackSource(lambda: store["key"], lambda value: store.__setitem__("key", value.strip()))
    agent = InPlaceAgent(lambda question: question, {"bot#instruction": source}, state_folder=state.path)
    with pytest.raises(SetupError, match="does not keep what is written to it: b'A\\\\n' became b'A'"):
        await run(agent, "A\n")
    assert store == {"key": "base"}


async def test_an_evaluation_of_an_in_place_agent_scores_each_profile_separately(file: Prompt, state: State) -> None:
    cases = tuple(EvalCase(id=f"c{number}", turns=(Turn(user="hi", expected="A"),)) for number in range(6))
    eval_set = EvalSet(id="set", cases=cases)
    exact = FunctionMetric(name="exact", function=lambda case, run: float(run.output == case.turns[0].expected))
    evaluator = Evaluator([exact], options=EvaluationOptions(concurrency=4))
    async with bot(file, state) as agent, asyncio.TaskGroup() as group:
        evaluations = {
            text: group.create_task(evaluator.evaluate(agent, eval_set, profile(agent, instruction=text)))
            for text in ("A", "B")
        }
    assert {text: each.result().mean_score for text, each in evaluations.items()} == {"A": 1.0, "B": 0.0}
    assert file.raw == BASELINE


async def test_a_field_of_a_file_is_a_source(tmp_path: Path, state: State) -> None:
    path = tmp_path / "bot.yaml"
    raw = b"# bot\r\nprompt: 'Be brief.'  # short\r\n"
    path.write_bytes(raw)
    source = FieldSource(path, inside=YamlField("prompt"))
    agent = InPlaceAgent(lambda _: path.read_text(), {"bot#instruction": source}, state_folder=state.path)
    async with agent:
        assert agent.describe().surface("bot#instruction").value == "Be brief."
        done = await agent.run(CaseInput(text=""), profile(agent, instruction="It's long."))
        assert done.output == "# bot\nprompt: 'It''s long.'  # short\n"
    assert path.read_bytes() == raw
