"""The pytest plugin: an eval set is a test file, and each of its cases a test.

`pytest promptiter.yaml` runs the cases of the validation set, with their ids as names; `--promptiter promptiter.yaml`
adds them to the other tests. Agent, metrics, models and cache are those of the configuration. All selected cases run at
the same time, before the first of them is reported; under xdist each worker runs its own. pytest loads this module in
every project where promptiter is installed, so it imports nothing else until a configuration is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:  # promptiter is imported when it is used
    from promptiter.config.configured_run import ConfiguredEvaluation, EvaluatedCases
    from promptiter.evaluation.result import Evaluation

FILE_NAME = "promptiter.yaml"
SETS = ("train", "validation", "cases", "test")
SCORE, OUTCOME = "promptiter_score", "promptiter_outcome"
"""Properties of the report of a case, which also get from a worker of xdist to its controller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("promptiter", "eval sets as tests (promptiter)")
    group.addoption(
        "--promptiter",
        action="append",
        default=[],
        metavar="CONFIG",
        help="Also run the cases of this promptiter.yaml (or of the one in this folder) as tests.",
    )
    group.addoption(
        "--promptiter-eval-set", metavar="SET", help="train, validation (default), cases or test, or a file."
    )
    group.addoption("--promptiter-profile", metavar="FILE", help="Run under this profile, not the baseline.")
    for name, what in (("pass-rate", "share of cases that pass"), ("score", "mean score")):
        group.addoption(
            f"--promptiter-min-{name}",
            type=float,
            metavar="X",
            help=f"Fail only if the {what} is below this; failing cases are then reported as xfailed.",
        )
    parser.addini("promptiter", "configurations whose cases are tests: see --promptiter", type="paths", default=[])
    parser.addini("promptiter_eval_set", "see --promptiter-eval-set", default="validation")
    parser.addini("promptiter_min_pass_rate", "see --promptiter-min-pass-rate", default="")
    parser.addini("promptiter_min_score", "see --promptiter-min-score", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that does the work, if a configuration is named."""
    here = config.invocation_params.dir
    given = [(here / argument.partition("::")[0]) for argument in config.args]
    named = [_find_file(here / name) for name in config.getoption("--promptiter")]
    files = named or [_find_file(Path(path)) for path in config.getini("promptiter")]
    known = [*files, *(_find_file(path) for path in given if path.name == FILE_NAME)]
    if not known:
        return
    config.pluginmanager.register(EvalSetPlugin(config, known), "promptiter_eval_sets")
    if named or config.args_source is not pytest.Config.ArgsSource.ARGS:
        paths = {path.resolve() for path in given}
        config.args += [str(file) for file in files if file not in paths]


def _find_file(path: Path) -> Path:
    return (path / FILE_NAME if path.is_dir() else path).resolve()


class EvalSetPlugin:
    """Collects the cases of some configurations, and decides on the whole if a threshold for it is given."""

    def __init__(self, config: pytest.Config, files: Collection[Path]) -> None:
        self.config = config
        self.files = files
        self.min_pass_rate = _read_limit(config, "pass_rate")
        self.min_score = _read_limit(config, "score")
        self._outcomes: dict[str, dict[str, tuple[str, float | None]]] = {}

    @property
    def has_limits(self) -> bool:
        return self.min_pass_rate is not None or self.min_score is not None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> EvalSetFile | None:
        if file_path.resolve() not in self.files:
            return None
        found: EvalSetFile = EvalSetFile.from_parent(parent, path=file_path, plugin=self)
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if OUTCOME in properties:
            outcome, score = str(properties[OUTCOME]), properties.get(SCORE)
            name = report.nodeid.partition("::")[0]
            self._outcomes.setdefault(name, {})[report.nodeid] = outcome, score  # type: ignore[assignment]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_worker = hasattr(self.config, "workerinput")
        if not is_worker and session.exitstatus == pytest.ExitCode.OK and not all(ok for _, ok in self._judge()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = list(self._judge())
        if lines:
            terminalreporter.section("promptiter")
        for line, is_good in lines:
            terminalreporter.write_line(line, green=is_good, red=not is_good)

    def _judge(self) -> Iterator[tuple[str, bool]]:
        """For each configuration its figures against the limits, if there are any, and whether they are reached."""
        for name, cases in self._outcomes.items():
            scores = [score for _, score in cases.values() if score is not None]
            rate = sum(outcome == "passed" for outcome, _ in cases.values()) / len(cases)
            mean = sum(scores) / len(scores) if scores else None
            for what, value, limit in (("pass rate", rate, self.min_pass_rate), ("mean score", mean, self.min_score)):
                if limit is not None:
                    shown = "unknown" if value is None else f"{value:.3f}"
                    is_good = value is not None and value >= limit
                    yield f"{'PASSED' if is_good else 'FAILED'} {name}: {what} {shown}, the limit is {limit:g}", is_good


def _read_limit(config: pytest.Config, name: str) -> float | None:
    given = config.getoption(f"--promptiter-min-{name.replace('_', '-')}")
    text = config.getini(f"promptiter_min_{name}")
    try:
        found = given if given is not None else float(text) if text else None
    except ValueError:
        found = -1.0
    if found is not None and not 0 <= found <= 1:
        wrong = text if given is None else given
        raise pytest.UsageError(f"promptiter_min_{name} is {wrong!r}; give a number from 0 to 1")
    return found


class EvalSetFile(pytest.File):
    """The eval set of a configuration. Collecting it reads the cases, and neither imports nor calls the agent."""

    def __init__(self, *, plugin: EvalSetPlugin, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.plugin = plugin
        config = self.config
        given = config.getoption("--promptiter-eval-set")
        folder = config.invocation_params.dir if given else config.rootpath
        self.eval_set = _find_eval_set(given or config.getini("promptiter_eval_set"), folder)
        self._built: ConfiguredEvaluation | None = None
        self._results: dict[str, CaseOutcome] = {}
        self._error: Exception | None = None

    def collect(self) -> Iterator[CaseItem]:
        from promptiter.config.eval_sets import load_one_set
        from promptiter.config.file import read_config
        from promptiter.config.problems import Problems
        from promptiter.errors import PromptiterError
        from traces.text import one_line

        try:
            parsed = read_config(self.path, settings=self._settings)
            problems = Problems(parsed, [])
            cases = load_one_set(problems, self.eval_set)
        except PromptiterError as error:
            raise self.CollectError(str(error)) from None
        if cases is None:
            found = "\n".join([*parsed.problems, *problems.found])
            raise self.CollectError(found.replace("--eval-set", "--promptiter-eval-set"))
        for case in cases.cases:
            item: CaseItem = CaseItem.from_parent(self, name=one_line(case.id), case_id=case.id)
            if self.config.pluginmanager.hasplugin("timeout"):  # the first test waits for all cases
                item.add_marker(pytest.mark.timeout(0))
            yield item

    @property
    def _settings(self) -> dict[str, Any]:
        profile = self.config.getoption("--promptiter-profile")
        return {"initial_profile": str(self.config.invocation_params.dir / profile)} if profile else {}

    def get_outcome(self, item: CaseItem) -> CaseOutcome:
        """The outcome of a case. The first that is asked for runs all selected cases; under xdist, only itself."""
        if self._error is not None:
            raise self._error
        if item.case_id not in self._results:
            items = [item] if hasattr(self.config, "workerinput") else item.session.items
            case_ids = {each.case_id for each in items if isinstance(each, CaseItem) and each.parent is self}
            try:
                self._results |= self._run(case_ids | {item.case_id})
            except Exception as error:
                self._error = error
                raise
        return self._results[item.case_id]

    def _run(self, case_ids: Collection[str]) -> dict[str, CaseOutcome]:
        import asyncio

        from promptiter.api import load_evaluation

        if self._built is None:
            self._built = load_evaluation(self.path, self.eval_set, settings=self._settings)
        return list_outcomes(asyncio.run(self._built.evaluate(case_ids)))

    def teardown(self) -> None:
        if self._built is not None:
            self._built.gateway.cache.close()
            self._built = None


class CaseItem(pytest.Item):
    """One case. It fails if a metric is below its threshold; if it could not be scored, it is an error."""

    parent: EvalSetFile

    def __init__(self, *, case_id: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.case_id = case_id

    def setup(self) -> None:
        from promptiter.errors import PromptiterError

        try:
            outcome = self.parent.get_outcome(self)
        except PromptiterError as error:
            pytest.fail(str(error), pytrace=False)  # pytest does not ask `repr_failure` about a setup
        self.user_properties += [(OUTCOME, outcome.kind), (SCORE, outcome.score)]
        if outcome.kind == "unscored":
            pytest.fail(outcome.message, pytrace=False)

    def runtest(self) -> None:
        outcome = self.parent.get_outcome(self)
        if outcome.kind == "failed" and self.parent.plugin.has_limits:
            pytest.xfail(f"failed, which the limits may allow:\n{outcome.message}")
        if outcome.kind == "failed":
            raise CaseFailure(outcome.message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CaseFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name


class CaseFailure(Exception):  # noqa: N818 - it is what a test reports
    """A case that failed."""


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a case; the `message` has input, expected and actual answer, metric, score and reason as JSON."""

    kind: Literal["passed", "failed", "unscored"]
    score: float | None
    message: str


def list_outcomes(done: EvaluatedCases) -> dict[str, CaseOutcome]:
    """The outcome of each case of an evaluation, by id."""
    from promptiter.evaluation.failure_details import describe_failures

    evaluation, cases = done.evaluation, done.cases.by_id
    found = {}
    for each in evaluation.cases:
        rows = evaluation.rows_by_case[each.case_id]
        details = [] if each.passed else describe_failures(cases[each.case_id], rows)
        found[each.case_id] = CaseOutcome(
            kind="passed" if each.passed else "failed" if each.is_scored else "unscored",
            score=each.score,
            message=_write_message(each.case_id, details),
        )
    return found


def _write_message(case_id: str, details: list[dict[str, Any]]) -> str:
    """The first failure in words, for pytest's summary, then all of them as JSON."""
    words = [_write_line(each["metric"], each["score"], each["reason"]) for each in details[:1]]
    return "\n".join([*words, json.dumps({"case": case_id, "failures": details}, indent=2, ensure_ascii=False)])


def _write_line(metric: str, score: float | None, reason: str) -> str:
    from traces.text import one_line

    shown = "not scored" if score is None else f"{score:g}"
    return one_line(f"{metric} {shown}: {reason.removeprefix(f'{metric}: ')}")


@pytest.fixture(scope="session")
def promptiter_evaluate(pytestconfig: pytest.Config) -> Callable[..., Evaluation]:
    """Evaluate an agent in a test: `promptiter_evaluate("promptiter.yaml", min_pass_rate=0.9)`.

    The test fails if a case does not pass, or with `min_pass_rate` or `min_score` if the whole is below it. The path is
    relative to the root folder of pytest. Returns the Evaluation.
    """

    def evaluate(
        config: str | Path = FILE_NAME,
        *,
        eval_set: str = "validation",
        profile: str | Path | None = None,
        cases: Collection[str] | None = None,
        min_pass_rate: float | None = None,
        min_score: float | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Evaluation:
        from promptiter.api import load_evaluation

        root = pytestconfig.rootpath
        chosen = {**(settings or {}), **({"initial_profile": str(root / profile)} if profile else {})}
        built = load_evaluation(root / config, _find_eval_set(eval_set, root), settings=chosen)
        try:
            done = _run_anywhere(built.evaluate(cases))
        finally:
            built.gateway.cache.close()
        check_evaluation(done, min_pass_rate=min_pass_rate, min_score=min_score)
        return done.evaluation

    return evaluate


def check_evaluation(done: EvaluatedCases, *, min_pass_rate: float | None, min_score: float | None) -> None:
    """Fail the test if a case could not be scored, or if cases fail, or the whole is below its limits."""
    evaluation, outcomes = done.evaluation, list_outcomes(done)
    rate, score = evaluation.pass_rate, evaluation.mean_score
    limits = (("pass rate", rate, min_pass_rate), ("mean score", score, min_score))
    given = [(name, value, limit) for name, value, limit in limits if limit is not None]
    problems = [
        f"{name} {value}, at least {limit:g} is needed" for name, value, limit in given if (value or 0.0) < limit
    ]
    bad = [name for name, each in outcomes.items() if each.kind == "unscored" or (each.kind == "failed" and not given)]
    if bad:
        problems.append(f"{len(bad)} of {len(outcomes)} cases did not pass: {', '.join(bad)}")
    if problems:
        failed = [each.message for each in outcomes.values() if each.kind != "passed"]
        pytest.fail("\n".join([*problems, *failed]), pytrace=False)


def _find_eval_set(name: str, folder: Path) -> str:
    """A key of the configuration, or the path of a file, relative to a folder."""
    return name if name in SETS else str(folder / name)


def _run_anywhere(work: Coroutine[Any, Any, EvaluatedCases]) -> EvaluatedCases:
    """Run a coroutine, also in a test whose event loop is running: that one waits for a thread."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
